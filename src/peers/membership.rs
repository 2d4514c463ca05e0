//! The thread that keeps this node in its cluster.
//!
//! Nothing waits for it: a mount serves before its node is a member, and without that. If the node cannot become one,
//! or its shard ends, the thread tries again after a while.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::member::Member;
use super::status::ClusterStatus;
use crate::config::ClusterSettings;
use crate::sync::Mutex;

const LOOK_EVERY: Duration = Duration::from_secs(1);
const TRY_EVERY: Duration = Duration::from_secs(10);

/// How long the end of the shard is waited for. A name server that does not answer can hold the thread up. If nobody
/// waits any more, the watcher of the daemon ends the shard.
const LEAVE_WAIT: Duration = Duration::from_secs(20);

/// This node in its cluster, as long as the mount runs.
pub struct Peers {
    status: Arc<Mutex<ClusterStatus>>,
    thread: Mutex<Option<Running>>,
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The thread. It ends if `end` is dropped, and then `ended` is closed.
struct Running {
    end: Sender<()>,
    ended: Receiver<()>,
}

impl Peers {
    /// Begins to join. `place` is the directory for the files of this node's shard; it is made if it is missing.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(settings: ClusterSettings, place: PathBuf) -> std::io::Result<Self> {
        let why = Some("it has not joined yet".to_owned());
        let status = Arc::new(Mutex::new(ClusterStatus { why, ..ClusterStatus::default() }));
        let ((end, over), (ending, ended)) = (channel(), channel());
        let shown = Arc::clone(&status);
        let keep = move || {
            keep(&settings, &place, &shown, &over);
            drop::<Sender<()>>(ending);
        };
        thread::Builder::new().name("belady-cluster".into()).spawn(keep)?;
        Ok(Peers { status, thread: Mutex::new(Some(Running { end, ended })) })
    }

    pub fn status(&self) -> ClusterStatus {
        self.status.lock().clone()
    }

    /// Leaves the cluster, and ends the shard.
    pub fn leave(&self) {
        let running = self.thread.lock().take();
        if let Some(Running { end, ended }) = running {
            drop(end);
            if ended.recv_timeout(LEAVE_WAIT) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!("the shard does not end");
            }
        }
    }
}

fn keep(
    settings: &ClusterSettings,
    place: &Path,
    status: &Mutex<ClusterStatus>,
    over: &Receiver<()>,
) {
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    let mut member: Option<Member> = None;
    let mut next = Instant::now();
    let mut said = None;
    loop {
        if member.is_none() && Instant::now() >= next {
            next = Instant::now() + TRY_EVERY;
            match Member::join(settings, place, &search_path) {
                Ok(joined) => {
                    tracing::info!(server = joined.server(), "the shard of this node runs");
                    (member, said) = (Some(joined), None);
                }
                Err(why) => say(why, &mut said, status),
            }
        }
        let seen = member.as_mut().map(Member::look);
        match seen {
            Some(Ok(seen)) => *status.lock() = seen,
            Some(Err(why)) => {
                member = None;
                say(why, &mut said, status);
            }
            None => {}
        }
        if over.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// Shows why this node is no member. The log has each reason once.
fn say(why: String, said: &mut Option<String>, status: &Mutex<ClusterStatus>) {
    if said.as_ref() != Some(&why) {
        tracing::warn!(%why, "no cluster");
        *said = Some(why.clone());
    }
    *status.lock() = ClusterStatus { why: Some(why), ..ClusterStatus::default() };
}
