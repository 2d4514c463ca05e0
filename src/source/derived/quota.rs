//! Memory of which jobs reserve parts.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::sync::{Condvar, Mutex};

#[derive(Default)]
struct State {
    /// Less than nothing if jobs that do not wait have taken too much.
    free: i64,
    /// The numbers of the jobs that wait, in their order.
    waiting: VecDeque<u64>,
    last: u64,
}

/// So many bytes, some of which are reserved.
pub(super) struct Quota {
    all: u64,
    state: Mutex<State>,
    changed: Condvar,
}

/// Bytes that are reserved until this is dropped.
pub(super) struct Reserved {
    quota: Arc<Quota>,
    bytes: i64,
}

impl Quota {
    pub(super) fn new(all: u64) -> Arc<Self> {
        let state = Mutex::new(State { free: signed(all), ..State::default() });
        Arc::new(Quota { all, state, changed: Condvar::new() })
    }

    /// Reserves so many bytes at once, be they free or not.
    pub(super) fn reserve_now(self: &Arc<Self>, bytes: u64) -> Reserved {
        let bytes = signed(bytes);
        self.state.lock().free -= bytes;
        Reserved { quota: Arc::clone(self), bytes }
    }

    /// Waits until so many bytes are free, or all if there are not so many, and all who asked before have theirs.
    pub(super) fn reserve(self: &Arc<Self>, bytes: u64) -> Reserved {
        let bytes = signed(bytes.min(self.all));
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        state.waiting.push_back(number);
        while state.waiting.front() != Some(&number) || state.free < bytes {
            state = self.changed.wait(state);
        }
        state.waiting.pop_front();
        state.free -= bytes;
        drop(state);
        self.changed.notify_all();
        Reserved { quota: Arc::clone(self), bytes }
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.quota.state.lock().free += self.bytes;
        self.quota.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn who_asks_for_much_is_not_passed_by_who_asks_for_little() {
        let quota = Quota::new(10);
        let first = quota.reserve(6);
        let (send, order) = mpsc::channel();
        thread::scope(|scope| {
            for (bytes, place) in [(100, 1), (1, 2)] {
                let (quota, send) = (&quota, send.clone());
                scope.spawn(move || {
                    let _reserved = quota.reserve(bytes);
                    send.send(bytes).unwrap();
                });
                while quota.state.lock().waiting.len() < place {
                    thread::yield_now();
                }
            }
            assert!(order.try_recv().is_err(), "the second one waits behind the first");
            drop(quota.reserve_now(50));
            assert!(order.try_recv().is_err());
            drop(first);
            assert_eq!([order.recv().unwrap(), order.recv().unwrap()], [100, 1]);
        });
        assert_eq!(quota.state.lock().free, 10);
    }
}
