//! The views of rehearsal buffers: a connection of its own where every open is seen. Nothing can be
//! written but scores and codes, wherever in the file they are written. Scores are lines, taken as
//! they are whole; the close fails with `EINVAL` where some were refused, and with `ENOSPC` where the
//! disk had no room for them. Codes are taken at the close, all or none, and it fails where they are
//! not. Who syncs a file has those codes taken that are whole, and is answered when all that was taken
//! lasts.
//!
//! What a file holds never changes, so the kernel keeps its pages; bytes are read from the disk and
//! compared with their checksum only when the kernel asks for some it has not.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};

use super::convert;
use super::guard::is_answering;
use super::opened::{Handle, Handles, Open};
use super::room::Room;
use super::writing::{Whole, Writing};
use crate::rehearsal::views::{Awaited, Entry, EntryKind, Lapse, Views};
use crate::sync::is_holding;

/// For how long the kernel may believe a name: longer ones would hold displays that are over.
const VALID: Duration = Duration::from_secs(60);

/// Extended attributes of a file: its class, and its path within the dataset.
const LABEL: &str = "user.belady.label";
const SOURCE: &str = "user.belady.source";

/// The filesystem of the views.
pub(super) struct ViewOps {
    views: Arc<Views>,
    handles: Arc<Handles>,
    /// What is written to all files and not taken yet.
    room: Arc<Room>,
    owner: (u32, u32),
    mounted: SystemTime,
}

/// A part of a file, cut at its end.
fn part(bytes: &[u8], offset: u64, size: u32) -> &[u8] {
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    let to = from.saturating_add(size as usize).min(bytes.len());
    &bytes[from..to]
}

impl ViewOps {
    pub(super) fn new(views: Arc<Views>, room: Arc<Room>) -> Self {
        ViewOps {
            views,
            handles: Arc::default(),
            room,
            owner: (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw()),
            mounted: SystemTime::now(),
        }
    }
}

impl ViewOps {
    /// Has lines taken, which may need a while, and does `then` when that is done.
    fn score(
        &self,
        ino: INodeNo,
        lines: Whole,
        writing: &Arc<Writing>,
        then: impl FnOnce(&Writing) + Send + 'static,
    ) {
        let (Whole { bytes, share }, writing) = (lines, Arc::clone(writing));
        let done = move |why: Option<nix::errno::Errno>| {
            drop(share);
            if let Some(why) = why {
                writing.refuse(convert::errno(why));
            }
            then(&writing);
        };
        self.views.score(ino.0, bytes, Box::new(done));
    }

    /// Has codes taken, which may need a while, and does `then` with what came of them.
    fn append(
        &self,
        ino: INodeNo,
        codes: Whole,
        then: impl FnOnce(Result<usize, nix::errno::Errno>) + Send + 'static,
    ) {
        let Whole { bytes, share } = codes;
        if bytes.is_empty() {
            return then(Ok(0));
        }
        let done = move |came| {
            drop(share);
            then(came);
        };
        self.views.append(ino.0, bytes, Box::new(done));
    }

    /// A request waits until something has come of what was written.
    fn awaited<T: 'static>(&self, request: &Request, reply: ReplyEmpty) -> Awaited<T> {
        self.views.awaited(request.pid(), |came| match came {
            Ok(_) => reply.ok(),
            Err(errno) => reply.error(convert::errno(errno)),
        })
    }

    /// Whether a file takes what is written.
    fn takes(&self, ino: INodeNo) -> Option<Handle> {
        match self.views.entry(ino.0).ok()?.kind {
            EntryKind::Scores => Some(Handle::Scores(Writing::new(&self.room))),
            EntryKind::Append => Some(Handle::Append(Writing::new(&self.room))),
            _ => None,
        }
    }
}

/// Answers a read with what came of it.
fn with_bytes(reply: ReplyData) -> impl FnOnce(Result<Vec<u8>, nix::errno::Errno>) + Send {
    move |read| match read {
        Ok(bytes) => reply.data(&bytes),
        Err(errno) => reply.error(convert::errno(errno)),
    }
}

/// Has the kernel look names up again; what is open stays what it is.
pub(super) fn lapse_by(kernel: fuser::Notifier) -> Lapse {
    Arc::new(move |directory, name| {
        debug_assert!(!is_answering(), "a request thread notifies the kernel");
        debug_assert!(!is_holding(), "the kernel is notified under a lock");
        // One that it does not know is an error, and none to us.
        let _ = kernel.inval_entry(INodeNo(directory), OsStr::new(name));
    })
}

/// What the kernel is told of a node.
fn attr(entry: &Entry, owner: (u32, u32), time: SystemTime) -> FileAttr {
    let (kind, perm, owner, size) = match entry.kind {
        // Nobody may read more here than could at the source, or than may there now.
        EntryKind::File(size, access) => {
            (FileType::RegularFile, access.mode & 0o444, (access.uid, access.gid), size)
        }
        EntryKind::Directory => (FileType::Directory, 0o555, owner, 0),
        EntryKind::Link(length) => (FileType::Symlink, 0o777, owner, length),
        // Who may look at the views may say something of samples, and keep codes.
        EntryKind::Codes(size) => (FileType::RegularFile, 0o444, owner, size),
        EntryKind::Scores | EntryKind::Append => (FileType::RegularFile, 0o222, owner, 0),
    };
    FileAttr {
        ino: INodeNo(entry.node),
        size,
        blocks: size.div_ceil(512),
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm,
        nlink: 1,
        uid: owner.0,
        gid: owner.1,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for ViewOps {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Readers of one directory do not wait for each other, and a link is read once: it never changes.
        // Each is a gain and none is needed: an old kernel goes without.
        for flag in [InitFlags::FUSE_PARALLEL_DIROPS, InitFlags::FUSE_CACHE_SYMLINKS] {
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (owner, time, views) = (self.owner, self.mounted, Arc::clone(&self.views));
        let reply = move |found: Result<Entry, nix::errno::Errno>| match found {
            Ok(entry) => views.told(entry, move |entry, valid| {
                let name = if entry.lasting { VALID } else { Duration::ZERO };
                let attr = attr(&entry, owner, time);
                reply.entry_with_ttls(&valid.min(VALID), &name, &attr, Generation(0));
            }),
            Err(errno) => reply.error(convert::errno(errno)),
        };
        self.views.lookup(parent.0, name, request.pid(), reply);
    }

    fn forget(&self, _request: &Request, ino: INodeNo, lookups: u64) {
        self.views.forget(ino.0, lookups);
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.views.read_link(ino.0) {
            Ok(target) => reply.data(target.as_bytes()),
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let (owner, time) = (self.owner, self.mounted);
        match self.views.entry(ino.0) {
            Ok(entry) => self.views.told(entry, move |entry, valid| {
                reply.attr(&valid.min(VALID), &attr(&entry, owner, time));
            }),
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let handles = Arc::clone(&self.handles);
        self.views.list(ino.0, request.pid(), move |listed| match listed {
            Ok(listed) => {
                let handle = handles.keep(Handle::Listing(Arc::new(listed)));
                reply.opened(handle, FopenFlags::empty());
            }
            Err(errno) => reply.error(convert::errno(errno)),
        });
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(Handle::Listing(listed)) = self.handles.open().get(&fh.0).cloned() else {
            return reply.error(Errno::EBADF);
        };
        let dots = [".", ".."].map(|name| (ino, FileType::Directory, name));
        let listed = listed.iter().map(|(name, entry)| {
            let kind = match entry.kind {
                EntryKind::Directory => FileType::Directory,
                EntryKind::Link(_) => FileType::Symlink,
                _ => FileType::RegularFile,
            };
            (INodeNo(entry.node), kind, name.as_str())
        });
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, (ino, kind, name)) in dots.into_iter().chain(listed).enumerate().skip(skipped) {
            if reply.add(ino, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.handles.open().remove(&fh.0);
        reply.ok();
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let writes = flags.acc_mode() != OpenAccMode::O_RDONLY;
        match (self.takes(ino), flags.acc_mode()) {
            (Some(writing), OpenAccMode::O_WRONLY) => {
                return reply.opened(self.handles.keep(writing), FopenFlags::FOPEN_DIRECT_IO);
            }
            (Some(_), _) => return reply.error(Errno::EACCES),
            (None, _) if writes => return reply.error(Errno::EROFS),
            (None, _) => {}
        }
        if let Some(codes) = self.views.codes(ino.0) {
            let handle = self.handles.keep(Handle::Codes(codes));
            return reply.opened(handle, FopenFlags::FOPEN_KEEP_CACHE);
        }
        match self.views.open(ino.0) {
            Ok(pinned) => {
                let handle = self.handles.keep(Handle::File(Arc::new(Open::new(pinned))));
                // Nobody has written anything that a close would have to wait for.
                let flags = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
                reply.opened(handle, flags);
            }
            Err(errno) => reply.error(convert::errno(errno)),
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
        let handle = self.handles.open().get(&fh.0).cloned();
        match handle {
            Some(Handle::Codes(codes)) => {
                self.views.on_disk(request.pid(), with_bytes(reply), move |_| {
                    codes.read(offset, size as usize).map_err(|error| {
                        tracing::warn!(%error, "codes of a rehearsal buffer cannot be read");
                        nix::errno::Errno::EIO
                    })
                });
            }
            Some(Handle::File(open)) => {
                if let Some(bytes) = open.bytes_now() {
                    return reply.data(part(bytes, offset, size));
                }
                self.views.on_disk(request.pid(), with_bytes(reply), move |views| {
                    open.bytes().map(|bytes| part(bytes, offset, size).to_vec()).map_err(|error| {
                        tracing::warn!(%error, "a sample of a rehearsal buffer cannot be read");
                        if error.kind() == ErrorKind::InvalidData {
                            views.damaged(ino.0);
                        }
                        nix::errno::Errno::EIO
                    })
                });
            }
            _ => reply.error(Errno::EBADF),
        }
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = data.len() as u32;
        let handle = self.handles.open().get(&fh.0).cloned();
        match handle {
            Some(Handle::Scores(writing)) => match writing.add_lines(data, lock_owner) {
                Ok(lines) if lines.bytes.is_empty() => reply.written(written),
                Ok(lines) => {
                    let reply = self.views.awaited(request.pid(), move |came| match came {
                        Ok(()) => reply.written(written),
                        Err(errno) => reply.error(convert::errno(errno)),
                    });
                    self.score(ino, lines, &writing, |_| reply.answer(Ok(())));
                }
                Err(errno) => reply.error(errno),
            },
            Some(Handle::Append(writing)) => match writing.add(data, lock_owner) {
                Ok(()) => reply.written(written),
                Err(errno) => reply.error(errno),
            },
            _ => reply.error(Errno::EBADF),
        }
    }

    fn flush(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let handle = self.handles.open().get(&fh.0).cloned();
        let Some(Handle::Scores(writing) | Handle::Append(writing)) = &handle else {
            return reply.ok();
        };
        let Some(last) = writing.end(lock_owner) else { return reply.ok() };
        if let Some(errno) = writing.over() {
            return reply.error(errno);
        }
        if let Some(Handle::Append(_)) = handle {
            let reply = self.awaited(request, reply);
            return self.append(ino, last, |came| reply.answer(came));
        }
        let reply = self.awaited(request, reply);
        self.score(ino, last, writing, |writing| {
            let refused = writing.refused().map(|why| nix::errno::Errno::from_raw(why.code()));
            reply.answer(refused.map_or(Ok(()), Err));
        });
    }

    fn fsync(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _data: bool,
        reply: ReplyEmpty,
    ) {
        let handle = self.handles.open().get(&fh.0).cloned();
        let (Some(Handle::Append(writing)) | Some(Handle::Scores(writing))) = &handle else {
            return reply.ok();
        };
        if let Some(errno) = writing.over() {
            return reply.error(errno);
        }
        let (views, reply) = (Arc::clone(&self.views), self.awaited(request, reply));
        let sync = move |came: Result<usize, nix::errno::Errno>| match came {
            Ok(_) => views.sync(ino.0, Box::new(|synced| reply.answer(synced))),
            Err(errno) => reply.answer(Err(errno)),
        };
        match (&handle, self.views.bytes_of_one(ino.0)) {
            (Some(Handle::Append(_)), Some(each)) => self.append(ino, writing.whole(each), sync),
            // Lines are taken before their write is answered.
            _ => sync(Ok(0)),
        }
    }

    /// Opening with truncation is all that a shell does to a file that takes what is written.
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
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.views.entry(ino.0) {
            Ok(entry) if self.takes(ino).is_some() && size == Some(0) => {
                reply.attr(&VALID, &attr(&entry, self.owner, self.mounted));
            }
            _ => reply.error(Errno::EROFS),
        }
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
        let closed = self.handles.open().remove(&fh.0);
        match closed {
            Some(Handle::Scores(writing)) => self.score(ino, writing.rest(), &writing, |_| ()),
            Some(Handle::Append(writing)) => self.append(ino, writing.rest(), |_| ()),
            _ => {}
        }
        reply.ok();
    }

    fn getxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let value = match (self.views.label(ino.0), name.to_str()) {
            (Ok((label, _)), Some(LABEL)) => label,
            (Ok((_, source)), Some(SOURCE)) => source,
            _ => return reply.error(Errno::NO_XATTR),
        };
        xattr(value.as_bytes(), size, reply);
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = match self.views.label(ino.0) {
            Ok(_) => format!("{LABEL}\0{SOURCE}\0"),
            Err(_) => String::new(),
        };
        xattr(names.as_bytes(), size, reply);
    }
}

fn xattr(value: &[u8], size: u32, reply: ReplyXattr) {
    match size {
        0 => reply.size(value.len() as u32),
        size if (size as usize) < value.len() => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}
