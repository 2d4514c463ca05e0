//! Requests to a store over a network: the threads that make them, and the patience with them.
//!
//! The futures of a store run on threads of a runtime of its own. Callers that may wait do so. A delivery may block, so
//! a pool makes it. Requests that a store refuses or does not answer are counted, and the last reason is kept for people
//! ([`Failures`]).

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task_local;
use tokio::time::{Instant, sleep};

use serde::{Deserialize, Serialize};

use super::{Deliver, Pool, ReadError, Urgency};
use crate::error::{Error, ErrorKind, Result as UserResult};
use crate::sync::Mutex;

/// Threads on which requests are sent and answers taken apart.
const THREADS: usize = 2;

/// Deliveries of prefetches that are made at once, and further ones of reads that readers wait for.
const DELIVERIES: usize = 16;

/// How long a request is made again that fails for a reason that may pass. A reader of a file has nothing else to do,
/// whether it waits for bytes or for the check of a name. A listing fails sooner.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
pub(super) const PATIENCE_OF_LISTINGS: Duration = Duration::from_secs(10);

/// The pauses between two requests.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Requests that a store did not answer as it should, in spite of all patience.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceFailures {
    pub count: u64,
    /// How many seconds ago the last one was, what it asked for, and the reason.
    pub last_s: u64,
    pub key: String,
    pub reason: String,
}

impl SourceFailures {
    /// The sum of both counts, with the later failure.
    pub(super) fn join(self, other: Self) -> Self {
        let count = self.count + other.count;
        let last = if other.last_s < self.last_s { other } else { self };
        SourceFailures { count, ..last }
    }
}

/// Counts failures, and keeps the last one.
#[derive(Default)]
pub(super) struct Failures(Mutex<(u64, Option<Failure>)>);

struct Failure {
    at: Instant,
    key: String,
    reason: String,
}

impl Failures {
    pub(super) fn note(&self, key: &str, reason: String) {
        let failure = Failure { at: Instant::now(), key: key.to_owned(), reason };
        let mut failures = self.0.lock();
        *failures = (failures.0 + 1, Some(failure));
    }

    /// `None` if there was none.
    pub(super) fn told(&self) -> Option<SourceFailures> {
        let failures = self.0.lock();
        let Failure { at, key, reason } = failures.1.as_ref()?;
        Some(SourceFailures {
            count: failures.0,
            last_s: at.elapsed().as_secs(),
            key: key.clone(),
            reason: reason.clone(),
        })
    }
}

/// What a store has said.
#[derive(Default)]
struct Heard {
    /// [`Remote::overloads`].
    overloads: AtomicU64,
    failures: Failures,
}

task_local! {
    /// What the store has said that a future asks.
    static HEARD: Arc<Heard>;
}

/// [`Remote::overloads`], for a future of the store.
pub(super) fn overloads() -> u64 {
    HEARD.try_with(|heard| heard.overloads.load(Ordering::Relaxed)).unwrap_or_default()
}

/// Notes that a store has not answered as it should, and tells the log. To be called within [`Remote::within`] or in a
/// future of the store.
pub(super) fn note_failure(key: &str, reason: String) {
    tracing::warn!(key, reason, "the store does not answer as it should");
    let _ = HEARD.try_with(|heard| heard.failures.note(key, reason));
}

/// The threads of a store.
pub(super) struct Remote {
    /// `None` while it is dropped.
    runtime: Option<Runtime>,
    deliveries: Arc<Pool>,
    heard: Arc<Heard>,
}

impl Remote {
    /// # Errors
    /// If its threads cannot be started.
    pub(super) fn new() -> UserResult<Self> {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(THREADS).thread_name("belady-requests").enable_all();
        let runtime = builder
            .build()
            .map_err(|error| Error::new(ErrorKind::Internal, format!("runtime: {error}")))?;
        let deliveries = Pool::new("belady-deliveries", DELIVERIES, DELIVERIES).into();
        Ok(Remote { runtime: Some(runtime), deliveries, heard: Arc::default() })
    }

    pub(super) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(HEARD.scope(Arc::clone(&self.heard), future));
        }
    }

    /// As [`Source::overloads`](super::Source::overloads).
    pub(super) fn overloads(&self) -> u64 {
        self.heard.overloads.load(Ordering::Relaxed)
    }

    /// As [`Source::failures`](super::Source::failures).
    pub(super) fn failures(&self) -> Option<SourceFailures> {
        self.heard.failures.told()
    }

    /// Calls something that may note what the store has said, on any thread.
    pub(super) fn within<T>(&self, call: impl FnOnce() -> T) -> T {
        HEARD.sync_scope(Arc::clone(&self.heard), call)
    }

    /// Begins a future whose outcome is waited for later. There is none if it panics.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> mpsc::Receiver<T> {
        let (send, outcome) = mpsc::channel();
        self.spawn(async move {
            // Nobody may wait for it any more.
            let _ = send.send(future.await);
        });
        outcome
    }

    /// Waits for a future, on a thread that may wait. `None` if it panics.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.begin(future).recv().ok()
    }

    /// Reads, and has the bytes delivered.
    pub(super) fn read(
        &self,
        urgency: Urgency,
        deliver: Deliver,
        read: impl Future<Output = Result<Vec<u8>, ReadError>> + Send + 'static,
    ) {
        let deliveries = Arc::clone(&self.deliveries);
        self.spawn(async move {
            let read = read.await;
            deliveries.submit(urgency, move || deliver(read));
        });
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Why a request failed.
pub(super) trait Passing {
    /// Whether the same request may soon be answered.
    fn may_pass(&self) -> bool;

    /// Whether the store says that it is asked too much.
    fn is_overload(&self) -> bool {
        false
    }

    /// What it is, in one line.
    fn message(&self) -> String;
}

/// Makes a request until it is answered, or fails for a reason that does not pass.
pub(super) async fn patiently<T, E: Passing, F>(
    patience: Duration,
    ask: impl Fn() -> F,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
    loop {
        match ask().await {
            Err(fault) if fault.may_pass() && began.elapsed() < patience => {
                tracing::debug!(why = fault.message(), "the store is asked again");
                if fault.is_overload() {
                    // A future that another one has spawned has no such number.
                    let _ = HEARD.try_with(|heard| heard.overloads.fetch_add(1, Ordering::Relaxed));
                }
            }
            answer => return answer,
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    /// A fault that may pass, and never does.
    #[derive(Debug)]
    struct Busy;

    impl Passing for Busy {
        fn may_pass(&self) -> bool {
            true
        }

        fn is_overload(&self) -> bool {
            true
        }

        fn message(&self) -> String {
            "busy".to_owned()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn patience_ends_with_the_last_error() {
        let (asked, began) = (AtomicU64::new(0), Instant::now());
        let ask = || async {
            asked.fetch_add(1, Ordering::Relaxed);
            Err::<(), Busy>(Busy)
        };
        patiently(PATIENCE, ask).await.unwrap_err();
        let waited = began.elapsed();
        assert!(waited >= PATIENCE && waited <= PATIENCE + LONGEST_PAUSE, "{waited:?}");
        assert!((20..40).contains(&asked.load(Ordering::Relaxed)), "{asked:?}");
        // Without patience, it is asked once.
        asked.store(0, Ordering::Relaxed);
        patiently(Duration::ZERO, ask).await.unwrap_err();
        assert_eq!(asked.into_inner(), 1);
    }

    #[test]
    fn the_last_failure_of_a_store_is_kept_with_their_number() {
        let remote = Remote::new().unwrap();
        assert_eq!(remote.failures(), None);
        let (send, answer) = mpsc::channel();
        let deliver: Deliver = Box::new(move |read| send.send(read).unwrap());
        remote.read(Urgency::Demand, deliver, async {
            note_failure("d/1.jpg", "no such column".to_owned());
            Err(ReadError::Source(Errno::EIO))
        });
        assert!(answer.recv().unwrap().is_err());
        remote.within(|| note_failure("d/2.jpg", "no such table".to_owned()));
        // Who asks another store is not heard.
        note_failure("d/3.jpg", "away".to_owned());
        let failures = remote.failures().unwrap();
        assert_eq!((failures.count, &*failures.key), (2, "d/2.jpg"));
        assert_eq!(failures.reason, "no such table");
        let earlier = SourceFailures { count: 3, last_s: 100, ..SourceFailures::default() };
        for joined in [earlier.clone().join(failures.clone()), failures.join(earlier)] {
            assert_eq!((joined.count, &*joined.key), (5, "d/2.jpg"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_asked_too_much_is_counted() {
        let heard = Arc::<Heard>::default();
        let ask = || async { Err::<(), Busy>(Busy) };
        let asked = HEARD.scope(Arc::clone(&heard), patiently(Duration::from_secs(1), ask));
        asked.await.unwrap_err();
        assert!(heard.overloads.load(Ordering::Relaxed) > 2);
    }
}
