//! Decides who may read a kept sample: users who could read the file when it was kept, and may read it at
//! the source now.
//!
//! The rights of a file are those of its owner, its group and all others, reduced by each directory above
//! it. A view does not have the source's directories above its files. So all rights are expressed in the
//! bits of one mode. If these bits cannot separate two users of whom only one may read, neither may.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::Dataset;
use super::metadata::MetadataKey;
use crate::catalog::{Catalog, FOR_EVER, NodeId};
use crate::source::{Kind, Stat};

/// Bits of a mode that let the owner, the group and others read a file, or search a directory.
const READ: [u16; 3] = [0o400, 0o040, 0o004];
const SEARCH: [u16; 3] = [0o100, 0o010, 0o001];

/// The users who may read a sample at the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Permission bits.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
}

impl Access {
    /// The users who may read a file by its own mode.
    pub fn of(file: &Stat) -> Self {
        Access { mode: file.mode & 0o444, uid: file.uid, gid: file.gid }
    }

    /// Removes users who may not search a directory above.
    pub fn below(self, directory: &Stat) -> Self {
        self.without_excluded(directory, SEARCH)
    }

    /// Removes users who may not read the file that is there now.
    pub fn and(self, file: &Stat) -> Self {
        self.without_excluded(file, READ)
    }

    /// Removes users whom `by` excludes. The kernel uses the first of its three classes that a user belongs
    /// to. If `by` has another owner or group, users of one of our classes may belong to several classes of
    /// `by`. Each of these classes must then let them pass.
    fn without_excluded(self, by: &Stat, [owner, group, others]: [u16; 3]) -> Self {
        let (same_owner, same_group) = (by.uid == self.uid, by.gid == self.gid);
        let of_owner = if same_owner { owner } else { group | others };
        let of_group = if same_group { group } else { group | others };
        let of_others = if same_group { others } else { group | others };
        let not_owner = if same_owner { 0 } else { owner };
        let mut mode = self.mode;
        for (right, asked) in
            READ.into_iter().zip([of_owner, of_group | not_owner, of_others | not_owner])
        {
            if by.mode & asked != asked {
                mode &= !right;
            }
        }
        Access { mode, ..self }
    }
}

/// The rights that a source gives, for views of samples kept from its files.
#[derive(Clone)]
pub struct Rights(Arc<Dataset>);

impl Rights {
    pub fn new(dataset: &Arc<Dataset>) -> Self {
        Rights(Arc::clone(dataset))
    }

    pub(crate) fn dataset(&self) -> &Arc<Dataset> {
        &self.0
    }

    /// Calls `then` with the users who may read what was kept of the file at a path, and how long that may
    /// be believed. The source is asked as often as for names. If it does not answer, its last answer
    /// counts.
    pub fn current(
        &self,
        path: String,
        kept: Access,
        then: impl FnOnce(Access, Duration) + Send + 'static,
    ) {
        let catalog = &self.0.catalog;
        let (access, valid) = known_access(catalog, Path::new(&path), kept);
        if !valid.is_zero() {
            return then(access, valid);
        }
        let directory = directory_of(catalog, Path::new(&path));
        let reply = move |answer: Result<(Access, Duration), Errno>| {
            if let Ok((access, valid)) = answer {
                then(access, valid);
            }
        };
        let (dataset, asked) = (Arc::clone(&self.0), path.clone());
        let known = Arc::clone(catalog);
        let from_memory = move || Ok(known_access(&known, Path::new(&path), kept));
        let key = MetadataKey::Directory(directory);
        self.0.questions.ask_briefly(key, None, reply, from_memory, move || {
            check_along(&dataset, Path::new(&asked));
            Ok(known_access(&dataset.catalog, Path::new(&asked), kept))
        });
    }
}

/// The deepest directory of a path that the catalog knows.
fn directory_of(catalog: &Catalog, path: &Path) -> NodeId {
    let mut directory = NodeId::ROOT;
    for name in path {
        match catalog.lookup(directory, name, true) {
            Some(Ok(found)) if found.stat.kind == Kind::Directory => directory = found.node,
            _ => break,
        }
    }
    directory
}

/// Who may read what was kept of the file at a path, as far as the catalog knows, and how long that may be
/// believed. If the file was removed, the directories that are left still count.
fn known_access(catalog: &Catalog, path: &Path, kept: Access) -> (Access, Duration) {
    let (mut access, mut valid) = (kept, FOR_EVER);
    let mut at = catalog.getattr(NodeId::ROOT);
    for name in path {
        let Some(directory) = at.ok().filter(|at| at.stat.kind == Kind::Directory) else {
            return (access, valid);
        };
        (access, valid) = (access.below(&directory.stat), valid.min(directory.valid));
        if catalog.lookup(directory.node, name, false).is_none() {
            valid = Duration::ZERO;
        }
        at = catalog.lookup(directory.node, name, true).unwrap_or(Err(Errno::EIO));
    }
    match at {
        Ok(file) if file.stat.kind == Kind::File => (access.and(&file.stat), valid.min(file.valid)),
        _ => (access, valid),
    }
}

/// Checks each name of a path whose last check is too old. Blocks. If the source does not answer, the name
/// stays as it was known.
fn check_along(dataset: &Dataset, path: &Path) {
    let (catalog, mut at) = (&dataset.catalog, NodeId::ROOT);
    if catalog.getattr(at).is_ok_and(|root| root.valid.is_zero()) {
        let _ = dataset.report_changes(catalog.refresh_directory(at));
    }
    for name in path {
        if catalog.lookup(at, name, false).is_none() {
            let _ = dataset.report_changes(catalog.refresh(at, name));
        }
        let Some(Ok(found)) = catalog.lookup(at, name, true) else { return };
        at = found.node;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::cache::{Cache, Inbox};
    use crate::source::{PosixSource, Source};

    /// Users and their groups.
    const USERS: [(u32, &[u32]); 8] = [
        (1, &[]),
        (1, &[10]),
        (1, &[20]),
        (2, &[]),
        (2, &[10, 20]),
        (3, &[10]),
        (3, &[20]),
        (3, &[]),
    ];

    fn stat(mode: u16, uid: u32, gid: u32) -> Stat {
        Stat {
            kind: Kind::File,
            mode,
            links: 1,
            uid,
            gid,
            rdev: 0,
            size: 0,
            is_sized: true,
            version_has_size: true,
            blocks: 0,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            identity: (1, 1),
        }
    }

    /// What the kernel answers.
    fn may((mode, uid, gid): (u16, u32, u32), bits: [u16; 3], user: (u32, &[u32])) -> bool {
        let class = match user {
            (user, _) if user == uid => 0,
            (_, groups) if groups.contains(&gid) => 1,
            _ => 2,
        };
        mode & bits[class] != 0
    }

    /// Tries each mode of a file and of a directory above it, with the same and with other owners and
    /// groups. A user who may not read at the source may not read in the view.
    #[test]
    fn nobody_may_read_more_than_at_the_source() {
        let owners = [(1, 10), (1, 20), (2, 10), (2, 20)];
        for file in 0..8 {
            let read = (0..3).map(|class| (file >> class & 1) * READ[class]).sum();
            let kept = Access::of(&stat(read, 1, 10));
            for ((uid, gid), above) in owners.into_iter().flat_map(|o| (0..8).map(move |m| (o, m)))
            {
                let bits =
                    |bits: [u16; 3]| (0..3).map(|class| (above >> class & 1) * bits[class]).sum();
                let (search, now): (u16, u16) = (bits(SEARCH), bits(READ));
                let (below, and) =
                    (kept.below(&stat(search, uid, gid)), kept.and(&stat(now, uid, gid)));
                for user in USERS {
                    let at_source = may((read, 1, 10), READ, user);
                    let seen = |access: Access| may((access.mode, 1, 10), READ, user);
                    let passes = may((search, uid, gid), SEARCH, user);
                    assert!(!seen(below) || at_source && passes, "{user:?} {read:o} {search:o}");
                    let reads = may((now, uid, gid), READ, user);
                    assert!(!seen(and) || at_source && reads, "{user:?} {read:o} {now:o}");
                    // For one owner and group, the bits are exact.
                    let same = (uid, gid) == (1, 10);
                    assert!(!same || seen(below) == (at_source && passes), "{read:o} {search:o}");
                }
            }
        }
        let all = Access::of(&stat(0o644, 1, 10));
        for (mode, uid, gid, left) in [
            (0o755, 2, 20, 0o444),
            (0o711, 1, 10, 0o444),
            (0o705, 1, 10, 0o404),
            (0o075, 1, 10, 0o044),
            (0o705, 2, 20, 0),
            (0o075, 2, 20, 0o400),
            (0o750, 1, 20, 0o400),
        ] {
            assert_eq!(all.below(&stat(mode, uid, gid)).mode, left, "{mode:o} of {uid}:{gid}");
        }
    }

    #[test]
    fn rights_follow_the_file_and_the_directories_above() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let set = |name: &str, mode| {
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/b/file"), "x").unwrap();
        set("", 0o755);
        set("a/b/file", 0o644);
        let source = Arc::new(PosixSource::open(root.path(), 1).unwrap());
        // Each name is to be checked again each time.
        let catalog = Catalog::scan(source, 1, Some(Duration::ZERO)).unwrap();
        let path = Path::new("a/b/file");
        let refresh = || {
            let mut at = NodeId::ROOT;
            catalog.refresh_directory(at).unwrap();
            for name in path {
                catalog.refresh(at, name).unwrap();
                let Some(Ok(found)) = catalog.lookup(at, name, true) else { break };
                at = found.node;
            }
        };
        let owner = catalog.getattr(NodeId::ROOT).unwrap().stat;
        let kept = Access { mode: 0o444, uid: owner.uid, gid: owner.gid };
        let mode = || {
            refresh();
            let (access, valid) = known_access(&catalog, path, kept);
            assert!(valid.is_zero());
            access.mode
        };
        assert_eq!(mode(), 0o444);
        for (name, other, usual, left) in [
            ("a/b/file", 0o600, 0o644, 0o400),
            ("a/b", 0o700, 0o755, 0o400),
            ("a", 0o705, 0o755, 0o404),
            ("", 0o750, 0o755, 0o440),
        ] {
            set(name, other);
            assert_eq!(mode(), left, "{name} is {other:o}");
            set(name, usual);
            assert_eq!(mode(), 0o444, "{name} is {usual:o} again");
        }
        set("a", 0o700);
        fs::remove_file(at("a/b/file")).unwrap();
        assert_eq!(mode(), 0o400, "what is left above still counts");
        let less = Access { mode: 0o400, ..kept };
        fs::write(at("a/b/file"), "another").unwrap();
        set("a", 0o755);
        refresh();
        assert_eq!(known_access(&catalog, path, less).0, less, "what was kept was not for all");
    }

    /// A user who mounts for themselves may read a file by its group, until the group loses the right.
    #[test]
    fn rights_are_asked_for_again_as_names_are() {
        let root = tempfile::tempdir().unwrap();
        let set = |mode| {
            let file = root.path().join("file");
            fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
        };
        fs::write(root.path().join("file"), "x").unwrap();
        for (period, left) in [(Some(Duration::ZERO), 0o400), (None, 0o440)] {
            set(0o640);
            let source: Arc<dyn Source> = Arc::new(PosixSource::open(root.path(), 1).unwrap());
            let catalog = Arc::new(Catalog::scan(Arc::clone(&source), 1, period).unwrap());
            let owner = catalog.getattr(NodeId::ROOT).unwrap().stat;
            let kept = Access { mode: 0o440, uid: owner.uid, gid: owner.gid };
            let inbox = Arc::new(Inbox::new(8));
            let cache = Cache::new(source, Arc::clone(&catalog), Arc::clone(&inbox), None);
            let rights = Rights::new(&Dataset::new(catalog, cache, inbox, Arc::new(|_| ()), false));
            let mode = || {
                let (sender, receiver) = channel();
                let then = move |access: Access, _| sender.send(access.mode).unwrap();
                rights.current("file".into(), kept, then);
                receiver.recv_timeout(Duration::from_secs(180)).unwrap()
            };
            assert_eq!(mode(), 0o440);
            set(0o600);
            assert_eq!(mode(), left, "{period:?}");
        }
    }
}
