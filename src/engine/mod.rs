//! One source, served: its catalog, tiers and planner put together, and kept running.
//!
//! 1. [`Engine::start`] takes up the catalog of an earlier mount or scans the source, and starts the
//!    planner's thread, the only one that ever touches the planner: it takes what is in the inbox,
//!    applies it, and has the cache do what comes out.
//! 2. [`Engine::serve`] mounts the dataset. The first connection's page cache is the RAM tier.
//! 3. Orders are given by name of a stream at any time from then on, [`Engine::set_order`]; before,
//!    nothing could take what is fetched ahead.
//! 4. What nobody tells is found out by a thread of its own, in `learning`, from what the planner's
//!    thread hears.
//! 5. [`Engine::status`] reads what the planner's thread last published; it never waits for it.

mod attach;
mod disk;
mod files;
mod keeping;
mod learning;
mod order;
mod planning;
mod record;
mod rehearsal;
mod serving;
mod status;
mod warmup;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use nix::errno::Errno;

use crate::cache::store::disk::Directory;
use crate::cache::store::home::{self, Home, Owner};
use crate::cache::store::{Limits, Store};
use crate::cache::{Cache, Inbox};
use crate::catalog::{Catalog, Changes};
use crate::config::{
    Budget, DiskSettings, Mode, PolicyName, Reading, RehearsalSettings, Settings, Start,
};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::Dataset;
use crate::fuse::{Connection, KNOWN_BYTES, Mounted, OwnThreads, Pusher};
use crate::plan::{self, Event, Planner, PolicyKind, RAM, Tier};
use crate::source::{Pool, PosixSource, Source, Urgency};
use disk::DiskBudget;
pub use learning::LoaderStatus;
use learning::{Learning, Surroundings};
use order::Streams;
pub use order::{resolve as resolve_order, with_listing};
use planning::Published;
pub use record::{RecordSummary, RecordedEpoch, Recording, Wanted};
pub use rehearsal::Question;
use rehearsal::{Opening, Rehearsal};
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
    connections: Mutex<Vec<Connection>>,
    /// The control files and the views.
    beside: Mutex<Vec<Mounted>>,
    /// Further mount points that show the first connection.
    attached: Mutex<Vec<PathBuf>>,
    /// The settings as people read them.
    rendered: String,
    planning: Mutex<Option<JoinHandle<()>>>,
    started: Instant,
    /// The RAM budget of this moment.
    budget: Mutex<Budget>,
    warmups: Mutex<Warmups>,
    /// The budget of the local store, if there is one.
    disk: Option<DiskBudget>,
    /// As long as it is held, nobody else uses the local store.
    home: Mutex<Option<Home>>,
    /// Whether it is being stopped.
    over: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Gets ready to serve the source, which is scanned unless a catalog of it was saved. Names are
    /// counted in `seen` meanwhile; `rendered` are the settings as people read them.
    ///
    /// # Errors
    /// Where the source cannot be read or the cache directory not be used.
    pub fn start(
        settings: Settings,
        rendered: String,
        source_path: &Path,
        source: PosixSource,
        seen: &AtomicU64,
    ) -> Result<Arc<Self>> {
        let owner = Owner::new(source_path, source.lasting_identity());
        let source: Arc<dyn Source> = Arc::new(source);
        let opened = settings.cache.disk.as_ref().map(|disk| open_store(disk, &owner));
        let (home, store) = opened.transpose()?.unzip();
        let store = store.map(|store| (STORE_TIER, Arc::new(store)));
        let catalog = keeping::catalog(source, &settings.source, source_path, home.as_ref(), seen);
        let catalog = Arc::new(catalog?);
        let inbox = Arc::new(Inbox::new(settings.prefetch.inflight));
        let cache = Cache::new(Arc::clone(&catalog), Arc::clone(&inbox), store);
        cache.adopt();
        let published = Arc::new(Mutex::new(Published::default()));
        let planner = Planner::new(planner_settings(&settings), catalog.layout());
        let streams = Streams::default();
        let around = Surroundings {
            catalog: Arc::clone(&catalog),
            inbox: Arc::clone(&inbox),
            streams: Arc::clone(&streams),
            published: Arc::clone(&published),
            home: home.as_ref().map(|home| home.path().to_path_buf()),
        };
        let learning = learn(&settings, around)?;
        let ear = learning.as_ref().map(Learning::ear);
        let rehearsal = rehearse(&settings, &owner, &cache)?;
        let offers = rehearsal.as_ref().map(Rehearsal::offers);
        let planning = planning::spawn(planner, &inbox, &cache, &published, ear, offers)?;
        let unasked = matches!(settings.mount.mode, Mode::Auto | Mode::Push);
        Ok(Arc::new_cyclic(|engine| {
            let dataset = Dataset::new(
                Arc::clone(&catalog),
                Arc::clone(&cache),
                Arc::clone(&inbox),
                on_changes(engine),
                !unasked,
            );
            let ram = &settings.cache;
            let budget = Mutex::new(Budget::new(ram.ram_configured_bytes, ram.ram_bytes));
            Engine {
                budget,
                home: Mutex::new(home),
                over: AtomicBool::new(false),
                disk: settings.cache.disk.as_ref().map(|disk| DiskBudget::new(disk.bytes)),
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
                attached: Mutex::default(),
                rendered,
                planning: Mutex::new(Some(planning)),
                started: Instant::now(),
            }
        }))
    }

    /// The files of the source.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// How samples reach their readers.
    pub fn mode(&self) -> &'static str {
        let passes = || lock(&self.connections).first().is_some_and(Connection::passes);
        match (self.settings.mount.mode, self.dataset.sees_opens()) {
            (Mode::Plain, _) => "plain",
            (Mode::Passthrough, _) if passes() => "passthrough",
            (_, true) => "keep-cache",
            (_, false) => "push",
        }
    }

    /// Ends the planner's thread, and lets go of the local store. Nothing is fetched any more.
    pub fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(learning) = &self.learning {
            learning.stop();
        }
        self.inbox.close();
        if let Some(thread) = lock(&self.planning).take()
            && thread.join().is_err()
        {
            tracing::error!("the planner's thread panicked");
        }
        if let Some(rehearsal) = &self.rehearsal {
            rehearsal.stop();
        }
        // Who still writes to the store keeps it: it is free when the process has ended.
        if self.cache.close() {
            self.save_catalog();
            *lock(&self.home) = None;
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
        self.rehearsal.as_ref().ok_or_else(none)?.ask(question)
    }

    /// The settings as people read them.
    pub fn rendered(&self) -> &str {
        &self.rendered
    }

    /// Nodes that the kernel knows, of all connections.
    fn known_nodes(&self) -> u64 {
        lock(&self.connections).iter().map(|c| c.pusher().known() as u64).sum()
    }

    /// Has the RAM budget follow what fits, as these readings of this moment say.
    pub fn fit_memory(&self, readings: &[Reading]) {
        let mut budget = lock(&self.budget);
        if budget.look(readings, self.known_nodes() * KNOWN_BYTES) {
            let capacity = budget.present();
            let why = budget.reduced().unwrap_or("what is configured fits again");
            tracing::info!(bytes = capacity, why, "the RAM budget has changed");
            self.inbox.put(Event::Resized { tier: RAM, capacity }, None);
        }
    }

    /// Something at the source is not what it was: the planner, the store and the kernel are told.
    fn changed(&self, changes: Changes, notifier: &Pool) {
        if !changes.changed.is_empty() || changes.added {
            let event = Event::Changed { layout: self.catalog.layout(), files: changes.changed };
            self.inbox.put(event, None);
        }
        let pushers: Vec<Arc<Pusher>> =
            lock(&self.connections).iter().map(|c| Arc::clone(c.pusher())).collect();
        // The kernel may ask back before it takes a notification, and may make it wait.
        notifier.submit(Urgency::Demand, move || {
            let _own = OwnThreads::enter();
            for (pusher, (parent, name)) in
                pushers.iter().flat_map(|p| changes.names.iter().map(move |name| (p, name)))
            {
                match pusher.forget(*parent, name) {
                    Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                    Err(errno) => tracing::warn!(?name, %errno, "a changed name was not dropped"),
                }
            }
        });
    }
}

/// Starts to find orders out, if that is wanted and anything is read ahead at all.
fn learn(settings: &Settings, around: Surroundings) -> Result<Option<Learning>> {
    let ahead = settings.prefetch.enabled && settings.mount.mode != Mode::Plain;
    let learn = settings.learn.filter(|_| ahead);
    learn.map(|learn| Learning::start(learn, around)).transpose()
}

/// Opens the rehearsal buffers, if there are any. The store of the source is in use by us.
fn rehearse(settings: &Settings, owner: &Owner, cache: &Arc<Cache>) -> Result<Option<Rehearsal>> {
    let Some(disk) = settings.cache.disk.as_ref().filter(|_| !settings.rehearsal.is_empty()) else {
        return Ok(None);
    };
    let place = |buffer: &RehearsalSettings| {
        let latent = (buffer.latent > 0).then(|| home::latent(&disk.dir, owner, &buffer.name));
        let directory = home::buffer(&disk.dir, owner, &buffer.name)?;
        Ok(Opening { settings: buffer.clone(), directory, latent: latent.transpose()? })
    };
    let buffers = settings.rehearsal.iter().map(place).collect::<Result<Vec<_>>>()?;
    Rehearsal::start(buffers, cache, disk.min_free_bytes).map(Some)
}

/// Tells an engine what has changed at the source.
fn on_changes(engine: &Weak<Engine>) -> Box<dyn Fn(Changes) + Send + Sync> {
    let engine = Weak::clone(engine);
    let notifier = Pool::new("belady-notify", 1, 1);
    Box::new(move |changes| {
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

/// Opens the store of a source, which is ours alone as long as the first of both is held.
fn open_store(disk: &DiskSettings, owner: &Owner) -> Result<(Home, Store)> {
    let home = home::claim(&disk.dir, owner)?;
    let random = || u128::from(RandomState::new().build_hasher().finish());
    let large_bytes = disk.large_file_bytes;
    let limits = Limits { large_bytes, ..Limits::new(disk.bytes, disk.min_free_bytes) };
    let secret = random() << 64 | random();
    let opened = Directory::open(home.path(), true)
        .and_then(|directory| Store::open(Arc::new(directory), limits, secret));
    let store = opened.map_err(|error| {
        let message = format!("cache.dir {}: {error}", disk.dir.display());
        Error::new(ErrorKind::Cache, message).hint("`belady cache rm` deletes a store")
    })?;
    Ok((home, store))
}

/// The planner's settings, as the configuration has them.
fn planner_settings(settings: &Settings) -> plan::Settings {
    let mut tiers = vec![Tier { capacity: settings.cache.ram_bytes }];
    tiers.extend(settings.cache.disk.iter().map(|disk| Tier { capacity: disk.bytes }));
    plan::Settings {
        tiers,
        policy: match settings.cache.policy {
            None => PolicyKind::Auto,
            Some(PolicyName::Belady) => PolicyKind::Belady,
            Some(PolicyName::Lru) => PolicyKind::Lru,
            Some(PolicyName::Minio) => PolicyKind::Minio,
            Some(PolicyName::UnreadFirst) => PolicyKind::UnreadFirst,
            Some(PolicyName::None) => PolicyKind::None,
        },
        prefetch: settings.prefetch.enabled && settings.mount.mode != Mode::Plain,
        inflight_max: settings.prefetch.inflight,
        window_bytes: settings.prefetch.window_bytes,
        start_at_open: settings.prefetch.start == Start::FirstOpen,
        gears: matches!(settings.mount.mode, Mode::Auto | Mode::Push),
    }
}
