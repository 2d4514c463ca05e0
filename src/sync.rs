//! std's locks, which in debug builds also know whether a thread holds one. And threads of low priority.
//!
//! The kernel may block a thread until a request is answered, and the request may need a lock. So no thread
//! may notify the kernel or use belady's own mount while [`is_holding`] is true.

use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, PoisonError};
use std::time::Duration;

use nix::libc;

#[cfg(debug_assertions)]
mod held {
    use std::cell::Cell;

    thread_local! {
        static HELD_LOCKS: Cell<usize> = const { Cell::new(0) };
    }

    /// A lock that this thread holds.
    pub(super) struct HeldLock;

    impl HeldLock {
        pub(super) fn new() -> Self {
            HELD_LOCKS.set(HELD_LOCKS.get() + 1);
            HeldLock
        }
    }

    impl Drop for HeldLock {
        fn drop(&mut self) {
            HELD_LOCKS.set(HELD_LOCKS.get() - 1);
        }
    }

    pub(super) fn count() -> usize {
        HELD_LOCKS.get()
    }
}

#[cfg(not(debug_assertions))]
mod held {
    /// A lock that this thread holds. It is not counted.
    pub(super) struct HeldLock;

    impl HeldLock {
        pub(super) fn new() -> Self {
            HeldLock
        }
    }

    pub(super) fn count() -> usize {
        0
    }
}

/// Whether this thread holds a lock of this module. Always false in builds without debug assertions.
pub fn is_holding() -> bool {
    held::count() > 0
}

/// std's guard, counted.
pub struct Guard<G> {
    guard: G,
    _lock: held::HeldLock,
}

impl<G> Guard<G> {
    /// Ignores poison: the value stays as a panicked thread left it.
    fn of(locked: LockResult<G>) -> Self {
        let guard = locked.unwrap_or_else(PoisonError::into_inner);
        Guard { guard, _lock: held::HeldLock::new() }
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

pub type MutexGuard<'a, T> = Guard<std::sync::MutexGuard<'a, T>>;

pub type RwLockReadGuard<'a, T> = Guard<std::sync::RwLockReadGuard<'a, T>>;

pub type RwLockWriteGuard<'a, T> = Guard<std::sync::RwLockWriteGuard<'a, T>>;

/// As std's, but never poisoned.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        Guard::of(self.0.lock())
    }

    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As std's, but never poisoned.
#[derive(Debug, Default)]
pub struct RwLock<T>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub const fn new(value: T) -> Self {
        RwLock(std::sync::RwLock::new(value))
    }

    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        Guard::of(self.0.read())
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        Guard::of(self.0.write())
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As std's. A thread that waits counts as holding the lock; it does nothing meanwhile.
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    pub const fn new() -> Self {
        Condvar(std::sync::Condvar::new())
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        Guard::of(self.0.wait(guard.guard))
    }

    /// As std's, but it does not tell whether the time was up.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        patience: Duration,
    ) -> MutexGuard<'a, T> {
        let waited = self.0.wait_timeout(guard.guard, patience);
        Guard::of(waited.map(|found| found.0).map_err(|p| PoisonError::new(p.into_inner().0)))
    }

    /// As std's, but it does not tell whether the time was up.
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        patience: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let waited = self.0.wait_timeout_while(guard.guard, patience, condition);
        Guard::of(waited.map(|found| found.0).map_err(|p| PoisonError::new(p.into_inner().0)))
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Sets the nice value of this thread, 0 to 19, so that other threads run first. Refused if the process has a
/// higher nice value already.
pub fn lower_priority(nice: u32) {
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
