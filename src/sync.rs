//! Locks that know, in builds with checks, whether a thread holds one: std's in every other way. And
//! threads that let others go first.
//!
//! The kernel may make us wait for what a request holds, and a request for a lock. So nobody may
//! notify the kernel, or use our own mount, while [`is_holding`] says so.

use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, PoisonError};
use std::time::Duration;

use nix::libc;

#[cfg(debug_assertions)]
mod held {
    use std::cell::Cell;

    thread_local! {
        static HELD: Cell<usize> = const { Cell::new(0) };
    }

    /// A lock that this thread holds.
    pub(super) struct Held;

    impl Held {
        pub(super) fn new() -> Self {
            HELD.set(HELD.get() + 1);
            Held
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.set(HELD.get() - 1);
        }
    }

    pub(super) fn count() -> usize {
        HELD.get()
    }
}

#[cfg(not(debug_assertions))]
mod held {
    /// A lock that this thread holds, of which no account is kept.
    pub(super) struct Held;

    impl Held {
        pub(super) fn new() -> Self {
            Held
        }
    }

    pub(super) fn count() -> usize {
        0
    }
}

/// Whether this thread holds a lock of ours, as far as that is known.
pub fn is_holding() -> bool {
    held::count() > 0
}

/// What a lock gives: std's guard, counted.
pub struct Guard<G> {
    guard: G,
    _held: held::Held,
}

impl<G> Guard<G> {
    /// What a thread that panicked has left is taken as it is.
    fn of(locked: LockResult<G>) -> Self {
        let guard = locked.unwrap_or_else(PoisonError::into_inner);
        Guard { guard, _held: held::Held::new() }
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// What a [`Mutex`] gives.
pub type MutexGuard<'a, T> = Guard<std::sync::MutexGuard<'a, T>>;

/// What a [`RwLock`] gives to who looks.
pub type RwLockReadGuard<'a, T> = Guard<std::sync::RwLockReadGuard<'a, T>>;

/// What a [`RwLock`] gives to who changes something.
pub type RwLockWriteGuard<'a, T> = Guard<std::sync::RwLockWriteGuard<'a, T>>;

/// As std's, but never poisoned.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// As std's.
    pub const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    /// As std's.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        Guard::of(self.0.lock())
    }

    /// As std's.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As std's, but never poisoned.
#[derive(Debug, Default)]
pub struct RwLock<T>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// As std's.
    pub const fn new(value: T) -> Self {
        RwLock(std::sync::RwLock::new(value))
    }

    /// As std's.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        Guard::of(self.0.read())
    }

    /// As std's.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        Guard::of(self.0.write())
    }

    /// As std's.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// As std's.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As std's. Who waits counts as one who holds the lock, and does nothing meanwhile.
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// As std's.
    pub const fn new() -> Self {
        Condvar(std::sync::Condvar::new())
    }

    /// As std's.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        Guard::of(self.0.wait(guard.guard))
    }

    /// As std's, but for whether the time was up.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        patience: Duration,
    ) -> MutexGuard<'a, T> {
        let waited = self.0.wait_timeout(guard.guard, patience);
        Guard::of(waited.map(|found| found.0).map_err(|p| PoisonError::new(p.into_inner().0)))
    }

    /// As std's, but for whether the time was up.
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        patience: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let waited = self.0.wait_timeout_while(guard.guard, patience, condition);
        Guard::of(waited.map(|found| found.0).map_err(|p| PoisonError::new(p.into_inner().0)))
    }

    /// As std's.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// As std's.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Lets others go before this thread: its nice value becomes this, from 0 to 19. Refused where that of
/// the whole process is higher already.
pub fn stand_back(nice: u32) {
    // SAFETY: no memory is involved; 0 is the calling thread.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice as libc::c_int) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_holds_a_lock_is_known() {
        let (mutex, other, wake) = (Mutex::new(1), RwLock::new(2), Condvar::new());
        assert!(!is_holding());
        let mut first = mutex.lock();
        *first += 1;
        let second = other.read();
        assert!(is_holding() && std::thread::scope(|s| !s.spawn(is_holding).join().unwrap()));
        let first = wake.wait_timeout(first, Duration::from_millis(1));
        drop(second);
        assert!(is_holding() && *first == 2);
        drop(first);
        assert!(!is_holding());
        *other.write() += 1;
        assert!(!is_holding() && *other.read() == 3);
    }
}
