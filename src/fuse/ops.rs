//! The requests of the kernel, each decoded, asked of the dataset and answered.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fuser::{
    Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyXattr, Request,
};

use super::convert;
use super::known::Known;
use super::requests::{Kind, Requests};
use crate::cache::OwnThreads;
use crate::catalog::{Attr, Listed, NodeId};
use crate::fs::Dataset;

/// Handle of a file opened by one of our own threads; readers get [`READER`].
const OWN: FileHandle = FileHandle(0);
const READER: FileHandle = FileHandle(1);

/// Requests that the kernel may have under way in the background.
const BACKGROUND_MAX: u16 = 512;

/// Rows above which listing a directory does not make the kernel know every one of them.
const PRIMED_MAX: u64 = 2_000_000;

type Listing = Arc<Vec<Listed>>;

/// The read-only filesystem of one dataset.
pub(super) struct DatasetOps {
    dataset: Arc<Dataset>,
    known: Arc<Known>,
    requests: Arc<Requests>,
    /// Listings of open directories, so that one listing is of one moment.
    listings: Arc<Mutex<HashMap<u64, Listing>>>,
    handles: Arc<AtomicU64>,
}

impl DatasetOps {
    pub(super) fn new(dataset: Arc<Dataset>, known: Arc<Known>, requests: Arc<Requests>) -> Self {
        DatasetOps {
            dataset,
            known,
            requests,
            listings: Arc::default(),
            handles: Arc::new(AtomicU64::new(1)),
        }
    }

    fn listing(&self, handle: FileHandle) -> Option<Listing> {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner).get(&handle.0).cloned()
    }

    /// The directory itself and its parent, which every listing begins with.
    fn dots(&self, node: NodeId) -> Result<[(NodeId, &'static str); 2], nix::errno::Errno> {
        Ok([(node, "."), (self.dataset.catalog().parent(node)?, "..")])
    }
}

fn own(request: &Request) -> bool {
    OwnThreads::contains(request.pid())
}

fn node(ino: INodeNo) -> NodeId {
    NodeId(ino.0)
}

/// An answer about a name: the kernel knows the node from then on.
fn reply_entry(known: &Known, reply: ReplyEntry, result: Result<Attr, nix::errno::Errno>) {
    match result {
        Ok(attr) => {
            known.looked_up(attr.node);
            reply.entry(&attr.valid, &convert::attr(&attr), Generation(0));
        }
        Err(errno) => reply.error(convert::errno(errno)),
    }
}

fn reply_xattr(reply: ReplyXattr, size: u32, result: Result<Vec<u8>, nix::errno::Errno>) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() <= size as usize => reply.data(&value),
        Ok(_) => reply.error(Errno::ERANGE),
        Err(errno) => reply.error(convert::errno(errno)),
    }
}

impl Filesystem for DatasetOps {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let mut wanted = InitFlags::FUSE_PARALLEL_DIROPS | InitFlags::FUSE_CACHE_SYMLINKS;
        if self.dataset.catalog().totals().0 <= PRIMED_MAX {
            wanted |= InitFlags::FUSE_DO_READDIRPLUS;
        }
        // Each is a gain and none is needed: an old kernel goes without.
        for flag in wanted.iter() {
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.requests.count(Kind::Lookup);
        let known = Arc::clone(&self.known);
        self.dataset.lookup(node(parent), name, own(request), move |result| {
            reply_entry(&known, reply, result);
        });
    }

    fn forget(&self, _request: &Request, ino: INodeNo, lookups: u64) {
        self.known.forgotten(node(ino), lookups);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.requests.count(Kind::Getattr);
        match self.dataset.getattr(node(ino)) {
            Ok(attr) => reply.attr(&attr.valid, &convert::attr(&attr)),
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        self.requests.count(Kind::Other);
        self.dataset.read_link(node(ino), move |result| match result {
            Ok(target) => reply.data(target.as_bytes()),
            Err(errno) => reply.error(convert::errno(errno)),
        });
    }

    fn open(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.requests.count(Kind::Open);
        if own(request) {
            return reply.opened(OWN, FopenFlags::FOPEN_KEEP_CACHE);
        }
        match self.dataset.open(node(ino), request.pid()) {
            Ok(()) => reply.opened(READER, FopenFlags::FOPEN_KEEP_CACHE),
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.requests.count(Kind::Read);
        let answer = move |result: Result<&[u8], nix::errno::Errno>| match result {
            Ok(bytes) => reply.data(bytes),
            Err(errno) => reply.error(convert::errno(errno)),
        };
        self.dataset.read(node(ino), request.pid(), offset, size, Box::new(answer));
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
        self.requests.count(Kind::Release);
        reply.ok();
        if fh == READER {
            self.dataset.close(node(ino));
        }
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.requests.count(Kind::Other);
        let listings = Arc::clone(&self.listings);
        let handles = Arc::clone(&self.handles);
        self.dataset.list(node(ino), own(request), move |result| match result {
            Ok(listing) => {
                let handle = handles.fetch_add(1, Ordering::Relaxed);
                let mut listings = listings.lock().unwrap_or_else(PoisonError::into_inner);
                listings.insert(handle, Arc::new(listing));
                reply.opened(FileHandle(handle), FopenFlags::empty());
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
        self.requests.count(Kind::Other);
        let (Some(listing), Ok(dots)) = (self.listing(fh), self.dots(node(ino))) else {
            return reply.error(Errno::EBADF);
        };
        for (index, (node, name)) in dots.into_iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(node.0), index as u64 + 1, FileType::Directory, name) {
                return reply.ok();
            }
        }
        for (index, entry) in listing.iter().enumerate().skip((offset as usize).saturating_sub(2)) {
            let kind = convert::file_type(entry.attr.stat.kind);
            if reply.add(INodeNo(entry.attr.node.0), index as u64 + 3, kind, &entry.name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.requests.count(Kind::Other);
        let catalog = self.dataset.catalog();
        let (Some(listing), Ok(dots)) = (self.listing(fh), self.dots(node(ino))) else {
            return reply.error(Errno::EBADF);
        };
        for (index, (node, name)) in dots.into_iter().enumerate().skip(offset as usize) {
            let Ok(attr) = catalog.getattr(node) else { return reply.error(Errno::ESTALE) };
            let attr = convert::attr(&attr);
            // The kernel takes no entry for these two, so they are not counted as known.
            let (ino, next) = (INodeNo(node.0), index as u64 + 1);
            if reply.add(ino, next, name, &Duration::ZERO, &attr, Generation(0)) {
                return reply.ok();
            }
        }
        for (index, entry) in listing.iter().enumerate().skip((offset as usize).saturating_sub(2)) {
            let (ino, next) = (INodeNo(entry.attr.node.0), index as u64 + 3);
            let attr = convert::attr(&entry.attr);
            let name: &OsString = &entry.name;
            if reply.add(ino, next, name, &entry.attr.valid, &attr, Generation(0)) {
                break;
            }
            self.known.looked_up(entry.attr.node);
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
        self.requests.count(Kind::Other);
        self.listings.lock().unwrap_or_else(PoisonError::into_inner).remove(&fh.0);
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.requests.count(Kind::Other);
        self.dataset.wait_for_source(move |dataset| match dataset.catalog().source().space() {
            Ok([blocks, free, available, files, files_free, size, name_max]) => reply.statfs(
                blocks,
                free,
                available,
                files,
                files_free,
                size as u32,
                name_max as u32,
                size as u32,
            ),
            Err(errno) => reply.error(convert::errno(errno)),
        });
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.requests.count(Kind::Other);
        let name = name.to_os_string();
        self.dataset.wait_for_source(move |dataset| {
            let path = dataset.catalog().path(node(ino));
            let value = path.and_then(|path| dataset.catalog().source().xattr(&path, &name));
            reply_xattr(reply, size, value);
        });
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.requests.count(Kind::Other);
        self.dataset.wait_for_source(move |dataset| {
            let path = dataset.catalog().path(node(ino));
            let names = path.and_then(|path| dataset.catalog().source().list_xattrs(&path));
            reply_xattr(reply, size, names);
        });
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.requests.count(Kind::Other);
        // The kernel never asks again: there is nothing to flush.
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _size: u32,
        reply: ReplyIoctl,
    ) {
        self.requests.count(Kind::Other);
        // Python asks every file it opens whether it is a terminal.
        reply.error(Errno::ENOTTY);
    }

    fn lseek(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: i64,
        _whence: i32,
        reply: ReplyLseek,
    ) {
        self.requests.count(Kind::Other);
        // The kernel then treats the whole file as data.
        reply.error(Errno::ENOSYS);
    }
}
