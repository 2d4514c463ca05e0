//! Requests to a store over a network: the threads that make them, and the patience with them.
//!
//! The futures of a store run on threads of a runtime of its own. Callers that may wait do so. A delivery may block, so
//! a pool makes it.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task_local;
use tokio::time::{Instant, sleep};

use super::{Deliver, Pool, ReadError, Urgency};
use crate::error::{Error, ErrorKind, Result as UserResult};

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

task_local! {
    /// [`Remote::overloads`] of the store that a future asks.
    static OVERLOADS: Arc<AtomicU64>;
}

/// [`Remote::overloads`], for a future of the store.
pub(super) fn overloads() -> u64 {
    OVERLOADS.try_with(|overloads| overloads.load(Ordering::Relaxed)).unwrap_or_default()
}

/// The threads of a store.
pub(super) struct Remote {
    /// `None` while it is dropped.
    runtime: Option<Runtime>,
    deliveries: Arc<Pool>,
    overloads: Arc<AtomicU64>,
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
        Ok(Remote { runtime: Some(runtime), deliveries, overloads: Arc::default() })
    }

    pub(super) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(OVERLOADS.scope(Arc::clone(&self.overloads), future));
        }
    }

    /// As [`Source::overloads`](super::Source::overloads).
    pub(super) fn overloads(&self) -> u64 {
        self.overloads.load(Ordering::Relaxed)
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
                    let _ =
                        OVERLOADS.try_with(|overloads| overloads.fetch_add(1, Ordering::Relaxed));
                }
            }
            answer => return answer,
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
