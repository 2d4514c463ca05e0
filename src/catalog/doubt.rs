//! Sizes that are not believed at once.
//!
//! The client of a network filesystem may report a wrong size for a moment, for example after a read
//! that fell short. A file's size changes together with its times. So if a size differs from the known one,
//! the filesystem's servers are asked again:
//!
//! 1. If the times differ too, an answer is believed that is given twice.
//! 2. If the times are the old ones, the size is not believed at once. A file that was changed right
//!    before it was checked is an exception: two changes within one step of the source's clock have
//!    the same times. So is a file that was not checked since an earlier mount.
//! 3. The known size may be the wrong one: it may have been told for a moment when the file was first
//!    checked. So a size is believed if the source says nothing else at all checks of a minute.

use std::collections::HashMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::tree::Tree;
use crate::ids::FileId;
use crate::source::{Kind, Source, Stat};
use crate::sync::Mutex;

/// How long the source is asked again in one check, and the pause between two questions.
const INSISTS: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);

/// A source that says the same for so long is believed, if no two checks are further apart than this.
const INSISTS_LONG: Duration = Duration::from_secs(60);
const CHECKS_APART: Duration = Duration::from_secs(30);

/// Sizes that were told with old times.
#[derive(Debug, Default)]
pub(super) struct Doubts(Mutex<HashMap<FileId, Doubt>>);

#[derive(Clone, Copy, Debug)]
struct Doubt {
    size: u64,
    since: Instant,
    last: Instant,
}

/// A file as it is known when it is checked.
pub(super) struct Known {
    file: FileId,
    pub(super) stat: Stat,
    immutable: bool,
    /// Whether a size is believed that differs alone.
    may_differ_alone: bool,
}

impl Known {
    /// What a name is known to stand for. None if that is not known. None if its size is not known.
    pub(super) fn of(tree: &Tree, entry: FileId) -> Option<Self> {
        let file = tree.target(entry);
        if tree.is_unsure(entry) || !tree.stat(file).is_sized {
            return None;
        }
        Some(Known {
            file,
            stat: tree.stat(file),
            immutable: tree.immutable,
            may_differ_alone: tree.is_just_changed(file) || tree.checks.is_unchecked(file),
        })
    }

    /// Whether all but the size is as it was known. A source may have no times. If it is immutable, what is
    /// known may be older than the last change of attributes, which counts for nothing then.
    fn has_times_of(&self, seen: &Stat) -> bool {
        let known = &self.stat;
        let has_times = known.mtime_ns != 0 || known.ctime_ns != 0;
        let [is, was] = [Stat { size: known.size, ..*seen }, *known].map(|stat| stat.fingerprint());
        has_times && if self.immutable { is.is_content_of(&was) } else { is == was }
    }
}

/// Whether a file is said to have another size than it is known to have.
pub(super) fn is_other_size(known: &Stat, seen: &Stat) -> bool {
    [known.kind, seen.kind] == [Kind::File; 2] && known.size != seen.size
}

impl Doubts {
    /// Notes that a file is said to have a size. Says whether that has been so for long.
    fn note(&self, file: FileId, size: u64, now: Instant) -> bool {
        let mut doubts = self.0.lock();
        let known = doubts.get(&file).copied();
        let goes_on = known.filter(|doubt| doubt.size == size && now < doubt.last + CHECKS_APART);
        let since = goes_on.map_or(now, |doubt| doubt.since);
        doubts.insert(file, Doubt { size, since, last: now });
        now >= since + INSISTS_LONG
    }

    /// The source takes back what it said of a file, or is believed.
    fn end(&self, file: FileId) {
        self.0.lock().remove(&file);
    }

    /// What a path is at the source, which says that it is as `seen`; none if the source is not believed.
    /// Blocks, for a second if the source contradicts itself.
    pub(super) fn believed(
        &self,
        source: &dyn Source,
        path: &Path,
        seen: Stat,
        known: &Known,
    ) -> Result<Option<Stat>, Errno> {
        let (mut before, start) = (seen, Instant::now());
        while is_other_size(&known.stat, &before) {
            let seen = source.stat_anew(path)?;
            let doubtful = known.has_times_of(&seen);
            if !doubtful && seen.fingerprint() == before.fingerprint() {
                return Ok(Some(seen));
            }
            if start.elapsed() >= INSISTS {
                let insists = || self.note(known.file, seen.size, Instant::now());
                let believes = known.may_differ_alone || !doubtful || insists();
                return Ok(believes.then_some(seen));
            }
            before = seen;
            if is_other_size(&known.stat, &before) {
                thread::sleep(PAUSE);
            }
        }
        self.end(known.file);
        Ok(Some(before))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::catalog::tests::{Gated, at, node_of};
    use crate::catalog::{Catalog, Handed, NodeId, Received};

    const BYTES: &[u8; 12] = b"twelve bytes";

    /// An hour, in nanoseconds.
    const HOUR: i64 = 3600 * 1_000_000_000;

    /// A file of twelve bytes, and a catalog in either mode of consistency that has seen it long after
    /// it was changed.
    fn stands() -> [(tempfile::TempDir, Arc<Gated>, Catalog); 2] {
        [None, Some(Duration::from_secs(60))].map(|period| {
            let root = tempfile::tempdir().unwrap();
            fs::write(root.path().join("file"), BYTES).unwrap();
            let source = Gated::new(root.path(), "file");
            source.earlier_ns.store(HOUR, Ordering::Relaxed);
            let catalog = Catalog::scan(source.clone(), 1, period).unwrap();
            (root, source, catalog)
        })
    }

    /// Writes the file as of its own time.
    fn write(root: &Path, text: &str, number: u64) {
        fs::write(root.join("file"), text).unwrap();
        let file = fs::File::options().write(true).open(root.join("file")).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(number)).unwrap();
    }

    fn look(catalog: &Catalog) -> (NodeId, u64) {
        catalog.refresh(NodeId::ROOT, OsStr::new("file")).unwrap();
        let node = node_of(catalog, "file");
        (node, catalog.getattr(node).unwrap().stat.size)
    }

    #[test]
    fn a_size_that_the_servers_take_back_is_not_believed() {
        for (_root, source, catalog) in stands() {
            let node = node_of(&catalog, "file");
            source.shrunk.store(1, Ordering::Relaxed);
            assert_eq!(look(&catalog), (node, 12));
            source.shrunk.store(1, Ordering::Relaxed);
            source.shrunk_anew.store(2, Ordering::Relaxed);
            assert_eq!(look(&catalog), (node, 12), "they take it back a moment later");
        }
    }

    #[test]
    fn a_size_without_other_times_is_not_believed_at_once() {
        for (_root, source, catalog) in stands() {
            let node = node_of(&catalog, "file");
            source.insist_on_half();
            assert_eq!(look(&catalog), (node, 12));
        }
    }

    #[test]
    fn where_there_are_no_times_a_size_is_believed() {
        let (_root, source, catalog) = stands().into_iter().next().unwrap();
        let stat = Stat { mtime_ns: 0, ctime_ns: 0, ..source.stat(Path::new("file")).unwrap() };
        let file = node_of(&catalog, "file").file().unwrap();
        let known = Known::of(&catalog.read(), file).unwrap();
        assert!(known.immutable && known.has_times_of(&Stat { size: 6, ..known.stat }));
        assert!(!Known { stat, ..known }.has_times_of(&Stat { size: 6, ..stat }));
    }

    #[test]
    fn a_source_is_believed_that_says_nothing_else_for_a_minute() {
        let (doubts, file, start) = (Doubts::default(), FileId(1), Instant::now());
        let note = |size, seconds| doubts.note(file, size, start + Duration::from_secs(seconds));
        assert!(![0, 20, 40, 59].into_iter().any(|at| note(6, at)));
        assert!(note(6, 60), "a minute");
        doubts.end(file);
        assert!(![70, 90, 110].into_iter().any(|at| note(6, at)), "it took that back");
        assert!(!note(7, 135), "it says something else");
        assert!(![150, 190, 210].into_iter().any(|at| note(7, at)), "nobody knows what it said");
        assert!(note(7, 230) || note(7, 250));
        assert!(!doubts.note(FileId(2), 7, start + Duration::from_secs(250)));
    }

    /// The scan was told of half of a file, for a moment.
    #[test]
    fn a_wrong_size_of_an_earlier_mount_is_put_right() {
        for period in [None, Some(Duration::from_secs(60))] {
            for by_sweep in [true, false] {
                let root = tempfile::tempdir().unwrap();
                fs::write(root.path().join("file"), BYTES).unwrap();
                let source = Gated::new(root.path(), "file");
                source.earlier_ns.store(HOUR, Ordering::Relaxed);
                source.shrunk.store(u64::MAX, Ordering::Relaxed);
                let wrong = Catalog::scan(source.clone(), 1, period).unwrap();
                let size = |catalog: &Catalog| {
                    catalog.getattr(node_of(catalog, "file")).unwrap().stat.size
                };
                assert_eq!(size(&wrong), 6);
                source.shrunk.store(0, Ordering::Relaxed);
                let directory = tempfile::tempdir().unwrap();
                let place = at(&directory.path().join("catalog"));
                wrong.save(&place).unwrap();
                let again = Catalog::open(source.clone(), period, &place).unwrap();
                if by_sweep {
                    again.sweep(1, &AtomicBool::new(false), &|_| ());
                } else {
                    look(&again);
                }
                assert_eq!(size(&again), 12);
            }
        }
    }

    #[test]
    fn a_size_with_other_times_is_believed_when_it_is_told_twice() {
        for (root, source, catalog) in stands() {
            let node = node_of(&catalog, "file");
            write(root.path(), "other bytes", 1);
            // Half of it, which the servers take back.
            source.shrunk.store(1, Ordering::Relaxed);
            let (new, size) = look(&catalog);
            assert!(new != node && size == 11);
        }
    }

    #[test]
    fn of_a_file_that_was_just_changed_a_size_is_believed_in_the_end() {
        for (_root, source, catalog) in stands() {
            // It is changed in an hour.
            source.earlier_ns.store(-HOUR, Ordering::Relaxed);
            let (node, _) = look(&catalog);
            source.insist_on_half();
            let (new, size) = look(&catalog);
            assert!(new != node && size == 6);
        }
    }

    #[test]
    fn other_attributes_do_not_have_a_wrong_size_believed_where_the_source_is_immutable() {
        let [(root, source, catalog), _] = stands();
        let node = node_of(&catalog, "file");
        let path = root.path().join("file");
        fs::hard_link(&path, root.path().join("other")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(look(&catalog), (node, 12));
        source.insist_on_half();
        assert_eq!(look(&catalog), (node, 12));
    }

    /// A new name, other rights.
    #[test]
    fn a_change_of_what_is_no_content_is_none_where_the_source_is_immutable() {
        for (root, _source, catalog) in stands() {
            let node = node_of(&catalog, "file");
            let path = root.path().join("file");
            fs::hard_link(&path, root.path().join("other")).unwrap();
            let changed = || fs::metadata(&path).map(|found| (found.ctime(), found.ctime_nsec()));
            let before = changed().unwrap();
            while changed().unwrap() == before {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            }
            let (new, size) = look(&catalog);
            assert_eq!((new == node, size), (!catalog.is_revalidated(), 12));
        }
    }

    #[test]
    fn a_node_of_which_nothing_was_handed_out_gives_what_there_is_now() {
        for (root, _source, catalog) in stands() {
            let before = node_of(&catalog, "file");
            let (file, _) = catalog.file(before).unwrap();
            let block = catalog.layout().blocks_of(file).next().unwrap();
            let give = |node, bytes: u32| {
                let bytes = &bytes.to_le_bytes();
                let handed = Handed { block, pages: None, bytes };
                catalog.receive(node, &handed, None) != Received::TooLate
            };
            let change = |text: &str, number: u64| {
                write(root.path(), text, number);
                look(&catalog).0
            };
            let (second, third) = (change("other bytes!", 2), change("third bytes!", 3));
            for node in [before, second, third] {
                assert_eq!(catalog.served(node).unwrap().node, third);
                assert_eq!(catalog.served_attr(node).unwrap().stat.size, 12);
            }
            assert!(!give(before, 1), "bytes that have come too late");
            assert!(give(third, 3));
            let fourth = change("fourth bytes", 4);
            assert!(give(fourth, 4));
            for past in [before, second, third] {
                assert_eq!(catalog.served(past).err(), Some(Errno::ESTALE));
                assert!(give(past, 3), "who has read of it may go on");
            }
            // Only its time has changed, twice.
            let same = [5, 6].map(|number| change("fourth bytes", number))[1];
            for node in [fourth, same] {
                assert_eq!(catalog.served(node).unwrap().node, same, "it may be the same");
            }
            assert!(give(same, 4));
            assert_eq!(catalog.served(fourth).unwrap().node, same, "it is the same");
            let other = change("other bytes!", 7);
            assert_eq!(catalog.served(fourth).unwrap().node, other);
            assert!(give(other, 5));
            for past in [fourth, same] {
                assert_eq!(catalog.served(past).err(), Some(Errno::ESTALE), "it is another");
            }
            let mut past = other;
            for (number, text) in [(8, "one that has grown"), (9, "a short one")] {
                let resized = change(text, number);
                assert_eq!(catalog.served(past).err(), Some(Errno::ESTALE), "{text}");
                assert_eq!(catalog.served(resized).unwrap().size, text.len() as u64);
                past = resized;
            }
        }
    }
}
