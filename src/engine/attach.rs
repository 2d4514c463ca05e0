//! One source at several mount points.
//!
//! A further mount point shows the first connection, by a bind mount: the same pages, the same
//! ledger, no second copy of anything. So it does with what is mounted inside the first one: control
//! files and views.
//!
//! Only root can bind. For other users it has a connection of its own, which shows the same tree and
//! keeps no pages: what the first connection has is read there, and what that has not either is
//! fetched and kept there, as ever. Its opens are requests, and tell where its readers are.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

use super::{Engine, all, remove};
use crate::error::{Error, ErrorKind, Result};
use crate::fuse::{Mounted, Place, is_mounted, unmount};

impl Engine {
    /// Shows the dataset at another mount point too.
    ///
    /// # Errors
    /// Where nothing is mounted yet, or mounting is not permitted.
    pub fn attach(&self, mountpoint: &Path) -> Result<()> {
        let first = self.connections.lock().first().map(|c| c.mountpoint().to_path_buf());
        let first = first.ok_or_else(|| Error::new(ErrorKind::Mount, "nothing is mounted yet"))?;
        match bind(&first, mountpoint) {
            Err(Errno::EPERM) => return self.serve_further(mountpoint),
            bound => bound.map_err(|errno| cannot_bind(&first, mountpoint, errno))?,
        }
        self.bind_inside(&first, mountpoint)?;
        self.bound.lock().push(mountpoint.to_path_buf());
        self.tell_points();
        Ok(())
    }

    /// Binds what is mounted inside the first mount point at another one, which goes where that fails.
    fn bind_inside(&self, first: &Path, at: &Path) -> Result<()> {
        for inside in self.inside() {
            let (from, to) = (first.join(&inside), at.join(&inside));
            if let Err(errno) = bind(&from, &to) {
                return self.unbind(at, true).and(Err(cannot_bind(&from, &to, errno)));
            }
        }
        Ok(())
    }

    /// Takes away what was bound.
    fn unbind(&self, at: &Path, force: bool) -> Result<()> {
        // By force it goes with all that is mounted inside, to which no path may lead.
        for inside in self.inside().into_iter().filter(|_| !force) {
            unmount(&at.join(inside), false)?;
        }
        unmount(at, force)
    }

    /// What is mounted inside the first mount point, as paths below it.
    fn inside(&self) -> Vec<PathBuf> {
        let connections = self.connections.lock();
        let Some(first) = connections.first().map(|first| first.mountpoint()) else {
            return Vec::new();
        };
        let beside = self.beside.lock();
        let below =
            |mounted: &Arc<Mounted>| mounted.mountpoint().strip_prefix(first).ok().map(Into::into);
        beside.iter().filter_map(below).collect()
    }

    /// Where every connection is mounted, further ones and those beside the dataset included.
    pub fn connected(&self) -> Vec<Place> {
        let (own, beside) = (all(&self.connections), all(&self.beside));
        let own = own.iter().filter_map(|connection| connection.place());
        own.chain(beside.iter().filter_map(|mounted| mounted.place())).collect()
    }

    /// The further mount points.
    pub fn attached(&self) -> Vec<PathBuf> {
        let mut points = self.points();
        points.drain(..points.len().min(1));
        points
    }

    /// Everywhere that the dataset is seen at, the first mount point first.
    pub(super) fn points(&self) -> Vec<PathBuf> {
        let connections = self.connections.lock();
        let own = connections.iter().map(|connection| connection.mountpoint().to_path_buf());
        own.chain(self.bound.lock().iter().cloned()).collect()
    }

    /// Tells those who are told of paths where the dataset is seen at, the source included.
    pub(super) fn tell_points(&self) {
        if let Some(rehearsal) = &self.rehearsal {
            let source = std::iter::once(self.source_path.clone());
            rehearsal.see_at(self.points().into_iter().chain(source).collect());
        }
    }

    /// Takes a further mount point away. Says whether it was one.
    ///
    /// # Errors
    /// `Busy` where files are in use by way of it and `force` is not given.
    pub fn detach(&self, mountpoint: &Path, force: bool) -> Result<bool> {
        if !self.bound.lock().iter().any(|bound| bound == mountpoint) {
            return self.disconnect(mountpoint, force);
        }
        if let Err(error) = self.unbind(mountpoint, force) {
            self.complete(mountpoint);
            return Err(error);
        }
        self.bound.lock().retain(|bound| bound != mountpoint);
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
        Ok(true)
    }

    /// Lets go of further connections that somebody has unmounted, and says where they were.
    pub fn take_gone(&self) -> Vec<PathBuf> {
        let mut connections = self.connections.lock();
        let further = connections.len().min(1);
        let gone = connections.extract_if(further.., |connection| connection.is_over());
        gone.map(|connection| connection.mountpoint().to_path_buf()).collect()
    }

    /// Shows again what was taken away from inside a mount point that stays.
    fn complete(&self, at: &Path) {
        let first = self.connections.lock().first().map(|c| c.mountpoint().to_path_buf());
        let Some(first) = first else { return };
        for inside in self.inside().into_iter().filter(|inside| !is_mounted(&at.join(inside))) {
            if let Err(errno) = bind(&first.join(&inside), &at.join(&inside)) {
                tracing::warn!(%errno, "a mount point that is in use lacks its control files");
            }
        }
    }
}

/// Binds a mount at another path, where what is mounted later below either of them stays by itself.
fn bind(from: &Path, at: &Path) -> std::result::Result<(), Errno> {
    let none: Option<&str> = None;
    mount(Some(from), at, none, MsFlags::MS_BIND, none)?;
    mount(none, at, none, MsFlags::MS_PRIVATE, none)
}

fn cannot_bind(from: &Path, at: &Path, errno: Errno) -> Error {
    let (from, at) = (from.display(), at.display());
    Error::new(ErrorKind::Mount, format!("cannot bind {from} at {at}: {}", errno.desc()))
}
