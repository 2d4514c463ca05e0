//! A limited thing, such as memory, of which jobs reserve parts.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::sync::{Condvar, Mutex};

#[derive(Default)]
struct State {
    free: u64,
    /// The numbers of the jobs that wait, in their order.
    waiting: VecDeque<u64>,
    last: u64,
}

/// So many units, some of which are reserved.
pub(super) struct Quota {
    all: u64,
    state: Mutex<State>,
    changed: Condvar,
}

/// Units that are reserved until this is dropped.
pub(super) struct Reserved {
    quota: Arc<Quota>,
    units: u64,
}

impl Quota {
    pub(super) fn new(all: u64) -> Arc<Self> {
        let state = Mutex::new(State { free: all, ..State::default() });
        Arc::new(Quota { all, state, changed: Condvar::new() })
    }

    /// Waits until so many units are free and all who asked before have theirs. More units than there are mean all.
    pub(super) fn reserve(self: &Arc<Self>, units: u64) -> Reserved {
        let units = units.min(self.all);
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        state.waiting.push_back(number);
        while state.waiting.front() != Some(&number) || state.free < units {
            state = self.changed.wait(state);
        }
        state.waiting.pop_front();
        state.free -= units;
        drop(state);
        self.changed.notify_all();
        Reserved { quota: Arc::clone(self), units }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.quota.state.lock().free += self.units;
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
            for (units, place) in [(100, 1), (1, 2)] {
                let (quota, send) = (&quota, send.clone());
                scope.spawn(move || {
                    let _reserved = quota.reserve(units);
                    send.send(units).unwrap();
                });
                while quota.state.lock().waiting.len() < place {
                    thread::yield_now();
                }
            }
            assert!(order.try_recv().is_err(), "the second one waits behind the first");
            drop(first);
            assert_eq!([order.recv().unwrap(), order.recv().unwrap()], [100, 1]);
        });
        assert_eq!(quota.state.lock().free, 10);
    }
}
