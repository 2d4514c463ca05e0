//! The control files: a small connection of its own, read-write, where every open is seen.
//!
//! A file is rendered when it is opened and read past the page cache, so each open shows the state
//! of its moment at its exact size. What is written is taken when its descriptor is closed: the
//! close fails with `EINVAL` where it is refused.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use crate::fs::NAME_MAX;
use crate::sync::{Mutex, MutexGuard};

/// Renders a file's content.
pub type Render = Box<dyn Fn() -> Vec<u8> + Send + Sync>;

/// Takes what was written to a file, or refuses it.
pub type Accept = Box<dyn Fn(&[u8]) -> Result<(), ()> + Send + Sync>;

/// One control file.
pub struct ControlFile {
    /// Its name.
    pub name: &'static str,
    /// What it shows.
    pub render: Render,
    /// What happens to what is written; none: it cannot be.
    pub accept: Option<Accept>,
}

/// Bytes that may be written to a file: an order of 10^7 paths.
const WRITTEN_MAX: usize = 2 << 30;

#[derive(Default)]
struct Handle {
    shown: Vec<u8>,
    written: Vec<u8>,
    /// Who wrote last, where that is something that nobody has taken yet.
    writer: Option<LockOwner>,
}

/// The filesystem of the control files. Inode 1 is the directory, file `n` is inode `n + 2`.
pub(super) struct ControlOps {
    files: Arc<Vec<ControlFile>>,
    handles: Mutex<HashMap<u64, Handle>>,
    next: AtomicU64,
    owner: (u32, u32),
}

impl ControlOps {
    pub(super) fn new(files: Vec<ControlFile>) -> Self {
        let owner = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        ControlOps {
            files: Arc::new(files),
            handles: Mutex::default(),
            next: AtomicU64::new(1),
            owner,
        }
    }

    fn handles(&self) -> MutexGuard<'_, HashMap<u64, Handle>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, ino: INodeNo) -> Option<&ControlFile> {
        self.files.get(usize::try_from(ino.0.checked_sub(2)?).ok()?)
    }

    /// Has what was written taken, and does `then` with what came of it; none: it is no file that
    /// takes anything. Taking an order may need a while; the connection goes on meanwhile.
    fn take(
        &self,
        ino: INodeNo,
        written: Vec<u8>,
        then: impl FnOnce(Option<Result<(), ()>>) + Send + 'static,
    ) {
        let files = Arc::clone(&self.files);
        let take = move || {
            let file = files.get((ino.0 as usize).wrapping_sub(2));
            then(file.and_then(|file| file.accept.as_ref()).map(|accept| accept(&written)));
        };
        // Where no thread can be had the reply is dropped, and the close fails with EIO.
        let _ = std::thread::Builder::new().name("belady-control".into()).spawn(take);
    }

    fn attr(&self, ino: INodeNo) -> Option<FileAttr> {
        let (kind, perm) = match self.file(ino) {
            Some(file) if file.accept.is_some() => (FileType::RegularFile, 0o600),
            Some(_) => (FileType::RegularFile, 0o400),
            None if ino == INodeNo::ROOT => (FileType::Directory, 0o500),
            None => return None,
        };
        let now = SystemTime::now();
        Some(FileAttr {
            ino,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind,
            perm,
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn reply_attr(&self, ino: INodeNo, reply: ReplyAttr) {
        match self.attr(ino) {
            Some(attr) => reply.attr(&Duration::ZERO, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }
}

impl Filesystem for ControlOps {
    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.files.iter().position(|file| name == file.name);
        match found.and_then(|index| self.attr(INodeNo(index as u64 + 2))) {
            Some(attr) => reply.entry(&Duration::ZERO, &attr, Generation(0)),
            None if name.len() > NAME_MAX => reply.error(Errno::ENAMETOOLONG),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.reply_attr(ino, reply);
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
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
        let mut handles = self.handles();
        // Opening with truncation is all that a shell does here.
        if let Some(handle) = fh.and_then(|fh| handles.get_mut(&fh.0)) {
            handle.written.clear();
        }
        drop(handles);
        self.reply_attr(ino, reply);
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let dots = [".", ".."].map(|name| (INodeNo::ROOT, FileType::Directory, name));
        let files = self
            .files
            .iter()
            .enumerate()
            .map(|(index, file)| (INodeNo(index as u64 + 2), FileType::RegularFile, file.name));
        for (index, (ino, kind, name)) in dots.into_iter().chain(files).enumerate() {
            if index as u64 >= offset && reply.add(ino, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let Some(file) = self.file(ino) else { return reply.error(Errno::ENOENT) };
        let writes = flags.acc_mode() != OpenAccMode::O_RDONLY;
        if writes && file.accept.is_none() {
            return reply.error(Errno::EACCES);
        }
        let shown = (file.render)();
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.handles().insert(handle, Handle { shown, ..Handle::default() });
        reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let handles = self.handles();
        let Some(handle) = handles.get(&fh.0) else { return reply.error(Errno::EBADF) };
        let from = (offset as usize).min(handle.shown.len());
        let to = from.saturating_add(size as usize).min(handle.shown.len());
        reply.data(&handle.shown[from..to]);
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut handles = self.handles();
        let Some(handle) = handles.get_mut(&fh.0) else { return reply.error(Errno::EBADF) };
        // What is appended to an empty file starts at its start, whatever is shown of it.
        let end = offset as usize + data.len();
        if end > WRITTEN_MAX || offset as usize > handle.written.len() {
            return reply.error(Errno::EFBIG);
        }
        handle.written.resize(handle.written.len().max(end), 0);
        handle.written[offset as usize..end].copy_from_slice(data);
        handle.writer = lock_owner;
        reply.written(data.len() as u32);
    }

    fn flush(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // A shell closes a copy of the descriptor before it writes, and a process that was forked
        // meanwhile closes its own in the middle: only who wrote last has something to be taken.
        let ends = |handle: &&mut Handle| handle.writer.is_some_and(|writer| writer == lock_owner);
        let written = match self.handles().get_mut(&fh.0).filter(ends) {
            Some(handle) => {
                handle.writer = None;
                handle.written.clone()
            }
            None => return reply.ok(),
        };
        self.take(ino, written, move |taken| match taken {
            Some(Ok(())) => reply.ok(),
            Some(Err(())) => reply.error(Errno::EINVAL),
            None => reply.error(Errno::EBADF),
        });
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
        let closed = self.handles().remove(&fh.0);
        if let Some(handle) = closed.filter(|handle| handle.writer.is_some()) {
            // Whoever wrote it left its closing to others; what becomes of it is in the status.
            self.take(ino, handle.written, drop);
        }
        reply.ok();
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _data: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }
}
