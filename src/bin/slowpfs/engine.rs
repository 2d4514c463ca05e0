//! Handles a request between arrival and answer: counters, the model, faults, the queue of replies.
//!
//! A request handler calls [`Engine::admit`] when the request arrives. This counts the request, asks the
//! model when it completes, and looks for a fault. Then the handler does the real work and passes the answer
//! to [`Engine::finish`]. This sends the answer at once, keeps it until it is due, or lets it hang.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use fuser::{Errno, FileAttr};

use crate::fault::{Fault, Faults};
use crate::locked;
use crate::model::{Model, Nanos, Request};
use crate::reply_queue::ReplyQueue;
use crate::stats::{Op, Stats};

/// The decisions about an operation at its arrival.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    due: Nanos,
    /// The fault that it meets, and how often faults had been cleared before.
    fault: Option<(Fault, u64)>,
}

impl Ticket {
    /// Does the work, unless the operation must fail.
    pub(crate) fn work<T>(&self, work: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        self.fault.and_then(|(fault, _)| fault.errno()).map_or_else(work, Err)
    }

    /// The attributes that the operation reports.
    pub(crate) fn reported_attr(&self, attr: FileAttr) -> FileAttr {
        let shrunk = matches!(self.fault, Some((Fault::Shrunk, _)));
        FileAttr { size: if shrunk { attr.size / 2 } else { attr.size }, ..attr }
    }

    /// Whether a read returns half of its data.
    pub(crate) fn is_short(&self) -> bool {
        matches!(self.fault, Some((Fault::Short, _)))
    }
}

/// Counters, model, faults and waiting replies of one mount.
pub(crate) struct Engine {
    pub(crate) stats: Arc<Stats>,
    pub(crate) faults: Faults,
    pub(crate) replies: ReplyQueue,
    model: Mutex<Model>,
    trace: Option<Mutex<BufWriter<File>>>,
}

impl Engine {
    /// An engine over `model`. It writes each operation to `trace`, if there is one.
    pub(crate) fn new(model: Model, trace: Option<File>) -> Self {
        Self {
            stats: Arc::default(),
            faults: Faults::default(),
            replies: ReplyQueue::new(),
            model: Mutex::new(model),
            trace: trace.map(|file| Mutex::new(BufWriter::new(file))),
        }
    }

    /// Admits an operation on `path`, whose inode is `ino`.
    pub(crate) fn admit(&self, op: Op, request: Request, ino: u64, path: &Path) -> Ticket {
        self.stats.arrived(op);
        let (now, admission) = {
            let mut model = locked(&self.model);
            // Under the lock, so that arrivals reach the model in the order of their times.
            let now = self.replies.now();
            (now, model.admit(now, request))
        };
        if admission.random {
            self.stats.random_read();
        }
        let fault = self.faults.find(op, path);
        if fault.is_some() {
            self.stats.injected();
        }
        self.trace(now, op, request, ino, path);
        Ticket { due: admission.done, fault }
    }

    /// Sends the answer of an operation when it is due.
    pub(crate) fn finish<F>(self: &Arc<Self>, ticket: Ticket, reply: F)
    where
        F: FnOnce(Option<Errno>) + Send + 'static,
    {
        if let Some((Fault::Hang, clears)) = ticket.fault {
            let engine = self.clone();
            self.replies.send_after_clear(clears, Box::new(move |error| engine.send(error, reply)));
        } else if ticket.due <= self.replies.now() {
            self.send(None, reply);
        } else {
            let engine = self.clone();
            self.replies.send_at(ticket.due, Box::new(move |error| engine.send(error, reply)));
        }
    }

    /// Notes that a file was closed for the last time. The closing process does not wait for this.
    pub(crate) fn released(&self, handle: u64, ino: u64, path: &Path) {
        self.stats.count(Op::Release);
        locked(&self.model).close(handle);
        self.trace(self.replies.now(), Op::Release, Request::Getattr, ino, path);
    }

    /// Changes the model while it runs.
    pub(crate) fn with_model<T>(&self, change: impl FnOnce(&mut Model) -> T) -> T {
        change(&mut locked(&self.model))
    }

    /// Writes what the trace has buffered.
    pub(crate) fn flush_trace(&self) -> io::Result<()> {
        self.trace.as_ref().map_or(Ok(()), |trace| locked(trace).flush())
    }

    fn send(&self, error: Option<Errno>, reply: impl FnOnce(Option<Errno>)) {
        // Counted first: a client that has the answer must find it counted.
        self.stats.answered();
        reply(error);
    }

    /// One line: microseconds since the start, operation, inode, offset, length, path.
    fn trace(&self, now: Nanos, op: Op, request: Request, ino: u64, path: &Path) {
        let Some(trace) = &self.trace else { return };
        let (offset, bytes) = match request {
            Request::Read { offset, bytes, .. } => (offset, bytes),
            _ => (0, 0),
        };
        let mut line =
            format!("{} {} {ino} {offset} {bytes} ", now / 1_000, op.name()).into_bytes();
        line.extend_from_slice(path.as_os_str().as_bytes());
        line.push(b'\n');
        // A full disk must not stop the filesystem. The next flush reports it.
        let _ = locked(trace).write_all(&line);
    }
}
