//! Ends a thread that writes to the cache disk, which may hang.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the end of a mount waits for a thread that writes to the cache disk.
pub const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// Waits until the thread ends, at most for `patience`: in that time a working disk takes all writes.
/// Returns whether it has ended. If not, `what` may be lost.
pub fn wait_for_end(thread: Option<JoinHandle<()>>, patience: Duration, what: &str) -> bool {
    let Some(thread) = thread else { return true };
    let start = Instant::now();
    while !thread.is_finished() && start.elapsed() < patience {
        std::thread::sleep(Duration::from_millis(1));
    }
    if !thread.is_finished() {
        tracing::warn!("the cache disk hangs; {what} may be lost");
        return false;
    }
    if thread.join().is_err() {
        tracing::error!("a thread panicked; {what} may be lost");
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_whose_disk_hangs_is_not_waited_for_for_ever() {
        let (answers, disk) = std::sync::mpsc::channel::<()>();
        let writes = std::thread::spawn(move || assert!(disk.recv().is_err()));
        assert!(!wait_for_end(Some(writes), Duration::ZERO, "it"));
        drop(answers);
        let done = std::thread::spawn(|| ());
        assert!(
            wait_for_end(Some(done), Duration::MAX, "it")
                && wait_for_end(None, Duration::ZERO, "it")
        );
    }
}
