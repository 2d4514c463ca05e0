//! The filesystem that FUSE sees: a read-only pass-through with delays.

mod attr;
mod dirs;
mod files;
mod handles;
mod inodes;
mod source;

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use nix::sys::stat::{FileStat, fstat};

use crate::engine::Engine;
use crate::locked;
use crate::model;
use crate::stats::Op;
use handles::{Handle, Handles};
use inodes::{Inodes, ROOT};
pub(crate) use source::Source;

/// Options of the filesystem.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// How long the kernel trusts names and attributes.
    pub(crate) ttl: Duration,
    /// Whether pages are kept between opens while the file is unchanged.
    pub(crate) client_cache: bool,
    /// Whether every read reaches the filesystem.
    pub(crate) direct_io: bool,
    /// Whether directories are read with the attributes of their entries.
    pub(crate) readdirplus: bool,
    /// Whether times are reported in whole seconds.
    pub(crate) coarse_times: bool,
}

pub(crate) struct SlowFs {
    source: Source,
    engine: Arc<Engine>,
    options: Options,
    inodes: Mutex<Inodes>,
    handles: Arc<Handles>,
}

impl SlowFs {
    pub(crate) fn new(source: Source, engine: Arc<Engine>, options: Options) -> io::Result<Self> {
        let root =
            source.stat(Path::new("")).map_err(|e| io::Error::from_raw_os_error(e.code()))?;
        let inodes = Mutex::new(Inodes::new(&root));
        Ok(Self { source, engine, options, inodes, handles: Arc::default() })
    }

    /// The attributes of `stat` under an inode's number.
    fn attr(&self, number: u64, stat: &FileStat) -> FileAttr {
        attr::from_stat(number, stat, self.options.coarse_times)
    }

    /// The path of an inode that the kernel knows.
    fn path(&self, ino: u64) -> Result<Arc<Path>, Errno> {
        locked(&self.inodes).path(ino).ok_or(Errno::ESTALE)
    }

    /// The attributes of an inode that has lost its name but is open: it lives until it is closed.
    fn stat_open(&self, ino: u64) -> Option<FileStat> {
        match &*self.handles.of_inode(ino)? {
            Handle::File { file, .. } => fstat(file).ok(),
            _ => None,
        }
    }

    /// Returns `stat` if it is still that of inode `ino`. If another file has taken the name, ESTALE makes the
    /// kernel look the name up again, and the caller gets the new file.
    fn check_inode(&self, ino: u64, stat: FileStat) -> Result<FileStat, Errno> {
        let same = ino == ROOT || locked(&self.inodes).number(&stat) == ino;
        if same { Ok(stat) } else { Err(Errno::ESTALE) }
    }

    /// The flags of an open: how the kernel treats the pages of the file.
    fn open_flags(&self, ino: u64, stat: &FileStat) -> FopenFlags {
        let mut flags = FopenFlags::empty();
        if self.options.direct_io {
            flags |= FopenFlags::FOPEN_DIRECT_IO;
        }
        if self.options.client_cache
            && locked(&self.inodes).note_version(ino, inodes::version(stat))
        {
            flags |= FopenFlags::FOPEN_KEEP_CACHE;
        }
        flags
    }
}

/// Operations that would write are refused. Operations that only inform are answered quietly. The mount
/// option `ro` keeps writes away until a remount. fuser logs a warning for operations without a handler.
macro_rules! answer {
    ($errno:ident: $($name:ident($($arg:ty),*) -> $reply:ty;)+) => {
        $(fn $name(&self, _: &Request, $(_: $arg,)* reply: $reply) {
            reply.error(Errno::$errno);
        })+
    };
}

impl Filesystem for SlowFs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = vec![
            // Without it, the kernel sends the lookups in a directory one after the other.
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
        ];
        if self.options.readdirplus {
            wanted.extend([InitFlags::FUSE_DO_READDIRPLUS, InitFlags::FUSE_READDIRPLUS_AUTO]);
        }
        for capability in wanted {
            // A kernel that lacks one works without it.
            let _ = config.add_capabilities(capability);
        }
        // The default of 16 would add a queue before the model.
        let _ = config.set_max_background(512);
        let _ = config.set_congestion_threshold(512);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        files::lookup(self, parent.0, name, reply);
    }

    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        locked(&self.inodes).forget(ino.0, count);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        files::getattr(self, ino.0, reply);
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        files::readlink(self, ino.0, reply);
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        files::open(self, ino.0, flags, reply);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        files::read(self, ino.0, fh, offset, size, reply);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        files::release(self, ino.0, fh);
        reply.ok();
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        dirs::opendir(self, ino.0, reply);
    }

    fn readdir(&self, _: &Request, ino: INodeNo, fh: FileHandle, at: u64, reply: ReplyDirectory) {
        dirs::readdir(self, ino.0, fh, at, reply);
    }

    fn readdirplus(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        at: u64,
        reply: ReplyDirectoryPlus,
    ) {
        dirs::readdirplus(self, ino.0, fh, at, reply);
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.handles.remove(fh);
        reply.ok();
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let request = model::Request::Getattr;
        let ticket = self.engine.admit(Op::Other, request, ino.0, Path::new(""));
        let found = ticket.work(|| self.source.statfs());
        self.engine.finish(ticket, move |error| match error.map_or(found, Err) {
            Ok(s) => reply.statfs(
                s.blocks(),
                s.blocks_free(),
                s.blocks_available(),
                s.files(),
                s.files_free(),
                u32::try_from(s.block_size()).unwrap_or(4096),
                u32::try_from(s.name_max()).unwrap_or(255),
                u32::try_from(s.fragment_size()).unwrap_or(4096),
            ),
            Err(error) => reply.error(error),
        });
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        files::xattr(self, ino.0, reply, |path| self.source.getxattr(path, name, size));
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        files::xattr(self, ino.0, reply, |path| self.source.listxattr(path, size));
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    answer! { ENOSYS:
        flush(INodeNo, FileHandle, LockOwner) -> ReplyEmpty;
        lseek(INodeNo, FileHandle, i64, i32) -> ReplyLseek;
        poll(INodeNo, FileHandle, PollNotifier, PollEvents, PollFlags) -> ReplyPoll;
    }

    answer! { ENOTTY:
        ioctl(INodeNo, FileHandle, IoctlFlags, u32, &[u8], u32) -> ReplyIoctl;
    }

    answer! { EROFS:
        setattr(
            INodeNo, Option<u32>, Option<u32>, Option<u32>, Option<u64>, Option<TimeOrNow>,
            Option<TimeOrNow>, Option<SystemTime>, Option<FileHandle>, Option<SystemTime>,
            Option<SystemTime>, Option<SystemTime>, Option<BsdFileFlags>
        ) -> ReplyAttr;
        mknod(INodeNo, &OsStr, u32, u32, u32) -> ReplyEntry;
        mkdir(INodeNo, &OsStr, u32, u32) -> ReplyEntry;
        unlink(INodeNo, &OsStr) -> ReplyEmpty;
        rmdir(INodeNo, &OsStr) -> ReplyEmpty;
        symlink(INodeNo, &OsStr, &Path) -> ReplyEntry;
        rename(INodeNo, &OsStr, INodeNo, &OsStr, RenameFlags) -> ReplyEmpty;
        link(INodeNo, INodeNo, &OsStr) -> ReplyEntry;
        create(INodeNo, &OsStr, u32, u32, i32) -> ReplyCreate;
        write(
            INodeNo, FileHandle, u64, &[u8], WriteFlags, OpenFlags, Option<LockOwner>
        ) -> ReplyWrite;
        fallocate(INodeNo, FileHandle, u64, u64, i32) -> ReplyEmpty;
        setxattr(INodeNo, &OsStr, &[u8], i32, u32) -> ReplyEmpty;
        removexattr(INodeNo, &OsStr) -> ReplyEmpty;
    }
}
