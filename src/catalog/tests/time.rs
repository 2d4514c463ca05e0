//! The truth within the stated time, in a time that the test makes pass.
//!
//! Goal: whatever changes at the source, however and whenever, what a path is told to be was so at
//! some moment of the last period; and what is looked at ahead of its use is looked at once a period,
//! and nobody waits. Method: a tree in memory that remembers all its states, random changes to it,
//! and a kernel that believes each name as long as it is told to. The clock of the catalog is set
//! forward by hours, so that what the machine itself takes does not count.

use std::ops::Range;

use super::*;
use crate::source::ReadRequest;

const HOUR: Duration = Duration::from_secs(3600);
const PERIOD: Duration = Duration::from_secs(10 * 24 * 3600);

/// All names that there may be; those without a point are directories.
const PATHS: [&str; 11] =
    ["a", "a/1.x", "a/2.x", "a/c", "a/c/1.x", "a/c/2.x", "b", "b/1.x", "b/2.x", "b/3.x", "f.x"];

type State = BTreeMap<PathBuf, Stat>;

/// A tree that remembers what it was, and from which time on.
struct Past {
    states: Mutex<Vec<(Duration, State)>>,
    began: Instant,
    /// By how much the time is set forward.
    ahead: Mutex<Duration>,
    next: AtomicU64,
    asked: AtomicU64,
}

fn is_directory(path: &Path) -> bool {
    path.extension().is_none()
}

impl Past {
    fn new() -> Arc<Self> {
        let past = Arc::new(Past {
            states: Mutex::new(Vec::new()),
            began: Instant::now(),
            ahead: Mutex::default(),
            next: AtomicU64::new(1),
            asked: AtomicU64::new(0),
        });
        let mut state = State::new();
        for path in [""].iter().chain(&PATHS) {
            past.make(&mut state, Path::new(path));
        }
        past.states.lock().unwrap().push((Duration::ZERO, state));
        past
    }

    /// Time since the beginning.
    fn now(&self) -> Duration {
        self.began.elapsed() + *self.ahead.lock().unwrap()
    }

    /// Another number at each call, odd: no whole second.
    fn number(&self) -> u64 {
        self.next.fetch_add(2, Ordering::Relaxed)
    }

    fn stat_of(&self, path: &Path) -> Stat {
        let number = self.number();
        Stat {
            kind: if is_directory(path) { Kind::Directory } else { Kind::File },
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 8,
            is_sized: true,
            version_has_size: true,
            blocks: 1,
            atime_ns: 1,
            mtime_ns: 1,
            ctime_ns: number as i64,
            identity: (1, if path.as_os_str().is_empty() { 0 } else { number }),
        }
    }

    /// Notes that the names in a directory are others.
    fn touch(&self, state: &mut State, directory: &Path) {
        if let Some(stat) = state.get_mut(directory) {
            stat.ctime_ns = self.number() as i64;
        }
    }

    fn make(&self, state: &mut State, path: &Path) {
        state.insert(path.into(), self.stat_of(path));
        if let Some(parent) = path.parent() {
            self.touch(state, parent);
        }
    }

    fn remove(&self, state: &mut State, path: &Path) {
        state.retain(|below, _| !below.starts_with(path));
        path.parent().into_iter().for_each(|parent| self.touch(state, parent));
    }

    /// Changes something, in one of the ways in which that happens.
    fn change(&self, choice: &mut Choice) {
        let now = self.now();
        let mut states = self.states.lock().unwrap();
        let mut state = states.last().unwrap().1.clone();
        let path = Path::new(PATHS[choice.below(PATHS.len() as u64) as usize]);
        let parent = path.parent().unwrap();
        match (state.contains_key(path), is_directory(path), choice.below(4)) {
            (false, ..) if state.contains_key(parent) => self.make(&mut state, path),
            (false, ..) => {}
            // Gone, or another one in its place: a directory with other names in it, perhaps.
            (true, _, 0) => self.remove(&mut state, path),
            (true, _, 1) => {
                self.remove(&mut state, path);
                self.make(&mut state, path);
                for below in PATHS.iter().map(Path::new).filter(|p| p.parent() == Some(path)) {
                    if choice.below(2) == 0 {
                        self.make(&mut state, below);
                    }
                }
            }
            (true, true, _) => self.touch(&mut state, path),
            // In place: another size, or the same size and time of modification.
            (true, false, how) => {
                let stat = state.get_mut(path).unwrap();
                stat.ctime_ns = self.number() as i64;
                stat.size += how - 2;
            }
        }
        states.push((now, state));
    }

    /// Whether a path was as it is seen at some moment of this time.
    fn was(&self, path: &Path, seen: Seen, when: Range<Duration>) -> bool {
        let states = self.states.lock().unwrap();
        let ends = states.iter().skip(1).map(|(from, _)| *from).chain([Duration::MAX]);
        let then = states
            .iter()
            .zip(ends)
            .filter(|((from, _), to)| *from <= when.end && *to >= when.start);
        then.map(|((_, state), _)| state.get(path)).any(|stat| match seen {
            Seen::Absent => stat.is_none(),
            Seen::Named => stat.is_some(),
            Seen::File(version) => stat.is_some_and(|stat| stat.fingerprint() == version),
        })
    }
}

/// What somebody sees of a path.
#[derive(Clone, Copy, Debug)]
enum Seen {
    Absent,
    /// It is there: a directory, whose names have times of their own, or what is to be asked for.
    Named,
    File(Fingerprint),
}

impl Seen {
    fn of(stat: Option<&Stat>) -> Self {
        match stat {
            None => Seen::Absent,
            Some(Stat { kind: Kind::Directory, .. }) => Seen::Named,
            Some(stat) => Seen::File(stat.fingerprint()),
        }
    }
}

impl Source for Past {
    fn lasting_identity(&self) -> u128 {
        1
    }

    fn list_in_parts(
        &self,
        directory: &Path,
        each: &mut dyn FnMut(&[OsString]),
    ) -> Result<(), Errno> {
        let states = self.states.lock().unwrap();
        let state = &states.last().unwrap().1;
        if !state.contains_key(directory) {
            return Err(Errno::ENOENT);
        }
        let below = state.keys().filter(|path| path.parent() == Some(directory));
        let names: Vec<OsString> = below.map(|path| path.file_name().unwrap().into()).collect();
        drop(states);
        each(&names);
        Ok(())
    }

    fn stat(&self, path: &Path) -> Result<Stat, Errno> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.states.lock().unwrap().last().unwrap().1.get(path).copied().ok_or(Errno::ENOENT)
    }

    fn read_link(&self, _: &Path) -> Result<OsString, Errno> {
        Err(Errno::EINVAL)
    }

    fn list_xattrs(&self, _: &Path) -> Result<Vec<u8>, Errno> {
        Err(Errno::ENOTSUP)
    }

    fn xattr(&self, _: &Path, _: &OsStr) -> Result<Vec<u8>, Errno> {
        Err(Errno::ENOTSUP)
    }

    fn space(&self) -> Result<[u64; 7], Errno> {
        Ok([0; 7])
    }

    fn read(&self, _: Vec<ReadRequest>) {}
}

/// A mount, and the names that its kernel believes.
struct Mount {
    catalog: Catalog,
    past: Arc<Past>,
    since: Duration,
    believed: BTreeMap<PathBuf, (NodeId, Stat, Duration)>,
}

impl Mount {
    fn of(past: &Arc<Past>, catalog: Catalog) -> Self {
        Mount { catalog, past: Arc::clone(past), since: past.now(), believed: BTreeMap::new() }
    }

    fn pass(&mut self, time: Duration) {
        self.catalog.clock.start -= time;
        *self.past.ahead.lock().unwrap() += time;
    }

    /// What the kernel takes a name for, whose directory it knows.
    fn look(&mut self, parent: NodeId, path: &Path) -> Result<(NodeId, Stat), Errno> {
        let now = self.past.now();
        match self.believed.get(path) {
            Some((node, stat, until)) if now < *until => return Ok((*node, *stat)),
            _ => {}
        }
        let name = path.file_name().unwrap();
        let found = self.catalog.lookup(parent, name, false);
        let attr = found.unwrap_or_else(|| {
            self.catalog.refresh(parent, name)?;
            self.catalog.lookup(parent, name, true).unwrap()
        })?;
        self.believed.insert(path.into(), (attr.node, attr.stat, now + attr.valid));
        Ok((attr.node, attr.stat))
    }

    /// What the kernel takes a path for; nothing where it is not there.
    fn walk(&mut self, path: &Path) -> Option<(NodeId, Stat)> {
        let mut at = (NodeId::ROOT, None);
        let mut ancestors: Vec<&Path> = path.ancestors().collect();
        ancestors.pop();
        for path in ancestors.into_iter().rev() {
            match self.look(at.0, path) {
                Ok((node, stat)) => at = (node, Some(stat)),
                // As the kernel does: nothing is believed then.
                Err(Errno::ESTALE) => {
                    self.believed.clear();
                    return self.walk(path);
                }
                Err(_) => return None,
            }
        }
        Some((at.0, at.1?))
    }

    /// Whether what is taken for true now was so not longer ago than it may be.
    fn is_true(&self, path: &Path, seen: Seen, now: Duration) -> bool {
        // What an earlier mount has left counts as seen when this one began.
        let fresh = self.catalog.state() != CatalogState::Scanned && now < self.since + PERIOD;
        let from = if fresh { Duration::ZERO } else { now.saturating_sub(PERIOD) };
        self.past.was(path, seen, from..self.past.now())
    }

    fn check(&mut self, path: &Path) {
        let now = self.past.now();
        let found = self.walk(path);
        let seen = Seen::of(found.as_ref().map(|(_, stat)| stat));
        assert!(self.is_true(path, seen, now), "{path:?} is no longer {found:?} at {now:?}");
        let Some((node, Stat { kind: Kind::Directory, .. })) = found else { return };
        let listed = self.catalog.list(node, false).or_else(|| {
            self.catalog.refresh_directory(node).unwrap();
            self.catalog.list(node, true)
        });
        let Some(Ok(listed)) = listed else { return };
        for below in PATHS.iter().map(Path::new).filter(|below| below.parent() == Some(path)) {
            let listed = listed.iter().find(|listed| Some(&*listed.name) == below.file_name());
            let seen = match listed {
                Some(listed) if listed.attr.valid.is_zero() => Seen::Named,
                listed => Seen::of(listed.map(|listed| &listed.attr.stat)),
            };
            assert!(self.is_true(below, seen, now), "{below:?} is no longer {seen:?} at {now:?}");
        }
    }
}

#[test]
fn what_is_believed_was_so_within_the_period() {
    for seed in 0..6 {
        let directory = tempfile::tempdir().unwrap();
        let saved = at(&directory.path().join("catalog"));
        let (past, mut choice) = (Past::new(), Choice(seed));
        let open = |past: &Arc<Past>| {
            let catalog = Catalog::open(Arc::clone(past) as Arc<dyn Source>, Some(PERIOD), &saved);
            let scan = || Catalog::scan(Arc::clone(past) as Arc<dyn Source>, 1, Some(PERIOD));
            catalog.unwrap_or_else(|_| scan().unwrap())
        };
        let mut mount = Mount::of(&past, open(&past));
        for _ in 0..2000 {
            match choice.below(100) {
                0 => {
                    // Another mount takes it up, after a while in which nobody looked.
                    mount.catalog.export(&saved).unwrap();
                    (0..choice.below(4)).for_each(|_| past.change(&mut choice));
                    mount.pass(HOUR * choice.below(300) as u32);
                    mount = Mount::of(&past, open(&past));
                }
                1..5 => drop(mount.catalog.sweep(1, &AtomicBool::new(false), &|_| ())),
                5..20 => past.change(&mut choice),
                20..50 => mount.pass(HOUR * choice.below(60) as u32),
                _ => {
                    let path = PATHS[choice.below(PATHS.len() as u64) as usize];
                    mount.check(Path::new(path));
                }
            }
        }
    }
}

/// Files that are read in every epoch, some time after a look that comes ahead of that.
#[test]
fn what_is_read_again_and_again_is_looked_at_once_a_period_and_ahead_of_its_reader() {
    const PERIODS: u32 = 40;
    let files = ["b/1.x", "b/2.x", "b/3.x"];
    for epochs in [1, 3, 20, 60] {
        let past = Past::new();
        let catalog = Catalog::scan(Arc::clone(&past) as Arc<dyn Source>, 1, Some(PERIOD)).unwrap();
        let mut mount = Mount::of(&past, catalog);
        let parent = node_of(&mount.catalog, "b");
        let (epoch, ahead) = (PERIOD / epochs, PERIOD / 64);
        let before = past.asked.load(Ordering::Relaxed);
        for _ in 0..epochs * PERIODS {
            mount.pass(epoch - ahead);
            for file in files {
                let node = node_of(&mount.catalog, file);
                if mount.catalog.is_check_due(node) {
                    let name = Path::new(file).file_name().unwrap();
                    assert!(mount.catalog.refresh(parent, name).unwrap().is_empty());
                }
            }
            mount.pass(ahead);
            for file in files {
                let name = Path::new(file).file_name().unwrap();
                assert!(mount.catalog.lookup(parent, name, false).is_some(), "its reader waits");
            }
        }
        let asked = past.asked.load(Ordering::Relaxed) - before;
        // An eighth early at most.
        let most = u64::from(PERIODS * 8 / 7 + 1) * files.len() as u64;
        assert!(asked <= most, "{asked} looks in {PERIODS} periods of {epochs} epochs");
        assert!(asked >= u64::from(PERIODS - 1) * files.len() as u64, "{asked}");
    }
}
