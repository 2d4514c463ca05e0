//! Serves one source: puts its catalog, tiers and planner together, and keeps them running.
//!
//! 1. [`Engine::start`] opens the catalog of an earlier mount, or begins to scan the source. It starts the
//!    planner's thread, the only thread that touches the planner. This thread takes events from the inbox,
//!    applies them, and has the cache carry out the actions.
//! 2. [`Serving::serve`] mounts the dataset. The first connection's page cache is the RAM tier. Further mount
//!    points show it too ([`Serving::attach`]).
//! 3. From then on, [`Orders::set`] gives a stream an order at any time. Before, there is no page cache to
//!    take what is fetched ahead.
//! 4. A thread of `learning` finds out orders that were not told, from the events that the planner's thread
//!    hears.
//! 5. [`Engine::status`] reads what the planner's thread last published. It never waits for that thread.

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
use crate::disk::{Alarm, DiskState, TICK};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::Dataset;
use crate::learning::{Learning, Streams, Surroundings};
use crate::plan::{self, Event, Planner, Published, RAM, Tier};
use crate::rehearsal::{Opening, Question, Rehearsal};
use crate::source::Source;
use crate::store::directory::{self, Owner, StoreDir};
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
    over: Ending,
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
    /// `None` if orders are only told.
    learning: Option<Arc<Learning>>,
    /// `None` if there are no buffers.
    rehearsal: Option<Arc<Rehearsal>>,
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
        let owner = Owner::new(source_path, source.lasting_identity());
        let Opened { store_dir, store, moved, fault } = opening::open(&mut settings, &owner)?;
        let first = (all || !settings.rehearsal.is_empty()).then_some(seen);
        let from = Arc::clone(&source);
        let catalog =
            keeper::catalog(from, &settings.source, source_path, store_dir.as_ref(), first)?;
        let catalog = Arc::new(catalog);
        let inbox = Arc::new(Inbox::new(settings.prefetch.inflight));
        let cache = Cache::new(source, Arc::clone(&catalog), Arc::clone(&inbox), store);
        let all_known = !matches!(catalog.state(), CatalogState::Checking | CatalogState::Scanning);
        cache.adopt(all_known);
        let published = Arc::new(Mutex::new(Published::default()));
        let streams = Streams::default();
        let journal = store_dir.as_ref().map(StoreDir::journal);
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
        let lease = Arc::new(StoreLease::new(store_dir));
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

    /// How samples reach their readers.
    pub fn mode(&self) -> Mode {
        let Core { settings, dataset, .. } = &*self.core;
        match (settings.mount.mode, dataset.opens_are_requests()) {
            (Mode::Plain, _) => Mode::Plain,
            (Mode::Passthrough, _) if self.serving.passes() => Mode::Passthrough,
            (_, true) => Mode::KeepCache,
            (_, false) => Mode::Push,
        }
    }

    /// Ends the planner's thread and gives the local store up. Nothing is fetched afterwards. A second caller
    /// waits until the first has finished.
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
        // The wings have heard all that the planner has heard, as far as their queues had room.
        let learnt = self.learning.as_ref().is_none_or(|learning| learning.stop());
        let rehearsed = self.rehearsal.as_ref().is_none_or(|rehearsal| rehearsal.stop());
        // If a thread still writes to the store, the store stays in use until the process ends.
        if self.core.cache.close() && learnt && rehearsed {
            self.keeper.leave();
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
        let answer = self.rehearsal.as_ref().ok_or_else(none)?.ask(question);
        // After any error but `Usage` the task may have begun: the answer is late, or the disk does not take
        // the record yet.
        let begun = |error: &Error| error.kind() != ErrorKind::Usage;
        if answer.as_ref().err().is_none_or(begun) {
            begins.iter().for_each(|buffer| self.orders.renew_of_task(buffer));
        }
        answer
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
    pub fn go_on_behind(&self) {
        let orders = Arc::clone(&self.orders);
        self.keeper.keep(move || orders.renew());
        self.budgets.follow_disk();
    }

    /// How far the scan is. Waits up to 200 ms for its end.
    ///
    /// # Errors
    /// The source's error, if a part of the source could not be scanned.
    pub fn scanned(&self) -> Result<Scanned> {
        self.keeper.scanned()
    }

    /// The work that is left until the catalog is checked and whole, in words; `None` if there is none.
    pub fn catalog_note(&self) -> Option<String> {
        self.keeper.note()
    }

    /// Returns what a loader has read as an order file that can be written. Epochs that are not over are left
    /// out, unless their order is known or there is no other epoch.
    ///
    /// # Errors
    /// If there is no such loader, or `wanted` fits several.
    pub fn record(&self, wanted: &Wanted) -> Result<Recording> {
        Recording::of(wanted, &self.orders, &self.core.catalog)
    }

    pub fn status(&self) -> Status {
        Status::of(self)
    }

    /// Wakes the caller of [`rescue`](Self::rescue) when there is something to look at.
    pub fn alarm(&self) -> &Alarm {
        self.core.cache.alarm()
    }

    /// Whether [`rescue`](Self::rescue) has nothing to look at. The [alarm](Self::alarm) rings when that
    /// changes.
    pub fn rests(&self) -> bool {
        self.core.cache.rest() && self.core.dataset.is_idle()
    }

    /// Looks at everything that may hang. To be called each [`LOOK_EVERY`], or each second if the engine
    /// [rests](Self::rests).
    ///
    /// * Reads may begin beside reads that hang.
    /// * The source is asked for what the cache disk does not bring.
    /// * The waits of readers that are killed end.
    /// * Notifications that the kernel makes wait are logged.
    /// * The source closes files that are not read any more.
    pub fn rescue(&self) {
        let Core { cache, dataset, settings, .. } = &*self.core;
        cache.memory().look();
        cache.source().close_idle();
        if let Some(disk) = &settings.cache.disk {
            cache.rescue((disk.slow_after.as_millis() / TICK.as_millis()).max(1) as u64);
        }
        dataset.tick();
        self.serving.stuck_notifications();
    }

    /// What the local store holds from earlier mounts, in words, or why there is no store. `None` if none is
    /// configured.
    pub fn found_again(&self) -> Option<String> {
        if let Some(fault) = &self.store_note.fault {
            return Some(format!("warning: {}; going on without it", fault.message()));
        }
        let (samples, bytes) = self.core.cache.store()?.totals();
        Some(format!("cache.dir: {samples} samples, {}, from earlier mounts", Bytes(bytes).human()))
    }

    pub fn moved_disk(&self) -> Option<String> {
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

/// The wings' observers. The planner's thread tells them what it hears.
fn observers(learning: Option<&Learning>, rehearsal: Option<&Rehearsal>) -> Vec<Box<dyn Observer>> {
    let ear = learning.map(|learning| Box::new(learning.ear()) as Box<dyn Observer>);
    let offers = rehearsal.and_then(Rehearsal::offers);
    ear.into_iter().chain(offers.map(|offers| Box::new(offers) as _)).collect()
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
        Ok(Opening { settings: buffer.clone(), directory, latent: latent.transpose()?, memory })
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
    let told = on_changes(Arc::clone(&catalog), Arc::clone(&inbox), Weak::clone(serving));
    let of = (Arc::clone(&catalog), Arc::clone(&cache), Arc::clone(&inbox));
    let dataset = Dataset::new(of.0, of.1, of.2, told, !unasked);
    Core { settings, source_path, catalog, cache, inbox, dataset, over: Ending::default() }
}

/// Returns the function that tells the planner and the kernel what has changed at the source.
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
        start_at_open: settings.prefetch.start == Start::FirstOpen,
        may_untrack: matches!(settings.mount.mode, Mode::Auto | Mode::Push),
        withheld,
    }
}
