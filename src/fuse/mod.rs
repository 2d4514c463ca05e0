//! The kernel's side: decodes and answers requests, and pushes pages. The only user of `fuser`.
//!
//! 1. [`Connection::mount`] mounts read-only, before any request is served.
//! 2. Request threads decode a request, ask the [`Dataset`], and reply. If an answer must wait, another thread
//!    does the waiting and replies. Request threads never block and never notify.
//! 3. [`Pusher`] stores blocks in the page cache of the first connection, checks them, drops them, and has the
//!    kernel forget names. A further connection of the same tree keeps no pages of its own (`direct`).
//! 4. [`probe`] tries on a mount of its own what the kernel can do.
//! 5. [`MountHandle::control`] mounts the control files, and [`MountHandle::views`] the views of rehearsal buffers.
//!    Each is a small connection of the same daemon. `virtual_files` serves both trees.
//! 6. A panic is the error of one request (`guard`). A connection that answers nothing is ended (`watchdog`).

mod cachestat;
mod connections;
mod control;
mod convert;
mod daemon_threads;
mod direct;
mod entries;
mod guard;
mod known;
mod listings;
mod notify;
mod ops;
mod passthrough;
mod probe;
mod push;
mod requests;
mod self_access;
mod table;
mod views;
mod virtual_files;
mod watchdog;
mod write_account;
mod write_buffer;

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, Config, Filesystem, MountOption, Session, SessionACL};

use nix::libc::dev_t;
use nix::sys::signal::{Signal, raise};

use crate::error::{Error, ErrorKind, Result};
use crate::fs::Dataset;
use crate::privileges::knows_all_groups;
use crate::rehearsal::views::Views;
pub use connections::{AbortHandle, can_abort};
use control::Control;
pub use control::{Accept, ControlFile, Render};
pub use daemon_threads::DaemonThreads;
use direct::DirectIo;
use guard::Guarded;
pub use known::KNOWN_BYTES;
use known::KnownNodes;
pub use notify::Notifier;
use ops::DatasetOps;
use passthrough::Passthrough;
pub use probe::probe;
pub use push::Pusher;
pub use requests::Requests;
pub use table::{
    MountIdentity, abort_any, abort_mount_of, device_of, is_aborted, is_belady_mount, is_mount_of,
    is_mounted, path_on_device, source_name, unmount,
};
use table::{abort_at, device_at};
use views::ViewTree;
use virtual_files::{Tree, VirtualFiles};
use watchdog::{PATIENCE, Patience, RequestProgress, Watchdog};
pub use write_account::WriteAccount;

#[derive(Clone, Debug)]
pub struct MountSettings {
    /// Name of the source in the mount table.
    pub source_name: String,
    pub allow_other: bool,
    pub push_pages: bool,
    /// The cache directory, if the kernel is to read large files there by itself.
    pub passthrough_dir: Option<PathBuf>,
    /// Whether to expire names if the kernel can do that. If not, the kernel believes each name only
    /// briefly.
    pub expire_names: bool,
    pub threads: usize,
    pub options: Vec<String>,
}

/// A mount whose requests are not answered yet.
struct UnservedMount<F: Filesystem> {
    session: Session<Guarded<F>>,
    mountpoint: PathBuf,
    /// Counts the requests that the threads begin and finish.
    progress: Arc<RequestProgress>,
    threads: usize,
}

impl<F: Filesystem> UnservedMount<F> {
    fn mount(filesystem: F, mountpoint: &Path, config: &Config) -> Result<Self> {
        let progress = Arc::<RequestProgress>::default();
        let guarded = Guarded::new(filesystem, Arc::clone(&progress));
        let session = Session::new(guarded, mountpoint, config);
        let session = session.map_err(|error| mount_error(&error, mountpoint))?;
        let threads = config.n_threads.unwrap_or(1);
        Ok(UnservedMount { session, mountpoint: mountpoint.to_path_buf(), progress, threads })
    }

    fn device(&self) -> Result<OwnedFd> {
        let device = self.session.as_fd().try_clone_to_owned();
        device.map_err(|error| mount_error(&error, &self.mountpoint))
    }

    fn serve(self) -> Result<MountHandle> {
        self.serve_with(PATIENCE)
    }

    /// Answers its requests. If no request is answered for longer than the patience, the connection and the
    /// daemon are ended.
    fn serve_with(self, patience: Patience) -> Result<MountHandle> {
        let UnservedMount { session, mountpoint, progress, threads } = self;
        let session = session.spawn().map_err(|error| mount_error(&error, &mountpoint))?;
        let watch = |mount: MountIdentity| {
            Watchdog::watch(progress, threads, patience, move || end_stuck(&mount, patience))
        };
        Ok(MountHandle {
            session: ManuallyDrop::new(session),
            device: device_at(&mountpoint),
            _watchdog: MountIdentity::at(&mountpoint).map(watch),
            mountpoint,
            unmounted: AtomicBool::new(false),
            unmounting: AtomicBool::new(false),
        })
    }
}

pub struct MountHandle {
    /// Never dropped: `fuser` would then unmount whatever is at the path by that time.
    session: ManuallyDrop<BackgroundSession>,
    mountpoint: PathBuf,
    device: Option<dev_t>,
    /// Whether it is unmounted. What is mounted at its path after that is another mount.
    unmounted: AtomicBool,
    unmounting: AtomicBool,
    /// None if the mount was not found in the mount table.
    _watchdog: Option<Watchdog>,
}

impl MountHandle {
    /// Mounts control files. `account` is charged for the text that is written to them.
    ///
    /// # Errors
    /// What prevents the mount, and what to do about it.
    pub fn control(
        files: Arc<Vec<ControlFile>>,
        account: Arc<WriteAccount>,
        mountpoint: &Path,
    ) -> Result<Self> {
        MountHandle::mount_tree(
            Control(files),
            account,
            mountpoint,
            ("belady-control", SessionACL::Owner),
        )
    }

    /// Mounts the views of rehearsal buffers. `account` is charged for what is written to them.
    ///
    /// # Errors
    /// What prevents the mount, and what to do about it.
    pub fn views(
        views: Arc<Views>,
        account: Arc<WriteAccount>,
        mountpoint: &Path,
        allow_other: bool,
    ) -> Result<Self> {
        let acl = if allow_other { SessionACL::All } else { SessionACL::Owner };
        let (tree, how) = (ViewTree::new(Arc::clone(&views)), ("belady-rehearsal", acl));
        let mounted = MountHandle::mount_tree(tree, account, mountpoint, how)?;
        views.snapshots.set_invalidate(views::invalidate_by(mounted.session.notifier()));
        Ok(mounted)
    }

    fn mount_tree(
        tree: impl Tree,
        account: Arc<WriteAccount>,
        mountpoint: &Path,
        (name, acl): (&str, SessionACL),
    ) -> Result<Self> {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::NoSuid,
            MountOption::NoDev,
            MountOption::NoExec,
            MountOption::NoAtime,
            MountOption::DefaultPermissions,
            MountOption::FSName(name.into()),
            MountOption::Subtype("belady".into()),
        ];
        config.acl = acl;
        UnservedMount::mount(VirtualFiles::new(tree, account), mountpoint, &config)?.serve()
    }

    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Which mount it is. None if the mount table does not have it.
    pub fn identity(&self) -> Option<MountIdentity> {
        MountIdentity::at(&self.mountpoint).filter(|_| self.is_mounted_here())
    }

    /// Whether the kernel has ended the connection, because it was unmounted.
    pub fn is_over(&self) -> bool {
        self.session.guard.is_finished()
    }

    /// Whether the mount at its path is this one.
    fn is_mounted_here(&self) -> bool {
        device_at(&self.mountpoint) == self.device
    }

    /// Aborts the connection: every request fails from now on, and every task that waits for one is freed. That
    /// may unmount it.
    fn abort(&self) {
        if let (Some(device), true) = (self.device, !self.is_over() && self.is_mounted_here())
            && abort_at(&self.mountpoint, device)
        {
            self.unmounted.store(true, Ordering::Relaxed);
        }
    }

    /// Unmounts. With `force`, it also unmounts if its files are in use, and aborts the connection. Another mount
    /// at the same path stays, whether it was mounted before or after.
    ///
    /// # Errors
    /// `Busy` if files of the mount are in use, or if it is being unmounted already.
    pub fn unmount(&self, force: bool) -> Result<()> {
        if self.unmounting.swap(true, Ordering::Relaxed) && !force {
            let at = self.mountpoint.display();
            return Err(Error::new(ErrorKind::Busy, format!("{at} is being unmounted already"))
                .hint("wait for the other `belady umount`, or use --force"));
        }
        let unmounted = self.unmount_now(force);
        self.unmounting.store(false, Ordering::Relaxed);
        unmounted
    }

    fn unmount_now(&self, force: bool) -> Result<()> {
        if force {
            self.abort();
        }
        // A later mount at its path may have the same device number.
        let is_another = || self.is_over() && !is_aborted(&self.mountpoint);
        if self.unmounted.load(Ordering::Relaxed) || !self.is_mounted_here() || is_another() {
            return Ok(());
        }
        unmount(&self.mountpoint, force)?;
        self.unmounted.store(true, Ordering::Relaxed);
        // Its threads end by themselves as soon as none of its files is open.
        let patience = Instant::now() + if force { Duration::ZERO } else { LAST_REQUESTS };
        while !self.is_over() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// How long an unmount waits for our own threads to leave the mount: they would keep it busy.
const BLOCK_PATIENCE: Duration = Duration::from_secs(10);
const FORCED_BLOCK_PATIENCE: Duration = Duration::from_secs(2);

/// How long the end of a mount waits for the last requests to be answered.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

pub struct Connection {
    mounted: MountHandle,
    notifier: Arc<Notifier>,
    known: Arc<KnownNodes>,
    /// None if it keeps no pages.
    pusher: Option<Arc<Pusher>>,
    requests: Arc<Requests>,
    passthrough: Option<Arc<Passthrough>>,
}

impl Connection {
    /// Mounts a dataset and serves it. The dataset says whether it is the first connection, whose pages are
    /// the RAM tier, or a further one.
    ///
    /// # Errors
    /// What prevents the mount, and what to do about it.
    pub fn mount(
        dataset: Arc<Dataset>,
        mountpoint: &Path,
        settings: &MountSettings,
    ) -> Result<Self> {
        let known = Arc::new(KnownNodes::default());
        known.set_can_expire(settings.expire_names);
        let requests = Arc::<Requests>::default();
        let keeps_pages = dataset.keeps_pages();
        let passthrough =
            (settings.passthrough_dir.is_some() && keeps_pages).then(Arc::<Passthrough>::default);
        let direct = (!keeps_pages).then(Arc::<DirectIo>::default);
        let (served, counted) = (Arc::clone(&dataset), Arc::clone(&requests));
        let how = (passthrough.clone(), direct.clone());
        let ops = DatasetOps::new(served, Arc::clone(&known), counted, how);
        let unserved = UnservedMount::mount(ops, mountpoint, &session_config(settings))?;
        let notifier = Arc::new(Notifier::new(unserved.device()?));
        if let Some(direct) = direct {
            direct.connect(Arc::clone(&notifier));
        }
        let mounted = unserved.serve()?;
        let pusher = keeps_pages.then(|| {
            let (notifier, known) = (Arc::clone(&notifier), Arc::clone(&known));
            let at = (mountpoint.to_path_buf(), mounted.device);
            Arc::new(Pusher::new(notifier, at, known, dataset, settings.push_pages))
        });
        if let (Some(passthrough), Some(pusher), Some(directory)) =
            (&passthrough, &pusher, &settings.passthrough_dir)
        {
            passthrough.probe(&notifier, pusher, directory);
        }
        Ok(Connection { mounted, notifier, known, pusher, requests, passthrough })
    }

    pub fn unmount(&self, force: bool) -> Result<()> {
        if force {
            // Frees our own threads, too.
            self.mounted.abort();
        }
        let patience = if force { FORCED_BLOCK_PATIENCE } else { BLOCK_PATIENCE };
        let _block = self.pusher.as_ref().map(|pusher| pusher.block_self_access(patience));
        self.mounted.unmount(force)
    }

    pub fn mountpoint(&self) -> &Path {
        &self.mounted.mountpoint
    }

    /// As [`MountHandle::identity`].
    pub fn identity(&self) -> Option<MountIdentity> {
        self.mounted.identity()
    }

    pub fn is_over(&self) -> bool {
        self.mounted.is_over()
    }

    /// The page cache of the mount. None if it keeps no pages.
    pub fn pusher(&self) -> Option<&Arc<Pusher>> {
        self.pusher.as_ref()
    }

    pub fn notifier(&self) -> &Arc<Notifier> {
        &self.notifier
    }

    pub fn known(&self) -> usize {
        self.known.len()
    }

    /// Whether the kernel reads large files by itself.
    pub fn is_passthrough(&self) -> bool {
        self.passthrough.as_ref().is_some_and(|passthrough| passthrough.is_supported())
    }

    pub fn requests(&self) -> &Requests {
        &self.requests
    }
}

/// Ends a connection that answers no request, and its daemon.
fn end_stuck(mount: &MountIdentity, patience: Patience) {
    tracing::error!(
        seconds = patience.time().as_secs(),
        at = ?mount.path,
        "no request was answered for so long; this mount is ended, and its readers get an error"
    );
    mount.abort();
    // The mount's handler of the signal unmounts what it can.
    let _ = raise(Signal::SIGTERM);
}

fn session_config(settings: &MountSettings) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::RO,
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoAtime,
        MountOption::FSName(settings.source_name.clone()),
        MountOption::Subtype("belady".into()),
    ];
    // In some user namespaces the kernel would refuse what only a group may read. There only the user who mounts is let
    // in, and the source is asked with their rights: what they may not read fails when it is read.
    if settings.allow_other || knows_all_groups() {
        config.mount_options.push(MountOption::DefaultPermissions);
    }
    config.mount_options.extend(settings.options.iter().cloned().map(MountOption::CUSTOM));
    config.acl = if settings.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(settings.threads.max(1));
    config.clone_fd = false;
    config
}

/// The error of a failed mount, with a hint for the user.
fn mount_error(error: &std::io::Error, mountpoint: &Path) -> Error {
    let at = mountpoint.display();
    let failed = Error::new(ErrorKind::Mount, format!("cannot mount at {at}: {error}"));
    if !Path::new("/dev/fuse").exists() {
        return failed.hint("/dev/fuse is missing; load the module with `modprobe fuse`, or give it to the container (--device /dev/fuse --cap-add SYS_ADMIN)");
    }
    match error.raw_os_error() {
        Some(nix::libc::EACCES | nix::libc::EPERM) => failed.hint(
            "/dev/fuse cannot be opened or mounting is not permitted; run as root, or install \
             fuse3 so that fusermount3 can mount for you, and `chmod 666 /dev/fuse`",
        ),
        _ if error.to_string().contains("user_allow_other") => {
            failed.hint("put `user_allow_other` into /etc/fuse.conf, or leave allow-other out")
        }
        _ if error.kind() == std::io::ErrorKind::NotFound => {
            failed.hint("install fuse3: mounting without root needs its fusermount3 on the PATH")
        }
        _ => failed,
    }
}
