//! What the disk is at, and whether it hangs.
//!
//! Each call of a store to its disk is noted until it is answered. The disk hangs when looks in a
//! row find it at one and the same call. Looks are counted rather than time: where the whole
//! machine stood still, the disk did, too, and that is one look. What takes long call by call is
//! slow, and does not hang.

use std::collections::BTreeMap;
use std::io::Result;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::Store;
use super::disk::{Blob, Disk, Space, Use};
use crate::sync::{Mutex, MutexGuard};

/// Time between two looks.
pub const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Looks at one call up to which the disk is not said to hang.
pub(in crate::cache) const HANGS_AFTER: u64 = looks_in(10);

/// Looks in so many seconds.
pub(in crate::cache) const fn looks_in(seconds: u64) -> u64 {
    seconds * 1000 / LOOK_EVERY.as_millis() as u64
}

#[derive(Default)]
struct State {
    looks: u64,
    /// Calls that have begun so far.
    begun: u64,
    /// Those under way, in the order in which they began, and how many looks there had been.
    under_way: BTreeMap<u64, u64>,
}

impl State {
    fn hangs(&self) -> bool {
        let first = self.under_way.first_key_value();
        first.is_some_and(|(_, since)| self.looks - since > HANGS_AFTER)
    }
}

/// Calls of one kind.
#[derive(Default)]
struct Calls(Mutex<State>);

impl Calls {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk is called, until what is returned is dropped.
    fn begin(&self) -> Call<'_> {
        let mut state = self.lock();
        let (number, since) = (state.begun, state.looks);
        state.begun += 1;
        state.under_way.insert(number, since);
        Call { calls: self, number }
    }

    /// Counts a look. Whether the disk has come to hang by it.
    fn look(&self) -> bool {
        let mut state = self.lock();
        let before = state.hangs();
        state.looks += 1;
        state.hangs() && !before
    }

    fn hangs(&self) -> bool {
        self.lock().hangs()
    }

    /// Calls that were answered so far.
    fn answered(&self) -> u64 {
        let state = self.lock();
        state.begun - state.under_way.len() as u64
    }
}

/// A call under way, until it is dropped.
struct Call<'a> {
    calls: &'a Calls,
    number: u64,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.calls.lock().under_way.remove(&self.number);
    }
}

/// The calls of a store to its disk: those that only look, and those that change something, which
/// one thread at a time makes.
#[derive(Default)]
pub(super) struct Watch {
    reads: Calls,
    writes: Calls,
}

/// A disk, or a file of one, each call to which is noted.
struct Watched<T> {
    inner: T,
    watch: Arc<Watch>,
}

impl Watch {
    /// The disk, its calls noted.
    pub(super) fn over(self: &Arc<Self>, inner: Arc<dyn Disk>) -> Arc<dyn Disk> {
        Arc::new(Watched { inner, watch: Arc::clone(self) })
    }
}

impl Watched<Arc<dyn Disk>> {
    fn file(&self, inner: Arc<dyn Blob>) -> Arc<dyn Blob> {
        Arc::new(Watched { inner, watch: Arc::clone(&self.watch) })
    }
}

impl Disk for Watched<Arc<dyn Disk>> {
    fn names(&self) -> Result<Vec<(String, u64)>> {
        let _call = self.watch.reads.begin();
        self.inner.names()
    }

    fn create(&self, name: &str, how: Use) -> Result<Arc<dyn Blob>> {
        let _call = self.watch.writes.begin();
        Ok(self.file(self.inner.create(name, how)?))
    }

    fn open(&self, name: &str, how: Use) -> Result<Arc<dyn Blob>> {
        let _call = self.watch.reads.begin();
        Ok(self.file(self.inner.open(name, how)?))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let _call = self.watch.writes.begin();
        self.inner.rename(from, to)
    }

    fn lend(&self, name: &str, length: u64) -> Result<OwnedFd> {
        let _call = self.watch.writes.begin();
        self.inner.lend(name, length)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let _call = self.watch.writes.begin();
        self.inner.remove(name)
    }

    fn sync_names(&self) -> Result<()> {
        let _call = self.watch.writes.begin();
        self.inner.sync_names()
    }

    fn space(&self) -> Result<Space> {
        let _call = self.watch.reads.begin();
        self.inner.space()
    }
}

impl Blob for Watched<Arc<dyn Blob>> {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        let _call = self.watch.reads.begin();
        self.inner.read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let _call = self.watch.writes.begin();
        self.inner.write_at(bytes, offset)
    }

    fn cut(&self, length: u64) -> Result<()> {
        let _call = self.watch.writes.begin();
        self.inner.cut(length)
    }

    fn punch(&self, offset: u64, length: u64) -> Result<()> {
        let _call = self.watch.writes.begin();
        self.inner.punch(offset, length)
    }

    fn sync(&self) -> Result<()> {
        let _call = self.watch.writes.begin();
        self.inner.sync()
    }
}

impl Store {
    /// Looks what the disk is at. To be called each [`LOOK_EVERY`].
    pub fn look(&self) {
        if self.watch.reads.look() {
            tracing::warn!("the cache disk hangs; samples come from the source");
        }
        self.watch.writes.look();
    }

    /// Whether the disk does not answer a read; it is left alone until it has.
    pub fn reads_hang(&self) -> bool {
        self.watch.reads.hangs()
    }

    /// Whether the disk does not answer a call, whatever it is: nothing can be stored.
    pub fn hangs(&self) -> bool {
        self.reads_hang() || self.watch.writes.hangs()
    }

    /// What the disk has taken so far, in calls: as long as that grows, it does not hang.
    pub fn writes_answered(&self) -> u64 {
        self.watch.writes.answered()
    }

    /// Whether to try the disk.
    pub(super) fn is_usable(&self) -> bool {
        !self.reads_hang() && self.health.is_usable()
    }

    /// `normal`, or what is wrong in words.
    pub fn state(&self) -> &'static str {
        if self.reads_hang() {
            "down: the cache disk hangs; it is bypassed"
        } else if self.hangs() {
            "down: the cache disk hangs; nothing is stored there"
        } else {
            self.health.words()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_call_that_many_looks_find_hangs() {
        let calls = Calls::default();
        let look = |times| (0..times).filter(|_| calls.look()).count();
        for _ in 0..3 {
            let _call = calls.begin();
            assert_eq!((look(HANGS_AFTER), calls.hangs()), (0, false), "it is another one");
        }
        let (stuck, _other) = (calls.begin(), calls.begin());
        assert_eq!((look(HANGS_AFTER), calls.hangs()), (0, false));
        drop(calls.begin());
        assert_eq!((look(3), calls.hangs()), (1, true), "said once");
        assert_eq!(calls.answered(), 4);
        drop(stuck);
        assert!(calls.hangs(), "the other one");
    }
}
