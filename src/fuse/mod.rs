//! The kernel's side: requests decoded and answered, pages pushed. The only user of `fuser`.
//!
//! 1. [`Connection::mount`] mounts read-only, before any request is served.
//! 2. Request threads decode a request, ask the [`Dataset`], and reply; what
//!    must wait is replied to by the thread that waits. They never block and never notify.
//! 3. [`Pusher`] puts blocks into the page cache of the first connection and drops them; a further
//!    connection of the same tree has its files read past the page cache (`direct`).
//! 4. [`probe`] tries what the kernel can do on a throwaway mount.
//! 5. [`Mounted::control`] mounts the control files and [`Mounted::views`] the views of rehearsal
//!    buffers, small connections of the same daemon: two trees of `virtual_files`.

mod cachestat;
mod connections;
mod control;
mod convert;
mod direct;
mod entries;
mod guard;
mod inside;
mod known;
mod listings;
mod notify;
mod ops;
mod own;
mod pass;
mod probe;
mod push;
mod requests;
mod room;
mod table;
mod views;
mod virtual_files;
mod watchdog;
mod writing;

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
use crate::rehearsal::views::Views;
pub use connections::{Switch, can_abort};
use control::Control;
pub use control::{Accept, ControlFile, Render};
use direct::Direct;
use guard::Guarded;
pub use known::KNOWN_BYTES;
use known::Known;
pub use notify::Notifier;
use ops::DatasetOps;
pub use own::OwnThreads;
use pass::Passing;
pub use probe::probe;
pub use push::Pusher;
pub use requests::Requests;
pub use room::Room;
pub use table::{
    Place, cut_off, cut_off_any, device_of, is_cut_off, is_mounted, is_of, is_ours,
    place_on_device, source_name, unmount,
};
use table::{device_at, sever};
use views::ViewTree;
use virtual_files::{Tree, VirtualFiles};
use watchdog::{Answering, PATIENCE, Patience, Watchdog};

/// How a connection is mounted.
#[derive(Clone, Debug)]
pub struct MountSettings {
    /// Name of the source in the mount table.
    pub source_name: String,
    /// Whether other users may enter.
    pub allow_other: bool,
    /// Whether pages are pushed.
    pub pushes: bool,
    /// Where the kernel is to read large files by itself, if it can: the cache directory.
    pub passes: Option<PathBuf>,
    /// Whether names are let expire, where the kernel can do that; else each is believed for a short
    /// while only.
    pub expires: bool,
    /// Threads that answer requests.
    pub threads: usize,
    /// Further options of mount(8).
    pub options: Vec<String>,
}

/// A filesystem that is mounted, and whose requests nobody answers yet.
struct Unserved<F: Filesystem> {
    session: Session<Guarded<F>>,
    mountpoint: PathBuf,
    /// What the threads are at that will answer them, and how many these are.
    answering: Arc<Answering>,
    threads: usize,
}

impl<F: Filesystem> Unserved<F> {
    fn mount(filesystem: F, mountpoint: &Path, config: &Config) -> Result<Self> {
        let answering = Arc::<Answering>::default();
        let guarded = Guarded::new(filesystem, Arc::clone(&answering));
        let session = Session::new(guarded, mountpoint, config);
        let session = session.map_err(|error| explain(&error, mountpoint))?;
        let threads = config.n_threads.unwrap_or(1);
        Ok(Unserved { session, mountpoint: mountpoint.to_path_buf(), answering, threads })
    }

    /// The device, for notifications.
    fn device(&self) -> Result<OwnedFd> {
        let device = self.session.as_fd().try_clone_to_owned();
        device.map_err(|error| explain(&error, &self.mountpoint))
    }

    fn serve(self) -> Result<Mounted> {
        self.serve_with(PATIENCE)
    }

    /// Answers its requests. If that stops for longer than the patience, the connection is ended, and the
    /// daemon.
    fn serve_with(self, patience: Patience) -> Result<Mounted> {
        let Unserved { session, mountpoint, answering, threads } = self;
        let session = session.spawn().map_err(|error| explain(&error, &mountpoint))?;
        let over = |place: Place| {
            Watchdog::over(answering, threads, patience, move || end(&place, patience))
        };
        Ok(Mounted {
            session: ManuallyDrop::new(session),
            device: device_at(&mountpoint),
            _watchdog: Place::at(&mountpoint).map(over),
            mountpoint,
            gone: AtomicBool::new(false),
            leaves: AtomicBool::new(false),
        })
    }
}

/// A mount that is being served.
pub struct Mounted {
    /// Never dropped: the crate would then unmount whatever is at the path by that time.
    session: ManuallyDrop<BackgroundSession>,
    mountpoint: PathBuf,
    device: Option<dev_t>,
    /// Whether it is mounted no more: whatever is at its path is another one.
    gone: AtomicBool,
    /// Whether it is being unmounted.
    leaves: AtomicBool,
    /// None where it is not found in the mount table.
    _watchdog: Option<Watchdog>,
}

impl Mounted {
    /// Mounts control files. There is `room` for what is written to them.
    ///
    /// # Errors
    /// What stands in the way of the mount, and what to do about it.
    pub fn control(
        files: Arc<Vec<ControlFile>>,
        room: Arc<Room>,
        mountpoint: &Path,
    ) -> Result<Self> {
        Mounted::tree(Control(files), room, mountpoint, ("belady-control", SessionACL::Owner))
    }

    /// Mounts the views of rehearsal buffers. There is `room` for what is written to them.
    ///
    /// # Errors
    /// What stands in the way of the mount, and what to do about it.
    pub fn views(
        views: Arc<Views>,
        room: Arc<Room>,
        mountpoint: &Path,
        allow_other: bool,
    ) -> Result<Self> {
        let acl = if allow_other { SessionACL::All } else { SessionACL::Owner };
        let (tree, how) = (ViewTree::new(Arc::clone(&views)), ("belady-rehearsal", acl));
        let mounted = Mounted::tree(tree, room, mountpoint, how)?;
        views.lapse_by(views::lapse_by(mounted.session.notifier()));
        Ok(mounted)
    }

    fn tree(
        tree: impl Tree,
        room: Arc<Room>,
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
        Unserved::mount(VirtualFiles::new(tree, room), mountpoint, &config)?.serve()
    }

    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Where it is mounted; none if the mount table does not have it.
    pub fn place(&self) -> Option<Place> {
        Place::at(&self.mountpoint).filter(|_| self.is_there())
    }

    /// Whether the kernel has ended the connection: somebody unmounted it.
    pub fn is_over(&self) -> bool {
        self.session.guard.is_finished()
    }

    /// Whether it is what is mounted at its path.
    fn is_there(&self) -> bool {
        device_at(&self.mountpoint) == self.device
    }

    /// Cuts it off: every request fails from now on, and who waits for one is set free. It may be
    /// unmounted by that.
    fn sever(&self) {
        if let (Some(device), true) = (self.device, !self.is_over() && self.is_there())
            && sever(&self.mountpoint, device)
        {
            self.gone.store(true, Ordering::Relaxed);
        }
    }

    /// Unmounts; with `force` also where its files are in use, which are cut off. What else may be
    /// mounted at the same path by now, or was before, stays.
    ///
    /// # Errors
    /// `Busy` where files of the mount are in use, or somebody else unmounts it.
    pub fn unmount(&self, force: bool) -> Result<()> {
        if self.leaves.swap(true, Ordering::Relaxed) && !force {
            let at = self.mountpoint.display();
            return Err(Error::new(ErrorKind::Busy, format!("{at} is being unmounted already"))
                .hint("wait for the other `belady umount`, or use --force"));
        }
        let unmounted = self.unmount_now(force);
        self.leaves.store(false, Ordering::Relaxed);
        unmounted
    }

    fn unmount_now(&self, force: bool) -> Result<()> {
        if force {
            self.sever();
        }
        // Another mount that is at its path by now may have the number of its device.
        let is_another = || self.is_over() && !is_cut_off(&self.mountpoint);
        if self.gone.load(Ordering::Relaxed) || !self.is_there() || is_another() {
            return Ok(());
        }
        unmount(&self.mountpoint, force)?;
        self.gone.store(true, Ordering::Relaxed);
        // Its threads end by themselves, as soon as nobody holds a file of it open.
        let patience = Instant::now() + if force { Duration::ZERO } else { LAST_REQUESTS };
        while !self.is_over() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// How long an unmount waits for our own threads to leave the mount, which would be what uses it.
const LEAVE: Duration = Duration::from_secs(10);
const LEAVE_BY_FORCE: Duration = Duration::from_secs(2);

/// How long the end of a mount waits for the last requests to be answered.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// One mount of a dataset.
pub struct Connection {
    mounted: Mounted,
    notifier: Arc<Notifier>,
    known: Arc<Known>,
    /// None where it keeps no pages.
    pusher: Option<Arc<Pusher>>,
    requests: Arc<Requests>,
    passing: Option<Arc<Passing>>,
}

impl Connection {
    /// Mounts a dataset and serves it: as the first connection, whose pages are the RAM tier, or as a
    /// further one, as the dataset has it.
    ///
    /// # Errors
    /// What stands in the way of the mount, and what to do about it.
    pub fn mount(
        dataset: Arc<Dataset>,
        mountpoint: &Path,
        settings: &MountSettings,
    ) -> Result<Self> {
        let known = Arc::new(Known::default());
        known.set_expires(settings.expires);
        let requests = Arc::<Requests>::default();
        let keeps = dataset.keeps_pages();
        let passing = (settings.passes.is_some() && keeps).then(Arc::<Passing>::default);
        let direct = (!keeps).then(Arc::<Direct>::default);
        let (served, counted) = (Arc::clone(&dataset), Arc::clone(&requests));
        let how = (passing.clone(), direct.clone());
        let ops = DatasetOps::new(served, Arc::clone(&known), counted, how);
        let unserved = Unserved::mount(ops, mountpoint, &config(settings))?;
        let notifier = Arc::new(Notifier::new(unserved.device()?));
        if let Some(direct) = direct {
            direct.connect(Arc::clone(&notifier));
        }
        let mounted = unserved.serve()?;
        let pusher = keeps.then(|| {
            let (notifier, known) = (Arc::clone(&notifier), Arc::clone(&known));
            let at = (mountpoint.to_path_buf(), mounted.device);
            Arc::new(Pusher::new(notifier, at, known, dataset, settings.pushes))
        });
        if let (Some(passing), Some(pusher), Some(directory)) =
            (&passing, &pusher, &settings.passes)
        {
            passing.probe(&notifier, pusher, directory);
        }
        Ok(Connection { mounted, notifier, known, pusher, requests, passing })
    }

    /// Unmounts; with `force` also where its files are in use.
    pub fn unmount(&self, force: bool) -> Result<()> {
        if force {
            // Sets our own threads free, too.
            self.mounted.sever();
        }
        let patience = if force { LEAVE_BY_FORCE } else { LEAVE };
        let _kept_out = self.pusher.as_ref().map(|pusher| pusher.keep_out(patience));
        self.mounted.unmount(force)
    }

    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mounted.mountpoint
    }

    /// As [`Mounted::place`].
    pub fn place(&self) -> Option<Place> {
        self.mounted.place()
    }

    /// Whether the kernel has ended the connection.
    pub fn is_over(&self) -> bool {
        self.mounted.is_over()
    }

    /// The page cache of the mount, unless it keeps no pages.
    pub fn pusher(&self) -> Option<&Arc<Pusher>> {
        self.pusher.as_ref()
    }

    /// The kernel's end of it.
    pub fn notifier(&self) -> &Arc<Notifier> {
        &self.notifier
    }

    /// Number of nodes that the kernel knows.
    pub fn known(&self) -> usize {
        self.known.len()
    }

    /// Whether the kernel reads large files by itself.
    pub fn passes(&self) -> bool {
        self.passing.as_ref().is_some_and(|passing| passing.is_able())
    }

    /// What the kernel asked for.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }
}

/// Ends a connection that answers nothing, and its daemon.
fn end(place: &Place, patience: Patience) {
    tracing::error!(
        seconds = patience.time().as_secs(),
        at = ?place.path,
        "no request was answered for so long; this mount is ended, and its readers get an error"
    );
    place.sever();
    // The handler of the mount takes down what it can.
    let _ = raise(Signal::SIGTERM);
}

fn config(settings: &MountSettings) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::RO,
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoAtime,
        MountOption::DefaultPermissions,
        MountOption::FSName(settings.source_name.clone()),
        MountOption::Subtype("belady".into()),
    ];
    config.mount_options.extend(settings.options.iter().cloned().map(MountOption::CUSTOM));
    config.acl = if settings.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(settings.threads.max(1));
    config.clone_fd = false;
    config
}

/// What to tell people about a mount that failed.
fn explain(error: &std::io::Error, mountpoint: &Path) -> Error {
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
