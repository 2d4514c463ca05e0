//! The thread that keeps this node in its cluster.
//!
//! Nothing waits for it: a mount serves before its node is a member, and without that. If the node cannot become one,
//! or its shard ends, the thread tries again after a while.

use std::ffi::OsStr;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::client::{ANSWER, Client};
use super::existing::ExistingServers;
use super::member::{Member, Seen, view_name};
use super::own_shard::OwnShard;
use super::shards::{Ask, Give, Listed, Membership, Shards, TakeNote};
use super::status::{ClusterStatus, HomesStatus};
use super::values::Key;
use super::wants::{self, OwnList, Provider, Want, Wanted, Wants};
use crate::cluster::Report;
use crate::config::ClusterSettings;
use crate::process::Process;
use crate::sync::Mutex;

const LOOK_EVERY: Duration = Duration::from_secs(1);
const TRY_EVERY: Duration = Duration::from_secs(10);

/// How long the end of the shard is waited for. A name server that does not answer can hold the thread up. If nobody
/// waits any more, the watcher of the daemon ends the shard.
const LEAVE_WAIT: Duration = Duration::from_secs(20);

/// This node in its cluster, as long as the mount runs.
pub struct Peers {
    shared: Arc<Shared>,
    thread: Mutex<Option<Running>>,
}

/// What the thread has found.
struct Shared {
    status: Mutex<ClusterStatus>,
    client: Arc<Client>,
    wanted: Arc<Wanted>,
    own: Mutex<Option<OwnShard>>,
    own_list: Mutex<Option<OwnList>>,
    is_full: AtomicBool,
    /// `None` until homes are known.
    homes: Mutex<Option<HomesStatus>>,
    /// The reports of this node and of the others.
    report: Mutex<Report>,
    reports: Mutex<Vec<(u64, Report)>>,
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
    /// Begins to join. `place` is the directory for the files of this node's shard; it is made if it is missing. `tell`
    /// is called with the process of each server that runs the shard.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(
        settings: ClusterSettings,
        place: PathBuf,
        tell: impl Fn(Process) + Send + 'static,
    ) -> std::io::Result<Self> {
        let why = Some("it has not joined yet".to_owned());
        let shared = Arc::new(Shared {
            status: Mutex::new(ClusterStatus { why, ..ClusterStatus::default() }),
            client: Arc::new(Client::new(ANSWER)?),
            wanted: Arc::new(Wanted::new()),
            own: Mutex::default(),
            own_list: Mutex::default(),
            is_full: AtomicBool::new(false),
            homes: Mutex::default(),
            report: Mutex::default(),
            reports: Mutex::default(),
        });
        let sharing = Arc::clone(&shared);
        let (wanted, client) = (Arc::clone(&shared.wanted), Arc::clone(&shared.client));
        wants::listen(wanted, client, move || sharing.own_list.lock().clone())?;
        let ((end, over), (ending, ended)) = (channel(), channel());
        let found = Arc::clone(&shared);
        let keep = move || {
            keep(&settings, &place, &tell, &found, &over);
            drop::<Sender<()>>(ending);
        };
        thread::Builder::new().name("belady-cluster".into()).spawn(keep)?;
        Ok(Peers { shared, thread: Mutex::new(Some(Running { end, ended })) })
    }

    /// Leaves the cluster, and ends the shard.
    pub fn leave(&self) {
        self.shared.wanted.end();
        let running = self.thread.lock().take();
        if let Some(Running { end, ended }) = running {
            drop(end);
            if ended.recv_timeout(LEAVE_WAIT) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!("the cluster is not left in time");
            }
        }
    }
}

/// How this node takes part.
enum Part {
    /// With a shard of its own.
    Member(Box<Member>),
    /// With servers that others administer.
    Existing(Box<ExistingServers>),
}

impl Part {
    /// Joins. `own` is the id of this node, if it has no shard.
    fn join(
        settings: &ClusterSettings,
        place: &Path,
        search_path: &OsStr,
        own: u64,
    ) -> Result<Self, String> {
        match settings.join.servers() {
            Some(servers) => {
                let existing = ExistingServers::join(settings, servers, own)?;
                Ok(Part::Existing(Box::new(existing)))
            }
            None => Member::join(settings, place, search_path).map(|it| Part::Member(Box::new(it))),
        }
    }

    /// The process of its own shard.
    fn server(&self) -> Option<Process> {
        match self {
            Part::Member(member) => Some(member.server()),
            Part::Existing(_) => None,
        }
    }

    fn look(&mut self, digest: u64, report: Report) -> Result<Seen, String> {
        match self {
            Part::Member(member) => member.look(digest, report),
            Part::Existing(existing) => existing.look(digest, report),
        }
    }
}

fn keep(
    settings: &ClusterSettings,
    place: &Path,
    tell: &dyn Fn(Process),
    shared: &Shared,
    over: &Receiver<()>,
) {
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    let own = RandomState::new().build_hasher().finish();
    let mut part: Option<Part> = None;
    let mut next = Instant::now();
    let mut said = None;
    loop {
        if part.is_none() && Instant::now() >= next {
            next = Instant::now() + TRY_EVERY;
            match Part::join(settings, place, &search_path, own) {
                Ok(joined) => {
                    if let Some(server) = joined.server() {
                        tell(server);
                        tracing::info!(server = server.pid, "the shard of this node runs");
                    }
                    part = Some(joined);
                }
                Err(why) => shared.set_none(why, &mut said),
            }
        }
        if let Some(present) = &mut part {
            let digest = shared.homes.lock().map_or(0, |homes| homes.digest);
            let report = shared.report.lock().clone();
            match present.look(digest, report) {
                Ok(seen) => {
                    said = None;
                    shared.set(seen);
                }
                Err(why) => {
                    part = None;
                    shared.set_none(why, &mut said);
                }
            }
        }
        if over.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

impl Shared {
    fn set(&self, seen: Seen) {
        let Seen { status, reach, own, own_list, is_full, reports } = seen;
        *self.reports.lock() = reports;
        self.is_full.store(is_full, Ordering::Relaxed);
        self.client.set(reach);
        (*self.own.lock(), *self.own_list.lock()) = (own, own_list);
        *self.status.lock() = status;
    }

    /// This node's own shard.
    fn own(&self) -> Result<OwnShard, String> {
        self.own.lock().clone().ok_or_else(|| "this node has no shard".to_owned())
    }

    /// This node is no member. The log has each reason once.
    fn set_none(&self, why: String, said: &mut Option<String>) {
        if said.as_ref() != Some(&why) {
            tracing::warn!(%why, "no cluster");
            *said = Some(why.clone());
        }
        self.client.clear();
        (*self.own.lock(), *self.own_list.lock()) = (None, None);
        self.reports.lock().clear();
        *self.status.lock() = ClusterStatus { why: Some(why), ..ClusterStatus::default() };
    }
}

impl Shards for Peers {
    fn membership(&self) -> Option<Arc<Membership>> {
        self.shared.client.membership()
    }

    fn ask(&self, ask: Ask) {
        self.shared.client.ask(ask);
    }

    fn give(&self, give: Give) {
        self.shared.client.give(give);
    }

    fn remove(&self, member: u64, key: Key) {
        self.shared.client.remove(member, key);
    }

    fn status(&self) -> ClusterStatus {
        let mut status = self.shared.status.lock().clone();
        let left_alone = self.shared.client.left_alone();
        let left_alone: Vec<String> = left_alone.iter().map(SocketAddr::to_string).collect();
        for member in &mut status.members {
            if member.why.is_none() && left_alone.contains(&member.address) {
                member.why =
                    Some("it did not answer, and is not asked for a few seconds".to_owned());
            }
        }
        let homes = self.shared.homes.lock().filter(|_| status.why.is_none());
        let HomesStatus { moves_in, on_disks, .. } = homes.unwrap_or_default();
        let placed = homes.map(|homes| view_name(homes.view));
        let traffic = self.shared.client.traffic();
        ClusterStatus { placed, moves_in, on_disks, traffic, ..status }
    }

    fn usual_wait(&self) -> Duration {
        self.shared.client.usual_wait()
    }

    fn note_passed_over(&self, blocks: u64) {
        self.shared.client.note_passed_over(blocks);
    }

    fn is_full(&self) -> bool {
        self.shared.is_full.load(Ordering::Relaxed)
    }

    fn sweep(&self, is_wanted: &dyn Fn(Key) -> bool) -> Result<u64, String> {
        self.shared.own()?.sweep(is_wanted).map_err(|error| error.to_string())
    }

    fn exchange(&self, own: Report) -> Vec<(u64, Report)> {
        *self.shared.report.lock() = own;
        self.shared.reports.lock().clone()
    }

    fn take_notes(&self, take: TakeNote) {
        self.shared.wanted.take_notes(take);
    }

    fn list(&self, each: &mut dyn FnMut(Key, Listed)) -> Result<(), String> {
        self.shared.own()?.list(each).map_err(|error| error.to_string())
    }

    fn mark_on_disk(&self, blocks: &[Key], are_new: bool) -> Result<(), String> {
        let own = self.shared.own()?;
        own.mark_on_disk(blocks, are_new).map_err(|error| error.to_string())
    }

    fn forget(&self, blocks: &[Key]) -> Result<(), String> {
        self.shared.own()?.forget(blocks).map_err(|error| error.to_string())
    }

    fn note_homes(&self, homes: HomesStatus) {
        *self.shared.homes.lock() = Some(homes);
    }
}

impl Wants for Peers {
    fn members(&self) -> Option<(u64, Vec<u64>)> {
        Some((self.shared.client.membership()?.own, self.shared.client.nodes()))
    }

    fn want(&self, want: Want) {
        self.shared.wanted.ask(&self.shared.client, want);
    }

    fn provide(&self, topic: &'static str, provider: Provider) {
        self.shared.wanted.provide(topic, provider);
    }
}
