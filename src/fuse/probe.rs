//! Tries what the kernel's FUSE can do, on a throwaway mount of one file.
//!
//! Reads of the file fail, so bytes that are read back came from the page cache, into which they were
//! pushed.

use std::ffi::OsStr;
use std::io::{Error, Result as IoResult};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEntry,
    ReplyOpen, Request,
};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use tempfile::TempDir;

use super::convert::daemon_attr;
use super::notify::Notifier;
use super::{MountHandle, UnservedMount, mount_error};
use crate::catalog::NodeId;
use crate::doctor::Kernel;
use crate::error::Result;

/// The one file: its name, node and size.
const NAME: &str = "file";
const FILE: INodeNo = INodeNo(2);
const BYTES: usize = 4096;

/// How long the kernel may believe an answer: longer than the probe takes.
const VALID: Duration = Duration::from_secs(60);

/// What the kernel offered: the version of the protocol, and its flags.
type Offer = Arc<OnceLock<((u32, u32), InitFlags)>>;

struct ProbeOps(Offer);

fn attr(ino: INodeNo) -> FileAttr {
    let (kind, perm, size) = match ino {
        FILE => (FileType::RegularFile, 0o400, BYTES as u64),
        _ => (FileType::Directory, 0o500, 0),
    };
    daemon_attr(ino.0, kind, perm, size, UNIX_EPOCH)
}

impl Filesystem for ProbeOps {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> IoResult<()> {
        let version = config.kernel_abi();
        let _ = self.0.set(((version.0, version.1), config.capabilities()));
        if config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok() {
            let _ = config.set_max_stack_depth(1);
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&VALID, &attr(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&VALID, &attr(ino));
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        _size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        reply.error(Errno::EIO);
    }
}

/// Blocks the signals that end a program as long as this lives, so that none leaves a mount behind.
struct BlockedSignals(SigSet);

impl BlockedSignals {
    fn new() -> nix::Result<Self> {
        let ends =
            [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect::<SigSet>();
        ends.thread_swap_mask(SigmaskHow::SIG_BLOCK).map(BlockedSignals)
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        let _ = self.0.thread_set_mask();
    }
}

/// A mount and its directory. Both are removed when this is dropped.
struct ThrowawayMount {
    mounted: MountHandle,
    device: OwnedFd,
    directory: TempDir,
    offer: Offer,
    _blocked: Option<BlockedSignals>,
}

impl Drop for ThrowawayMount {
    fn drop(&mut self) {
        if let Err(error) = self.mounted.unmount(true) {
            tracing::error!(%error, "a throwaway mount is left");
        }
    }
}

impl ThrowawayMount {
    fn mount() -> Result<Self> {
        let blocked = BlockedSignals::new().ok();
        let refused = |error: Error| mount_error(&error, &std::env::temp_dir());
        let directory = tempfile::Builder::new().prefix("belady-doctor-").tempdir();
        let directory = directory.map_err(refused)?;
        let mut config = Config::default();
        config.mount_options =
            vec![MountOption::RO, MountOption::NoSuid, MountOption::FSName("belady-doctor".into())];
        let offer = Offer::default();
        let ops = ProbeOps(Arc::clone(&offer));
        let unserved = UnservedMount::mount(ops, directory.path(), &config)?;
        let (device, mounted) = (unserved.device()?, unserved.serve()?);
        Ok(ThrowawayMount { mounted, device, directory, offer, _blocked: blocked })
    }

    fn store(&self, notifier: &Notifier) -> IoResult<()> {
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 31 % 251) as u8).collect();
        let path = self.directory.path().join(NAME);
        // The kernel takes pages only for a node that it knows.
        std::fs::symlink_metadata(&path)?;
        notifier.store(NodeId(FILE.0), 0, &bytes)?;
        let read = std::fs::read(path)?;
        if read == bytes { Ok(()) } else { Err(Error::other("other bytes were read back")) }
    }
}

/// Mounts in a temporary directory, tries what belady may use, and unmounts.
///
/// # Errors
/// What prevents the mount, and what to do about it.
pub fn probe() -> Result<Kernel> {
    let throwaway = ThrowawayMount::mount()?;
    let ((major, minor), offered) =
        throwaway.offer.get().copied().unwrap_or(((0, 0), InitFlags::empty()));
    let has = |flag| offered.contains(flag);
    let device = throwaway.device.as_fd().try_clone_to_owned();
    let device = device.map_err(|error| mount_error(&error, throwaway.directory.path()))?;
    let notifier = Notifier::new(device);
    let only = |flag, tried: &dyn Fn() -> IoResult<()>| {
        let tried = || tried().map_err(|error| error.to_string());
        if has(flag) { tried() } else { Err("not offered by the kernel".into()) }
    };
    Ok(Kernel {
        abi: (major, minor),
        readdirplus: has(InitFlags::FUSE_DO_READDIRPLUS),
        parallel_dirops: has(InitFlags::FUSE_PARALLEL_DIROPS),
        max_pages: has(InitFlags::FUSE_MAX_PAGES),
        no_open: has(InitFlags::FUSE_NO_OPEN_SUPPORT),
        store: throwaway.store(&notifier).map_err(|error| error.to_string()),
        expire: only(InitFlags::FUSE_HAS_EXPIRE_ONLY, &|| {
            notifier.expire(NodeId::ROOT, OsStr::new(NAME)).map_err(Error::from)
        }),
        passthrough: only(InitFlags::FUSE_PASSTHROUGH, &|| {
            notifier.register_backing(&tempfile::tempfile()?)
        }),
    })
}
