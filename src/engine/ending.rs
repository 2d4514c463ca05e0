//! Wakes threads that pause between two pieces of work when the engine is being stopped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::sync::{Condvar, Mutex};

#[derive(Default)]
pub(super) struct Ending {
    begun: AtomicBool,
    pausing: Mutex<()>,
    wake: Condvar,
}

impl Ending {
    /// Begins the stop. Threads in `pause` go on at once.
    pub(super) fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
        // A thread that is about to pause has not checked `begun` yet, or already waits.
        drop(self.pausing.lock());
        self.wake.notify_all();
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// The same as a flag, for code that checks it again and again.
    pub(super) fn flag(&self) -> &AtomicBool {
        &self.begun
    }

    /// Pauses, at most until the engine is being stopped. Returns whether the engine goes on.
    pub(super) fn pause(&self, pause: Duration) -> bool {
        let waited =
            self.wake.wait_timeout_while(self.pausing.lock(), pause, |()| !self.has_begun());
        drop(waited);
        !self.has_begun()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_pause_ends_with_the_engine() {
        const LONG: Duration = Duration::from_secs(600);
        let (ending, began) = (Ending::default(), Instant::now());
        assert!(ending.pause(Duration::from_millis(1)));
        std::thread::scope(|scope| {
            let pausing = scope.spawn(|| ending.pause(LONG));
            ending.begin();
            assert!(!pausing.join().unwrap());
        });
        assert!(!ending.pause(LONG) && began.elapsed() < LONG);
    }
}
