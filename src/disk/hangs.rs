//! Tells whether the disk hangs.
//!
//! Each call of a store to its disk is noted until it is answered. A periodic *tick* checks the calls. The disk
//! hangs if ticks in a row find it at the same call. Ticks are counted instead of time: if the whole machine
//! stood still, so did the disk, and that is one tick. A disk that takes long for call after call is slow and
//! does not hang. While a store is opened, ticks check a thread instead of calls.

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

/// The time between two ticks.
pub const TICK: Duration = Duration::from_millis(200);

/// Number of ticks that find the same call, after which the disk hangs.
pub(crate) const HANGS_AFTER: u64 = ticks_in(10);

pub(crate) const fn ticks_in(seconds: u64) -> u64 {
    seconds * 1000 / TICK.as_millis() as u64
}

#[derive(Default)]
struct State {
    ticks: u64,
    calls: u64,
    /// Calls under way by number, each with the ticks before it.
    under_way: BTreeMap<u64, u64>,
}

impl State {
    fn hangs(&self) -> bool {
        let first = self.under_way.first_key_value();
        first.is_some_and(|(_, since)| self.ticks - since > HANGS_AFTER)
    }
}

/// The calls of one kind.
#[derive(Default)]
struct HangDetector(Mutex<State>);

impl HangDetector {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Notes a call until the returned value is dropped.
    fn begin(&self) -> Call<'_> {
        let mut state = self.lock();
        let (number, since) = (state.calls, state.ticks);
        state.calls += 1;
        state.under_way.insert(number, since);
        Call { detector: self, number }
    }

    /// Counts a tick. Returns whether it is the first one to find that the disk hangs.
    fn tick(&self) -> bool {
        let mut state = self.lock();
        let before = state.hangs();
        state.ticks += 1;
        state.hangs() && !before
    }

    fn hangs(&self) -> bool {
        self.lock().hangs()
    }

    fn is_called(&self) -> bool {
        !self.lock().under_way.is_empty()
    }

    fn answered(&self) -> u64 {
        let state = self.lock();
        state.calls - state.under_way.len() as u64
    }
}

/// A call under way until this is dropped.
struct Call<'a> {
    detector: &'a HangDetector,
    number: u64,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.detector.lock().under_way.remove(&self.number);
    }
}

/// The calls to one disk, in the directory of a store and in others: those that only read, and those that
/// change something.
#[derive(Default)]
pub struct DiskWatch {
    reads: HangDetector,
    writes: HangDetector,
    /// Rings when the disk is called.
    alarm: OnceLock<Arc<Alarm>>,
}

struct Watched<T> {
    inner: T,
    watch: Arc<DiskWatch>,
}

impl DiskWatch {
    fn read(&self) -> Call<'_> {
        self.begin(&self.reads)
    }

    fn write(&self) -> Call<'_> {
        self.begin(&self.writes)
    }

    fn begin<'a>(&'a self, detector: &'a HangDetector) -> Call<'a> {
        let call = detector.begin();
        self.alarm.get().into_iter().for_each(|alarm| alarm.ring());
        call
    }

    /// The disk, with its calls noted.
    pub fn watched(self: &Arc<Self>, inner: Arc<dyn Disk>) -> Arc<dyn Disk> {
        Arc::new(Watched { inner, watch: Arc::clone(self) })
    }

    /// Makes an alarm ring when the disk is called.
    pub fn set_alarm(&self, alarm: &Arc<Alarm>) {
        let _ = self.alarm.set(Arc::clone(alarm));
    }

    /// Whether a call waits for the disk.
    pub fn is_called(&self) -> bool {
        self.reads.is_called() || self.writes.is_called()
    }

    /// Checks the calls under way. Must be called each [`TICK`].
    pub fn tick(&self) {
        if self.reads.tick() {
            tracing::warn!("the cache disk hangs; samples come from the source");
        }
        self.writes.tick();
    }

    /// Whether the disk does not answer a read. Until it answers, it is not used.
    pub fn reads_hang(&self) -> bool {
        self.reads.hangs()
    }

    /// Whether the disk does not answer a call of any kind. Then nothing can be stored.
    pub fn hangs(&self) -> bool {
        self.reads_hang() || self.writes.hangs()
    }

    /// Number of writing calls that the disk has answered. While it grows, the disk does not hang.
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

    fn open_passthrough(&self, name: &str, length: u64) -> Result<OwnedFd> {
        let _call = self.watch.write();
        self.inner.open_passthrough(name, length)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let _call = self.watch.write();
        self.inner.remove(name)
    }

    fn sync_names(&self) -> Result<()> {
        let _call = self.watch.write();
        self.inner.sync_names()
    }

    /// Called once a second, and rings no alarm: a resting thread ticks as often by itself.
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

    /// Not noted, since it never waits for the disk.
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

/// Does work that needs the disk, on a thread of its own. None if the disk hangs: then the thread is
/// abandoned, and its result is dropped.
///
/// # Errors
/// If no thread can be started, or it panics.
pub fn unless_it_hangs<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>> {
    unless_it_stalls(work, TICK, HANGS_AFTER)
}

/// Tells by ticks in a row whether threads that wait only for a disk hang.
#[derive(Default)]
pub struct StallDetector {
    before: Option<String>,
    ticks: u64,
}

impl StallDetector {
    /// Compares how long the threads have run and waited to run with the tick before. Returns whether they hang.
    /// If the kernel does not tell the times, the threads may be running and do not count as hanging. Must be
    /// called each [`TICK`].
    pub fn tick(&mut self, ran: Option<String>) -> bool {
        self.ticks_without_run(ran) > HANGS_AFTER
    }

    fn ticks_without_run(&mut self, ran: Option<String>) -> u64 {
        self.ticks = if ran.is_some() && ran == self.before { self.ticks + 1 } else { 0 };
        self.before = ran;
        self.ticks
    }
}

/// As [`unless_it_hangs`], for a thread that does not run between `ticks_max` ticks in a row.
fn unless_it_stalls<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    every: Duration,
    ticks_max: u64,
) -> Result<Option<T>> {
    let (done, result) = mpsc::channel();
    let worker = Arc::new(AtomicI32::new(0));
    let number = Arc::clone(&worker);
    thread::Builder::new().name("belady-disk".into()).spawn(move || {
        number.store(gettid().as_raw(), Ordering::Relaxed);
        let _ = done.send(work());
    })?;
    let mut detector = StallDetector::default();
    loop {
        match result.recv_timeout(every) {
            Ok(result) => return Ok(Some(result)),
            Err(RecvTimeoutError::Disconnected) => return Err(Error::other("a thread panicked")),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let worker = worker.load(Ordering::Relaxed);
        let ran = fs::read_to_string(format!("/proc/self/task/{worker}/schedstat")).ok();
        if detector.ticks_without_run(ran) > ticks_max {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_does_not_run_is_left_behind() {
        const EVERY: Duration = Duration::from_millis(5);
        const TICKS: u64 = 100;
        let (go, stands) = mpsc::channel::<()>();
        let (ended, end) = mpsc::channel();
        let stuck = unless_it_stalls(move || ended.send(stands.recv()), EVERY, TICKS);
        assert!(stuck.unwrap().is_none());
        go.send(()).unwrap();
        assert_eq!(end.recv().unwrap(), Ok(()), "it goes on");
        // Longer than all of these ticks, and it runs between any two.
        let steps = 2 * TICKS * EVERY.as_millis() as u64;
        let slow = move || (0..steps).map(|_| thread::sleep(Duration::from_millis(1))).count();
        assert_eq!(unless_it_stalls(slow, EVERY, TICKS).unwrap(), Some(steps as usize));
        assert!(unless_it_stalls(|| panic!("injected"), EVERY, TICKS).is_err());
    }

    #[test]
    fn only_a_call_that_many_ticks_find_hangs() {
        let calls = HangDetector::default();
        let tick = |times| (0..times).filter(|_| calls.tick()).count();
        for _ in 0..3 {
            let _call = calls.begin();
            assert_eq!((tick(HANGS_AFTER), calls.hangs()), (0, false), "it is another one");
        }
        let (stuck, _other) = (calls.begin(), calls.begin());
        assert_eq!((tick(HANGS_AFTER), calls.hangs()), (0, false));
        drop(calls.begin());
        assert_eq!((tick(3), calls.hangs()), (1, true), "said once");
        assert_eq!(calls.answered(), 4);
        drop(stuck);
        assert!(calls.hangs(), "the other one");
    }
}
