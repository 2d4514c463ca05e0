//! Finds out which files were read, and tells the buffer thread of them.
//!
//! An arrival in the page cache is no read: files are prefetched, and a sample of a task that has not begun
//! must not be rehearsed. A file counts as read in three cases:
//!
//! 1. It is opened, or its bytes are asked for, and then they arrive.
//! 2. A process is seen at it after its bytes arrived.
//! 3. Its bytes arrive at most [`SOON_S`] seconds after a process was seen at it. The reader may find them in
//!    the page cache, and the arrival is only heard of after the open.
//!
//! An open without a request is not seen. So the planner withholds each file until it was offered.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use super::notes::{Note, Notes};
use crate::cache::{Arrival, Cache, Observer};
use crate::catalog::{Located, NodeId};
use crate::disk::Buffer;
use crate::ids::{BLOCK_BYTES, FileId};
use crate::plan::{Action, Event};

/// How many bytes may wait for reads or for the buffer thread. Others are fetched again if they are kept.
const WAITING_BYTES_MAX: u64 = 64 << 20;

/// If the bytes take longer, a reader that has opened the file asks for them.
const SOON_S: u32 = 5;

pub(super) struct WaitingBytes {
    /// Their version.
    node: NodeId,
    pub(super) bytes: Arc<Buffer>,
    total: Arc<AtomicU64>,
}

impl WaitingBytes {
    /// None if more than `most` bytes would wait.
    fn new(arrival: &Arrival, total: &Arc<AtomicU64>, most: u64) -> Option<Self> {
        let Arrival { node, bytes, .. } = arrival.clone();
        let length = bytes.len() as u64;
        let waiting = WaitingBytes { node, bytes, total: Arc::clone(total) };
        let before = total.fetch_add(length, Ordering::Relaxed);
        (before + length <= most).then_some(waiting)
    }
}

impl Drop for WaitingBytes {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes.len() as u64, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum ReadStage {
    #[default]
    Unknown,
    /// A process was seen at it, this many seconds after the start.
    Seen(u32),
    /// Its bytes were asked for and are on their way.
    Asked,
    /// Its bytes are in the page cache, or were.
    Arrived,
    /// It was read, and the buffer thread was told.
    Reported,
}

/// The observer that tells the buffer thread of files that were read. It is on the planner's thread and never
/// waits.
pub(crate) struct ReadObserver {
    notes: Notes,
    cache: Arc<Cache>,
    /// Files whose bytes could not be read after all.
    failed: Receiver<NodeId>,
    total: Arc<AtomicU64>,
    started: Instant,
    stages: Vec<ReadStage>,
    /// Bytes of files that have arrived and were not read yet.
    waiting: HashMap<FileId, WaitingBytes>,
}

impl ReadObserver {
    pub(super) fn new(notes: Notes, cache: Arc<Cache>, failed: Receiver<NodeId>) -> Self {
        let (stages, waiting, total) = (Vec::new(), HashMap::new(), Arc::default());
        ReadObserver { notes, cache, failed, total, started: Instant::now(), stages, waiting }
    }

    fn stage(&mut self, file: FileId) -> &mut ReadStage {
        if self.stages.len() <= file.index() {
            self.stages.resize(file.index() + 1, ReadStage::Unknown);
        }
        &mut self.stages[file.index()]
    }

    fn now_s(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX)
    }

    /// Withholds files whose bytes could not be read, so that they are offered at their next read.
    fn take_failed(&mut self, events: &mut Vec<Event>) {
        while let Ok(node) = self.failed.try_recv() {
            if let Some(file) = node.file()
                && *self.stage(file) == ReadStage::Reported
            {
                *self.stage(file) = ReadStage::Arrived;
                events.push(Event::Withheld { file });
            }
        }
    }

    /// A process has opened a file (`is_open`), or may have.
    fn seen(&mut self, file: FileId, is_open: bool, events: &mut Vec<Event>) {
        let now_s = self.now_s();
        match self.stage(file) {
            ReadStage::Arrived => self.report_present(file, events),
            ReadStage::Reported | ReadStage::Asked => {}
            stage if is_open => *stage = ReadStage::Asked,
            stage => *stage = ReadStage::Seen(now_s),
        }
    }

    /// A reader asked for bytes of a file.
    fn asked(&mut self, located: &Located, events: &mut Vec<Event>) {
        let Some(file) = located.node.file() else { return };
        if *self.stage(file) == ReadStage::Reported {
            return;
        }
        *self.stage(file) = ReadStage::Asked;
        // The buffer thread fetches a large file as a whole, so its arrival is not awaited.
        let size = self.cache.catalog().file(located.node).map(|(_, size)| size);
        if size.is_ok_and(|size| size >= BLOCK_BYTES) {
            self.report(file, located.node, events);
        }
    }

    /// Bytes of a file are in the page cache. The buffer thread gets them if they are the whole file and there
    /// is room.
    fn arrived(&mut self, located: &Located, arrival: Option<&Arrival>, events: &mut Vec<Event>) {
        let Some(file) = located.node.file() else { return };
        let before = *self.stage(file);
        if before == ReadStage::Reported {
            return;
        }
        *self.stage(file) = ReadStage::Arrived;
        let is_whole = located.length as u64 == located.fingerprint.size();
        let most = WAITING_BYTES_MAX.min(self.cache.memory().capacity() as u64 / 8);
        if let Some(arrival) = arrival.filter(|arrival| is_whole && arrival.node == located.node)
            && let Some(waiting) = WaitingBytes::new(arrival, &self.total, most)
        {
            self.waiting.insert(file, waiting);
        }
        let is_soon = |at_s| self.now_s().saturating_sub(at_s) <= SOON_S;
        if before == ReadStage::Asked || matches!(before, ReadStage::Seen(at_s) if is_soon(at_s)) {
            self.report(file, located.node, events);
        }
    }

    fn report_present(&mut self, file: FileId, events: &mut Vec<Event>) {
        if *self.stage(file) != ReadStage::Reported
            && let Some((node, ..)) = self.cache.catalog().name(file)
        {
            self.report(file, node, events);
        }
    }

    fn report(&mut self, file: FileId, node: NodeId, events: &mut Vec<Event>) {
        let bytes = self.waiting.remove(&file).filter(|waiting| waiting.node == node);
        // If there is no room, it is offered at its next read.
        if self.notes.try_send(Note::Read { node, bytes }) {
            *self.stage(file) = ReadStage::Reported;
            events.push(Event::Released { file });
        }
    }
}

impl Observer for ReadObserver {
    fn observe(&mut self, event: &Event, arrival: Option<&Arrival>, events: &mut Vec<Event>) {
        self.take_failed(events);
        match *event {
            Event::Missed { block, .. }
            | Event::Joined { block, .. }
            | Event::Probed { block, .. }
            | Event::Part { block, .. } => {
                if let Some(located) = self.cache.catalog().locate(block) {
                    self.asked(&located, events);
                }
            }
            Event::Opened { file, .. } => self.seen(file, true, events),
            Event::Seen { file, .. } | Event::Touched { file, .. } => {
                self.seen(file, false, events)
            }
            Event::PassedThrough { file } => self.report_present(file, events),
            Event::Arrived { block, .. } => {
                if let Some(located) = self.cache.catalog().locate(block) {
                    self.arrived(&located, arrival, events);
                }
            }
            Event::Changed { ref files, .. } => {
                for file in files {
                    self.waiting.remove(file);
                    *self.stage(*file) = ReadStage::Unknown;
                }
            }
            _ => {}
        }
    }

    fn carry_out(&mut self, action: &Action) {
        if let Action::Began { epoch } = *action {
            // Earlier events were before this epoch. The buffer thread may have ended.
            _ = self.notes.send(Note::Began { epoch });
        }
    }
}
