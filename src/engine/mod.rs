//! One source, served: its catalog, tiers and planner put together, and kept running.
//!
//! 1. [`Engine::start`] takes up the catalog of an earlier mount or begins to scan the source, and
//!    starts the planner's thread, the only one that ever touches the planner: it takes what is in
//!    the inbox, applies it, and has the cache do what comes out.
//! 2. [`Engine::serve`] mounts the dataset. The first connection's page cache is the RAM tier;
//!    further mount points show it too ([`Engine::attach`]).
//! 3. Orders are given by name of a stream at any time from then on, [`Engine::set_order`]; before,
//!    nothing could take what is fetched ahead.
//! 4. What nobody tells is found out by a thread of its own, in `learning`, from what the planner's
//!    thread hears.
//! 5. [`Engine::status`] reads what the planner's thread last published; it never waits for it.

mod attach;
mod disk;
mod ending;
mod files;
mod keeping;
mod order;
mod planning;
mod record;
mod serving;
mod status;
mod warmup;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::cache::{Cache, Inbox, Observer};
use crate::catalog::{Catalog, CatalogState, Changes, NodeId};
use crate::config::{Budget, Mode, Reading, RehearsalSettings, Settings, Start};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::Dataset;
use crate::fuse::{Connection, KNOWN_BYTES, Mounted, Notifier, OwnThreads, Room};
use crate::learning::{Learning, Streams, Surroundings};
use crate::plan::{self, Event, Planner, Published, RAM, Tier};
use crate::rehearsal::{Opening, Question, Rehearsal};
use crate::source::{Crew, PosixSource, Source, Urgency};
use crate::store::home::{self, Home, Owner, Stay};
use crate::sync::Mutex;
use disk::{DiskBudget, Opened};
use ending::Ending;
pub use keeping::Scanned;
pub use order::{resolve as resolve_order, tell_unreadable};
pub use record::{RecordSummary, RecordedEpoch, Recording, Wanted};
pub use status::{OrderStatus, RamStatus, Status, TierStatus};
use warmup::Warmups;
pub use warmup::{Chosen, Pace, Progress, Tally};

/// The tier that the local store is.
const STORE_TIER: usize = RAM + 1;

/// Everything that serves one source.
pub struct Engine {
    settings: Settings,
    source_path: PathBuf,
    catalog: Arc<Catalog>,
    cache: Arc<Cache>,
    inbox: Arc<Inbox>,
    dataset: Arc<Dataset>,
    published: Arc<Mutex<Published>>,
    streams: Streams,
    /// None where orders are only told.
    learning: Option<Learning>,
    /// None where there are no buffers.
    rehearsal: Option<Rehearsal>,
    /// The first keeps pages, which are the RAM tier.
    connections: Mutex<Vec<Arc<Connection>>>,
    /// The control files and the views.
    beside: Mutex<Vec<Arc<Mounted>>>,
    /// Further mount points that show the first connection.
    bound: Mutex<Vec<PathBuf>>,
    /// The settings as people read them.
    rendered: String,
    planning: Mutex<Option<JoinHandle<()>>>,
    started: Instant,
    /// The RAM budget of this moment.
    budget: Mutex<Budget>,
    /// What is written to control files and views and not taken yet.
    written: Arc<Room>,
    warmups: Mutex<Warmups>,
    /// The budget of the local store, if there is one.
    disk: Option<DiskBudget>,
    /// Why there is none though it is configured.
    disk_fault: Option<Error>,
    /// What is wrong, in words, if it was on another disk before.
    disk_moved: Option<String>,
    /// As long as it is held, nobody else uses the local store.
    home: Mutex<Option<Home>>,
    /// Says to others that it will be.
    stay: Mutex<Option<Stay>>,
    /// Whether all files were known when the planner was told what the local store has: that is
    /// found by the names that there are.
    adopted: bool,
    /// Whether it is being stopped.
    over: Ending,
    /// Whether it has been; held by who stops it.
    stopped: Mutex<bool>,
}

/// What there is of something now. It is used while the lock is free.
fn all<T: Clone>(mutex: &Mutex<Vec<T>>) -> Vec<T> {
    mutex.lock().clone()
}

/// Takes one out.
fn remove<T>(mutex: &Mutex<Vec<Arc<T>>>, one: &Arc<T>) {
    mutex.lock().retain(|other| !Arc::ptr_eq(other, one));
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
        source: PosixSource,
        all: bool,
        seen: &AtomicU64,
        readings: &[Reading],
    ) -> Result<Arc<Self>> {
        let owner = Owner::new(source_path, source.lasting_identity());
        let source: Arc<dyn Source> = Arc::new(source);
        let Opened { mut home, store, moved, fault } = disk::open(&mut settings, &owner)?;
        let first = (all || !settings.rehearsal.is_empty()).then_some(seen);
        let catalog = keeping::catalog(
            Arc::clone(&source),
            &settings.source,
            source_path,
            home.as_ref(),
            first,
        )?;
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
        let learning = learn(&settings, around)?;
        let budget = ram_budget(&settings, &cache);
        let memory = for_a_file(&budget, readings);
        let rehearsal = rehearse(&settings, memory, &owner, &cache)?;
        let plan = planner_settings(&settings, rehearsal.is_some());
        let planner = Planner::new(plan, catalog.layout());
        let mut observers: Vec<Box<dyn Observer>> = Vec::new();
        observers.extend(learning.as_ref().map(|learning| Box::new(learning.ear()) as _));
        let offers = rehearsal.as_ref().and_then(Rehearsal::offers);
        observers.extend(offers.map(|offers| Box::new(offers) as _));
        let planning = planning::spawn(planner, &inbox, &cache, &published, observers)?;
        let unasked = matches!(settings.mount.mode, Mode::Auto | Mode::Push);
        let engine = Arc::new_cyclic(|engine: &Weak<Engine>| {
            let dataset = Dataset::new(
                Arc::clone(&catalog),
                Arc::clone(&cache),
                Arc::clone(&inbox),
                on_changes(engine),
                !unasked,
            );
            Engine {
                budget: Mutex::new(budget),
                written: Arc::default(),
                stay: Mutex::new(home.as_mut().and_then(Home::take_stay)),
                home: Mutex::new(home),
                adopted: all_known,
                over: Ending::default(),
                stopped: Mutex::default(),
                disk: settings.cache.disk.as_ref().map(DiskBudget::new),
                disk_fault: fault,
                disk_moved: moved,
                warmups: Mutex::default(),
                settings,
                source_path: source_path.to_path_buf(),
                dataset,
                catalog,
                cache,
                inbox,
                published,
                streams,
                learning,
                rehearsal,
                connections: Mutex::default(),
                beside: Mutex::default(),
                bound: Mutex::default(),
                rendered,
                planning: Mutex::new(Some(planning)),
                started: Instant::now(),
            }
        });
        engine.scan_behind(seen).inspect_err(|_| engine.stop())?;
        Ok(engine)
    }

    /// The files of the source.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Where the bytes come from.
    pub fn source(&self) -> &dyn Source {
        self.cache.source().as_ref()
    }

    /// How samples reach their readers.
    pub fn mode(&self) -> &'static str {
        let passes = || self.connections.lock().first().is_some_and(|first| first.passes());
        match (self.settings.mount.mode, self.dataset.sees_opens()) {
            (Mode::Plain, _) => "plain",
            (Mode::Passthrough, _) if passes() => "passthrough",
            (_, true) => "keep-cache",
            (_, false) => "push",
        }
    }

    /// Ends the planner's thread, and lets go of the local store. Nothing is fetched any more. Who
    /// asks while it is being stopped waits for the end of that.
    pub fn stop(self: &Arc<Self>) {
        let mut stopped = self.stopped.lock();
        if std::mem::replace(&mut *stopped, true) {
            return;
        }
        self.over.begin();
        // The home may be in the hands of a thread that waits for its disk.
        self.stay.lock().iter().for_each(Stay::leave);
        self.inbox.close();
        if let Some(thread) = self.planning.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the planner's thread panicked");
        }
        // They have heard what the planner has, as far as there was room.
        let learnt = self.learning.as_ref().is_none_or(Learning::stop);
        let rehearsed = self.rehearsal.as_ref().is_none_or(Rehearsal::stop);
        // Who still writes to the store keeps it: it is free when the process has ended.
        if self.cache.close() && learnt && rehearsed {
            self.leave_home();
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
            begins.iter().for_each(|buffer| self.renew_orders_of_task(buffer));
        }
        answer
    }

    /// The settings as people read them.
    pub fn rendered(&self) -> &str {
        &self.rendered
    }

    /// Nodes that the kernel knows, of all connections.
    fn known_nodes(&self) -> u64 {
        self.connections.lock().iter().map(|connection| connection.known() as u64).sum()
    }

    /// Bytes of a request for which there is memory.
    pub fn room_for_a_request(&self) -> usize {
        self.budget.lock().for_a_file() as usize
    }

    /// Has the RAM budget follow what fits, as these readings of this moment say: nothing where only
    /// further connections are left.
    pub fn fit_memory(&self, mut readings: Vec<Reading>) {
        if self.connections.lock().first().is_some_and(|first| first.is_over()) {
            readings.push(Reading::memory("the first mount point, now unmounted,", 0, 0));
        }
        self.disk.iter().for_each(|disk| disk.note_memory(&readings));
        let mut budget = self.budget.lock();
        let changed = budget.look(&readings, self.known_nodes() * KNOWN_BYTES);
        let memory = self.cache.memory();
        memory.resize(budget.moving(memory.used() as u64) as usize);
        self.written.resize(budget.for_a_file() as usize);
        if changed {
            let capacity = budget.present();
            let why = budget.reduced().unwrap_or("what is configured fits again");
            tracing::info!(bytes = capacity, why, "the RAM budget has changed");
            self.inbox.put(Event::Resized { tier: RAM, capacity }, None);
        }
    }

    /// Something at the source is not what it was: the planner, the store and the kernel are told.
    fn changed(&self, changes: Changes, notifier: &Crew<NodeId>) {
        if !changes.changed.is_empty() || changes.added {
            let event = Event::Changed { layout: self.catalog.layout(), files: changes.changed };
            self.inbox.put(event, None);
        }
        let kernels: Vec<Arc<Notifier>> =
            self.connections.lock().iter().map(|c| Arc::clone(c.notifier())).collect();
        for (parent, name) in changes.names {
            let (kernels, dataset) = (kernels.clone(), Arc::clone(&self.dataset));
            // The kernel may ask back before it takes a notification, and may make it wait.
            notifier.submit(Urgency::Demand, parent, move || {
                let _own = OwnThreads::enter();
                dataset.let_readers_out(parent);
                for kernel in kernels {
                    match kernel.forget(parent, &name) {
                        Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                        // It is believed for as long as was promised.
                        Err(errno) => {
                            tracing::warn!(?name, %errno, "a changed name was not dropped")
                        }
                    }
                }
            });
        }
    }
}

/// Bytes of a file that a user names for which there is memory before the first look at what fits.
fn for_a_file(budget: &Budget, readings: &[Reading]) -> usize {
    let mut looking = budget.clone();
    looking.look(readings, 0);
    looking.for_a_file() as usize
}

/// The RAM budget until the first look at what fits.
fn ram_budget(settings: &Settings, cache: &Cache) -> Budget {
    let budget = Budget::new(settings.cache.ram_configured_bytes, settings.cache.ram_bytes);
    cache.memory().resize(budget.moving(0) as usize);
    budget
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

/// For how long dropping a changed name may take, which is a matter of microseconds.
const NOTIFY_PATIENCE: Duration = Duration::from_secs(2);

/// Tells an engine what has changed at the source.
fn on_changes(engine: &Weak<Engine>) -> Arc<dyn Fn(Changes) + Send + Sync> {
    let engine = Weak::clone(engine);
    let notifier = Crew::new("belady-notify", NOTIFY_PATIENCE, 1, 1, || ());
    Arc::new(move |changes| {
        if let Some(engine) = engine.upgrade() {
            engine.changed(changes, &notifier);
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
        gears: matches!(settings.mount.mode, Mode::Auto | Mode::Push),
        withheld,
    }
}
