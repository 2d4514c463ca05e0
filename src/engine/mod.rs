//! Serves one source: puts its catalog, tiers and planner together, and keeps them running.
//!
//! 1. [`Engine::start`] opens the catalog of an earlier mount, or begins to scan the source. It starts the
//!    planner's thread, the only thread that touches the planner. This thread takes events from the inbox,
//!    applies them, and has the cache carry out the actions.
//! 2. [`Serving::serve`] mounts the dataset. The first connection's page cache is the RAM tier. Further mount
//!    points show it too ([`Serving::attach`]).
//! 3. [`Orders::set`] gives a stream an order. Orders are followed only once the dataset is mounted: until then
//!    there is no page cache for prefetched blocks.
//! 4. Two wings hear the planner's events: `learning` finds out orders that were not told, and `rehearsal` keeps
//!    old samples. `catalog_keeper`, `budgets`, `lease` and `warmup` run beside them.
//! 5. [`Engine::status`] reads what the planner's thread last published. It never waits for that thread.

mod budgets;
mod catalog_keeper;
mod files;
mod flow;
mod lease;
mod neighbours;
mod opening;
mod orders;
mod planning;
mod profiling;
mod record;
mod serving;
mod sharing;
mod slices;
mod status;
mod stop_flag;
mod trace;
mod view_orders;
mod warmup;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::cache::{Cache, Inbox, Observer, SourceTimes, TimedSource};
use crate::catalog::{Catalog, CatalogState, Changes};
use crate::config::{Bytes, Mode, Reading, RehearsalSettings, Settings, Start};
use crate::disk::{Alarm, DiskState, TICK};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::Dataset;
use crate::learning::{Learning, Streams, Surroundings};
use crate::limiter::{Limiter, Meter};
use crate::peers::{Shards, Wants};
use crate::plan::{self, Event, Planner, Published, RAM, Tier, most_ahead};
use crate::profiler::Profiler;
use crate::rehearsal::{BufferToOpen, Question, Rehearsal};
use crate::source::{Source, with_derived};
use crate::store::directory::{self, Owner, StoreDir};
use crate::sync::Mutex;
use budgets::Budgets;
use catalog_keeper::CatalogKeeper;
pub use catalog_keeper::ScanProgress;
use flow::Flow;
pub use flow::LeadStatus;
use lease::StoreLease;
use opening::OpenedStore;
pub use orders::{Orders, resolve as resolve_order, tell_unreadable};
pub use profiling::Profile;
use profiling::ReaderObserver;
pub use record::{RecordSelection, RecordSummary, RecordedEpoch, Recording};
pub use serving::Serving;
pub use status::{OrderStatus, RamStatus, SourceStatus, Status, TierStatus};
use stop_flag::StopFlag;
use trace::Opens;
pub use trace::Trace;
use warmup::Selector;
pub use warmup::{Pace, Progress, Selection, Tally, Warmups};

/// The number of the local store's tier.
const STORE_TIER: usize = RAM + 1;

/// What all parts of an engine share.
pub(crate) struct Core {
    settings: Settings,
    source_path: PathBuf,
    catalog: Arc<Catalog>,
    cache: Arc<Cache>,
    inbox: Arc<Inbox>,
    dataset: Arc<Dataset>,
    stop: StopFlag,
}

/// What the opening of the local store found.
struct StoreNote {
    /// Why there is no store although one is configured.
    fault: Option<Error>,
    /// A warning if the cache directory was on another disk before.
    moved: Option<String>,
}

impl StoreNote {
    /// The state of a local store that is configured and could not be opened.
    fn fault_state(&self) -> Option<DiskState> {
        self.fault.as_ref().map(|_| DiskState::Unopened)
    }
}

/// What an engine is built on, before its threads start.
struct Basis {
    owner: Owner,
    store_dir: Option<StoreDir>,
    store_note: StoreNote,
    times: Arc<SourceTimes>,
    catalog: Arc<Catalog>,
    inbox: Arc<Inbox>,
    cache: Arc<Cache>,
    /// Whether all files were known when the planner was told what the local store holds.
    all_known: bool,
}

impl Basis {
    /// Opens the local store and the catalog. A new catalog is scanned whole if `first` is given.
    fn open(
        settings: &mut Settings,
        source_path: &Path,
        source: Arc<dyn Source>,
        first: Option<&AtomicU64>,
    ) -> Result<Self> {
        let owner = Owner::new(source_path, source.lasting_identity());
        let OpenedStore { store_dir, store, moved, fault } = opening::open(settings, &owner)?;
        let inbox = Arc::new(Inbox::new(settings.prefetch.inflight));
        let manners = settings.prefetch.manners;
        let prefetch = &settings.prefetch;
        // A window that is set may be small, though RAM has room for many blocks that it keeps.
        let room = prefetch.window_bytes.map_or(most_ahead(settings.cache.ram_bytes), |_| u64::MAX);
        let meter = Meter::new(prefetch.inflight, manners).within(room);
        let metadata = [0; 2].map(|_| Limiter::of_metadata(settings.source.scan_threads, manners));
        let source =
            TimedSource::new(source, &inbox, meter, metadata, sharing::first_rate(settings));
        let times = Arc::clone(source.times());
        let source = with_derived(Arc::new(source), &settings.derived)?;
        let (from, limiting, settings) = (Arc::clone(&source), Arc::clone(&times), &*settings);
        let catalog = catalog_keeper::open_or_begin(
            from,
            move || limiting.metadata_at_once(),
            &settings.source,
            source_path,
            store_dir.as_ref(),
            first,
        )?;
        let catalog = Arc::new(catalog);
        let cache = Cache::new(source, Arc::clone(&catalog), Arc::clone(&inbox), store);
        let all_known = !matches!(catalog.state(), CatalogState::Checking | CatalogState::Scanning);
        cache.adopt(all_known);
        let store_note = StoreNote { fault, moved };
        Ok(Basis { owner, store_dir, store_note, times, catalog, inbox, cache, all_known })
    }
}

/// The wings that are wanted.
struct Wings {
    /// `None` if orders are only told.
    learning: Option<Arc<Learning>>,
    /// `None` if there are no buffers.
    rehearsal: Option<Arc<Rehearsal>>,
}

impl Wings {
    /// Starts them. `memory` is the number of bytes that a file of labels may have.
    fn start(
        settings: &Settings,
        around: Surroundings,
        memory: usize,
        owner: &Owner,
        cache: &Arc<Cache>,
    ) -> Result<Self> {
        let learning = learn(settings, around)?.map(Arc::new);
        let rehearsal = rehearse(settings, memory, owner, cache)?.map(Arc::new);
        Ok(Wings { learning, rehearsal })
    }

    /// Their observers. The planner's thread tells them what it hears.
    fn observers(&self) -> Vec<Box<dyn Observer>> {
        let learning = self.learning.as_ref();
        let learner = learning.map(|learning| Box::new(learning.observer()) as Box<dyn Observer>);
        let reads = self.rehearsal.as_deref().and_then(Rehearsal::read_observer);
        learner.into_iter().chain(reads.map(|reads| Box::new(reads) as _)).collect()
    }

    /// Stops them, and returns whether no thread of them writes to the store any more. They have heard all that
    /// the planner has heard, as far as their queues had room.
    fn stop(&self) -> bool {
        let learnt = self.learning.as_ref().is_none_or(|learning| learning.stop());
        let rehearsed = self.rehearsal.as_ref().is_none_or(|rehearsal| rehearsal.stop());
        learnt && rehearsed
    }
}

pub struct Engine {
    core: Arc<Core>,
    serving: Arc<Serving>,
    orders: Arc<Orders>,
    keeper: Arc<CatalogKeeper>,
    budgets: Arc<Budgets>,
    warmups: Warmups,
    lease: Arc<StoreLease>,
    store_note: StoreNote,
    times: Arc<SourceTimes>,
    published: Arc<Mutex<Published>>,
    flow: Arc<Mutex<Flow>>,
    wings: Wings,
    /// `None` if it could not be started.
    profiler: Option<Profiler>,
    /// Who opens what, while somebody traces.
    opens: Arc<Opens>,
    /// Set if there is a cluster.
    shards: OnceLock<Arc<dyn Shards>>,
    /// Counts the tasks that have begun.
    tasks_begun: Arc<AtomicU64>,
    /// The settings as text for people.
    rendered: String,
    planning: Mutex<Option<JoinHandle<()>>>,
    started: Instant,
    /// Whether the engine has been stopped. The lock is held while it is being stopped.
    stopped: Mutex<bool>,
}

impl Engine {
    /// Prepares to serve the source. The source is scanned unless a catalog of it was saved. The scan runs in
    /// the background. It ends before this returns only if all files have to be known first: for rehearsal
    /// buffers, or if `all` is set. Meanwhile `seen` counts the names found.
    ///
    /// # Errors
    /// If the source cannot be read, or the cache directory cannot be used.
    pub fn start(
        mut settings: Settings,
        rendered: String,
        source_path: &Path,
        source: Arc<dyn Source>,
        all: bool,
        seen: &AtomicU64,
        readings: &[Reading],
    ) -> Result<Arc<Self>> {
        let first = (all || !settings.rehearsal.is_empty()).then_some(seen);
        let basis = Basis::open(&mut settings, source_path, source, first)?;
        let Basis { owner, store_dir, store_note, times, catalog, inbox, cache, all_known } = basis;
        let ram = budgets::ram_budget(&settings, &cache);
        let memory = budgets::room_for_a_file(&ram, readings);
        let (streams, published) = (Streams::default(), Arc::default());
        let journal = store_dir.as_ref().map(StoreDir::journal);
        let around =
            Surroundings::new(&catalog, cache.source(), &inbox, &streams, &published, journal);
        let wings = Wings::start(&settings, around, memory, &owner, &cache)?;
        let plan = planner_settings(&settings, wings.rehearsal.is_some());
        let planner = Planner::new(plan, catalog.layout());
        let flow: Arc<Mutex<Flow>> = Arc::default();
        let told = (&published, &flow);
        let profiler = profiling::start(&cache, &times, told);
        let opens: Arc<Opens> = Arc::default();
        let observer =
            |it: &Profiler| ReaderObserver { readers: it.readers(), opens: Arc::clone(&opens) };
        let readers = profiler.iter().map(|it| Box::new(observer(it)) as _);
        let observers = wings.observers().into_iter().chain(readers).collect();
        let planning = planning::spawn(planner, &inbox, &cache, told, observers)?;
        let path = source_path.to_path_buf();
        let serving = Arc::new_cyclic(|serving: &Weak<Serving>| {
            let core = core(settings, path, catalog, cache, inbox, serving);
            Serving::new(Arc::new(core), wings.rehearsal.clone())
        });
        let lease = Arc::new(StoreLease::new(store_dir));
        let keeper = Arc::new(CatalogKeeper::new(serving.core(), &lease, all_known));
        let budgets = Arc::new(Budgets::new(serving.core(), &serving, &lease, ram));
        let engine = Arc::new(Engine {
            core: Arc::clone(serving.core()),
            orders: Arc::new(Orders::new(&keeper, &serving, &budgets, streams, &wings)),
            warmups: Warmups::new(Selector::new(&keeper, &serving)),
            serving,
            keeper,
            budgets,
            lease,
            store_note,
            times,
            published,
            flow,
            wings,
            profiler,
            opens,
            shards: OnceLock::new(),
            tasks_begun: Arc::default(),
            rendered,
            planning: Mutex::new(Some(planning)),
            started: Instant::now(),
            stopped: Mutex::default(),
        });
        engine.keeper.start_scan(seen).inspect_err(|_| engine.stop())?;
        Ok(engine)
    }

    pub fn catalog(&self) -> &Catalog {
        &self.core.catalog
    }

    pub fn serving(&self) -> &Serving {
        &self.serving
    }

    pub fn orders(&self) -> &Orders {
        &self.orders
    }

    /// Commands that bring samples into RAM or the store before they are read, or drop them.
    pub fn warmups(&self) -> &Warmups {
        &self.warmups
    }

    pub fn source(&self) -> &dyn Source {
        self.core.cache.source().as_ref()
    }

    /// How samples reach their readers, as the status names it.
    pub fn mode(&self) -> &'static str {
        let Core { settings, dataset, .. } = &*self.core;
        match (settings.mount.mode, dataset.opens_are_requests()) {
            (Mode::Plain, _) => "plain",
            (Mode::Passthrough, _) if self.serving.is_passthrough() => "passthrough",
            (_, true) => "keep-cache",
            (_, false) => "push",
        }
    }

    /// Ends the planner's thread and gives the local store up. Nothing is fetched afterwards. A second caller
    /// waits until the first has finished.
    pub fn stop(&self) {
        let mut stopped = self.stopped.lock();
        if std::mem::replace(&mut *stopped, true) {
            return;
        }
        self.core.stop.set();
        self.lease.announce_end();
        self.core.inbox.close();
        if let Some(thread) = self.planning.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the planner's thread panicked");
        }
        let stopped = self.wings.stop();
        // If a thread still writes to the store, the store stays in use until the process ends.
        if self.core.cache.close() && stopped {
            self.keeper.save_and_release();
        }
    }

    /// Asks the rehearsal buffers a question and waits for the answer.
    ///
    /// # Errors
    /// If there are no buffers, the question is wrong, or the buffers cannot answer it.
    pub fn rehearse(&self, question: Question) -> Result<serde_json::Value> {
        let none = || {
            Error::new(ErrorKind::Usage, "this mount has no rehearsal buffers")
                .hint("write [rehearsal.NAME] in its settings")
        };
        let begins = match &question {
            Question::Task { buffer, .. } => Some(buffer.clone()),
            _ => None,
        };
        let answer = self.wings.rehearsal.as_ref().ok_or_else(none)?.ask(question);
        // After any error but `Usage` the task may have begun: the answer is late, or the disk does not take
        // the record yet.
        let begun = |error: &Error| error.kind() != ErrorKind::Usage;
        if answer.as_ref().err().is_none_or(begun) {
            begins.into_iter().for_each(|buffer| self.renew_of_task(buffer));
        }
        answer
    }

    /// Gives the orders over mixes of a buffer again, since a task has begun. In a cluster another node may make the mix, so
    /// nobody waits for that.
    fn renew_of_task(&self, buffer: String) {
        if self.shards.get().is_none() {
            return self.orders.renew_of_task(&buffer);
        }
        let (orders, begun) = (Arc::clone(&self.orders), Arc::clone(&self.tasks_begun));
        begun.fetch_add(1, Ordering::AcqRel);
        let renew = move || loop {
            let tasks = begun.load(Ordering::Acquire);
            orders.renew_of_task(&buffer);
            // Otherwise the mix may have been the one of an earlier task.
            if begun.load(Ordering::Acquire) == tasks {
                break;
            }
        };
        if let Err(error) = std::thread::Builder::new().name("belady-renew".into()).spawn(renew) {
            tracing::warn!(%error, "an order over a mix is still the one of the task before");
        }
    }

    pub fn rendered(&self) -> &str {
        &self.rendered
    }

    /// How many bytes a request may have. There is memory for them.
    pub fn room_for_a_request(&self) -> usize {
        self.budgets.room_for_a_request()
    }

    /// Fits the RAM budget to these readings of the present moment.
    pub fn fit_memory(&self, readings: Vec<Reading>) {
        self.budgets.fit_memory(readings);
    }

    /// Mounts the control files: inside the first mount if belady runs as root, or where the settings say.
    pub fn serve_control(self: &Arc<Self>) -> Result<()> {
        self.serving.serve_control(files::control_files(self))
    }

    /// Starts the background work: the catalog is checked and saved, and the local store's budget follows the
    /// space on its disk.
    pub fn start_background_work(&self) {
        let orders = Arc::clone(&self.orders);
        self.keeper.start_upkeep(move || orders.renew());
        if self.wings.rehearsal.is_some() {
            view_orders::start(&self.core, &self.orders.views, &self.published);
        }
        self.budgets.follow_disk();
    }

    /// Has samples come from the shards of a cluster, too, and has them given to those. Rehearsal buffers are shown as one
    /// with those of the other nodes, which are asked through `wants`.
    pub fn share(&self, shards: Arc<dyn Shards>, wants: &Arc<dyn Wants>) {
        if self.shards.set(Arc::clone(&shards)).is_ok() {
            self.wings.rehearsal.iter().for_each(|rehearsal| rehearsal.join(wants));
            sharing::start(&self.orders, &self.published, &self.times, &self.budgets, shards);
        }
    }

    /// How far the scan is. Waits up to 200 ms for its end.
    ///
    /// # Errors
    /// The source's error, if a part of the source could not be scanned.
    pub fn scan_progress(&self) -> Result<ScanProgress> {
        self.keeper.scan_progress()
    }

    /// The work that is left until the catalog is checked and whole, in words; `None` if there is none.
    pub fn catalog_note(&self) -> Option<String> {
        self.keeper.status_note()
    }

    /// Returns what a loader has read as an order file that can be written. Epochs that are not over are left
    /// out, unless their order is known or there is no other epoch.
    ///
    /// # Errors
    /// If there is no such loader, or `selection` fits several.
    pub fn record(&self, selection: &RecordSelection) -> Result<Recording> {
        Recording::of(selection, &self.orders, &self.core.catalog)
    }

    pub fn status(&self) -> Status {
        Status::of(self)
    }

    /// What was seen of the loaders that read here. `epochs`: only so many of the latest ones of each trainer.
    pub fn profile(&self, epochs: Option<u32>) -> Profile {
        Profile::of(self, epochs)
    }

    /// Traces for so long, or until another trace begins or the mount ends. Blocks.
    pub fn trace(&self, time: Duration) -> Trace {
        Trace::take(self, time)
    }

    /// Wakes the caller of [`look_for_hangs`](Self::look_for_hangs) when there is something to look at.
    pub fn alarm(&self) -> &Alarm {
        self.core.cache.alarm()
    }

    /// Whether [`look_for_hangs`](Self::look_for_hangs) has nothing to look at. The [alarm](Self::alarm) rings when that
    /// changes.
    pub fn is_idle(&self) -> bool {
        self.core.cache.rest() && self.core.dataset.is_idle()
    }

    /// Looks at everything that may hang. To be called each [`TICK`], or each second if the engine
    /// [is idle](Self::is_idle).
    ///
    /// * Reads may begin beside reads that hang.
    /// * The source is asked for what the cache disk or a node of the cluster does not bring, and again for what is late.
    /// * The waits of readers that are killed end.
    /// * Notifications that the kernel makes wait are logged.
    /// * The source closes files that are not read any more.
    pub fn look_for_hangs(&self) {
        let Core { cache, dataset, settings, .. } = &*self.core;
        cache.memory().look();
        cache.hedge(&self.times);
        cache.pass_over();
        cache.source().close_idle();
        if let Some(disk) = &settings.cache.disk {
            cache.rescue((disk.slow_after.as_millis() / TICK.as_millis()).max(1) as u64);
        }
        dataset.tick();
        self.serving.stuck_notifications();
    }

    /// What the local store holds from earlier mounts, in words, or why there is no store. `None` if none is
    /// configured.
    pub fn store_summary(&self) -> Option<String> {
        if let Some(fault) = &self.store_note.fault {
            return Some(format!("warning: {}; going on without it", fault.message()));
        }
        let (samples, bytes) = self.core.cache.store()?.totals();
        Some(format!("cache.dir: {samples} samples, {}, from earlier mounts", Bytes(bytes).human()))
    }

    pub fn moved_disk_warning(&self) -> Option<String> {
        self.store_note.moved.as_ref().map(|moved| format!("warning: {moved}"))
    }

    /// How the served names and bytes follow changes at the source, in words.
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

/// Starts the learner, if it is wanted and belady reads ahead at all.
fn learn(settings: &Settings, around: Surroundings) -> Result<Option<Learning>> {
    let ahead = settings.prefetch.enabled && settings.mount.mode != Mode::Plain;
    let learn = settings.learn.filter(|_| ahead);
    learn.map(|learn| Learning::start(learn, around)).transpose()
}

/// Opens the rehearsal buffers, if there are any. The caller holds the directory of the source's store.
/// `memory` is the number of bytes that a file of labels may have.
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
        let latent = (buffer.latent > 0).then(|| directory::latent(&disk.dir, owner, &buffer.name));
        let directory = directory::buffer(&disk.dir, owner, &buffer.name)?;
        let (settings, latent) = (buffer.clone(), latent.transpose()?);
        Ok(BufferToOpen { settings, directory, latent, memory })
    };
    let buffers = settings.rehearsal.iter().map(place).collect::<Result<Vec<_>>>()?;
    Rehearsal::start(buffers, cache, disk).map(Some)
}

fn core(
    settings: Settings,
    source_path: PathBuf,
    catalog: Arc<Catalog>,
    cache: Arc<Cache>,
    inbox: Arc<Inbox>,
    serving: &Weak<Serving>,
) -> Core {
    let unasked = matches!(settings.mount.mode, Mode::Auto | Mode::Push);
    let on_changes = on_changes(Arc::clone(&cache), Arc::clone(&inbox), Weak::clone(serving));
    let of = (Arc::clone(&catalog), Arc::clone(&cache), Arc::clone(&inbox));
    let dataset = Dataset::new(of.0, of.1, of.2, on_changes, !unasked);
    Core { settings, source_path, catalog, cache, inbox, dataset, stop: StopFlag::default() }
}

/// Returns the function that tells the planner and the kernel what has changed at the source.
fn on_changes(
    cache: Arc<Cache>,
    inbox: Arc<Inbox>,
    serving: Weak<Serving>,
) -> Arc<dyn Fn(Changes) + Send + Sync> {
    Arc::new(move |changes| {
        if !changes.changed.is_empty() || changes.added {
            cache.page_cache().forget_files(&changes.changed, &cache.catalog().layout());
            let layout = cache.catalog().layout();
            let event = Event::Changed { layout, files: changes.changed };
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

fn planner_settings(settings: &Settings, withheld: bool) -> plan::Settings {
    // The speeds of a disk and of a source change with their load, so neither is given a time per block. A
    // user who configures a cache disk wants it used.
    let tier = |capacity| Tier { capacity, block_us: 0 };
    let disk = settings.cache.disk.iter().map(|disk| tier(disk.bytes));
    plan::Settings {
        tiers: std::iter::once(tier(settings.cache.ram_bytes)).chain(disk).collect(),
        source_us: None,
        policy: settings.cache.policy,
        prefetch: settings.prefetch.enabled && settings.mount.mode != Mode::Plain,
        inflight_max: settings.prefetch.inflight,
        window_bytes: settings.prefetch.window_bytes,
        // Other nodes may have the blocks, each of them another one.
        request_bytes: if settings.cluster.is_some() { 0 } else { settings.prefetch.request_bytes },
        start_at_open: settings.prefetch.start == Start::FirstOpen,
        may_untrack: matches!(settings.mount.mode, Mode::Auto | Mode::Push),
        withheld,
    }
}
