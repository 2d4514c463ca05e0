//! One source, served: its catalog, tiers and planner put together, and kept running.
//!
//! 1. [`Engine::start`] takes up the catalog of an earlier mount or begins to scan the source, and
//!    starts the planner's thread, the only one that ever touches the planner: it takes what is in
//!    the inbox, applies it, and has the cache do what comes out.
//! 2. [`Serving::serve`] mounts the dataset. The first connection's page cache is the RAM tier;
//!    further mount points show it too ([`Serving::attach`]).
//! 3. Orders are given by name of a stream at any time from then on, [`Orders::set`]; before,
//!    nothing could take what is fetched ahead.
//! 4. What nobody tells is found out by a thread of its own, in `learning`, from what the planner's
//!    thread hears.
//! 5. [`Engine::status`] reads what the planner's thread last published; it never waits for it.

mod budgets;
mod ending;
mod files;
mod keeper;
mod lease;
mod opening;
mod orders;
mod planning;
mod record;
mod serving;
mod status;
mod warmup;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use nix::errno::Errno;

use crate::cache::{Cache, Inbox, Observer};
use crate::catalog::{Catalog, CatalogState, Changes};
use crate::config::{Bytes, Mode, Reading, RehearsalSettings, Settings, Start};
use crate::disk::{Alarm, DiskState, LOOK_EVERY};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::Dataset;
use crate::learning::{Learning, Streams, Surroundings};
use crate::plan::{self, Event, Planner, Published, RAM, Tier};
use crate::rehearsal::{Opening, Question, Rehearsal};
use crate::source::Source;
use crate::store::home::{self, Home, Owner};
use crate::sync::Mutex;
use budgets::Budgets;
use ending::Ending;
use keeper::Keeper;
pub use keeper::Scanned;
use lease::StoreLease;
use opening::Opened;
pub use orders::{Orders, resolve as resolve_order, tell_unreadable};
pub use record::{RecordSummary, RecordedEpoch, Recording, Wanted};
pub use serving::Serving;
pub use status::{OrderStatus, RamStatus, Status, TierStatus};
use warmup::Choice;
pub use warmup::{Chosen, Pace, Progress, Tally, Warmups};

/// The tier that the local store is.
const STORE_TIER: usize = RAM + 1;

/// What all parts of an engine have in common.
pub(crate) struct Core {
    settings: Settings,
    source_path: PathBuf,
    catalog: Arc<Catalog>,
    cache: Arc<Cache>,
    inbox: Arc<Inbox>,
    dataset: Arc<Dataset>,
    /// Whether the engine is being stopped.
    over: Ending,
}

/// What is to be said of the local store since the start.
struct StoreNote {
    /// Why there is none though it is configured.
    fault: Option<Error>,
    /// What is wrong, in words, if it was on another disk before.
    moved: Option<String>,
}

impl StoreNote {
    /// The state of a local store that there is not.
    fn fault_state(&self) -> Option<DiskState> {
        self.fault.as_ref().map(|_| DiskState::Unopened)
    }
}

/// Everything that serves one source.
pub struct Engine {
    core: Arc<Core>,
    serving: Arc<Serving>,
    orders: Arc<Orders>,
    keeper: Arc<Keeper>,
    budgets: Arc<Budgets>,
    warmups: Warmups,
    lease: Arc<StoreLease>,
    store_note: StoreNote,
    published: Arc<Mutex<Published>>,
    /// None where orders are only told.
    learning: Option<Arc<Learning>>,
    /// None where there are no buffers.
    rehearsal: Option<Arc<Rehearsal>>,
    /// The settings as people read them.
    rendered: String,
    planning: Mutex<Option<JoinHandle<()>>>,
    started: Instant,
    /// Whether it has been stopped; held by who stops it.
    stopped: Mutex<bool>,
}

impl Engine {
    /// Gets ready to serve the source, which is scanned unless a catalog of it was saved: behind
    /// the readers, but for what has to be known of `all` its files first. Names are counted in
    /// `seen` meanwhile; `rendered` are the settings as people read them.
    ///
    /// # Errors
    /// Where the source cannot be read or the cache directory not be used.
    pub fn start(
        mut settings: Settings,
        rendered: String,
        source_path: &Path,
        source: Arc<dyn Source>,
        all: bool,
        seen: &AtomicU64,
        readings: &[Reading],
    ) -> Result<Arc<Self>> {
        let owner = Owner::new(source_path, source.lasting_identity());
        let Opened { home, store, moved, fault } = opening::open(&mut settings, &owner)?;
        let first = (all || !settings.rehearsal.is_empty()).then_some(seen);
        let from = Arc::clone(&source);
        let catalog = keeper::catalog(from, &settings.source, source_path, home.as_ref(), first)?;
        let catalog = Arc::new(catalog);
        let inbox = Arc::new(Inbox::new(settings.prefetch.inflight));
        let cache = Cache::new(source, Arc::clone(&catalog), Arc::clone(&inbox), store);
        let all_known = !matches!(catalog.state(), CatalogState::Checking | CatalogState::Scanning);
        cache.adopt(all_known);
        let published = Arc::new(Mutex::new(Published::default()));
        let streams = Streams::default();
        let journal = home.as_ref().map(Home::journal);
        let around =
            Surroundings::new(&catalog, cache.source(), &inbox, &streams, &published, journal);
        let learning = learn(&settings, around)?.map(Arc::new);
        let ram = budgets::of_ram(&settings, &cache);
        let memory = budgets::for_a_file(&ram, readings);
        let rehearsal = rehearse(&settings, memory, &owner, &cache)?.map(Arc::new);
        let plan = planner_settings(&settings, rehearsal.is_some());
        let planner = Planner::new(plan, catalog.layout());
        let observers = observers(learning.as_deref(), rehearsal.as_deref());
        let planning = planning::spawn(planner, &inbox, &cache, &published, observers)?;
        let path = source_path.to_path_buf();
        let serving = Arc::new_cyclic(|serving: &Weak<Serving>| {
            let core = core(settings, path, catalog, cache, inbox, serving);
            Serving::new(Arc::new(core), rehearsal.clone())
        });
        let core = serving.core();
        let lease = Arc::new(StoreLease::new(home));
        let keeper = Arc::new(Keeper::new(core, &lease, all_known));
        let budgets = Arc::new(Budgets::new(core, &serving, &lease, ram));
        let orders = Orders {
            core: Arc::clone(core),
            keeper: Arc::clone(&keeper),
            serving: Arc::clone(&serving),
            budgets: Arc::clone(&budgets),
            streams,
            learning: learning.clone(),
            rehearsal: rehearsal.clone(),
        };
        let choice = Choice { keeper: Arc::clone(&keeper), serving: Arc::clone(&serving) };
        let engine = Arc::new(Engine {
            core: Arc::clone(core),
            orders: Arc::new(orders),
            warmups: Warmups::new(choice),
            serving,
            keeper,
            budgets,
            lease,
            store_note: StoreNote { fault, moved },
            published,
            learning,
            rehearsal,
            rendered,
            planning: Mutex::new(Some(planning)),
            started: Instant::now(),
            stopped: Mutex::default(),
        });
        engine.keeper.scan_behind(seen).inspect_err(|_| engine.stop())?;
        Ok(engine)
    }

    /// The files of the source.
    pub fn catalog(&self) -> &Catalog {
        &self.core.catalog
    }

    /// The mounts of the source.
    pub fn serving(&self) -> &Serving {
        &self.serving
    }

    /// The orders of its streams.
    pub fn orders(&self) -> &Orders {
        &self.orders
    }

    /// Samples that people want here before they are read.
    pub fn warmups(&self) -> &Warmups {
        &self.warmups
    }

    /// Where the bytes come from.
    pub fn source(&self) -> &dyn Source {
        self.core.cache.source().as_ref()
    }

    /// How samples reach their readers.
    pub fn mode(&self) -> &'static str {
        let Core { settings, dataset, .. } = &*self.core;
        match (settings.mount.mode, dataset.sees_opens()) {
            (Mode::Plain, _) => "plain",
            (Mode::Passthrough, _) if self.serving.passes() => "passthrough",
            (_, true) => "keep-cache",
            (_, false) => "push",
        }
    }

    /// Ends the planner's thread, and lets go of the local store. Nothing is fetched any more. Who
    /// asks while it is being stopped waits for the end of that.
    pub fn stop(&self) {
        let mut stopped = self.stopped.lock();
        if std::mem::replace(&mut *stopped, true) {
            return;
        }
        self.core.over.begin();
        self.lease.announce_end();
        self.core.inbox.close();
        if let Some(thread) = self.planning.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the planner's thread panicked");
        }
        // They have heard what the planner has, as far as there was room.
        let learnt = self.learning.as_ref().is_none_or(|learning| learning.stop());
        let rehearsed = self.rehearsal.as_ref().is_none_or(|rehearsal| rehearsal.stop());
        // Who still writes to the store keeps it: it is free when the process has ended.
        if self.core.cache.close() && learnt && rehearsed {
            self.keeper.leave();
        }
    }

    /// Asks something of the rehearsal buffers. Waits for the answer.
    ///
    /// # Errors
    /// What is wrong with the question, or that there are no buffers.
    pub fn rehearse(&self, question: Question) -> Result<serde_json::Value> {
        let none = || {
            Error::new(ErrorKind::Usage, "this mount has no rehearsal buffers")
                .hint("write [rehearsal.NAME] in its settings")
        };
        let begins = match &question {
            Question::Task { buffer, .. } => Some(buffer.clone()),
            _ => None,
        };
        let answer = self.rehearsal.as_ref().ok_or_else(none)?.ask(question);
        // It may have begun although nobody could wait for it, or the disk does not take it yet.
        let begun = |error: &Error| error.kind() != ErrorKind::Usage;
        if answer.as_ref().err().is_none_or(begun) {
            begins.iter().for_each(|buffer| self.orders.renew_of_task(buffer));
        }
        answer
    }

    /// The settings as people read them.
    pub fn rendered(&self) -> &str {
        &self.rendered
    }

    /// Bytes of a request for which there is memory.
    pub fn room_for_a_request(&self) -> usize {
        self.budgets.room_for_a_request()
    }

    /// Has the RAM budget follow what fits, as these readings of this moment say: nothing where only
    /// further connections are left.
    pub fn fit_memory(&self, readings: Vec<Reading>) {
        self.budgets.fit_memory(readings);
    }

    /// Mounts the control files: inside the first mount as root, or where the settings say.
    ///
    /// # Errors
    /// Where they cannot be mounted at the place that the settings name.
    pub fn serve_control(self: &Arc<Self>) -> Result<()> {
        self.serving.serve_control(files::control_files(self))
    }

    /// Begins what is done behind the readers: the catalog is checked and saved, and the local store
    /// follows the space on its disk.
    pub fn go_on_behind(&self) {
        let orders = Arc::clone(&self.orders);
        self.keeper.keep(move || orders.renew());
        self.budgets.follow_disk();
    }

    /// How far the scan is, after a moment if it is not over.
    ///
    /// # Errors
    /// What the source could not tell about.
    pub fn scanned(&self) -> Result<Scanned> {
        self.keeper.scanned()
    }

    /// Where the catalog is on the way to be right and whole, in words.
    pub fn catalog_note(&self) -> Option<String> {
        self.keeper.note()
    }

    /// What a loader read, as an order file to be written. Epochs that are not over are left out,
    /// unless their order is known or there is no other.
    ///
    /// # Errors
    /// Where there is no such loader, or it is not said which of several is meant.
    pub fn record(&self, wanted: &Wanted) -> Result<Recording> {
        Recording::of(wanted, &self.orders, &self.core.catalog)
    }

    /// What the engine tells of itself at this moment.
    pub fn status(&self) -> Status {
        Status::of(self)
    }

    /// Wakes the caller of [`rescue`](Self::rescue).
    pub fn alarm(&self) -> &Alarm {
        self.core.cache.alarm()
    }

    /// Whether [`rescue`](Self::rescue) has nothing to look at. The
    /// [alarm](Self::alarm) rings when there is.
    pub fn rests(&self) -> bool {
        self.core.cache.rests() && self.core.dataset.rests()
    }

    /// Looks at everything that may hang: asks the source for what the cache disk does not bring, lets
    /// reads begin beside those that hang, ends the wait of readers that are killed, and logs
    /// notifications that the kernel makes wait. Has the source let go of what nobody reads. To be
    /// called each [`LOOK_EVERY`], or each second where it [rests](Self::rests).
    pub fn rescue(&self) {
        let Core { cache, dataset, settings, .. } = &*self.core;
        cache.memory().look();
        cache.source().look();
        if let Some(disk) = &settings.cache.disk {
            cache.rescue((disk.slow_after.as_millis() / LOOK_EVERY.as_millis()).max(1) as u64);
        }
        dataset.rescue();
        self.serving.stuck_notifications();
    }

    /// What the local store has held since earlier mounts, in words, or why there is none; none
    /// where none is wanted.
    pub fn found_again(&self) -> Option<String> {
        if let Some(fault) = &self.store_note.fault {
            return Some(format!("warning: {}; going on without it", fault.message()));
        }
        let (samples, bytes) = self.core.cache.store()?.totals();
        Some(format!("cache.dir: {samples} samples, {}, from earlier mounts", Bytes(bytes).human()))
    }

    /// A warning if the cache directory was on another disk before.
    pub fn moved_disk(&self) -> Option<String> {
        self.store_note.moved.as_ref().map(|moved| format!("warning: {moved}"))
    }

    /// How fresh what is served is, in words.
    pub fn consistency(&self) -> String {
        match self.core.settings.source.revalidate {
            None => {
                let mut words = String::from("immutable: the source is taken never to change");
                let changed = self.core.cache.traffic().changed.load(Ordering::Relaxed);
                if changed > 0 {
                    words += &format!(
                        "; warning: {changed} files were found changed when they were read: use \
                         source.consistency = \"revalidate\""
                    );
                }
                words
            }
            Some(period) => format!(
                "revalidate: a change at the source shows within {} s",
                period.as_secs_f64()
            ),
        }
    }
}

/// What the planner's thread tells of what it hears.
fn observers(learning: Option<&Learning>, rehearsal: Option<&Rehearsal>) -> Vec<Box<dyn Observer>> {
    let ear = learning.map(|learning| Box::new(learning.ear()) as Box<dyn Observer>);
    let offers = rehearsal.and_then(Rehearsal::offers);
    ear.into_iter().chain(offers.map(|offers| Box::new(offers) as _)).collect()
}

/// Starts to find orders out, if that is wanted and anything is read ahead at all.
fn learn(settings: &Settings, around: Surroundings) -> Result<Option<Learning>> {
    let ahead = settings.prefetch.enabled && settings.mount.mode != Mode::Plain;
    let learn = settings.learn.filter(|_| ahead);
    learn.map(|learn| Learning::start(learn, around)).transpose()
}

/// Opens the rehearsal buffers, if there are any. The store of the source is in use by us. There is
/// memory for so many bytes of a file of labels.
fn rehearse(
    settings: &Settings,
    memory: usize,
    owner: &Owner,
    cache: &Arc<Cache>,
) -> Result<Option<Rehearsal>> {
    let Some(disk) = settings.cache.disk.as_ref().filter(|_| !settings.rehearsal.is_empty()) else {
        return Ok(None);
    };
    let place = |buffer: &RehearsalSettings| {
        let latent = (buffer.latent > 0).then(|| home::latent(&disk.dir, owner, &buffer.name));
        let directory = home::buffer(&disk.dir, owner, &buffer.name)?;
        Ok(Opening { settings: buffer.clone(), directory, latent: latent.transpose()?, memory })
    };
    let buffers = settings.rehearsal.iter().map(place).collect::<Result<Vec<_>>>()?;
    Rehearsal::start(buffers, cache, disk).map(Some)
}

/// What the parts of an engine have in common.
fn core(
    settings: Settings,
    source_path: PathBuf,
    catalog: Arc<Catalog>,
    cache: Arc<Cache>,
    inbox: Arc<Inbox>,
    serving: &Weak<Serving>,
) -> Core {
    let unasked = matches!(settings.mount.mode, Mode::Auto | Mode::Push);
    let told = on_changes(Arc::clone(&catalog), Arc::clone(&inbox), Weak::clone(serving));
    let of = (Arc::clone(&catalog), Arc::clone(&cache), Arc::clone(&inbox));
    let dataset = Dataset::new(of.0, of.1, of.2, told, !unasked);
    Core { settings, source_path, catalog, cache, inbox, dataset, over: Ending::default() }
}

/// Tells the planner, the store and the kernel what has changed at the source.
fn on_changes(
    catalog: Arc<Catalog>,
    inbox: Arc<Inbox>,
    serving: Weak<Serving>,
) -> Arc<dyn Fn(Changes) + Send + Sync> {
    Arc::new(move |changes| {
        if !changes.changed.is_empty() || changes.added {
            let event = Event::Changed { layout: catalog.layout(), files: changes.changed };
            inbox.put(event, None);
        }
        if let Some(serving) = serving.upgrade() {
            serving.forget(changes.names);
        }
    })
}

fn cannot_read(source: &Path, errno: Errno) -> Error {
    Error::new(
        ErrorKind::Source,
        format!("cannot read the source {}: {}", source.display(), errno.desc()),
    )
}

/// The planner's settings, as the configuration has them.
fn planner_settings(settings: &Settings, withheld: bool) -> plan::Settings {
    // How fast a disk and a source are changes with the load on them: who wants a cache disk has it.
    let tier = |capacity| Tier { capacity, block_us: 0 };
    let disk = settings.cache.disk.iter().map(|disk| tier(disk.bytes));
    plan::Settings {
        tiers: std::iter::once(tier(settings.cache.ram_bytes)).chain(disk).collect(),
        source_us: None,
        policy: settings.cache.policy,
        prefetch: settings.prefetch.enabled && settings.mount.mode != Mode::Plain,
        inflight_max: settings.prefetch.inflight,
        window_bytes: settings.prefetch.window_bytes,
        start_at_open: settings.prefetch.start == Start::FirstOpen,
        may_untrack: matches!(settings.mount.mode, Mode::Auto | Mode::Push),
        withheld,
    }
}
