//! A disk whose calls a test can stop.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::super::{Blob, Directory, Disk, Space, Use};

/// A time that only a broken program takes.
const LIMIT: Duration = Duration::from_secs(300);

#[derive(Default)]
struct State {
    shut: bool,
    waiting: usize,
    came: usize,
    /// Calls that may pass though it is shut.
    free: usize,
}

#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<State>, Condvar)>);

impl Gate {
    pub(crate) fn shut(&self, shut: bool) {
        self.0.0.lock().unwrap().shut = shut;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let mut state = self.0.0.lock().unwrap();
        state.came += 1;
        state.waiting += 1;
        self.0.1.notify_all();
        state = self.0.1.wait_while(state, |state| state.shut && state.free == 0).unwrap();
        state.free = state.free.saturating_sub(1);
        state.waiting -= 1;
        self.0.1.notify_all();
    }

    /// Waits until this number of calls wait at it.
    pub(crate) fn await_calls(&self, count: usize) {
        self.wait_until(|state| state.waiting == count);
    }

    /// Lets the waiting call pass, and waits for the next one.
    pub(crate) fn let_one_pass(&self) {
        let mut state = self.0.0.lock().unwrap();
        state.free += 1;
        let came = state.came;
        drop(state);
        self.0.1.notify_all();
        self.wait_until(|state| state.came > came);
    }

    fn wait_until(&self, reached: impl Fn(&State) -> bool) {
        let state = self.0.0.lock().unwrap();
        let waited = self.0.1.wait_timeout_while(state, LIMIT, |state| !reached(state));
        assert!(!waited.unwrap().1.timed_out());
    }
}

/// One gate for reads, and one for calls that change something.
#[derive(Clone, Default)]
pub(crate) struct Gates {
    pub(crate) reads: Gate,
    pub(crate) writes: Gate,
}

pub(crate) struct Gated<T>(pub(crate) T, pub(crate) Gates);

impl Disk for Gated<Directory> {
    fn names(&self) -> io::Result<Vec<(String, u64)>> {
        self.0.names()
    }

    fn create(&self, name: &str, how: Use) -> io::Result<Arc<dyn Blob>> {
        Ok(Arc::new(Gated(self.0.create(name, how)?, self.1.clone())))
    }

    fn open(&self, name: &str, how: Use) -> io::Result<Arc<dyn Blob>> {
        Ok(Arc::new(Gated(self.0.open(name, how)?, self.1.clone())))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn open_passthrough(&self, name: &str, length: u64) -> io::Result<OwnedFd> {
        self.0.open_passthrough(name, length)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.1.writes.pass();
        self.0.remove(name)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.0.sync_names()
    }

    fn space(&self) -> io::Result<Space> {
        self.0.space()
    }
}

impl Blob for Gated<Arc<dyn Blob>> {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.1.reads.pass();
        self.0.read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.1.writes.pass();
        self.0.write_at(bytes, offset)
    }

    fn cut(&self, length: u64) -> io::Result<()> {
        self.0.cut(length)
    }

    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        self.0.punch(offset, length)
    }

    fn sync(&self) -> io::Result<()> {
        self.1.writes.pass();
        self.0.sync()
    }
}
