//! Serves virtual files: the control files and the views of rehearsal buffers. Each of the two is a
//! connection of its own, which sees every open.
//!
//! 1. A [`Tree`] says what its nodes are. It may answer later, from another thread.
//! 2. The handle of an open file holds what the tree shows to its reader, and what is
//!    [written](WriteBuffer) to it. The handle of an open directory holds its listing.
//! 3. Written bytes are given to the tree when they are whole. If they are refused, the close fails.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use nix::errno::Errno as Why;

use super::convert::errno;
use super::write_account::WriteAccount;
use super::write_buffer::{ChargedBytes, WriteBuffer, WriteForm};
use crate::fs::waiting::Reply;
use crate::sync::Mutex;

/// Extended attributes of a file: its class, and its path within the dataset.
const LABEL: &str = "user.belady.label";
const SOURCE: &str = "user.belady.source";

pub(super) struct Node {
    pub(super) attr: FileAttr,
    /// How long the kernel may believe the attributes, and the name that it looked up.
    pub(super) valid: Duration,
    pub(super) name_valid: Duration,
}

/// The result of opening a file: what a reader is shown, what a writer may write, and the flags for the
/// kernel.
pub(super) type OpenResult<F> = (F, Option<WriteForm>, FopenFlags);

/// An entry of a directory: name, node and kind.
pub(super) type DirEntry = (String, u64, FileType);

/// The nodes of a filesystem. No method blocks. `task` is the thread that waits for the answer.
pub(super) trait Tree: Send + Sync + 'static {
    /// What a reader of an open file is shown.
    type File: Send + Sync;

    fn lookup(self: &Arc<Self>, parent: u64, name: &OsStr, task: u32, found: Reply<Node>);

    fn node(self: &Arc<Self>, node: u64, reply: Reply<Node>);

    fn list(self: &Arc<Self>, node: u64, task: u32, reply: Reply<Vec<DirEntry>>);

    fn open(&self, node: u64, mode: OpenAccMode) -> Result<OpenResult<Self::File>, Why>;

    /// Reads what is shown; `at` is the offset and the number of bytes.
    fn read(
        &self,
        node: u64,
        content: Arc<Self::File>,
        at: (u64, u32),
        task: u32,
        reply: ReplyData,
    );

    /// Checks a request to set attributes of a node. No attribute is ever changed.
    fn check_setattr(&self, node: u64, size: Option<u64>) -> Result<(), Why>;

    /// Accepts or refuses bytes that were written to a file and are whole.
    fn accept(&self, node: u64, whole: Arc<ChargedBytes>, done: Reply);

    /// Makes all that was taken of a file survive a crash.
    fn sync(&self, _node: u64, done: Reply) {
        done(Ok(()));
    }

    /// Returns the answer for a task that waits for it. If the task is killed first, it gets an error
    /// instead.
    fn interruptible(&self, _task: u32, answer: Reply) -> Reply {
        answer
    }

    /// Notes that the kernel has forgotten this number of lookups of a node.
    fn forget(&self, _node: u64, _lookups: u64) {}

    fn read_link(&self, _node: u64) -> Result<String, Why> {
        Err(Why::EINVAL)
    }

    /// The class of a file and its path within the dataset, if it is a sample.
    fn label(&self, _node: u64) -> Option<(String, String)> {
        None
    }
}

/// The part of `bytes` at an offset, cut at the end.
pub(super) fn part(bytes: &[u8], (offset, size): (u64, u32)) -> &[u8] {
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    let to = from.saturating_add(size as usize).min(bytes.len());
    &bytes[from..to]
}

struct Handles<T> {
    open: Mutex<HashMap<u64, Arc<T>>>,
    last: AtomicU64,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Handles { open: Mutex::default(), last: AtomicU64::default() }
    }
}

impl<T> Handles<T> {
    fn add(&self, opened: T) -> FileHandle {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.lock().insert(number, Arc::new(opened));
        FileHandle(number)
    }

    fn get(&self, handle: FileHandle) -> Option<Arc<T>> {
        self.open.lock().get(&handle.0).cloned()
    }

    fn remove(&self, handle: FileHandle) -> Option<Arc<T>> {
        self.open.lock().remove(&handle.0)
    }
}

struct Open<F> {
    content: Arc<F>,
    buffer: Option<Arc<WriteBuffer>>,
}

pub(super) struct VirtualFiles<T: Tree> {
    tree: Arc<T>,
    files: Handles<Open<T::File>>,
    directories: Arc<Handles<Vec<DirEntry>>>,
    account: Arc<WriteAccount>,
}

impl<T: Tree> VirtualFiles<T> {
    pub(super) fn new(tree: T, account: Arc<WriteAccount>) -> Self {
        let (files, directories) = Default::default();
        VirtualFiles { tree: Arc::new(tree), files, directories, account }
    }

    fn buffer(&self, handle: FileHandle) -> Option<Arc<WriteBuffer>> {
        self.files.get(handle)?.buffer.clone()
    }
}

fn attr_reply(reply: ReplyAttr) -> Reply<Node> {
    Box::new(|node| match node {
        Ok(node) => reply.attr(&node.valid, &node.attr),
        Err(why) => reply.error(errno(why)),
    })
}

fn empty_reply(reply: ReplyEmpty) -> Reply {
    Box::new(|result| match result {
        Ok(()) => reply.ok(),
        Err(why) => reply.error(errno(why)),
    })
}

fn xattr(value: &[u8], size: u32, reply: ReplyXattr) {
    match size {
        0 => reply.size(value.len() as u32),
        size if (size as usize) < value.len() => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}

impl<T: Tree> Filesystem for VirtualFiles<T> {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Readers of one directory do not wait for each other. A link is read once: it never changes. Each
        // flag is a gain and none is needed: an old kernel goes without.
        for flag in [InitFlags::FUSE_PARALLEL_DIROPS, InitFlags::FUSE_CACHE_SYMLINKS] {
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = |found: Result<Node, Why>| match found {
            Ok(Node { attr, valid, name_valid }) => {
                reply.entry_with_ttls(&valid, &name_valid, &attr, Generation(0));
            }
            Err(why) => reply.error(errno(why)),
        };
        self.tree.lookup(parent.0, name, request.pid(), Box::new(found));
    }

    fn forget(&self, _request: &Request, ino: INodeNo, lookups: u64) {
        self.tree.forget(ino.0, lookups);
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.tree.read_link(ino.0) {
            Ok(target) => reply.data(target.as_bytes()),
            Err(why) => reply.error(errno(why)),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.tree.node(ino.0, attr_reply(reply));
    }

    /// A shell opens the files that can be written with truncation, and sets no other attribute.
    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let Err(why) = self.tree.check_setattr(ino.0, size) {
            return reply.error(errno(why));
        }
        if let (Some(_), Some(buffer)) = (size, fh.and_then(|fh| self.buffer(fh))) {
            buffer.truncate();
        }
        self.tree.node(ino.0, attr_reply(reply));
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let directories = Arc::clone(&self.directories);
        let answer = move |entries| match entries {
            Ok(entries) => reply.opened(directories.add(entries), FopenFlags::empty()),
            Err(why) => reply.error(errno(why)),
        };
        self.tree.list(ino.0, request.pid(), Box::new(answer));
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(entries) = self.directories.get(fh) else { return reply.error(Errno::EBADF) };
        let dots = [".", ".."].map(|name| (ino, FileType::Directory, name));
        let entries =
            entries.iter().map(|(name, node, kind)| (INodeNo(*node), *kind, name.as_str()));
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, (ino, kind, name)) in dots.into_iter().chain(entries).enumerate().skip(skipped)
        {
            if reply.add(ino, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.directories.remove(fh);
        reply.ok();
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.tree.open(ino.0, flags.acc_mode()) {
            Ok((content, form, flags)) => {
                let buffer = form.map(|form| Arc::new(WriteBuffer::new(form, &self.account)));
                let open = Open { content: Arc::new(content), buffer };
                reply.opened(self.files.add(open), flags);
            }
            Err(why) => reply.error(errno(why)),
        }
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(open) = self.files.get(fh) else { return reply.error(Errno::EBADF) };
        self.tree.read(ino.0, Arc::clone(&open.content), (offset, size), request.pid(), reply);
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(buffer) = self.buffer(fh) else { return reply.error(Errno::EBADF) };
        let written = data.len() as u32;
        let whole = match buffer.add(offset, data, lock_owner) {
            Ok(Some(whole)) => whole,
            Ok(None) => return reply.written(written),
            Err(why) => return reply.error(errno(why)),
        };
        let answer = move |result| match result {
            Ok(()) => reply.written(written),
            Err(why) => reply.error(errno(why)),
        };
        let answer = self.tree.interruptible(request.pid(), Box::new(answer));
        let done = move |result| {
            // The close reports what was refused.
            buffer.note_result(result);
            answer(Ok(()));
        };
        self.tree.accept(ino.0, whole, Box::new(done));
    }

    fn flush(&self, req: &Request, ino: INodeNo, fh: FileHandle, by: LockOwner, reply: ReplyEmpty) {
        let Some(buffer) = self.buffer(fh) else { return reply.ok() };
        let last = match buffer.take_at_close(by) {
            Some(Ok(last)) => last,
            Some(Err(why)) => return reply.error(errno(why)),
            None => return reply.ok(),
        };
        let answer = self.tree.interruptible(req.pid(), empty_reply(reply));
        let done = move |result| {
            buffer.note_result(result);
            answer(buffer.take_refusal());
        };
        self.tree.accept(ino.0, last, Box::new(done));
    }

    fn fsync(&self, req: &Request, ino: INodeNo, fh: FileHandle, _: bool, reply: ReplyEmpty) {
        let Some(buffer) = self.buffer(fh) else { return reply.ok() };
        let whole = match buffer.take_at_sync() {
            Ok(whole) => whole,
            Err(why) => return reply.error(errno(why)),
        };
        let answer = self.tree.interruptible(req.pid(), empty_reply(reply));
        let Some(whole) = whole else { return self.tree.sync(ino.0, answer) };
        let tree = Arc::clone(&self.tree);
        let done = move |result: Result<(), Why>| match result {
            Ok(()) => tree.sync(ino.0, answer),
            Err(why) => answer(Err(why)),
        };
        self.tree.accept(ino.0, whole, Box::new(done));
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let rest = self.files.remove(fh).and_then(|open| open.buffer.as_ref()?.take_at_release());
        if let Some(rest) = rest {
            // No task waits for the result.
            self.tree.accept(ino.0, rest, Box::new(drop));
        }
        reply.ok();
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = match (self.tree.label(ino.0), name.to_str()) {
            (Some((label, _)), Some(LABEL)) => label,
            (Some((_, source)), Some(SOURCE)) => source,
            _ => return reply.error(Errno::NO_XATTR),
        };
        xattr(value.as_bytes(), size, reply);
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.tree.label(ino.0).map(|_| format!("{LABEL}\0{SOURCE}\0"));
        xattr(names.unwrap_or_default().as_bytes(), size, reply);
    }
}
