//! The mounts of a source: the dataset's connections, and the control files and views beside them.
//!
//! The first connection's page cache is the RAM tier. A further mount point shows that connection, by a
//! bind mount: the same pages, the same ledger, no second copy of anything. So it does with what is
//! mounted inside the first one: control files and views.
//!
//! A bind mount needs the right to mount. For users without it a further mount point has a connection of
//! its own, which shows the same tree and keeps no pages. It reads the pages of the first connection. If
//! those lack a block, the block is fetched and kept there. Its opens are requests, and tell where its
//! readers are.
//!
//! Anybody may unmount a mount point of ours, or mount something else over it. So a path is unmounted or
//! bound only if our mount is the last one there.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

use super::Core;
use crate::catalog::NodeId;
use crate::config::{Control, Mode};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{CONTROL_NAME, Dataset, Rights, VIEWS_NAME};
use crate::fuse::{
    Connection, ControlFile, DaemonThreads, MountHandle, MountIdentity, MountSettings, Notifier,
    Pusher, WriteAccount, device_of, is_mounted, source_name, unmount,
};
use crate::privileges::may_mount;
use crate::rehearsal::Rehearsal;
use crate::source::{KeyedPool, Urgency};
use crate::sync::Mutex;

/// From a file `rehearsal/NAME/VIEW/CLASS/FILE` to the root of the mount.
const LINK_TO_DATASET: &str = "../../../../";

/// For how long dropping a changed name may take, which is a matter of microseconds.
const NOTIFY_PATIENCE: Duration = Duration::from_secs(2);

/// The mounts of one source.
pub struct Serving {
    core: Arc<Core>,
    rehearsal: Option<Arc<Rehearsal>>,
    /// The first keeps pages, which are the RAM tier.
    connections: Mutex<Vec<Arc<Connection>>>,
    /// The control files and the views.
    side_mounts: Mutex<Vec<Arc<MountHandle>>>,
    bound: Mutex<Vec<Bound>>,
    /// The control files, once they are served.
    files: Mutex<Arc<Vec<ControlFile>>>,
    /// Charged for what is written to control files and views and not taken yet.
    write_account: Arc<WriteAccount>,
    /// Tells the kernel of names that have changed.
    notifier: KeyedPool<NodeId>,
}

/// A further mount point that shows the first connection by a bind mount.
#[derive(Clone, PartialEq, Eq)]
struct Bound {
    at: PathBuf,
    /// The device of the first connection.
    device: String,
}

impl Bound {
    /// Unmounts it, and what is bound `inside` it. Another mount over it stays.
    fn unmount(&self, inside: Vec<PathBuf>, force: bool) -> Result<()> {
        if device_of(&self.at).as_ref() != Some(&self.device) {
            return Ok(());
        }
        // By force it goes with all that is mounted inside, to which no path may lead.
        for inside in inside.into_iter().filter(|_| !force) {
            unmount(&self.at.join(inside), false)?;
        }
        unmount(&self.at, force)
    }
}

/// The present content of a list. It is used while the lock is free.
fn all<T: Clone>(mutex: &Mutex<Vec<T>>) -> Vec<T> {
    mutex.lock().clone()
}

/// Takes one out.
fn remove<T>(mutex: &Mutex<Vec<Arc<T>>>, one: &Arc<T>) {
    mutex.lock().retain(|other| !Arc::ptr_eq(other, one));
}

impl Serving {
    /// Nothing is mounted yet.
    pub(super) fn new(core: Arc<Core>, rehearsal: Option<Arc<Rehearsal>>) -> Self {
        Serving {
            core,
            rehearsal,
            connections: Mutex::default(),
            side_mounts: Mutex::default(),
            bound: Mutex::default(),
            files: Mutex::default(),
            write_account: Arc::default(),
            notifier: KeyedPool::new("belady-notify", NOTIFY_PATIENCE, 1, 1, || ()),
        }
    }

    /// What the engine has in common with it.
    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Mounts the dataset.
    ///
    /// # Errors
    /// What stands in the way of the mount.
    pub fn serve(&self, mountpoint: &Path) -> Result<()> {
        let pusher = self.connect(Arc::clone(&self.core.dataset), mountpoint)?;
        let Some(pusher) = pusher else { return Ok(()) };
        let (pages, dataset) = (Arc::clone(&pusher), Arc::clone(&self.core.dataset));
        let recheck = move |node, urgency, then| dataset.check(node, urgency, then);
        self.core.cache.page_cache().connect(pages, Box::new(recheck));
        self.disable_open_requests(&pusher)
    }

    /// Mounts the dataset at a further point by a connection of its own, which keeps no pages.
    ///
    /// # Errors
    /// What stands in the way of the mount.
    fn serve_further(&self, mountpoint: &Path) -> Result<()> {
        self.connect(self.core.dataset.further(), mountpoint).map(drop)
    }

    /// Adds a connection. Gives its page cache, unless it keeps no pages.
    fn connect(&self, dataset: Arc<Dataset>, mountpoint: &Path) -> Result<Option<Arc<Pusher>>> {
        let passes =
            self.core.settings.mount.mode == Mode::Passthrough && self.core.cache.store().is_some();
        let disk = self.core.settings.cache.disk.as_ref().filter(|_| passes);
        let settings = MountSettings {
            source_name: source_name(&self.core.source_path),
            allow_other: self.core.settings.mount.allow_other,
            push_pages: self.core.settings.mount.mode != Mode::Plain,
            passthrough_dir: disk.map(|disk| disk.dir.clone()),
            expire_names: true,
            threads: self.core.settings.mount.threads as usize,
            options: self.core.settings.mount.options.clone(),
        };
        let connection = Connection::mount(dataset, mountpoint, &settings)?;
        let pusher = connection.pusher().map(Arc::clone);
        self.connections.lock().push(Arc::new(connection));
        self.tell_points();
        Ok(pusher)
    }

    /// Makes the kernel open files without requests, if that is the mode.
    fn disable_open_requests(&self, pusher: &Pusher) -> Result<()> {
        if self.core.dataset.opens_are_requests() {
            return Ok(());
        }
        let file = self.core.catalog.any_file();
        let is_disabled = pusher.disable_open_requests(file.as_deref());
        match self.core.settings.mount.mode {
            Mode::Push if !is_disabled => Err(Error::new(
                ErrorKind::Mount,
                "this kernel asks for every open: mount.mode = push is not possible",
            )
            .hint("set mount.mode to \"auto\" or \"keep-cache\"")),
            _ if is_disabled => Ok(()),
            _ => {
                self.core.dataset.set_opens_are_requests();
                Ok(())
            }
        }
    }

    /// Mounts the control files: inside the first mount as root, or where the settings say.
    ///
    /// # Errors
    /// Where they cannot be mounted at the place that the settings name.
    pub(super) fn serve_control(&self, files: Vec<ControlFile>) -> Result<()> {
        *self.files.lock() = Arc::new(files);
        self.mount_control()
    }

    fn mount_control(&self) -> Result<()> {
        let Some((place, asked)) = self.place(&self.core.settings.mount.control, CONTROL_NAME)
        else {
            return Ok(());
        };
        let (files, account) = (Arc::clone(&self.files.lock()), Arc::clone(&self.write_account));
        match MountHandle::control(files, account, &place) {
            Ok(mounted) => self.side_mounts.lock().push(Arc::new(mounted)),
            Err(error) if asked => return Err(error),
            // The commands work without them.
            Err(error) => tracing::warn!(%error, "no control files"),
        }
        Ok(())
    }

    /// Mounts the views of the rehearsal buffers, if there are any: inside the first mount as root,
    /// or where the settings say.
    ///
    /// # Errors
    /// Where they cannot be mounted at the place that the settings name.
    pub fn serve_views(&self) -> Result<()> {
        let Some(rehearsal) = &self.rehearsal else { return Ok(()) };
        let wish = &self.core.settings.mount.rehearsal;
        if *wish == Control::Auto && !may_mount() {
            rehearsal.hide("only root and `belady run` have them inside the mount");
        }
        let Some((place, asked)) = self.place(wish, VIEWS_NAME) else { return Ok(()) };
        if !asked && !self.core.dataset.show_views(self.core.settings.mount.list_rehearsal) {
            rehearsal.hide(&format!("the dataset has a directory `{VIEWS_NAME}` of its own"));
            return Ok(());
        }
        let views = Arc::clone(rehearsal.views());
        views.set_link_prefix(self.dataset_seen_from(&place));
        views.waiting.set_rights(Rights::new(&self.core.dataset));
        let account = Arc::clone(&self.write_account);
        match MountHandle::views(views, account, &place, self.core.settings.mount.allow_other) {
            Ok(mounted) => self.side_mounts.lock().push(Arc::new(mounted)),
            Err(error) if asked => return Err(error),
            Err(error) => rehearsal.hide(&error.to_string()),
        }
        Ok(())
    }

    /// The dataset as links in views at this place lead to it.
    fn dataset_seen_from(&self, place: &Path) -> String {
        match self.first_point() {
            Some(path) if place.starts_with(&path) => LINK_TO_DATASET.to_owned(),
            Some(path) => format!("{}/", path.display()),
            None => String::new(),
        }
    }

    /// Where something is mounted beside the dataset, and whether the settings name the place; none
    /// where it is not.
    fn place(&self, wish: &Control, name: &str) -> Option<(PathBuf, bool)> {
        match (wish, self.first_point()) {
            (Control::Dir(path), _) => Some((path.clone(), true)),
            (Control::Auto, Some(first)) if may_mount() => Some((first.join(name), false)),
            _ => None,
        }
    }

    /// Unmounts every connection; with `force` also those whose files are in use.
    ///
    /// # Errors
    /// `Busy` where files of a mount are in use; that mount stays.
    pub fn unmount(&self, force: bool) -> Result<()> {
        if force {
            return self.take_away();
        }
        for mountpoint in self.attached() {
            self.detach(&mountpoint, false)?;
        }
        self.unmount_side_mounts()?;
        while let Some(connection) = all(&self.connections).pop() {
            if let Err(error) = connection.unmount(false) {
                warn_of(self.mount_control());
                warn_of(self.serve_views());
                return Err(error);
            }
            remove(&self.connections, &connection);
        }
        Ok(())
    }

    /// Unmounts every connection from under its users. The outer mounts go first, and those inside go
    /// with them: no path is followed through a root that may wait for the source.
    fn take_away(&self) -> Result<()> {
        let mut all_gone = Ok(());
        for connection in all(&self.connections) {
            match connection.unmount(true) {
                Ok(()) => remove(&self.connections, &connection),
                Err(error) => all_gone = all_gone.and(Err(error)),
            }
        }
        for bound in all(&self.bound) {
            match bound.unmount(Vec::new(), true) {
                Ok(()) => self.bound.lock().retain(|other| *other != bound),
                Err(error) => all_gone = all_gone.and(Err(error)),
            }
        }
        for mounted in all(&self.side_mounts) {
            match mounted.unmount(true) {
                Ok(()) => remove(&self.side_mounts, &mounted),
                Err(error) => all_gone = all_gone.and(Err(error)),
            }
        }
        all_gone
    }

    /// Unmounts what is mounted beside the dataset: all of it or nothing.
    fn unmount_side_mounts(&self) -> Result<()> {
        // The control files are the first, and the views the last.
        let mut without_views = false;
        while let Some(mounted) = all(&self.side_mounts).pop() {
            if let Err(error) = mounted.unmount(false) {
                if without_views {
                    warn_of(self.serve_views());
                }
                return Err(error);
            }
            remove(&self.side_mounts, &mounted);
            without_views = true;
        }
        Ok(())
    }

    /// Notifications that the kernel makes wait for long; each is logged once.
    pub(super) fn stuck_notifications(&self) -> usize {
        let now = Instant::now();
        self.connections.lock().iter().map(|connection| connection.notifier().log_slow(now)).sum()
    }

    /// Whether no connection is left: all have been unmounted from outside.
    pub fn is_over(&self) -> bool {
        self.connections.lock().iter().all(|connection| connection.is_over())
    }

    /// Shows the dataset at another mount point too.
    ///
    /// # Errors
    /// If our mount is not at the first mount point, or mounting is not permitted.
    pub fn attach(&self, mountpoint: &Path) -> Result<()> {
        let first = self.connections.lock().first().map(Arc::clone);
        let first = first.ok_or_else(|| Error::new(ErrorKind::Mount, "nothing is mounted yet"))?;
        let Some(place) = first.identity() else { return Err(no_longer_at(first.mountpoint())) };
        match bind(&place.path, mountpoint) {
            Err(Errno::EPERM) => return self.serve_further(mountpoint),
            bound => bound.map_err(|errno| cannot_bind(&place.path, mountpoint, errno))?,
        }
        // It may have been unmounted in between. Then the directory below it is bound, which may be the
        // source itself.
        if device_of(mountpoint).as_ref() != Some(&place.device) {
            return unmount(mountpoint, true).and(Err(no_longer_at(&place.path)));
        }
        let bound = Bound { at: mountpoint.to_path_buf(), device: place.device };
        self.bind_inner_mounts(&place.path, &bound)?;
        self.bound.lock().push(bound);
        self.tell_points();
        Ok(())
    }

    /// Binds what is mounted inside the first mount point at another one. If that fails, the other one is
    /// unmounted.
    fn bind_inner_mounts(&self, first: &Path, bound: &Bound) -> Result<()> {
        for inside in self.inner_mounts() {
            let (from, to) = (first.join(&inside), bound.at.join(&inside));
            if let Err(errno) = bind(&from, &to) {
                let error = cannot_bind(&from, &to, errno);
                return bound.unmount(Vec::new(), true).and(Err(error));
            }
        }
        Ok(())
    }

    /// Where the first connection is mounted.
    fn first_point(&self) -> Option<PathBuf> {
        self.connections.lock().first().map(|first| first.mountpoint().to_path_buf())
    }

    /// What is mounted inside the first mount point, as paths below it.
    fn inner_mounts(&self) -> Vec<PathBuf> {
        let Some(first) = self.first_point() else { return Vec::new() };
        let side_mounts = self.side_mounts.lock();
        let below = |mounted: &Arc<MountHandle>| {
            mounted.mountpoint().strip_prefix(&first).ok().map(Into::into)
        };
        side_mounts.iter().filter_map(below).collect()
    }

    /// Where every connection is mounted, further ones and those beside the dataset included.
    pub fn connected(&self) -> Vec<MountIdentity> {
        let (own, side_mounts) = (all(&self.connections), all(&self.side_mounts));
        let own = own.iter().filter_map(|connection| connection.identity());
        own.chain(side_mounts.iter().filter_map(|mounted| mounted.identity())).collect()
    }

    /// The further mount points.
    pub fn attached(&self) -> Vec<PathBuf> {
        self.points_after(1)
    }

    /// Everywhere that the dataset is seen at, the first mount point first.
    pub(super) fn points(&self) -> Vec<PathBuf> {
        self.points_after(0)
    }

    /// The points, without those of the first `skipped` connections.
    fn points_after(&self, skipped: usize) -> Vec<PathBuf> {
        let connections = self.connections.lock();
        let own = connections.iter().skip(skipped);
        let own = own.map(|connection| connection.mountpoint().to_path_buf());
        own.chain(self.bound.lock().iter().map(|bound| bound.at.clone())).collect()
    }

    /// Tells rehearsal at which paths the dataset is seen, the source included: users name samples by them.
    pub(super) fn tell_points(&self) {
        if let Some(rehearsal) = &self.rehearsal {
            let source = std::iter::once(self.core.source_path.clone());
            rehearsal.set_dataset_roots(self.points().into_iter().chain(source).collect());
        }
    }

    /// Takes a further mount point away. Says whether it was one.
    ///
    /// # Errors
    /// `Busy` where files are in use by way of it and `force` is not given.
    pub fn detach(&self, mountpoint: &Path, force: bool) -> Result<bool> {
        let bound = self.bound.lock().iter().find(|bound| bound.at == mountpoint).cloned();
        let Some(bound) = bound else { return self.disconnect(mountpoint, force) };
        if let Err(error) = bound.unmount(self.inner_mounts(), force) {
            self.complete(mountpoint);
            return Err(error);
        }
        self.bound.lock().retain(|other| *other != bound);
        self.tell_points();
        Ok(true)
    }

    /// Ends a further connection. Says whether it was one.
    fn disconnect(&self, mountpoint: &Path, force: bool) -> Result<bool> {
        let mut further = all(&self.connections).into_iter().skip(1);
        let Some(connection) = further.rfind(|further| further.mountpoint() == mountpoint) else {
            return Ok(false);
        };
        connection.unmount(force)?;
        remove(&self.connections, &connection);
        self.tell_points();
        Ok(true)
    }

    /// Lets go of further connections that somebody has unmounted, and says where they were.
    pub fn take_gone(&self) -> Vec<PathBuf> {
        let mut connections = self.connections.lock();
        let further = connections.len().min(1);
        let gone = connections.extract_if(further.., |connection| connection.is_over());
        let gone: Vec<_> = gone.map(|gone| gone.mountpoint().to_path_buf()).collect();
        drop(connections);
        if !gone.is_empty() {
            self.tell_points();
        }
        gone
    }

    /// Shows again what was taken away from inside a mount point that stays.
    fn complete(&self, at: &Path) {
        let Some(first) = self.first_point() else { return };
        for inside in self.inner_mounts().into_iter().filter(|inside| !is_mounted(&at.join(inside)))
        {
            if let Err(errno) = bind(&first.join(&inside), &at.join(&inside)) {
                tracing::warn!(%errno, "a mount point that is in use lacks its control files");
            }
        }
    }

    /// Bytes that may be written to control files and views before they are taken.
    pub(super) fn write_account(&self) -> &WriteAccount {
        &self.write_account
    }

    /// Nodes that the kernel knows, of all connections.
    pub(super) fn known_nodes(&self) -> u64 {
        self.connections.lock().iter().map(|connection| connection.known() as u64).sum()
    }

    /// Requests that the kernel has sent, by kind.
    pub(super) fn requests(&self) -> BTreeMap<&'static str, u64> {
        let mut requests = BTreeMap::new();
        let connections = self.connections.lock();
        for (kind, count) in connections.iter().flat_map(|one| one.requests().by_kind()) {
            *requests.entry(kind).or_default() += count;
        }
        requests
    }

    /// Whether the first connection has the kernel read files by itself.
    pub(super) fn is_passthrough(&self) -> bool {
        self.connections.lock().first().is_some_and(|first| first.is_passthrough())
    }

    /// Whether the first connection was unmounted, so that no page is kept any more.
    pub(super) fn first_is_over(&self) -> bool {
        self.connections.lock().first().is_some_and(|first| first.is_over())
    }

    /// Has the kernel look names up again that have changed at the source.
    pub(super) fn forget(&self, names: Vec<(NodeId, OsString)>) {
        let kernels: Vec<Arc<Notifier>> =
            self.connections.lock().iter().map(|one| Arc::clone(one.notifier())).collect();
        for (parent, name) in names {
            let (kernels, dataset) = (kernels.clone(), Arc::clone(&self.core.dataset));
            // The kernel may ask back before it takes a notification, and may make it wait.
            self.notifier.submit(Urgency::Demand, parent, move || {
                let _marked = DaemonThreads::mark_current();
                dataset.waiting.wait_for_requests(parent);
                for kernel in kernels {
                    match kernel.forget(parent, &name) {
                        Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                        // It is believed for as long as was promised.
                        Err(errno) => {
                            tracing::warn!(?name, %errno, "a changed name was not dropped")
                        }
                    }
                }
            });
        }
    }
}

/// Binds a mount at another path, where what is mounted later below either of them stays by itself.
fn bind(from: &Path, at: &Path) -> std::result::Result<(), Errno> {
    let none: Option<&str> = None;
    mount(Some(from), at, none, MsFlags::MS_BIND, none)?;
    mount(none, at, none, MsFlags::MS_PRIVATE, none)
}

/// A mount that others need less than the error that is being returned.
fn warn_of(mounted: Result<()>) {
    if let Err(error) = mounted {
        tracing::warn!(%error, "a mount point that is in use lacks its control files or views");
    }
}

fn no_longer_at(first: &Path) -> Error {
    let first = first.display();
    Error::new(ErrorKind::Mount, format!("the dataset is not mounted at {first} any more"))
        .hint("end the mount with `belady umount` of its source, and mount it again")
}

fn cannot_bind(from: &Path, at: &Path, errno: Errno) -> Error {
    let (from, at) = (from.display(), at.display());
    Error::new(ErrorKind::Mount, format!("cannot bind {from} at {at}: {}", errno.desc()))
}
