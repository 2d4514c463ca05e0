//! The life of a mount: checked, started, served, ended.
//!
//! 1. [`prepare`] looks at the mount point: a dead mount is cleared away, one in use is refused.
//! 2. [`run`] opens the source (before anything covers it), starts the [`Engine`], gives the
//!    streams their orders, mounts, and opens the control socket. Then it says that it serves.
//! 3. It waits for a signal, a command, or an unmount from outside, and takes everything down.

mod access;
pub mod host;
mod point;
mod probe;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::cache::store::{LOOK_EVERY, unless_it_hangs};
use crate::config::{Settings, hangs};
use crate::control::{self, MountDirectory, Reply, Request, Running};
use crate::engine::{Engine, Wanted};
use crate::error::{Error, ErrorKind, Result};
use crate::fuse::device_of;
use crate::source::PosixSource;
pub use point::{check_apart, cut_off, is_dead, is_noted, prepare, take_away};
pub use probe::{MEASURED_BYTES, examine};

/// How often limits and use of memory and of the cache disk are looked at.
const LOOK: Duration = Duration::from_secs(1);

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
    /// The settings.
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
    let guarded = plan.settings.mount.allow_other && !plan.settings.mount.force_allow_other;
    if guarded {
        access::check(&plan.source)?;
    }
    let source = PosixSource::open(&plan.source, plan.settings.prefetch.inflight as usize)?;
    let identity = source.identity()?;
    let (settings, rendered) = (plan.settings.clone(), plan.rendered.clone());
    // Orders are checked against all files, and lists of rights may be on any directory.
    let all = guarded || !plan.settings.streams.is_empty();
    let engine = Engine::start(settings, rendered, &plan.source, source, all, seen)?;
    let checked = match guarded {
        true => access::check_directories(engine.catalog(), &plan.source),
        false => Ok(()),
    };
    let served = checked.and_then(|()| serve(plan, &engine, &directory, identity, ready));
    // A mount that is in use when a signal comes is taken away all the same.
    let attached = engine.attached();
    let unmounted = engine.unmount(true);
    for directory in attached.iter().map(|path| MountDirectory::of(path)).chain([directory]) {
        directory.clear_own();
    }
    engine.stop();
    served.and(unmounted)
}

fn serve(
    plan: &Plan,
    engine: &Arc<Engine>,
    directory: &MountDirectory,
    identity: (u64, u64),
    ready: impl FnOnce(&Ready),
) -> Result<()> {
    let mut notes = plan.settings.decisions.clone();
    notes.extend(engine.catalog_note());
    notes.extend(engine.found_again());
    notes.extend(engine.moved_disk());
    let mut orders = Vec::new();
    for stream in &plan.settings.streams {
        let at = std::slice::from_ref(&plan.mountpoint);
        orders.push((&stream.name, engine.receive_order(&stream.name, &stream.order, at)?));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Error::new(ErrorKind::Internal, format!("runtime: {error}")))?;
    let mut running = Running {
        pid: std::process::id(),
        source: plan.source.clone(),
        identity,
        mountpoint: plan.mountpoint.clone(),
        device: None,
    };
    let cache = plan.settings.cache.disk.as_ref().map(|disk| disk.dir.clone());
    let (end, ended) = mpsc::channel(1);
    // Before anything is mounted: a signal must find it taken down, not the daemon dead.
    let signals = {
        let _inside = runtime.enter();
        Signals::listen()?
    };
    engine.serve(&plan.mountpoint)?;
    running.device = device_of(&plan.mountpoint);
    engine.serve_control()?;
    engine.serve_views()?;
    for (name, order) in orders {
        notes.push(format!("order of {name}: {}", engine.follow(order)));
    }
    engine.keep_catalog();
    let outcome = runtime.block_on(async {
        let handler = Handler { engine: Arc::clone(engine), running: running.clone(), cache, end };
        // The note first: a daemon that is ending here removes the socket only as long as it is its.
        directory.note(&running)?;
        let server = control::serve(&directory.socket(), move |request| handler.answer(request))?;
        notes.push(engine.consistency());
        let (at, from) = (plan.mountpoint.display(), plan.source.display());
        ready(&Ready { line: format!("{from} is mounted at {at}"), notes });
        wait(engine, signals, ended).await;
        let over = engine.is_over();
        if over {
            directory.clear_own();
            // Who unmounted is told when all is stored, which takes as long as it takes.
            engine.stop();
        }
        server.finish(if over { LAST_ANSWERS } else { LAST_OF_USED }).await;
        Ok(())
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

/// The signals that end a mount.
struct Signals([Signal; 3]);

impl Signals {
    fn listen() -> Result<Self> {
        let listen = |kind| {
            let failed = |error| Error::new(ErrorKind::Internal, format!("signals: {error}"));
            signal(kind).map_err(failed)
        };
        let [terminate, interrupt, hangup] =
            [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(listen);
        Ok(Signals([terminate?, interrupt?, hangup?]))
    }

    async fn any(&mut self) {
        let [terminate, interrupt, hangup] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// Ticks at least so far apart: after the process has stood still there is one, and not all that
/// were missed, for whoever counts them takes them for time in which others could go on.
fn every(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Waits for the end: a signal, a command that has unmounted, or an unmount from outside. Meanwhile
/// the budgets follow what fits.
async fn wait(engine: &Arc<Engine>, mut signals: Signals, mut ended: mpsc::Receiver<()>) {
    let (mut look, mut memory) = (every(LOOK_EVERY), every(LOOK));
    loop {
        tokio::select! {
            () = signals.any() => return,
            _ = ended.recv() => return,
            _ = memory.tick() => {
                engine.fit_memory(host::readings());
                engine.fit_disk();
            }
            _ = look.tick() => {
                engine.rescue();
                for point in engine.take_gone() {
                    MountDirectory::of(&point).clear_own();
                }
                if engine.is_over() {
                    return;
                }
            }
        }
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
    /// The cache directory.
    cache: Option<PathBuf>,
    end: mpsc::Sender<()>,
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
        self.engine.attach(mountpoint)?;
        let directory = MountDirectory::of(mountpoint);
        directory.create()?;
        directory.link(&MountDirectory::of(&self.running.mountpoint))?;
        let (mountpoint, device) = (mountpoint.to_path_buf(), device_of(mountpoint));
        directory.note(&Running { mountpoint, device, ..self.running.clone() })?;
        Ok(Value::Null)
    }

    fn unmount(&self, mountpoint: &Path, force: bool) -> Result<()> {
        if self.engine.detach(mountpoint, force)? {
            MountDirectory::of(mountpoint).clear();
            return Ok(());
        }
        let attached = self.engine.attached();
        let unmounted = self.engine.unmount(force);
        let left = self.engine.attached();
        for path in attached.iter().filter(|path| !left.contains(path)) {
            MountDirectory::of(path).clear();
        }
        unmounted?;
        MountDirectory::of(&self.running.mountpoint).clear_own();
        // The next mount finds everything stored, and nobody at it.
        self.engine.stop();
        // The receiver is gone only when the mount is ending already.
        let _ = self.end.try_send(());
        Ok(())
    }

    fn answer(&self, request: Request) -> Result<Reply> {
        if self.engine.is_over() && !matches!(request, Request::Unmount { .. }) {
            return Err(Error::new(ErrorKind::Mount, "it has been unmounted"));
        }
        let value = match request {
            Request::Status => told(&self.engine.status())?,
            Request::Rehearse(question) => self.engine.rehearse(question)?,
            Request::Scanned => told(&self.engine.scanned()?)?,
            Request::Config => json!(self.engine.rendered()),
            Request::SetOrder { stream, order } => json!(self.engine.set_order(&stream, &order)?),
            Request::Record { loader, process, epochs } => {
                let recording = self.engine.record(&Wanted { loader, process, epochs })?;
                let summary = json!(recording.summary);
                return Ok(Reply::with_text(summary, Box::new(|out| recording.write(out))));
            }
            Request::WithdrawOrder { stream } => json!(self.engine.withdraw_order(&stream)?),
            Request::Warmup { chosen, pace } => json!(self.engine.start_warmup(&chosen, pace)?),
            Request::WarmupProgress { number } => told(&self.engine.warmup_progress(number)?)?,
            Request::CountHere { chosen } => told(&self.engine.count_here(&chosen)?)?,
            Request::Evict { chosen } => told(&self.engine.evict(&chosen)?)?,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_time_in_which_nothing_went_on_is_one_look() {
        let mut looks = every(LOOK_EVERY);
        looks.tick().await;
        tokio::time::advance(100 * LOOK_EVERY).await;
        looks.tick().await;
        let more = tokio::time::timeout(LOOK_EVERY / 2, looks.tick()).await;
        assert!(more.is_err(), "another one at once");
    }
}
