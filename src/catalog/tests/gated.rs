//! A source that does what a test says.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;

use crate::source::{Kind, PosixSource, ReadRequest, Source, Stat};

type Meanwhile = Box<dyn FnOnce() + Send>;

/// Calls of one kind: how many are under way, and how many were at most.
#[derive(Default)]
pub(crate) struct AtOnce {
    begun: AtomicU64,
    now: AtomicU64,
    pub(crate) most: AtomicU64,
    /// Calls after the first number wait until the second number was under way at once.
    gathers: Mutex<Option<(u64, u64)>>,
}

/// A call, until it is dropped.
struct Call<'a>(&'a AtOnce);

impl AtOnce {
    pub(crate) fn gather(&self, after: u64, count: u64) {
        *self.gathers.lock().unwrap() = Some((after, count));
    }

    fn begin(&self) -> Call<'_> {
        let before = self.begun.fetch_add(1, Ordering::Relaxed);
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        let gathers = *self.gathers.lock().unwrap();
        if let Some((after, count)) = gathers
            && before >= after
        {
            // At most three minutes.
            let mut looks = 0..180_000;
            while self.most.load(Ordering::Relaxed) < count && looks.next().is_some() {
                thread::sleep(Duration::from_millis(1));
            }
        }
        Call(self)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A source in which one path can be made to fail, where it is listed, or all that begin like it,
/// where they are stat'ed, or not to be listed until it is let go, and which may have times in whole seconds. It
/// counts what it is asked.
pub(crate) struct Gated {
    inner: PosixSource,
    path: PathBuf,
    coarse: bool,
    pub(crate) fails: AtomicBool,
    pub(crate) panics: AtomicBool,
    pub(crate) mute: AtomicBool,
    holds: Mutex<bool>,
    free: Condvar,
    pub(crate) listed: AtomicU64,
    pub(crate) asked: AtomicU64,
    /// How many stats tell half of the size of the path, and how many of these the servers answer.
    pub(crate) shrunk: AtomicU64,
    pub(crate) shrunk_anew: AtomicU64,
    /// By how many nanoseconds all times are earlier.
    pub(crate) earlier_ns: AtomicI64,
    pub(crate) lists: AtOnce,
    pub(crate) stats: AtOnce,
    /// What each stat takes at least.
    pub(crate) delay_us: AtomicU64,
    /// What listings tell of the sizes of files, if it is a guess; 0: the sizes.
    pub(crate) guess: AtomicU64,
    /// What happens once between the stat of a path and its answer.
    meanwhile: Mutex<Option<(PathBuf, Meanwhile)>>,
}

impl Gated {
    pub(crate) fn new(root: &Path, path: &str) -> Arc<Self> {
        Self::with_times(root, path, false)
    }

    pub(super) fn with_times(root: &Path, path: &str, coarse: bool) -> Arc<Self> {
        Arc::new(Gated {
            inner: PosixSource::open(root, 1).unwrap(),
            path: path.into(),
            coarse,
            fails: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            holds: Mutex::new(false),
            free: Condvar::new(),
            listed: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            lists: AtOnce::default(),
            stats: AtOnce::default(),
            delay_us: AtomicU64::new(0),
            shrunk: AtomicU64::new(0),
            shrunk_anew: AtomicU64::new(0),
            earlier_ns: AtomicI64::new(0),
            guess: AtomicU64::new(0),
            meanwhile: Mutex::default(),
        })
    }

    /// Has this happen once between the stat of a path and its answer.
    pub(crate) fn after_stat(&self, path: &str, meanwhile: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock().unwrap() = Some((path.into(), Box::new(meanwhile)));
    }

    /// Tells half of the size of the path from now on, and its servers do, too.
    pub(crate) fn insist_on_half(&self) {
        self.shrunk.store(u64::MAX, Ordering::Relaxed);
        self.shrunk_anew.store(u64::MAX, Ordering::Relaxed);
    }

    pub(crate) fn hold(&self, holds: bool) {
        *self.holds.lock().unwrap() = holds;
        self.free.notify_all();
    }
}

/// Takes one of what is left; whether there was one.
fn takes_one(left: &AtomicU64) -> bool {
    let less = |left: u64| left.checked_sub(1);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
}

impl Source for Gated {
    fn lasting_identity(&self) -> u128 {
        self.inner.lasting_identity()
    }

    fn list_in_parts(
        &self,
        directory: &Path,
        each: &mut dyn FnMut(&[OsString]),
    ) -> Result<(), Errno> {
        let _call = self.lists.begin();
        self.listed.fetch_add(1, Ordering::Relaxed);
        if directory == self.path {
            assert!(!self.panics.load(Ordering::Relaxed), "injected into a listing");
            if self.fails.load(Ordering::Relaxed) {
                return Err(Errno::EIO);
            }
            let held = self.holds.lock().unwrap();
            drop(self.free.wait_while(held, |holds| *holds).unwrap());
        }
        self.inner.list_in_parts(directory, each)
    }

    fn stat(&self, path: &Path) -> Result<Stat, Errno> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_micros(self.delay_us.load(Ordering::Relaxed)));
        let [asked, gated] = [path, &self.path].map(|path| path.as_os_str().as_bytes());
        if asked.starts_with(gated) && self.mute.load(Ordering::Relaxed) {
            return Err(Errno::EIO);
        }
        let found = self.inner.stat(path);
        let meanwhile = self.meanwhile.lock().unwrap().take_if(|(of, _)| of == path);
        meanwhile.into_iter().for_each(|(_, meanwhile)| meanwhile());
        let mut stat = found?;
        for time in [&mut stat.atime_ns, &mut stat.mtime_ns, &mut stat.ctime_ns] {
            *time -= if self.coarse { time.rem_euclid(1_000_000_000) } else { 0 };
            *time -= self.earlier_ns.load(Ordering::Relaxed);
        }
        if path == self.path && takes_one(&self.shrunk) {
            stat.size /= 2;
        }
        Ok(stat)
    }

    fn stat_anew(&self, path: &Path) -> Result<Stat, Errno> {
        let shrunk = self.shrunk.swap(0, Ordering::Relaxed);
        let stat = self.stat(path);
        self.shrunk.store(shrunk, Ordering::Relaxed);
        let half = path == self.path && takes_one(&self.shrunk_anew);
        stat.map(|stat| Stat { size: if half { stat.size / 2 } else { stat.size }, ..stat })
    }

    fn tells_sizes(&self) -> bool {
        self.guess.load(Ordering::Relaxed) == 0
    }

    fn stat_all(&self, directory: &Path, names: &[OsString]) -> Vec<Result<Stat, Errno>> {
        let _call = self.stats.begin();
        let guess = self.guess.load(Ordering::Relaxed);
        let listed = |stat: Stat| match stat.kind {
            Kind::File if guess > 0 => Stat { is_sized: false, ..stat.with_size(guess) },
            _ => stat,
        };
        names.iter().map(|name| self.stat(&directory.join(name)).map(listed)).collect()
    }

    fn listed_kinds(&self, directory: &Path) -> HashMap<OsString, Kind> {
        self.inner.listed_kinds(directory)
    }

    fn read_link(&self, path: &Path) -> Result<OsString, Errno> {
        self.inner.read_link(path)
    }

    fn list_xattrs(&self, path: &Path) -> Result<Vec<u8>, Errno> {
        self.inner.list_xattrs(path)
    }

    fn xattr(&self, path: &Path, name: &OsStr) -> Result<Vec<u8>, Errno> {
        self.inner.xattr(path, name)
    }

    fn space(&self) -> Result<[u64; 7], Errno> {
        self.inner.space()
    }

    fn read(&self, requests: Vec<ReadRequest>) {
        self.inner.read(requests);
    }
}
