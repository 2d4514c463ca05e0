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

use super::convert::{self, daemon_attr};
use super::guard::is_answering;
use super::virtual_files::{DirEntry, Node, OpenResult, Tree, part};
use super::write_buffer::{ChargedBytes, WriteForm};
use crate::fs::Access;
use crate::fs::waiting::Reply;
use crate::rehearsal::CodeFile;
use crate::rehearsal::views::{Entry, EntryKind, InvalidateName, SampleBytes, Views};
use crate::sync::is_holding;

/// How long the kernel may believe a name. A longer time would keep snapshots that have ended.
const VALID: Duration = Duration::from_secs(60);

/// Up to this size in bytes a sample is read by the request thread. A larger one would make other requests
/// wait.
const AT_ONCE_MAX: u32 = 256 << 10;

pub(super) struct OpenSample {
    kept: SampleBytes,
    /// Its bytes, once they were needed.
    bytes: OnceLock<Vec<u8>>,
}

impl OpenSample {
    /// Its bytes, if no wait for the disk is needed. A sample is read ahead of its opening.
    fn bytes_now(&self) -> Option<&[u8]> {
        if self.bytes.get().is_none() && self.kept.length() <= AT_ONCE_MAX {
            let _ = self.bytes.set(self.kept.read_now()?);
        }
        self.bytes.get().map(Vec::as_slice)
    }

    /// Its bytes. Blocks at the first call, which reads them.
    fn bytes(&self) -> std::io::Result<&[u8]> {
        if self.bytes.get().is_none() {
            // If two threads read at once, the bytes of the first are kept.
            let _ = self.bytes.set(self.kept.read()?);
        }
        Ok(self.bytes.get().map_or(&[], Vec::as_slice))
    }
}

pub(super) enum FileContent {
    Codes(Arc<CodeFile>),
    Sample(OpenSample),
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

    fn node_of(&self, entry: &Entry, valid: Duration) -> Node {
        let attr = |perm, size| daemon_attr(entry.node, kind(entry.kind), perm, size, self.mounted);
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
    fn answer(self: &Arc<Self>, entry: Result<Entry, Errno>, reply: Reply<Node>) {
        let tree = Arc::clone(self);
        match entry {
            Ok(entry) => {
                let then = move |entry: Entry, valid| reply(Ok(tree.node_of(&entry, valid)));
                self.views.with_present_rights(entry, then);
            }
            Err(errno) => reply(Err(errno)),
        }
    }

    fn form_of(&self, node: u64) -> Option<WriteForm> {
        match self.views.entry(node).ok()?.kind {
            EntryKind::Scores => Some(WriteForm::Lines),
            EntryKind::Append => Some(WriteForm::Records(self.views.codes.bytes_of_one(node)?)),
            _ => None,
        }
    }
}

impl Tree for ViewTree {
    type File = FileContent;

    fn lookup(self: &Arc<Self>, parent: u64, name: &OsStr, task: u32, found: Reply<Node>) {
        let tree = Arc::clone(self);
        self.views.lookup(parent, name, task, move |entry| tree.answer(entry, found));
    }

    fn node(self: &Arc<Self>, node: u64, reply: Reply<Node>) {
        self.answer(self.views.entry(node), reply);
    }

    fn list(self: &Arc<Self>, node: u64, task: u32, reply: Reply<Vec<DirEntry>>) {
        let name = |(name, entry): (String, Entry)| (name, entry.node, kind(entry.kind));
        let names = move |entries: Vec<_>| entries.into_iter().map(name).collect();
        self.views.list(node, task, move |entries| reply(entries.map(names)));
    }

    fn open(&self, node: u64, mode: OpenAccMode) -> Result<OpenResult<FileContent>, Errno> {
        let form = self.form_of(node);
        let (content, flags) = match mode {
            OpenAccMode::O_WRONLY if form.is_some() => {
                (FileContent::Nothing, FopenFlags::FOPEN_DIRECT_IO)
            }
            _ if form.is_some() => return Err(Errno::EACCES),
            OpenAccMode::O_RDONLY => match self.views.codes.get(node) {
                Some(codes) => (FileContent::Codes(codes), FopenFlags::FOPEN_KEEP_CACHE),
                None => {
                    let (kept, bytes) = (self.views.open(node)?, OnceLock::new());
                    let sample = OpenSample { kept, bytes };
                    // A close has no writes to wait for.
                    let flags = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
                    (FileContent::Sample(sample), flags)
                }
            },
            _ => return Err(Errno::EROFS),
        };
        Ok((content, form, flags))
    }

    fn read(
        &self,
        node: u64,
        content: Arc<FileContent>,
        at: (u64, u32),
        task: u32,
        reply: ReplyData,
    ) {
        if let FileContent::Sample(sample) = &*content
            && let Some(bytes) = sample.bytes_now()
        {
            return reply.data(part(bytes, at));
        }
        let answer = |read: Result<Vec<u8>, Errno>| match read {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(convert::errno(errno)),
        };
        let views = Arc::clone(&self.views);
        let is_far = matches!(&*content, FileContent::Sample(sample) if sample.kept.are_remote());
        let read = move || {
            let read = match &*content {
                FileContent::Codes(codes) => codes.read(at.0, at.1 as usize),
                FileContent::Sample(sample) => sample.bytes().map(|bytes| part(bytes, at).to_vec()),
                FileContent::Nothing => return Err(Errno::EBADF),
            };
            read.map_err(|error| {
                tracing::warn!(%error, "a sample or code of a rehearsal buffer cannot be read");
                if error.kind() == ErrorKind::InvalidData {
                    views.damaged(node);
                }
                Errno::EIO
            })
        };
        match is_far {
            true => self.views.waiting.on_nodes(task, answer, read),
            false => self.views.waiting.on_disk(task, answer, read),
        }
    }

    fn check_setattr(&self, node: u64, size: Option<u64>) -> Result<(), Errno> {
        (size == Some(0) && self.form_of(node).is_some()).then_some(()).ok_or(Errno::EROFS)
    }

    fn accept(&self, node: u64, whole: Arc<ChargedBytes>, done: Reply) {
        // Text that was split off has no other owner.
        let Some(ChargedBytes { bytes, charge }) = Arc::into_inner(whole) else {
            return done(Err(Errno::EIO));
        };
        let done = move |result| {
            drop(charge);
            done(result);
        };
        match self.form_of(node) {
            Some(WriteForm::Records(_)) if bytes.is_empty() => done(Ok(())),
            Some(WriteForm::Records(_)) => {
                self.views.append(node, bytes, Box::new(|result| done(result.map(|_| ()))));
            }
            _ => self.views.score(node, bytes, Box::new(|why| done(why.map_or(Ok(()), Err)))),
        }
    }

    fn sync(&self, node: u64, done: Reply) {
        self.views.sync(node, done);
    }

    fn interruptible(&self, task: u32, answer: Reply) -> Reply {
        let reply = self.views.waiting.reply(task, answer);
        Box::new(|result| reply.written(result))
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
