//! One source at several mount points.
//!
//! A further mount point shows the first connection, by a bind mount: the same pages, the same
//! ledger, no second copy of anything. Only root can bind; other users' mounts of one source each
//! have a daemon of their own.

use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

use super::{Engine, lock};
use crate::error::{Error, ErrorKind, Result};
use crate::fuse::unmount;

impl Engine {
    /// Shows the dataset at another mount point too.
    ///
    /// # Errors
    /// Where nothing is mounted yet, or binding is not permitted.
    pub fn attach(&self, mountpoint: &Path) -> Result<()> {
        let first = lock(&self.connections).first().map(|c| c.mountpoint().to_path_buf());
        let first = first.ok_or_else(|| Error::new(ErrorKind::Mount, "nothing is mounted yet"))?;
        let none: Option<&str> = None;
        mount(Some(&first), mountpoint, none, MsFlags::MS_BIND, none).map_err(|errno| {
            let (from, at) = (first.display(), mountpoint.display());
            Error::new(ErrorKind::Mount, format!("cannot bind {from} at {at}: {}", errno.desc()))
        })?;
        lock(&self.attached).push(mountpoint.to_path_buf());
        Ok(())
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
        unmount(mountpoint, force)?;
        lock(&self.attached).retain(|attached| attached != mountpoint);
        Ok(true)
    }
}
