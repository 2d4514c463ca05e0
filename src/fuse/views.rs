//! The views of rehearsal buffers: a read-only connection of its own where every open is seen.
//!
//! What a file holds never changes, so the kernel keeps its pages; bytes are read from the disk and
//! compared with their checksum only when the kernel asks for some it has not.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyXattr, Request,
};

use super::convert;
use crate::cache::Pinned;
use crate::fs::views::{Entry, Views};
use crate::source::{Pool, Urgency};

/// For how long the kernel may believe a name: longer ones would hold epochs that are over.
const VALID: Duration = Duration::from_secs(60);

/// Threads that read the disk.
const READERS: usize = 4;

/// Extended attributes of a file: its class, and its path within the dataset.
const LABEL: &str = "user.belady.label";
const SOURCE: &str = "user.belady.source";

/// A file that is open.
struct Open {
    pinned: Pinned,
    /// Its bytes, once they were needed.
    bytes: OnceLock<Vec<u8>>,
}

impl Open {
    /// Its bytes, read where nobody has needed them yet. Blocks then.
    fn bytes(&self) -> std::io::Result<&[u8]> {
        if self.bytes.get().is_none() {
            // Of two that read at once the first one's are kept.
            let _ = self.bytes.set(self.pinned.read()?);
        }
        Ok(self.bytes.get().map_or(&[], Vec::as_slice))
    }
}

#[derive(Clone)]
enum Handle {
    Listing(Arc<Vec<(String, Entry)>>),
    File(Arc<Open>),
}

/// The filesystem of the views.
pub(super) struct ViewOps {
    views: Arc<Views>,
    handles: Mutex<HashMap<u64, Handle>>,
    next: AtomicU64,
    readers: Pool,
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
    pub(super) fn new(views: Arc<Views>) -> Self {
        ViewOps {
            views,
            handles: Mutex::default(),
            next: AtomicU64::new(1),
            readers: Pool::new("belady-view", 0, READERS),
            owner: (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw()),
            mounted: SystemTime::now(),
        }
    }

    fn handles(&self) -> MutexGuard<'_, HashMap<u64, Handle>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, handle: Handle) -> FileHandle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.handles().insert(number, handle);
        FileHandle(number)
    }
}

/// What the kernel is told of a node.
fn attr(entry: &Entry, owner: (u32, u32), time: SystemTime) -> FileAttr {
    let (kind, perm, owner, size) = match entry.file {
        // Nobody may read more here than at the source.
        Some(file) => {
            let access = file.access;
            (FileType::RegularFile, access.mode & 0o444, (access.uid, access.gid), file.size)
        }
        None => (FileType::Directory, 0o555, owner, 0),
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
    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (owner, time) = (self.owner, self.mounted);
        self.views.lookup(parent.0, name, move |found| match found {
            Ok(entry) => reply.entry(&VALID, &attr(&entry, owner, time), Generation(0)),
            Err(errno) => reply.error(convert::errno(errno)),
        });
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.views.entry(ino.0) {
            Ok(entry) => reply.attr(&VALID, &attr(&entry, self.owner, self.mounted)),
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.views.list(ino.0) {
            Ok(listed) => {
                let handle = self.keep(Handle::Listing(Arc::new(listed)));
                reply.opened(handle, FopenFlags::empty());
            }
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(Handle::Listing(listed)) = self.handles().get(&fh.0).cloned() else {
            return reply.error(Errno::EBADF);
        };
        let dots = [".", ".."].map(|name| (ino, FileType::Directory, name));
        let listed = listed.iter().map(|(name, entry)| {
            let directory = entry.file.is_none();
            let kind = if directory { FileType::Directory } else { FileType::RegularFile };
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
        self.handles().remove(&fh.0);
        reply.ok();
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        match self.views.open(ino.0) {
            Ok(pinned) => {
                let open = Open { pinned, bytes: OnceLock::new() };
                let handle = self.keep(Handle::File(Arc::new(open)));
                reply.opened(handle, FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(Handle::File(open)) = self.handles().get(&fh.0).cloned() else {
            return reply.error(Errno::EBADF);
        };
        if let Some(bytes) = open.bytes.get() {
            return reply.data(part(bytes, offset, size));
        }
        let views = Arc::clone(&self.views);
        self.readers.submit(Urgency::Demand, move || match open.bytes() {
            Ok(bytes) => reply.data(part(bytes, offset, size)),
            Err(error) => {
                tracing::warn!(%error, "a sample of a rehearsal buffer cannot be read");
                if error.kind() == ErrorKind::InvalidData {
                    views.damaged(ino.0);
                }
                reply.error(Errno::EIO);
            }
        });
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.handles().remove(&fh.0);
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
