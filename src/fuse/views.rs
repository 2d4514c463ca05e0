//! Serves the views of rehearsal buffers.
//!
//! 1. Only scores and codes can be written. The offset of a write does not matter.
//! 2. Scores are lines. Each line is taken as soon as it is whole. The close fails with `EINVAL` if a score
//!    was refused, and with `ENOSPC` if the disk had no room for it.
//! 3. Codes are taken at the close, all or none. If they are not taken, the close fails. An fsync takes the
//!    codes that are whole. It is answered when all codes that were taken will survive a crash.
//! 4. The content of a file never changes, so the kernel keeps its pages. Bytes are read from the disk and
//!    compared with their checksum only if the kernel asks for pages it does not have.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileType, FopenFlags, INodeNo, OpenAccMode, ReplyData};
use nix::errno::Errno;

use super::convert;
use super::guard::is_answering;
use super::virtual_files::{Done, Name, Node, Opened, Tree, attr, part};
use super::writing::{Takes, Whole};
use crate::disk::journal::Pinned;
use crate::fs::Access;
use crate::rehearsal::CodeFile;
use crate::rehearsal::views::{Entry, EntryKind, InvalidateName, Views};
use crate::sync::is_holding;

/// How long the kernel may believe a name. A longer time would keep snapshots that have ended.
const VALID: Duration = Duration::from_secs(60);

/// Up to this size in bytes a sample is read by the request thread. A larger one would make other requests
/// wait.
const AT_ONCE_MAX: u32 = 256 << 10;

pub(super) struct Sample {
    pinned: Pinned,
    /// Its bytes, once they were needed.
    bytes: OnceLock<Vec<u8>>,
}

impl Sample {
    /// Its bytes, if no wait for the disk is needed. A sample is read ahead of its opening.
    fn bytes_now(&self) -> Option<&[u8]> {
        if self.bytes.get().is_none() && self.pinned.length() <= AT_ONCE_MAX {
            let _ = self.bytes.set(self.pinned.read_now()?);
        }
        self.bytes.get().map(Vec::as_slice)
    }

    /// Its bytes. Blocks at the first call, which reads them.
    fn bytes(&self) -> std::io::Result<&[u8]> {
        if self.bytes.get().is_none() {
            // If two threads read at once, the bytes of the first are kept.
            let _ = self.bytes.set(self.pinned.read()?);
        }
        Ok(self.bytes.get().map_or(&[], Vec::as_slice))
    }
}

pub(super) enum Shown {
    Codes(Arc<CodeFile>),
    Sample(Sample),
    /// The file can only be written.
    Nothing,
}

pub(super) struct ViewTree {
    views: Arc<Views>,
    mounted: SystemTime,
}

/// Makes the kernel look names up again. Open files stay what they are.
pub(super) fn invalidate_by(kernel: fuser::Notifier) -> InvalidateName {
    Arc::new(move |directory, name| {
        debug_assert!(!is_answering(), "a request thread notifies the kernel");
        debug_assert!(!is_holding(), "the kernel is notified under a lock");
        // A name that the kernel does not know is an error of the call, and harmless.
        let _ = kernel.inval_entry(INodeNo(directory), OsStr::new(name));
    })
}

fn kind(of: EntryKind) -> FileType {
    match of {
        EntryKind::Directory => FileType::Directory,
        EntryKind::Link(_) => FileType::Symlink,
        _ => FileType::RegularFile,
    }
}

impl ViewTree {
    pub(super) fn new(views: Arc<Views>) -> Self {
        ViewTree { views, mounted: SystemTime::now() }
    }

    fn found(&self, entry: &Entry, valid: Duration) -> Node {
        let attr = |perm, size| attr(entry.node, kind(entry.kind), perm, size, self.mounted);
        let attr = match entry.kind {
            // The mode and owner are such that a user reads here only what they could read at the source
            // then and can read now.
            EntryKind::File(size, Access { mode, uid, gid }) => {
                FileAttr { uid, gid, ..attr(mode & 0o444, size) }
            }
            EntryKind::Directory => attr(0o555, 0),
            EntryKind::Link(length) => attr(0o777, length),
            // Users who may look at the views may write scores and keep codes.
            EntryKind::Codes(size) => attr(0o444, size),
            EntryKind::Scores | EntryKind::Append => attr(0o222, 0),
        };
        let name_valid = if entry.lasting { VALID } else { Duration::ZERO };
        Node { attr, valid: valid.min(VALID), name_valid }
    }

    /// Answers with a node as it is at this moment.
    fn tell(self: &Arc<Self>, entry: Result<Entry, Errno>, told: Done<Node>) {
        let tree = Arc::clone(self);
        match entry {
            Ok(entry) => {
                let then = move |entry: Entry, valid| told(Ok(tree.found(&entry, valid)));
                self.views.with_present_rights(entry, then);
            }
            Err(errno) => told(Err(errno)),
        }
    }

    fn takes(&self, node: u64) -> Option<Takes> {
        match self.views.entry(node).ok()?.kind {
            EntryKind::Scores => Some(Takes::Lines),
            EntryKind::Append => Some(Takes::Records(self.views.codes.bytes_of_one(node)?)),
            _ => None,
        }
    }
}

impl Tree for ViewTree {
    type File = Shown;

    fn lookup(self: &Arc<Self>, parent: u64, name: &OsStr, task: u32, found: Done<Node>) {
        let tree = Arc::clone(self);
        self.views.lookup(parent, name, task, move |entry| tree.tell(entry, found));
    }

    fn node(self: &Arc<Self>, node: u64, told: Done<Node>) {
        self.tell(self.views.entry(node), told);
    }

    fn list(self: &Arc<Self>, node: u64, task: u32, listed: Done<Vec<Name>>) {
        let name = |(name, entry): (String, Entry)| (name, entry.node, kind(entry.kind));
        let names = move |entries: Vec<_>| entries.into_iter().map(name).collect();
        self.views.list(node, task, move |entries| listed(entries.map(names)));
    }

    fn open(&self, node: u64, mode: OpenAccMode) -> Result<Opened<Shown>, Errno> {
        let takes = self.takes(node);
        let (shown, flags) = match mode {
            OpenAccMode::O_WRONLY if takes.is_some() => {
                (Shown::Nothing, FopenFlags::FOPEN_DIRECT_IO)
            }
            _ if takes.is_some() => return Err(Errno::EACCES),
            OpenAccMode::O_RDONLY => match self.views.codes.get(node) {
                Some(codes) => (Shown::Codes(codes), FopenFlags::FOPEN_KEEP_CACHE),
                None => {
                    let sample = Sample { pinned: self.views.open(node)?, bytes: OnceLock::new() };
                    // A close has no writes to wait for.
                    let flags = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
                    (Shown::Sample(sample), flags)
                }
            },
            _ => return Err(Errno::EROFS),
        };
        Ok((shown, takes, flags))
    }

    fn read(&self, node: u64, shown: Arc<Shown>, at: (u64, u32), task: u32, reply: ReplyData) {
        if let Shown::Sample(sample) = &*shown
            && let Some(bytes) = sample.bytes_now()
        {
            return reply.data(part(bytes, at));
        }
        let answer = |read: Result<Vec<u8>, Errno>| match read {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(convert::errno(errno)),
        };
        let views = Arc::clone(&self.views);
        self.views.waiting.on_disk(task, answer, move || {
            let read = match &*shown {
                Shown::Codes(codes) => codes.read(at.0, at.1 as usize),
                Shown::Sample(sample) => sample.bytes().map(|bytes| part(bytes, at).to_vec()),
                Shown::Nothing => return Err(Errno::EBADF),
            };
            read.map_err(|error| {
                tracing::warn!(%error, "a sample or code of a rehearsal buffer cannot be read");
                if error.kind() == ErrorKind::InvalidData {
                    views.damaged(node);
                }
                Errno::EIO
            })
        });
    }

    fn may_set(&self, node: u64, size: Option<u64>) -> Result<(), Errno> {
        (size == Some(0) && self.takes(node).is_some()).then_some(()).ok_or(Errno::EROFS)
    }

    fn take(&self, node: u64, whole: Arc<Whole>, done: Done) {
        // Text that was split off has no other owner.
        let Some(Whole { bytes, share }) = Arc::into_inner(whole) else {
            return done(Err(Errno::EIO));
        };
        let done = move |came| {
            drop(share);
            done(came);
        };
        match self.takes(node) {
            Some(Takes::Records(_)) if bytes.is_empty() => done(Ok(())),
            Some(Takes::Records(_)) => {
                self.views.append(node, bytes, Box::new(|came| done(came.map(|_| ()))));
            }
            _ => self.views.score(node, bytes, Box::new(|why| done(why.map_or(Ok(()), Err)))),
        }
    }

    fn sync(&self, node: u64, done: Done) {
        self.views.sync(node, done);
    }

    fn awaited(&self, task: u32, answer: Done) -> Done {
        let reply = self.views.waiting.reply(task, answer);
        Box::new(|done| reply.answer(done))
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.views.forget(node, lookups);
    }

    fn read_link(&self, node: u64) -> Result<String, Errno> {
        self.views.read_link(node)
    }

    fn label(&self, node: u64) -> Option<(String, String)> {
        self.views.label(node).ok()
    }
}
