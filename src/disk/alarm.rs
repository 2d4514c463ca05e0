//! Wakes the thread that [ticks](super::TICK). It rests while nothing can hang.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
pub struct Alarm {
    resting: AtomicBool,
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Alarm {
    /// Sets how the thread is woken, which must not block. The first call counts.
    pub fn wake_by(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.wake.set(Box::new(wake));
    }

    /// Notes that the thread rests until it is woken. Call it before checking whether anything can hang: what
    /// begins later wakes the thread.
    pub(crate) fn rest(&self) {
        self.resting.store(true, Ordering::SeqCst);
    }

    /// Wakes the thread if it rests: something begins that can hang. Never blocks. Must be called under no
    /// lock.
    pub fn ring(&self) {
        if self.resting.load(Ordering::SeqCst)
            && self.resting.swap(false, Ordering::SeqCst)
            && let Some(wake) = self.wake.get()
        {
            wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn who_rests_is_woken_once() {
        let (alarm, woken) = (Alarm::default(), Arc::new(AtomicUsize::new(0)));
        let counter = Arc::clone(&woken);
        alarm.rest();
        alarm.wake_by(move || _ = counter.fetch_add(1, Ordering::Relaxed));
        let rung = |times| {
            (0..times).for_each(|_| alarm.ring());
            woken.swap(0, Ordering::Relaxed)
        };
        assert_eq!(rung(3), 1);
        assert_eq!(rung(3), 0, "nobody rests");
        alarm.rest();
        assert_eq!(rung(1), 1);
    }
}
