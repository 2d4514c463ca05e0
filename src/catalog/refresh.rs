//! Looking again: whether what is known is still so at the source, and what became of it.

use std::ffi::OsStr;
use std::sync::atomic::Ordering;

use nix::errno::Errno;

use super::node::NodeId;
use super::{Catalog, Changes, scan};
use crate::ids::FileId;
use crate::source::Stat;

impl Catalog {
    /// Whether half the period since the last look at the source is over: time to look ahead of
    /// the next use, so that no reader waits for it.
    pub fn is_check_due(&self, node: NodeId) -> bool {
        let Some(period) = self.period else { return false };
        let tree = self.read();
        let Ok(file) = tree.resolve(node) else { return false };
        self.valid(tree.checked(file)).is_none_or(|left| left < period / 2)
    }

    /// A version has just been seen at the source, by reading it.
    pub fn seen(&self, node: NodeId) {
        let tree = self.read();
        if let Ok(file) = tree.resolve(node)
            && !tree.is_unsettled(file)
        {
            tree.seen(file, self.now());
        }
    }

    /// Whether what was read of a version is surely what it has: not where the source counts its
    /// times in seconds and the file had been written in the last ones when it was looked at.
    pub fn is_settled(&self, node: NodeId) -> bool {
        let tree = self.read();
        let settled = |file| !tree.is_unsettled(file);
        self.period.is_none() || tree.resolve(node).is_ok_and(settled)
    }

    fn count(&self, changes: Changes) -> Changes {
        let other = changes.added || !changes.names.is_empty();
        self.renamed.fetch_add(other.into(), Ordering::Relaxed);
        changes
    }

    /// Checks one name at the source. Blocks.
    ///
    /// # Errors
    /// The source's, which leaves open what the name is by now. What is known is not forgotten.
    pub fn refresh(&self, parent: NodeId, name: &OsStr) -> Result<Changes, Errno> {
        let known = {
            let tree = self.read();
            let Ok(directory) = tree.resolve(parent) else { return Ok(Changes::default()) };
            tree.entry(directory, name).map(|entry| (tree.path(directory).join(name), entry))
        };
        let Some((path, entry)) = known else { return self.refresh_directory(parent) };
        let stat = self.source.stat(&path);
        let mut changes = Changes::default();
        match stat {
            Ok(stat) if self.is_as_seen(entry, &stat) => {}
            Ok(stat) => self.write().found(parent, name, &stat, self.now(), &mut changes),
            Err(Errno::ENOENT | Errno::ENOTDIR) => self.write().remove(parent, name, &mut changes),
            Err(errno) => return Err(errno),
        }
        Ok(self.count(changes))
    }

    /// Whether a name stands for what the source says now. If so, that is noted.
    fn is_as_seen(&self, entry: FileId, stat: &Stat) -> bool {
        let tree = self.read();
        let file = tree.target(entry);
        let same = tree.stat(file).fingerprint() == stat.fingerprint() && !tree.is_unsettled(file);
        if same {
            tree.seen(entry, self.now());
        }
        same
    }

    /// Checks a directory at the source, and its names if it changed. Blocks. One that is gone is
    /// known as it was, until its own name is checked.
    ///
    /// # Errors
    /// As [`refresh`](Self::refresh).
    pub fn refresh_directory(&self, node: NodeId) -> Result<Changes, Errno> {
        let (directory, path) = {
            let tree = self.read();
            let Ok(directory) = tree.resolve(node) else { return Ok(Changes::default()) };
            (directory, tree.path(directory))
        };
        let mut changes = Changes::default();
        let stat = match self.source.stat(&path) {
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(changes),
            found => found?,
        };
        // Whether it is read is asked last: whoever checks its own name may have noted another
        // version of it in the meantime, and has not read that.
        if self.is_as_seen(directory, &stat) && !self.read().is_unread(directory) {
            return Ok(changes);
        }
        let (now, names) = (self.now(), self.source.list(&path)?);
        let stats = self.source.stat_all(&path, &names);
        let mut errors = stats.iter().filter_map(|stat| stat.err());
        if let Some(errno) = errors.find(|errno| !scan::is_certain(*errno)) {
            return Err(errno);
        }
        let found = names.into_iter().zip(stats);
        let found = found.filter_map(|(name, stat)| Some((name, stat.ok()?)));
        let mut tree = self.write();
        tree.update(directory, &stat, &mut changes);
        tree.seen(directory, now);
        tree.relist(directory, found.collect(), now, &mut changes);
        Ok(self.count(changes))
    }
}
