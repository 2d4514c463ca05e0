//! Ends a connection that answers nothing any more.
//!
//! 1. Every 30 seconds a thread of its own asks the mount for its space. The answer comes from memory,
//!    whatever the source and the cache disk are at.
//! 2. If the same question is unanswered at four looks in a row, no request is answered, and none will
//!    be: the threads that answer wait for something that never comes.
//! 3. The connection is then ended, and the daemon with it. Readers get an error instead of a hang.
//!
//! Looks are counted rather than time: while the machine or the daemon stands still, there are none.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use nix::sys::statvfs::statvfs;

use super::inside::{Inside, leave_descriptors};
use super::own::OwnThreads;
use super::table::Place;

const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Looks that a question may stay unanswered.
const LOOKS_MAX: u32 = 4;

/// The thread that looks, which ends when this is dropped.
pub(super) struct Watchdog(#[expect(dead_code, reason = "its end is the signal")] Sender<()>);

impl Watchdog {
    /// Watches over a mount that is entered by `inside`.
    pub(super) fn over(inside: Arc<Inside>, place: Place) -> Self {
        let (dropped, over) = mpsc::channel();
        let path = place.path.clone();
        let watches = move || {
            let end = || {
                tracing::error!("no request was answered for two minutes; the mount is cut off");
                place.sever();
                // The handler of the mount takes down what it can.
                let _ = raise(Signal::SIGTERM);
            };
            watch(&over, LOOK_EVERY, || ask(&inside, &path), end);
        };
        if let Err(error) = thread::Builder::new().name("belady-watchdog".into()).spawn(watches) {
            tracing::warn!(%error, "nothing watches over the mount");
        }
        Watchdog(dropped)
    }
}

/// Asks until `over`, one question at a time, and calls `end` if one stays unanswered for too long. A
/// question that could not be put is answered.
fn watch(over: &Receiver<()>, every: Duration, ask: impl Fn() -> Receiver<()>, end: impl FnOnce()) {
    let (mut answer, mut looks) = (ask(), 0);
    while over.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        looks += 1;
        if answer.try_recv() != Err(TryRecvError::Empty) {
            (answer, looks) = (ask(), 0);
        } else if looks >= LOOKS_MAX {
            return end();
        }
    }
}

/// Asks the mount for its space on a thread that may hang.
fn ask(inside: &Arc<Inside>, path: &Path) -> Receiver<()> {
    let (bring, brought) = mpsc::channel();
    let (inside, path) = (Arc::clone(inside), path.to_path_buf());
    let asks = move || {
        leave_descriptors();
        let _own = OwnThreads::enter();
        // It is kept out while the mount is being unmounted, which it would keep busy.
        let asked = inside.enter().map(|_entered| statvfs(&path));
        drop((asked, bring));
    };
    // Without a thread there is no question.
    let _ = thread::Builder::new().name("belady-probe".into()).spawn(asks);
    brought
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    const EVERY: Duration = Duration::from_millis(1);

    #[test]
    fn a_mount_that_answers_is_left_alone_and_one_that_does_not_is_ended() {
        let (_open, over) = mpsc::channel();
        let (asked, unanswered, ended) = (Cell::new(0), RefCell::default(), Cell::new(false));
        let ask = || {
            asked.set(asked.get() + 1);
            let (bring, brought) = mpsc::channel();
            // The tenth question and those after it are kept, and never answered.
            if asked.get() >= 10 {
                unanswered.replace(Some(bring));
            }
            brought
        };
        watch(&over, EVERY, ask, || ended.set(true));
        assert_eq!((asked.get(), ended.get()), (10, true));
    }

    #[test]
    fn a_mount_that_ends_is_watched_no_more() {
        let (open, over) = mpsc::channel();
        drop(open);
        watch(&over, EVERY, || mpsc::channel().1, || panic!("it is ended"));
    }
}
