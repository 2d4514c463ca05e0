//! What the disk is at, and whether it hangs.
//!
//! Each call of a store to its disk is noted until it is answered. The disk hangs when looks in a
//! row find it at one and the same call. Looks are counted rather than time: where the whole
//! machine stood still, the disk did, too, and that is one look. What takes long call by call is
//! slow, and does not hang. While a store is opened, it is a thread that is looked at instead.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Error, Result};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use nix::unistd::gettid;

use super::{Alarm, Blob, Disk, Space, Use};
use crate::sync::{Mutex, MutexGuard};

/// Time between two looks.
pub const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Looks at one call up to which the disk is not said to hang.
pub(crate) const HANGS_AFTER: u64 = looks_in(10);

pub(crate) const fn looks_in(seconds: u64) -> u64 {
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
        self.0.lock()
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

    fn is_called(&self) -> bool {
        !self.lock().under_way.is_empty()
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

/// The calls of a store to its disk, and of what lies there beside it: those that only look, and those that
/// change something.
#[derive(Default)]
pub struct Watch {
    reads: Calls,
    writes: Calls,
    /// Rings when the disk is called.
    alarm: OnceLock<Arc<Alarm>>,
}

/// A disk, or a file of one, each call to which is noted.
struct Watched<T> {
    inner: T,
    watch: Arc<Watch>,
}

impl Watch {
    fn read(&self) -> Call<'_> {
        self.called(&self.reads)
    }

    fn write(&self) -> Call<'_> {
        self.called(&self.writes)
    }

    fn called<'a>(&'a self, calls: &'a Calls) -> Call<'a> {
        let call = calls.begin();
        self.alarm.get().into_iter().for_each(|alarm| alarm.ring());
        call
    }

    /// The disk, its calls noted.
    pub fn over(self: &Arc<Self>, inner: Arc<dyn Disk>) -> Arc<dyn Disk> {
        Arc::new(Watched { inner, watch: Arc::clone(self) })
    }

    /// Has an alarm ring when the disk is called.
    pub fn ring(&self, alarm: &Arc<Alarm>) {
        let _ = self.alarm.set(Arc::clone(alarm));
    }

    /// Whether there is a call that the disk has not answered.
    pub fn is_called(&self) -> bool {
        self.reads.is_called() || self.writes.is_called()
    }

    /// Looks what the disk is at. To be called each [`LOOK_EVERY`].
    pub fn look(&self) {
        if self.reads.look() {
            tracing::warn!("the cache disk hangs; samples come from the source");
        }
        self.writes.look();
    }

    /// Whether the disk does not answer a read; it is left alone until it has.
    pub fn reads_hang(&self) -> bool {
        self.reads.hangs()
    }

    /// Whether the disk does not answer a call, whatever it is: nothing can be stored.
    pub fn hangs(&self) -> bool {
        self.reads_hang() || self.writes.hangs()
    }

    /// What the disk has taken so far, in calls: as long as that grows, it does not hang.
    pub fn writes_answered(&self) -> u64 {
        self.writes.answered()
    }
}

impl Watched<Arc<dyn Disk>> {
    fn file(&self, inner: Arc<dyn Blob>) -> Arc<dyn Blob> {
        Arc::new(Watched { inner, watch: Arc::clone(&self.watch) })
    }
}

impl Disk for Watched<Arc<dyn Disk>> {
    fn names(&self) -> Result<Vec<(String, u64)>> {
        let _call = self.watch.read();
        self.inner.names()
    }

    fn create(&self, name: &str, how: Use) -> Result<Arc<dyn Blob>> {
        let _call = self.watch.write();
        Ok(self.file(self.inner.create(name, how)?))
    }

    fn open(&self, name: &str, how: Use) -> Result<Arc<dyn Blob>> {
        let _call = self.watch.read();
        Ok(self.file(self.inner.open(name, how)?))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let _call = self.watch.write();
        self.inner.rename(from, to)
    }

    fn lend(&self, name: &str, length: u64) -> Result<OwnedFd> {
        let _call = self.watch.write();
        self.inner.lend(name, length)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let _call = self.watch.write();
        self.inner.remove(name)
    }

    fn sync_names(&self) -> Result<()> {
        let _call = self.watch.write();
        self.inner.sync_names()
    }

    /// It is asked once a second, and wakes nobody by that: who rests looks as often by himself.
    fn space(&self) -> Result<Space> {
        let _call = self.watch.reads.begin();
        self.inner.space()
    }
}

impl Blob for Watched<Arc<dyn Blob>> {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        let _call = self.watch.read();
        self.inner.read_at(bytes, offset)
    }

    /// It never waits for the disk.
    fn peek_at(&self, bytes: &mut [u8], offset: u64) -> bool {
        self.inner.peek_at(bytes, offset)
    }

    fn warm(&self, offset: u64, length: u64) -> Result<()> {
        let _call = self.watch.read();
        self.inner.warm(offset, length)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let _call = self.watch.write();
        self.inner.write_at(bytes, offset)
    }

    fn cut(&self, length: u64) -> Result<()> {
        let _call = self.watch.write();
        self.inner.cut(length)
    }

    fn punch(&self, offset: u64, length: u64) -> Result<()> {
        let _call = self.watch.write();
        self.inner.punch(offset, length)
    }

    fn sync(&self) -> Result<()> {
        let _call = self.watch.write();
        self.inner.sync()
    }
}

/// Does what needs the disk, on a thread of its own; none where the disk hangs. The thread is left
/// behind then, and what it brings in the end is dropped.
///
/// # Errors
/// Where there can be no thread, or it panics.
pub fn unless_it_hangs<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>> {
    unless_it_stands(work, LOOK_EVERY, HANGS_AFTER)
}

/// Tells by looks in a row whether threads hang that only wait for a disk.
#[derive(Default)]
pub struct Standstill {
    before: Option<String>,
    looks: u64,
}

impl Standstill {
    /// Takes a look at how long the threads have run and waited to run. Returns whether they hang by
    /// now; never if the kernel does not tell, since they may be running then. To be called each
    /// [`LOOK_EVERY`].
    pub fn look(&mut self, ran: Option<String>) -> bool {
        self.lasts(ran) > HANGS_AFTER
    }

    /// For how many looks they have stood still.
    fn lasts(&mut self, ran: Option<String>) -> u64 {
        self.looks = if ran.is_some() && ran == self.before { self.looks + 1 } else { 0 };
        self.before = ran;
        self.looks
    }
}

/// The same of a thread that does not run between so many looks in a row.
fn unless_it_stands<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    every: Duration,
    looks_max: u64,
) -> Result<Option<T>> {
    let (bring, brought) = mpsc::channel();
    let worker = Arc::new(AtomicI32::new(0));
    let number = Arc::clone(&worker);
    thread::Builder::new().name("belady-disk".into()).spawn(move || {
        number.store(gettid().as_raw(), Ordering::Relaxed);
        let _ = bring.send(work());
    })?;
    let mut standstill = Standstill::default();
    loop {
        match brought.recv_timeout(every) {
            Ok(done) => return Ok(Some(done)),
            Err(RecvTimeoutError::Disconnected) => return Err(Error::other("a thread panicked")),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let worker = worker.load(Ordering::Relaxed);
        let ran = fs::read_to_string(format!("/proc/self/task/{worker}/schedstat")).ok();
        if standstill.lasts(ran) > looks_max {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_stands_still_is_left_behind() {
        const EVERY: Duration = Duration::from_millis(5);
        const LOOKS: u64 = 100;
        let (go, stands) = mpsc::channel::<()>();
        let (ended, end) = mpsc::channel();
        let stuck = unless_it_stands(move || ended.send(stands.recv()), EVERY, LOOKS);
        assert!(stuck.unwrap().is_none());
        go.send(()).unwrap();
        assert_eq!(end.recv().unwrap(), Ok(()), "it goes on");
        // Longer than all of these looks, and never still.
        let steps = 2 * LOOKS * EVERY.as_millis() as u64;
        let slow = move || (0..steps).map(|_| thread::sleep(Duration::from_millis(1))).count();
        assert_eq!(unless_it_stands(slow, EVERY, LOOKS).unwrap(), Some(steps as usize));
        assert!(unless_it_stands(|| panic!("injected"), EVERY, LOOKS).is_err());
    }

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
