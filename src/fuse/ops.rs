//! Decodes the kernel's requests, passes them to the dataset, and answers them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use fuser::{
    Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyXattr, Request,
};

use super::convert;
use super::daemon_threads::DaemonThreads;
use super::direct::DirectIo;
use super::entries::{bounded_entry_valid, reply_attr, reply_entry};
use super::known::KnownNodes;
use super::listings::{Listing, Listings, index_of};
use super::passthrough::Passthrough;
use super::requests::{Kind, Requests};
use crate::catalog::NodeId;
use crate::fs::Dataset;
use crate::source::Kind as SourceKind;
use crate::store::PassthroughFile;

/// Bits of a handle. An open of our own threads has neither.
const READER: u64 = 1;
/// The kernel reads the file by itself.
const PASSED_THROUGH: u64 = 2;

const BACKGROUND_MAX: u16 = 512;

/// With more rows than this, listing a directory does not make the kernel know every row.
const PRIMED_MAX: u64 = 2_000_000;

pub(super) struct DatasetOps {
    dataset: Arc<Dataset>,
    known: Arc<KnownNodes>,
    requests: Arc<Requests>,
    listings: Arc<Listings>,
    /// None if no file is ever passed through.
    passthrough: Option<Arc<Passthrough>>,
    /// None if pages are kept.
    direct: Option<Arc<DirectIo>>,
}

impl DatasetOps {
    pub(super) fn new(
        dataset: Arc<Dataset>,
        known: Arc<KnownNodes>,
        requests: Arc<Requests>,
        (passthrough, direct): (Option<Arc<Passthrough>>, Option<Arc<DirectIo>>),
    ) -> Self {
        DatasetOps { dataset, known, requests, listings: Arc::default(), passthrough, direct }
    }

    /// Answers an open: the kernel reads the file by itself, or sends its reads to us.
    fn reply_open(&self, node: NodeId, handle: u64, reply: ReplyOpen) {
        if let Some(direct) = &self.direct {
            self.requests.count(Kind::Open);
            return reply.opened(FileHandle(handle), direct.flags());
        }
        let find = || self.dataset.passthrough_file(node);
        let register = |file: &Arc<PassthroughFile>| reply.open_backing(&**file);
        let passed = self
            .passthrough
            .as_ref()
            .and_then(|passthrough| passthrough.open(node, find, register));
        let kind = if passed.is_some() { Kind::PassedThrough } else { Kind::Open };
        self.requests.count(if handle & READER == 0 { Kind::Daemon } else { kind });
        match passed {
            Some(id) => {
                self.dataset.tell_passed_through(node);
                reply.opened_passthrough(
                    FileHandle(handle | PASSED_THROUGH),
                    FopenFlags::empty(),
                    &id,
                );
            }
            None => reply.opened(FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE),
        }
    }

    /// Gives the listing that a request continues, or begins a new one.
    fn with_listing(
        &self,
        request: &Request,
        directory: INodeNo,
        handle: FileHandle,
        offset: u64,
        then: impl FnOnce(Result<Listing, nix::errno::Errno>) + Send + 'static,
    ) {
        match self.listings.get(handle.0, offset) {
            Some(listing) => then(Ok(listing)),
            None if handle.0 != 0 => then(Err(nix::errno::Errno::EBADF)),
            None => {
                let listings = Arc::clone(&self.listings);
                self.dataset.list(node(directory), reader(request), move |result| {
                    then(result.map(|entries| listings.start(entries)));
                });
            }
        }
    }
}

/// The directory itself and its parent, which every listing begins with.
fn dots(dataset: &Dataset, node: NodeId) -> Result<[(NodeId, &'static str); 2], nix::errno::Errno> {
    Ok([(node, "."), (dataset.parent(node)?, "..")])
}

fn kind_of(request: &Request, kind: Kind) -> Kind {
    if reader(request).is_some() { kind } else { Kind::Daemon }
}

/// The task that asks. None for our own threads.
fn reader(request: &Request) -> Option<u32> {
    Some(request.pid()).filter(|&task| !DaemonThreads::contains(task))
}

fn node(ino: INodeNo) -> NodeId {
    NodeId(ino.0)
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
        let mut wanted = InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_AUTO_INVAL_DATA;
        let catalog = self.dataset.catalog();
        // With its listing, the kernel would be told of sizes, too.
        if catalog.totals().0 <= PRIMED_MAX && catalog.tells_sizes() {
            wanted |= InitFlags::FUSE_DO_READDIRPLUS;
        }
        if !catalog.scan_status().is_whole {
            // There may be many more rows than are known. With this flag the kernel learns the nodes only
            // for readers that also look up the names.
            wanted |= InitFlags::FUSE_READDIRPLUS_AUTO;
        }
        // Each flag is a gain and none is needed: an old kernel goes without.
        for flag in wanted.iter() {
            let _ = config.add_capabilities(flag);
        }
        let expires = self.known.can_expire();
        let supported = expires && config.add_capabilities(InitFlags::FUSE_HAS_EXPIRE_ONLY).is_ok();
        self.known.set_can_expire(supported);
        let _ = config.set_max_background(BACKGROUND_MAX);
        let _ = config.set_max_write(1 << 20);
        if let Some(passthrough) = &self.passthrough
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok()
        {
            passthrough.set_supported();
        }
        if let Some(direct) = &self.direct
            && config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok()
        {
            direct.allow_maps();
        }
        Ok(())
    }

    /// The threads of the connection end right after this.
    fn destroy(&mut self) {
        self.dataset.connection_ended();
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.requests.count(kind_of(request, Kind::Lookup));
        let (dataset, known) = (Arc::clone(&self.dataset), Arc::clone(&self.known));
        self.dataset.lookup(node(parent), name, reader(request), move |result| {
            reply_entry(&dataset, &known, reply, result);
        });
    }

    fn forget(&self, _request: &Request, ino: INodeNo, lookups: u64) {
        self.known.forget(node(ino), lookups);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        self.requests.count(kind_of(req, Kind::Getattr));
        reply_attr(&self.dataset, &self.known, ino, fh.is_some(), reader(req), reply);
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        self.requests.count(Kind::Other);
        self.dataset.read_link(node(ino), reader(request), move |result| match result {
            Ok(target) => reply.data(target.as_bytes()),
            Err(errno) => reply.error(convert::errno(errno)),
        });
    }

    fn open(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if !self.dataset.opens_are_requests() {
            self.requests.count(kind_of(request, Kind::Open));
            // The kernel never asks again: it opens files by itself, and keeps the pages.
            return reply.error(Errno::ENOSYS);
        }
        let Some(task) = reader(request) else {
            return self.reply_open(node(ino), 0, reply);
        };
        match self.dataset.open(node(ino), task) {
            Ok(()) => self.reply_open(node(ino), READER, reply),
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
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(task) = reader(request) else {
            // Our own thread wants only what is in the pages.
            self.requests.count(Kind::Daemon);
            return reply.error(Errno::EAGAIN);
        };
        self.requests.count(Kind::Read);
        if let Some(direct) = &self.direct {
            direct.note_read(node(ino), lock_owner);
        }
        let answer = move |result: Result<&[u8], nix::errno::Errno>| match result {
            Ok(bytes) => reply.data(bytes),
            Err(errno) => reply.error(convert::errno(errno)),
        };
        self.dataset.read(node(ino), task, offset, size, Box::new(answer));
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
        let by_reader = fh.0 & READER != 0;
        self.requests.count(if by_reader { Kind::Release } else { Kind::Daemon });
        reply.ok();
        if let Some(passthrough) = &self.passthrough {
            passthrough.release(node(ino), fh.0 & PASSED_THROUGH != 0);
        }
        if let Some(direct) = &self.direct {
            direct.note_close(node(ino));
        }
        if by_reader {
            self.dataset.close(node(ino));
        }
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.requests.count(kind_of(request, Kind::Opendir));
        if !self.dataset.opens_are_requests() {
            // The kernel never asks again. It keeps a listing as long as the directory is the same.
            return reply.error(Errno::ENOSYS);
        }
        let listings = Arc::clone(&self.listings);
        self.dataset.list(node(ino), reader(request), move |result| match result {
            Ok(listing) => {
                reply.opened(FileHandle(listings.open(listing)), FopenFlags::empty());
            }
            Err(errno) => reply.error(convert::errno(errno)),
        });
    }

    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.requests.count(kind_of(request, Kind::List));
        let (dots, listings) = (dots(&self.dataset, node(ino)), Arc::clone(&self.listings));
        self.with_listing(request, ino, fh, offset, move |listing| {
            let (listing, dots) = match (listing, dots) {
                (Ok(listing), Ok(dots)) => (listing, dots),
                (Err(errno), _) | (_, Err(errno)) => return reply.error(convert::errno(errno)),
            };
            let at = index_of(offset);
            for (index, (node, name)) in dots.into_iter().enumerate().skip(at) {
                let next = listing.offset_after(index);
                if reply.add(INodeNo(node.0), next, FileType::Directory, name) {
                    return reply.ok();
                }
            }
            let skipped = at.saturating_sub(2);
            if skipped >= listing.entries.len() {
                listings.end(&listing);
            }
            for (index, entry) in listing.entries.iter().enumerate().skip(skipped) {
                let kind = convert::file_type(entry.attr.stat.kind);
                let next = listing.offset_after(index + 2);
                if reply.add(INodeNo(entry.attr.node.0), next, kind, &entry.name) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.requests.count(kind_of(request, Kind::List));
        let (dataset, known) = (Arc::clone(&self.dataset), Arc::clone(&self.known));
        let (dots, listings) = (dots(&self.dataset, node(ino)), Arc::clone(&self.listings));
        self.with_listing(request, ino, fh, offset, move |listing| {
            let (listing, dots) = match (listing, dots) {
                (Ok(listing), Ok(dots)) => (listing, dots),
                (Err(errno), _) | (_, Err(errno)) => return reply.error(convert::errno(errno)),
            };
            let at = index_of(offset);
            for (index, (node, name)) in dots.into_iter().enumerate().skip(at) {
                let Ok(attr) = dataset.attr(node) else { return reply.error(Errno::ESTALE) };
                let attr = convert::attr(&attr);
                // The kernel makes no entry for these two names, so they are not counted as known.
                let (ino, next) = (INodeNo(node.0), listing.offset_after(index));
                if reply.add(ino, next, name, &Duration::ZERO, &attr, Generation(0)) {
                    return reply.ok();
                }
            }
            let skipped = at.saturating_sub(2);
            if skipped >= listing.entries.len() {
                listings.end(&listing);
            }
            for (index, entry) in listing.entries.iter().enumerate().skip(skipped) {
                let next = listing.offset_after(index + 2);
                let ino = INodeNo(entry.attr.node.0);
                // Noted before the answer is decided. If the name is taken back meanwhile, the kernel is
                // told.
                known.note_lookup(entry.attr.node, true);
                // The listing may be old. What the kernel may believe is decided by the present state.
                let (attr, valid) = match dataset.attr(entry.attr.node) {
                    // A file with several names: its node does not tell whether this name still stands for
                    // it.
                    Ok(attr)
                        if attr.stat.kind == SourceKind::File && !dataset.has_one_name(&attr) =>
                    {
                        (attr, Duration::ZERO)
                    }
                    Ok(attr) if entry.sure => (attr, bounded_entry_valid(&dataset, &known, &attr)),
                    // A task that wants to know what the name is asks for it.
                    Ok(_) | Err(_) => (entry.attr, Duration::ZERO),
                };
                if valid.is_zero() {
                    known.take_untracked(entry.attr.node);
                }
                let attr = convert::attr(&attr);
                let name: &OsString = &entry.name;
                if reply.add(ino, next, name, &valid, &attr, Generation(0)) {
                    known.forget(entry.attr.node, 1);
                    break;
                }
            }
            reply.ok();
        });
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
        self.listings.close(fh.0);
        reply.ok();
    }

    fn statfs(&self, request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.requests.count(kind_of(request, Kind::Other));
        self.dataset.space(reader(request), move |result| match result {
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

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.requests.count(Kind::Other);
        self.dataset.xattr(node(ino), name, reader(req), move |value| {
            reply_xattr(reply, size, value);
        });
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.requests.count(Kind::Other);
        self.dataset.list_xattrs(node(ino), reader(request), move |names| {
            reply_xattr(reply, size, names);
        });
    }

    fn flush(
        &self,
        request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.requests.count(kind_of(request, Kind::Flush));
        // The kernel never asks again: there is nothing to flush.
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _size: u32,
        reply: ReplyIoctl,
    ) {
        self.requests.count(kind_of(request, Kind::Ioctl));
        // Python asks of every file it opens whether it is a terminal. That shows its open.
        self.dataset.tell_seen(node(ino), reader(request));
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
