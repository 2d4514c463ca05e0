//! One source at several mount points.
//!
//! A further mount point shows the first connection, by a bind mount: the same pages, the same
//! ledger, no second copy of anything. So it does with what is mounted inside the first one: control
//! files and views. Only root can bind; other users' mounts of one source each have a daemon of
//! their own.

use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

use super::{Engine, lock};
use crate::error::{Error, ErrorKind, Result};
use crate::fuse::{Connection, Mounted, is_mounted, unmount};

impl Engine {
    /// Shows the dataset at another mount point too.
    ///
    /// # Errors
    /// Where nothing is mounted yet, or binding is not permitted.
    pub fn attach(&self, mountpoint: &Path) -> Result<()> {
        let first = lock(&self.connections).first().map(|c| c.mountpoint().to_path_buf());
        let first = first.ok_or_else(|| Error::new(ErrorKind::Mount, "nothing is mounted yet"))?;
        self.bind(&first, mountpoint)?;
        lock(&self.attached).push(mountpoint.to_path_buf());
        Ok(())
    }

    /// Binds the first mount point, and what is mounted inside it, at another one: all or nothing.
    fn bind(&self, first: &Path, at: &Path) -> Result<()> {
        bind(first, at)?;
        for inside in self.inside() {
            if let Err(error) = bind(&first.join(&inside), &at.join(&inside)) {
                return self.unbind(at, true).and(Err(error));
            }
        }
        Ok(())
    }

    /// Takes away what [`bind`](Self::bind) has bound.
    fn unbind(&self, at: &Path, force: bool) -> Result<()> {
        for inside in self.inside() {
            unmount(&at.join(inside), force)?;
        }
        unmount(at, force)
    }

    /// What is mounted inside the first mount point, as paths below it.
    fn inside(&self) -> Vec<PathBuf> {
        let connections = lock(&self.connections);
        let Some(first) = connections.first().map(Connection::mountpoint) else {
            return Vec::new();
        };
        let beside = lock(&self.beside);
        let below =
            |mounted: &Mounted| mounted.mountpoint().strip_prefix(first).ok().map(Into::into);
        beside.iter().filter_map(below).collect()
    }

    /// The attached mount points.
    pub fn attached(&self) -> Vec<PathBuf> {
        lock(&self.attached).clone()
    }

    /// Everywhere that the dataset is seen at.
    pub(super) fn points(&self) -> Vec<PathBuf> {
        let connections = lock(&self.connections);
        let own = connections.iter().map(|connection| connection.mountpoint().to_path_buf());
        own.chain(self.attached()).collect()
    }

    /// Takes an attached mount point away. Says whether it was one.
    ///
    /// # Errors
    /// `Busy` where files are in use by way of it and `force` is not given.
    pub fn detach(&self, mountpoint: &Path, force: bool) -> Result<bool> {
        if !lock(&self.attached).iter().any(|attached| attached == mountpoint) {
            return Ok(false);
        }
        if let Err(error) = self.unbind(mountpoint, force) {
            self.complete(mountpoint);
            return Err(error);
        }
        lock(&self.attached).retain(|attached| attached != mountpoint);
        Ok(true)
    }

    /// Shows again what was taken away from inside a mount point that stays.
    fn complete(&self, at: &Path) {
        let first = lock(&self.connections).first().map(|c| c.mountpoint().to_path_buf());
        let Some(first) = first else { return };
        for inside in self.inside().into_iter().filter(|inside| !is_mounted(&at.join(inside))) {
            if let Err(error) = bind(&first.join(&inside), &at.join(&inside)) {
                tracing::warn!(%error, "a mount point that is in use lacks its control files");
            }
        }
    }
}

/// Binds a mount at another path, where what is mounted later below either of them stays by itself.
fn bind(from: &Path, at: &Path) -> Result<()> {
    let none: Option<&str> = None;
    let bound = mount(Some(from), at, none, MsFlags::MS_BIND, none)
        .and_then(|()| mount(none, at, none, MsFlags::MS_PRIVATE, none));
    bound.map_err(|errno| {
        let (from, at) = (from.display(), at.display());
        Error::new(ErrorKind::Mount, format!("cannot bind {from} at {at}: {}", errno.desc()))
    })
}
