//! Wakes threads that pause between two pieces of work when the engine is being stopped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::sync::{Condvar, Mutex};

#[derive(Default)]
pub(super) struct StopFlag {
    stopped: AtomicBool,
    pausing: Mutex<()>,
    wake: Condvar,
}

impl StopFlag {
    /// Stops the engine. Threads in `pause` go on at once.
    pub(super) fn set(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        // A thread that is about to pause has not checked `stopped` yet, or already waits.
        drop(self.pausing.lock());
        self.wake.notify_all();
    }

    pub(super) fn is_set(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// The same as a flag, for code that checks it again and again.
    pub(super) fn flag(&self) -> &AtomicBool {
        &self.stopped
    }

    /// Pauses, at most until the engine is being stopped. Returns whether the engine goes on.
    pub(super) fn pause(&self, pause: Duration) -> bool {
        let waited = self.wake.wait_timeout_while(self.pausing.lock(), pause, |()| !self.is_set());
        drop(waited);
        !self.is_set()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_pause_ends_with_the_engine() {
        const LONG: Duration = Duration::from_secs(600);
        let (stop, began) = (StopFlag::default(), Instant::now());
        assert!(stop.pause(Duration::from_millis(1)));
        std::thread::scope(|scope| {
            let pausing = scope.spawn(|| stop.pause(LONG));
            stop.set();
            assert!(!pausing.join().unwrap());
        });
        assert!(!stop.pause(LONG) && began.elapsed() < LONG);
    }
}
