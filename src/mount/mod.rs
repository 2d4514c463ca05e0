//! The life of a mount.
//!
//! 1. [`prepare`] looks at the mount point: it clears a dead mount away, and refuses one in use.
//! 2. [`run`] opens the source before anything covers it, and starts the [`Engine`]. It resolves the
//!    orders, mounts, has the streams follow their orders, and opens the control socket. Then it says that it
//!    serves.
//! 3. It waits for a signal, a command, or an unmount from outside, and takes everything down.

mod access;
mod derived_links;
pub mod host;
mod kernel;
pub mod namespace;
mod point;
mod probe;
mod signals;
mod watcher;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::config::{Settings, hanging_disk_error};
use crate::control::{self, MountDirectory, MountNote, Reply, Request};
use crate::disk::{TICK, unless_it_hangs};
use crate::engine::{Engine, Profile, RecordSelection};
use crate::error::{Error, ErrorKind, Result};
use crate::fuse::device_of;
use crate::peers::Peers;
use crate::source::{Location, Opening};
use derived_links::DerivedLinks;
pub use point::{
    check_apart, check_outside, cut_off_by_force, cut_off_killed, is_dead, is_noted, prepare,
    take_away,
};
pub use probe::{MEASURED_BYTES, examine};
use watcher::Watcher;
pub use watcher::{VERB as WATCHER, watch};

/// How often limits and use of memory are read, and whether the mount is still there.
const FIT_EVERY: Duration = Duration::from_secs(1);

/// How many unread [`Message`]s there may be. There is at most one of each kind and command.
const MESSAGES_MAX: usize = 64;

/// How long the daemon waits for its last answers after everything is unmounted.
const UNMOUNTED_PATIENCE: Duration = Duration::from_secs(30);

/// The same if a signal ends it.
const SIGNALLED_PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct Plan {
    /// What to serve.
    pub source: Location,
    /// Where to mount it, absolute. It may be the source itself.
    pub mountpoint: PathBuf,
    pub settings: Settings,
    /// The settings as `belady config show` prints them.
    pub rendered: String,
    /// Whether it ends with a `belady run`.
    pub of_run: bool,
}

/// What a mount says when it serves.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Ready {
    pub line: String,
    /// Further lines: decisions, orders and warnings.
    pub notes: Vec<String>,
}

/// Mounts and serves until it is ended. `seen` counts names while the source is scanned. `ready` is called
/// once, when the mount serves.
///
/// # Errors
/// Whatever prevents the mount. Nothing is left mounted then.
pub fn run(plan: &Plan, seen: &AtomicU64, ready: impl FnOnce(&Ready)) -> Result<()> {
    let directory = MountDirectory::of(&plan.mountpoint);
    directory.create()?;
    // Before there are other threads: `guard` is for those that this one starts.
    let notes = [plan.settings.decisions.clone(), kernel::guard(&plan.settings)].concat();
    let guarded = plan.settings.mount.allow_other && !plan.settings.mount.force_allow_other;
    if guarded {
        access::check(&plan.source)?;
    }
    // Before something covers its path.
    derived_links::check(&plan.settings.derived, &plan.source, &plan.mountpoint)?;
    let identity = plan.source.identity().unwrap_or_default();
    let opening = Opening {
        view: plan.settings.source.view,
        is_immutable: plan.settings.source.revalidate.is_none(),
        inflight: plan.settings.prefetch.inflight as usize,
        scan_threads: plan.settings.source.scan_threads,
        manners: plan.settings.prefetch.manners,
        seen,
    };
    let source = opening.open(&plan.source)?;
    let (mut settings, rendered) = (plan.settings.clone(), plan.rendered.clone());
    settings.prefetch.manners = settings.prefetch.manners.at(plan.source.path().is_some());
    // Orders are checked against all files, and any directory may have an access control list.
    let all = guarded || !plan.settings.streams.is_empty();
    let engine = Engine::start(
        settings,
        rendered,
        plan.source.name(),
        source,
        all,
        seen,
        &host::readings(),
    )?;
    let checked = match guarded {
        true => access::check_directories(engine.catalog(), engine.source(), plan.source.name()),
        false => Ok(()),
    };
    let beside = Beside { watcher: start_watcher(), peers: OnceLock::new() };
    let served =
        checked.and_then(|()| serve(plan, &engine, &directory, &beside, identity, notes, ready));
    // After a signal the mount is taken away even if it is in use.
    let attached = engine.serving().attached();
    let unmounted = engine.serving().unmount(true);
    tell_watcher(&beside.watcher, &engine);
    for directory in attached.iter().map(|path| MountDirectory::of(path)).chain([directory]) {
        directory.clear_own();
    }
    engine.stop();
    // Last: a server that does not answer must not delay the unmount.
    beside.peers.get().into_iter().for_each(|peers| peers.leave());
    keep_profile(plan, &engine);
    // Threads that use our own mount have descriptors of their own (`fuse/self_access`). None of them may be the
    // one that drops the engine, and so closes what it has open. The end of the process closes it.
    std::mem::forget(engine);
    served.and(unmounted)
}

/// Keeps what was seen of loaders, unless the disk of the state directory hangs.
fn keep_profile(plan: &Plan, engine: &Engine) {
    let mountpoints = vec![plan.mountpoint.display().to_string()];
    let profile = Profile { mountpoints, ..engine.profile(None) };
    let mountpoint = plan.mountpoint.clone();
    if let Ok(None) | Err(_) = unless_it_hangs(move || control::keep_profile(&mountpoint, &profile))
    {
        tracing::warn!("what was seen of loaders is not kept: the state directory does not answer");
    }
}

/// What runs beside the engine.
struct Beside {
    /// `None` if it could not be started.
    watcher: Option<Arc<Watcher>>,
    /// Set if there is a cluster.
    peers: OnceLock<Arc<Peers>>,
}

fn start_watcher() -> Option<Arc<Watcher>> {
    let failed = |error: &std::io::Error| tracing::warn!(%error, "the watcher cannot be started");
    Watcher::start().inspect_err(failed).ok()
}

fn tell_watcher(watcher: &Option<Arc<Watcher>>, engine: &Engine) {
    if let Some(watcher) = watcher {
        watcher.set_connections(&engine.serving().connected());
    }
}

fn control_runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build();
    runtime.map_err(|error| Error::new(ErrorKind::Internal, format!("runtime: {error}")))
}

fn serve(
    plan: &Plan,
    engine: &Arc<Engine>,
    directory: &MountDirectory,
    Beside { watcher, peers }: &Beside,
    identity: (u64, u64),
    mut notes: Vec<String>,
    ready: impl FnOnce(&Ready),
) -> Result<()> {
    notes.extend(engine.catalog_note());
    notes.extend(engine.store_summary());
    notes.extend(engine.moved_disk_warning());
    // The budgets limit how much of orders is read, and how much may be on its way.
    engine.fit_memory(host::readings());
    let mut orders = Vec::new();
    for stream in &plan.settings.streams {
        let at = std::slice::from_ref(&plan.mountpoint);
        orders.push((&stream.name, engine.orders().resolve_spec(&stream.name, &stream.order, at)?));
    }
    let runtime = control_runtime()?;
    let mut note = MountNote {
        pid: std::process::id(),
        source: plan.source.name().to_owned(),
        identity,
        view: plan.settings.source.view,
        mountpoint: plan.mountpoint.clone(),
        device: None,
        of_run: plan.of_run,
    };
    let cache = plan.settings.cache.disk.as_ref().map(|disk| disk.dir.clone());
    let (end, messages) = sync_channel(MESSAGES_MAX);
    let look = end.clone();
    engine.alarm().wake_by(move || drop(look.try_send(Message::Look)));
    let signalled = end.clone();
    // Before anything is mounted: after a signal the mount must be taken down.
    signals::listen(move || drop(signalled.send(Message::End)))?;
    engine.serving().serve(&plan.mountpoint)?;
    let links = DerivedLinks::make(&plan.settings.derived, &plan.mountpoint)?;
    note.device = device_of(&plan.mountpoint);
    engine.serve_control()?;
    engine.serving().serve_views()?;
    tell_watcher(watcher, engine);
    for (name, order) in orders {
        notes.push(format!("order of {name}: {}", engine.orders().follow(order)));
    }
    engine.start_background_work();
    if let Some(joining) = join_cluster(&plan.settings, directory, watcher) {
        let peers = peers.get_or_init(|| joining);
        engine.share(Arc::clone(peers) as _, &(Arc::clone(peers) as _));
    }
    let handler = Handler {
        engine: Arc::clone(engine),
        note: note.clone(),
        cache,
        watcher: watcher.clone(),
        end,
    };
    // The note first: an earlier daemon that is ending removes the socket unless the note is of another.
    directory.write_note(&note)?;
    let inside = runtime.enter();
    let memory = Arc::clone(engine);
    let room = move || memory.room_for_a_request();
    let answer = move |request| handler.answer(request);
    let server = control::serve(&directory.socket(), room, answer)?;
    drop(inside);
    notes.push(engine.consistency());
    notes.extend(plan.settings.mount.allow_other.then(|| access::UNSEEN.to_owned()));
    let (at, from) = (plan.mountpoint.display(), plan.source.name().display());
    ready(&Ready { line: format!("{from} is mounted at {at}"), notes });
    wait(engine, &messages);
    drop(links);
    let over = engine.serving().is_over();
    if over {
        directory.clear_own();
        // The command that unmounted is answered when everything is stored, however long that takes.
        engine.stop();
    }
    runtime.block_on(server.finish(if over { UNMOUNTED_PATIENCE } else { SIGNALLED_PATIENCE }));
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(())
}

/// Begins to join the cluster, if there is one. The mount serves without it.
fn join_cluster(
    settings: &Settings,
    directory: &MountDirectory,
    watcher: &Option<Arc<Watcher>>,
) -> Option<Arc<Peers>> {
    let place = directory.shard();
    // Before there is a shard: it has to end if this process is killed.
    watcher.iter().for_each(|watcher| watcher.set_shard(&place));
    let told = watcher.clone();
    let tell = move |server| told.iter().for_each(|watcher| watcher.set_server(server));
    let peers = Peers::start(settings.cluster.clone()?, place, tell);
    let failed = |error: &std::io::Error| tracing::warn!(%error, "the thread of the cluster cannot be started");
    peers.inspect_err(failed).ok().map(Arc::new)
}

/// Messages to the thread that waits for the end.
enum Message {
    /// A signal has come, or a command has unmounted everything.
    End,
    /// There is something to look at that may hang.
    Look,
}

/// Waits for [`Message::End`], or for an unmount from outside. Meanwhile it lets the budgets follow the memory,
/// and looks at what may hang.
///
/// It looks once a second, and each [`TICK`] while something may hang, so an idle machine is not kept
/// awake. If the process was stopped for a while, that is one look: looks are taken for time in which disks
/// could answer.
fn wait(engine: &Arc<Engine>, messages: &Receiver<Message>) {
    let (mut pause, mut fitted) = (TICK, Instant::now());
    loop {
        match messages.recv_timeout(pause) {
            Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => return,
            Ok(Message::Look) => {
                pause = TICK;
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if fitted.elapsed() >= FIT_EVERY {
            fitted = Instant::now();
            engine.fit_memory(host::readings());
        }
        engine.look_for_hangs();
        for point in engine.serving().take_gone() {
            MountDirectory::of(&point).clear_own();
        }
        if engine.serving().is_over() {
            return;
        }
        pause = if engine.is_idle() { FIT_EVERY } else { TICK };
    }
}

fn to_json(answer: &impl serde::Serialize) -> Result<Value> {
    serde_json::to_value(answer)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("the answer: {error}")))
}

struct Handler {
    engine: Arc<Engine>,
    note: MountNote,
    cache: Option<PathBuf>,
    watcher: Option<Arc<Watcher>>,
    end: SyncSender<Message>,
}

impl Handler {
    fn attach(&self, mountpoint: &Path) -> Result<Value> {
        if let Some(cache) = &self.cache {
            let (apart, at) = (cache.clone(), mountpoint.to_path_buf());
            let check = move || point::check_directories_apart(&apart, "the mount point", &at);
            unless_it_hangs(check)
                .map_err(|error| Error::new(ErrorKind::Internal, format!("thread: {error}")))?
                .unwrap_or_else(|| Err(hanging_disk_error(cache)))?;
        }
        self.engine.serving().attach(mountpoint)?;
        tell_watcher(&self.watcher, &self.engine);
        let directory = MountDirectory::of(mountpoint);
        directory.create()?;
        directory.link(&MountDirectory::of(&self.note.mountpoint))?;
        let (mountpoint, device) = (mountpoint.to_path_buf(), device_of(mountpoint));
        directory.write_note(&MountNote { mountpoint, device, ..self.note.clone() })?;
        Ok(Value::Null)
    }

    /// Unmounts. Returns whether the daemon ends.
    fn unmount(&self, mountpoint: &Path, force: bool) -> Result<bool> {
        let unmounted = self.unmount_at(mountpoint, force);
        // A mount in use may have been mounted anew, with another device.
        tell_watcher(&self.watcher, &self.engine);
        unmounted
    }

    fn unmount_at(&self, mountpoint: &Path, force: bool) -> Result<bool> {
        if self.engine.serving().detach(mountpoint, force)? {
            MountDirectory::of(mountpoint).clear();
            return Ok(false);
        }
        let attached = self.engine.serving().attached();
        let unmounted = self.engine.serving().unmount(force);
        let left = self.engine.serving().attached();
        for path in attached.iter().filter(|path| !left.contains(path)) {
            MountDirectory::of(path).clear();
        }
        unmounted?;
        MountDirectory::of(&self.note.mountpoint).clear_own();
        // The next mount finds everything stored, and the store free.
        self.engine.stop();
        // If the receiver is gone, the mount is ending already.
        let _ = self.end.try_send(Message::End);
        Ok(true)
    }

    fn answer(&self, request: Request) -> Result<Reply> {
        if self.engine.serving().is_over() && !matches!(request, Request::Unmount { .. }) {
            return Err(Error::new(ErrorKind::Mount, "it has been unmounted"));
        }
        let value = match request {
            Request::Status => to_json(&self.engine.status())?,
            Request::Report { epochs } => to_json(&self.engine.profile(epochs))?,
            Request::Trace { seconds } => {
                let trace = self.engine.trace(Duration::from_secs(seconds.into()));
                return Ok(Reply::with_text(
                    trace.summary(),
                    Box::new(move |out| trace.write(out)),
                ));
            }
            Request::Rehearse(question) => self.engine.rehearse(question)?,
            Request::Scanned => to_json(&self.engine.scan_progress()?)?,
            Request::Config => json!(self.engine.rendered()),
            Request::SetOrder { stream, order } => {
                json!(self.engine.orders().set(&stream, &order)?)
            }
            Request::Record { loader, process, epochs } => {
                let recording = self.engine.record(&RecordSelection { loader, process, epochs })?;
                let summary = json!(recording.summary);
                return Ok(Reply::with_text(summary, Box::new(|out| recording.write(out))));
            }
            Request::WithdrawOrder { stream } => json!(self.engine.orders().withdraw(&stream)?),
            Request::Warmup { chosen, pace } => json!(self.engine.warmups().start(&chosen, pace)?),
            Request::WarmupProgress { number } => {
                to_json(&self.engine.warmups().progress(number)?)?
            }
            Request::CountHere { chosen } => to_json(&self.engine.warmups().count_here(&chosen)?)?,
            Request::Evict { chosen } => to_json(&self.engine.warmups().evict(&chosen)?)?,
            Request::Attach { mountpoint } => self.attach(&mountpoint)?,
            Request::Unmount { mountpoint, force } => json!(self.unmount(&mountpoint, force)?),
        };
        Ok(value.into())
    }
}

/// An absolute path, with links resolved, to a file that need not exist. A mount at the path itself is not
/// asked: its daemon may be dead.
pub fn absolute(path: &Path) -> PathBuf {
    if path.read_link().is_ok()
        && let Ok(resolved) = std::fs::canonicalize(path)
    {
        return resolved;
    }
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => {
            std::fs::canonicalize(parent).map_or(absolute.clone(), |parent| parent.join(name))
        }
        _ => absolute,
    }
}
