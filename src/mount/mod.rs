//! The life of a mount: checked, started, served, ended.
//!
//! 1. [`prepare`] looks at the mount point: a dead mount is cleared away, one in use is refused.
//! 2. [`run`] opens the source (before anything covers it), starts the [`Engine`], gives the
//!    streams their orders, mounts, and opens the control socket. Then it says that it serves.
//! 3. It waits for a signal, a command, or an unmount from outside, and takes everything down.

mod access;
pub mod host;
mod kernel;
mod point;
mod probe;
mod signals;
mod watcher;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::config::{Settings, hangs};
use crate::control::{self, MountDirectory, Reply, Request, Running};
use crate::disk::{LOOK_EVERY, unless_it_hangs};
use crate::engine::{Engine, Wanted};
use crate::error::{Error, ErrorKind, Result};
use crate::fuse::device_of;
use crate::source::PosixSource;
pub use point::{
    check_apart, cut_off_by_force, cut_off_killed, is_dead, is_noted, prepare, take_away,
};
pub use probe::{MEASURED_BYTES, examine};
use watcher::Watcher;
pub use watcher::{VERB as WATCHER, watch};

/// How often limits and use of memory are looked at, and whether the mount is still there.
const FIT_EVERY: Duration = Duration::from_secs(1);

/// News that nobody has read yet; there is never more than one of a kind and command.
const NEWS_MAX: usize = 64;

/// How long the daemon of what is unmounted waits for answers to be given and taken.
const LAST_ANSWERS: Duration = Duration::from_secs(30);

/// The same where a signal ends what is still mounted.
const LAST_OF_USED: Duration = Duration::from_secs(2);

/// What to mount.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The directory to serve, absolute.
    pub source: PathBuf,
    /// Where to mount it, absolute; may be the source itself.
    pub mountpoint: PathBuf,
    pub settings: Settings,
    /// The settings as `belady config show` prints them.
    pub rendered: String,
}

/// What a mount says when it serves.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Ready {
    /// One line that says what is mounted where.
    pub line: String,
    /// Further lines: the choices made, the orders received.
    pub notes: Vec<String>,
}

/// Mounts and serves until it is ended. `seen` counts names while the source is scanned, `ready`
/// is called once when the mount serves.
///
/// # Errors
/// Whatever stands in the way; nothing is left mounted then.
pub fn run(plan: &Plan, seen: &AtomicU64, ready: impl FnOnce(&Ready)) -> Result<()> {
    let directory = MountDirectory::of(&plan.mountpoint);
    directory.create()?;
    // Before there are other threads.
    let notes = [plan.settings.decisions.clone(), kernel::guard(&plan.settings)].concat();
    let guarded = plan.settings.mount.allow_other && !plan.settings.mount.force_allow_other;
    if guarded {
        access::check(&plan.source)?;
    }
    let source = PosixSource::open(&plan.source, plan.settings.prefetch.inflight as usize)?;
    let identity = source.identity()?;
    let (settings, rendered) = (plan.settings.clone(), plan.rendered.clone());
    // Orders are checked against all files, and lists of rights may be on any directory.
    let all = guarded || !plan.settings.streams.is_empty();
    let source = Arc::new(source);
    let engine =
        Engine::start(settings, rendered, &plan.source, source, all, seen, &host::readings())?;
    let checked = match guarded {
        true => access::check_directories(engine.catalog(), engine.source(), &plan.source),
        false => Ok(()),
    };
    let watcher = start_watcher();
    let served =
        checked.and_then(|()| serve(plan, &engine, &directory, &watcher, identity, notes, ready));
    // A mount that is in use when a signal comes is taken away all the same.
    let attached = engine.serving().attached();
    let unmounted = engine.serving().unmount(true);
    tell_watcher(&watcher, &engine);
    for directory in attached.iter().map(|path| MountDirectory::of(path)).chain([directory]) {
        directory.clear_own();
    }
    engine.stop();
    // The threads that use our own mount have descriptors of their own (`fuse/inside`). None of them may
    // be the one that drops what the engine has open. The process ends now, and closes all of it.
    std::mem::forget(engine);
    served.and(unmounted)
}

/// Starts the watcher. Without one a killed daemon may leave readers hanging.
fn start_watcher() -> Option<Arc<Watcher>> {
    let failed = |error: &std::io::Error| tracing::warn!(%error, "the watcher cannot be started");
    Watcher::start().inspect_err(failed).ok()
}

fn tell_watcher(watcher: &Option<Arc<Watcher>>, engine: &Engine) {
    if let Some(watcher) = watcher {
        watcher.tell(&engine.serving().connected());
    }
}

/// What the control socket is served by.
fn control_runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build();
    runtime.map_err(|error| Error::new(ErrorKind::Internal, format!("runtime: {error}")))
}

fn serve(
    plan: &Plan,
    engine: &Arc<Engine>,
    directory: &MountDirectory,
    watcher: &Option<Arc<Watcher>>,
    identity: (u64, u64),
    mut notes: Vec<String>,
    ready: impl FnOnce(&Ready),
) -> Result<()> {
    notes.extend(engine.catalog_note());
    notes.extend(engine.found_again());
    notes.extend(engine.moved_disk());
    // What is read of orders, and what may be on its way, hangs on what fits.
    engine.fit_memory(host::readings());
    let mut orders = Vec::new();
    for stream in &plan.settings.streams {
        let at = std::slice::from_ref(&plan.mountpoint);
        orders.push((&stream.name, engine.orders().receive_spec(&stream.name, &stream.order, at)?));
    }
    let runtime = control_runtime()?;
    let mut running = Running {
        pid: std::process::id(),
        source: plan.source.clone(),
        identity,
        mountpoint: plan.mountpoint.clone(),
        device: None,
    };
    let cache = plan.settings.cache.disk.as_ref().map(|disk| disk.dir.clone());
    let (end, news) = sync_channel(NEWS_MAX);
    let look = end.clone();
    engine.alarm().wake_by(move || drop(look.try_send(News::Look)));
    let signalled = end.clone();
    // Before anything is mounted: a signal must find it taken down, not the daemon dead.
    signals::listen(move || drop(signalled.send(News::End)))?;
    engine.serving().serve(&plan.mountpoint)?;
    running.device = device_of(&plan.mountpoint);
    engine.serve_control()?;
    engine.serving().serve_views()?;
    tell_watcher(watcher, engine);
    for (name, order) in orders {
        notes.push(format!("order of {name}: {}", engine.orders().follow(order)));
    }
    engine.go_on_behind();
    let handler = Handler {
        engine: Arc::clone(engine),
        running: running.clone(),
        cache,
        watcher: watcher.clone(),
        end,
    };
    // The note first: a daemon that is ending here removes the socket only as long as it is its.
    directory.note(&running)?;
    let inside = runtime.enter();
    let memory = Arc::clone(engine);
    let room = move || memory.room_for_a_request();
    let answer = move |request| handler.answer(request);
    let server = control::serve(&directory.socket(), room, answer)?;
    drop(inside);
    notes.push(engine.consistency());
    notes.extend(plan.settings.mount.allow_other.then(|| access::UNSEEN.to_owned()));
    let (at, from) = (plan.mountpoint.display(), plan.source.display());
    ready(&Ready { line: format!("{from} is mounted at {at}"), notes });
    wait(engine, &news);
    let over = engine.serving().is_over();
    if over {
        directory.clear_own();
        // Who unmounted is told when all is stored, which takes as long as it takes.
        engine.stop();
    }
    runtime.block_on(server.finish(if over { LAST_ANSWERS } else { LAST_OF_USED }));
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(())
}

/// What wakes who waits for the end of a mount.
enum News {
    /// It is to end: by a signal, or since a command has unmounted it.
    End,
    /// There is something to look at that may come to hang.
    Look,
}

/// Waits for the end: what the news say, or an unmount from outside. Meanwhile the budgets follow
/// what fits. It is looked once a second, and more often as long as there is something to look at:
/// the mount of an idle machine does not keep it awake. Of the time in which the process has stood
/// still there is one look, for whoever counts looks takes them for time in which others could go on.
fn wait(engine: &Arc<Engine>, news: &Receiver<News>) {
    let (mut pause, mut fitted) = (LOOK_EVERY, Instant::now());
    loop {
        match news.recv_timeout(pause) {
            Ok(News::End) | Err(RecvTimeoutError::Disconnected) => return,
            Ok(News::Look) => {
                pause = LOOK_EVERY;
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if fitted.elapsed() >= FIT_EVERY {
            fitted = Instant::now();
            engine.fit_memory(host::readings());
        }
        engine.rescue();
        for point in engine.serving().take_gone() {
            MountDirectory::of(&point).clear_own();
        }
        if engine.serving().is_over() {
            return;
        }
        pause = if engine.rests() { FIT_EVERY } else { LOOK_EVERY };
    }
}

fn told(answer: &impl serde::Serialize) -> Result<Value> {
    serde_json::to_value(answer)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("the answer: {error}")))
}

/// Answers what commands ask.
struct Handler {
    engine: Arc<Engine>,
    running: Running,
    cache: Option<PathBuf>,
    watcher: Option<Arc<Watcher>>,
    end: SyncSender<News>,
}

impl Handler {
    fn attach(&self, mountpoint: &Path) -> Result<Value> {
        if let Some(cache) = &self.cache {
            let (apart, at) = (cache.clone(), mountpoint.to_path_buf());
            let check = move || point::check_outside(&apart, "the mount point", &at);
            unless_it_hangs(check)
                .map_err(|error| Error::new(ErrorKind::Internal, format!("thread: {error}")))?
                .unwrap_or_else(|| Err(hangs(cache)))?;
        }
        self.engine.serving().attach(mountpoint)?;
        tell_watcher(&self.watcher, &self.engine);
        let directory = MountDirectory::of(mountpoint);
        directory.create()?;
        directory.link(&MountDirectory::of(&self.running.mountpoint))?;
        let (mountpoint, device) = (mountpoint.to_path_buf(), device_of(mountpoint));
        directory.note(&Running { mountpoint, device, ..self.running.clone() })?;
        Ok(Value::Null)
    }

    /// Unmounts. Says whether the daemon ends with it.
    fn unmount(&self, mountpoint: &Path, force: bool) -> Result<bool> {
        let unmounted = self.unmount_at(mountpoint, force);
        // What was taken away and mounted anew, since a mount is in use, has another device.
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
        MountDirectory::of(&self.running.mountpoint).clear_own();
        // The next mount finds everything stored, and nobody at it.
        self.engine.stop();
        // The receiver is gone only when the mount is ending already.
        let _ = self.end.try_send(News::End);
        Ok(true)
    }

    fn answer(&self, request: Request) -> Result<Reply> {
        if self.engine.serving().is_over() && !matches!(request, Request::Unmount { .. }) {
            return Err(Error::new(ErrorKind::Mount, "it has been unmounted"));
        }
        let value = match request {
            Request::Status => told(&self.engine.status())?,
            Request::Rehearse(question) => self.engine.rehearse(question)?,
            Request::Scanned => told(&self.engine.scanned()?)?,
            Request::Config => json!(self.engine.rendered()),
            Request::SetOrder { stream, order } => {
                json!(self.engine.orders().set(&stream, &order)?)
            }
            Request::Record { loader, process, epochs } => {
                let recording = self.engine.record(&Wanted { loader, process, epochs })?;
                let summary = json!(recording.summary);
                return Ok(Reply::with_text(summary, Box::new(|out| recording.write(out))));
            }
            Request::WithdrawOrder { stream } => json!(self.engine.orders().withdraw(&stream)?),
            Request::Warmup { chosen, pace } => json!(self.engine.warmups().start(&chosen, pace)?),
            Request::WarmupProgress { number } => told(&self.engine.warmups().progress(number)?)?,
            Request::CountHere { chosen } => told(&self.engine.warmups().count_here(&chosen)?)?,
            Request::Evict { chosen } => told(&self.engine.warmups().evict(&chosen)?)?,
            Request::Attach { mountpoint } => self.attach(&mountpoint)?,
            Request::Unmount { mountpoint, force } => json!(self.unmount(&mountpoint, force)?),
        };
        Ok(value.into())
    }
}

/// An absolute path to a file that need not exist, links resolved. A mount at the path itself is
/// not asked: its daemon may be dead.
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
