//! Where a source is seen: the dataset's connection, and the control files and views beside it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::{Engine, all, remove};
use crate::config::{Control, Mode};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{CONTROL_NAME, Dataset, Rights, VIEWS_NAME};
use crate::fuse::{Connection, MountSettings, Mounted, Pusher, source_name, unmount};

/// From a file `rehearsal/NAME/VIEW/CLASS/FILE` to the root of the mount.
const LINK_TO_DATASET: &str = "../../../../";

impl Engine {
    /// Mounts the dataset.
    ///
    /// # Errors
    /// What stands in the way of the mount.
    pub fn serve(&self, mountpoint: &Path) -> Result<()> {
        let pusher = self.connect(Arc::clone(&self.dataset), mountpoint)?;
        let Some(pusher) = pusher else { return Ok(()) };
        let (pages, dataset) = (Arc::clone(&pusher), Arc::clone(&self.dataset));
        let recheck = move |node, urgency, then| dataset.check(node, urgency, then);
        self.cache.connect(pages, Box::new(recheck));
        self.stop_asking(&pusher)
    }

    /// Mounts the dataset at a further point by a connection of its own, which keeps no pages.
    ///
    /// # Errors
    /// What stands in the way of the mount.
    pub(super) fn serve_further(&self, mountpoint: &Path) -> Result<()> {
        self.connect(self.dataset.further(), mountpoint).map(drop)
    }

    /// Adds a connection. Gives its page cache, unless it keeps no pages.
    fn connect(&self, dataset: Arc<Dataset>, mountpoint: &Path) -> Result<Option<Arc<Pusher>>> {
        let passes = self.settings.mount.mode == Mode::Passthrough && self.cache.store().is_some();
        let disk = self.settings.cache.disk.as_ref().filter(|_| passes);
        let settings = MountSettings {
            source_name: source_name(&self.source_path),
            allow_other: self.settings.mount.allow_other,
            pushes: self.settings.mount.mode != Mode::Plain,
            passes: disk.map(|disk| disk.dir.clone()),
            expires: true,
            threads: self.settings.mount.threads as usize,
            options: self.settings.mount.options.clone(),
        };
        let connection = Connection::mount(dataset, mountpoint, &settings)?;
        let pusher = connection.pusher().map(Arc::clone);
        self.connections.lock().push(Arc::new(connection));
        self.tell_points();
        Ok(pusher)
    }

    /// Has the kernel open files without asking, if that is the mode.
    fn stop_asking(&self, pusher: &Pusher) -> Result<()> {
        if self.dataset.sees_opens() {
            return Ok(());
        }
        let file = self.catalog.any_file();
        let goes_along = pusher.stop_asking(file.as_deref());
        match self.settings.mount.mode {
            Mode::Push if !goes_along => Err(Error::new(
                ErrorKind::Mount,
                "this kernel asks for every open: mount.mode = push is not possible",
            )
            .hint("set mount.mode to \"auto\" or \"keep-cache\"")),
            _ if goes_along => Ok(()),
            _ => {
                self.dataset.see_opens();
                Ok(())
            }
        }
    }

    /// Mounts the control files: inside the first mount as root, or where the settings say.
    ///
    /// # Errors
    /// Where they cannot be mounted at the place that the settings name.
    pub fn serve_control(self: &Arc<Self>) -> Result<()> {
        let Some((place, asked)) = self.place(&self.settings.mount.control, CONTROL_NAME) else {
            return Ok(());
        };
        match Mounted::control(self.control_files(), Arc::clone(&self.written), &place) {
            Ok(mounted) => self.beside.lock().push(Arc::new(mounted)),
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
        let wish = &self.settings.mount.rehearsal;
        if *wish == Control::Auto && !nix::unistd::geteuid().is_root() {
            rehearsal.hide("only root has them inside the mount");
        }
        let Some((place, asked)) = self.place(wish, VIEWS_NAME) else { return Ok(()) };
        if !asked && !self.dataset.show_views(self.settings.mount.list_rehearsal) {
            rehearsal.hide(&format!("the dataset has a directory `{VIEWS_NAME}` of its own"));
            return Ok(());
        }
        let views = Arc::clone(rehearsal.views());
        views.lead_to(self.dataset_seen_from(&place));
        views.heed(Rights::new(&self.dataset));
        let written = Arc::clone(&self.written);
        match Mounted::views(views, written, &place, self.settings.mount.allow_other) {
            Ok(mounted) => self.beside.lock().push(Arc::new(mounted)),
            Err(error) if asked => return Err(error),
            Err(error) => rehearsal.hide(&error.to_string()),
        }
        Ok(())
    }

    /// The dataset as links in views at this place lead to it.
    fn dataset_seen_from(&self, place: &Path) -> String {
        let mountpoint = self.connections.lock().first().map(|c| c.mountpoint().to_path_buf());
        match mountpoint {
            Some(path) if place.starts_with(&path) => LINK_TO_DATASET.to_owned(),
            Some(path) => format!("{}/", path.display()),
            None => String::new(),
        }
    }

    /// Where something is mounted beside the dataset, and whether the settings name the place; none
    /// where it is not.
    fn place(&self, wish: &Control, name: &str) -> Option<(PathBuf, bool)> {
        let inside = self.connections.lock().first().map(|c| c.mountpoint().join(name));
        match (wish, inside) {
            (Control::Dir(path), _) => Some((path.clone(), true)),
            (Control::Auto, Some(path)) if nix::unistd::geteuid().is_root() => Some((path, false)),
            _ => None,
        }
    }

    /// Unmounts every connection; with `force` also those whose files are in use.
    ///
    /// # Errors
    /// `Busy` where files of a mount are in use; that mount stays.
    pub fn unmount(self: &Arc<Self>, force: bool) -> Result<()> {
        if force {
            return self.take_away();
        }
        for mountpoint in self.attached() {
            self.detach(&mountpoint, false)?;
        }
        self.unmount_beside()?;
        while let Some(connection) = all(&self.connections).pop() {
            if let Err(error) = connection.unmount(false) {
                self.serve_control()?;
                self.serve_views()?;
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
        for at in all(&self.bound) {
            match unmount(&at, true) {
                Ok(()) => self.bound.lock().retain(|other| *other != at),
                Err(error) => all_gone = all_gone.and(Err(error)),
            }
        }
        for mounted in all(&self.beside) {
            match mounted.unmount(true) {
                Ok(()) => remove(&self.beside, &mounted),
                Err(error) => all_gone = all_gone.and(Err(error)),
            }
        }
        all_gone
    }

    /// Unmounts what is mounted beside the dataset: all of it or nothing.
    fn unmount_beside(&self) -> Result<()> {
        // The control files are the first, and the views the last.
        let mut without_views = false;
        while let Some(mounted) = all(&self.beside).pop() {
            if let Err(error) = mounted.unmount(false) {
                return if without_views { self.serve_views().and(Err(error)) } else { Err(error) };
            }
            remove(&self.beside, &mounted);
            without_views = true;
        }
        Ok(())
    }

    /// Notifications that the kernel makes wait for long; each is logged once.
    pub(super) fn stuck_notifications(&self) -> usize {
        let now = Instant::now();
        self.connections.lock().iter().map(|connection| connection.notifier().look(now)).sum()
    }

    /// Whether no connection is left: all have been unmounted from outside.
    pub fn is_over(&self) -> bool {
        self.connections.lock().iter().all(|connection| connection.is_over())
    }
}
