//! The end of an engine, as threads wait for it that pause between two things to do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::sync::{Condvar, Mutex};

/// Whether the engine is being stopped.
#[derive(Default)]
pub(super) struct Ending {
    begun: AtomicBool,
    pausing: Mutex<()>,
    wake: Condvar,
}

impl Ending {
    /// It is being stopped from now on: whoever pauses goes on at once.
    pub(super) fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
        // Who is about to pause has not looked yet, or waits by now.
        drop(self.pausing.lock());
        self.wake.notify_all();
    }

    /// Whether it is being stopped.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// The same, for those who look at it again and again.
    pub(super) fn flag(&self) -> &AtomicBool {
        &self.begun
    }

    /// Does nothing for so long. Says whether the engine goes on.
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
