//! Makes samples, each once for all who ask for it at about the same time.
//!
//! 1. Who asks for a sample waits for its *flight*. If there is none, one begins: a thread asks for the attributes of the
//!    original, and has the original read.
//! 2. When the original is here, a thread of low priority makes the sample, or has a command make it. There are as many of these threads as
//!    processors: a job computes first, and while it waits for a sample, its processor is free to make one.
//! 3. The flight ends. First the threads get the size that wait for it. Then the bytes are delivered, by other threads:
//!    a delivery pushes pages, and the kernel may have that wait for a lookup that one of the first threads answers.
//! 4. What was made last is kept for a while for those who ask next: for the reader after the lookup that needed the
//!    size, and for the other blocks of a large sample.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::derived;
use super::quota::{Quota, Reserved};
use crate::derive::{Fault, Image, Recipe, Steps, Work};
use crate::error::{Error, ErrorKind, Result as UserResult};
use crate::sandbox::{Failure as CommandFailure, Sandbox};
use crate::source::{
    Fingerprint, KeyedPool, Kind, Pool, ReadError, ReadRequest, Source, Stat, Urgency,
};
use crate::sync::{Mutex, lower_priority};

/// The most originals that are asked for at once, and how many more if readers wait for them.
const ASKED: usize = 64;
const ASKED_RESERVED: usize = 16;

/// An original that takes longer is held up. This many may be held up.
const ASKING_PATIENCE: Duration = Duration::from_secs(1);
const HELD_UP_MAX: usize = 1024;

/// The nice value of the threads that make samples.
const NICE: u32 = 10;

/// The most deliveries that are made at once, and how many more if readers wait for them.
const DELIVERIES: usize = 16;

/// A larger file is not read.
const ORIGINAL_MAX: u64 = 256 << 20;

/// The most bytes of originals at once. A larger one is read if there is no other. Those that readers wait for are read at
/// once, and count.
const ORIGINALS_BYTES: u64 = 256 << 20;

/// The most bytes at once of images that are being made. A larger one is made if there is no other.
const IMAGES_BYTES: u64 = 384 << 20;

/// The most bytes of samples that are kept.
const KEPT_BYTES: u64 = 32 << 20;

/// What a kept sample counts at least, so that there are not too many.
const LEAST: u64 = 16 << 10;

/// How long a sample is kept after it was asked for.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// Failures that are shown.
const FAILURES_SHOWN: usize = 8;

/// The bytes of a sample, or why there are none.
pub(super) type Made = Result<Arc<Vec<u8>>, ReadError>;

/// Who waits for a sample.
pub(super) enum Waiting {
    /// A thread, for the number of its bytes.
    Size(mpsc::Sender<Result<u64, ReadError>>),
    /// Is called with the sample, on a thread that may block.
    Delivery(Box<dyn FnOnce(Made) + Send>),
}

/// A version of a file that is to be made.
pub(super) struct Sample {
    /// The number of its recipe.
    pub(super) nth: usize,
    pub(super) recipe: Arc<Recipe>,
    /// The path of its original.
    pub(super) original: Arc<Path>,
    /// Its version without the size.
    pub(super) version: Fingerprint,
    /// As in [`ReadRequest`].
    pub(super) exact: bool,
}

/// A file of which nothing could be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The path of the original.
    pub path: String,
    pub reason: String,
}

/// What was made by a recipe since the mount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DerivedStatus {
    pub name: String,
    /// Samples that were made, and their bytes.
    pub made: u64,
    pub bytes: u64,
    /// Bytes of their originals.
    pub originals_bytes: u64,
    /// Seconds that it took to make them.
    pub seconds: f64,
    /// How often nothing could be made.
    pub failed: u64,
    /// The last files of which nothing could be made.
    pub failures: Vec<Failure>,
}

impl DerivedStatus {
    /// How long it took to make a sample, on average. 0 if none was made.
    pub fn seconds_each(&self) -> f64 {
        self.seconds / self.made.max(1) as f64
    }
}

/// An original that is here.
struct Arrived {
    sample: Sample,
    bytes: Vec<u8>,
    reserved: Reserved,
    owed: OwedEnd,
}

/// Ends a flight with an error if it is dropped: a source may panic, or drop a request.
struct OwedEnd {
    maker: Weak<Maker>,
    version: Fingerprint,
    has_ended: bool,
}

impl OwedEnd {
    fn new(maker: &Arc<Maker>, sample: &Sample) -> Self {
        OwedEnd { maker: Arc::downgrade(maker), version: sample.version, has_ended: false }
    }

    /// Ends the flight. Others who ask soon get the same if it `keeps`.
    fn end(mut self, made: Made, keeps: bool) {
        self.has_ended = true;
        if let Some(maker) = self.maker.upgrade() {
            maker.end(&self.version, made, keeps);
        }
    }
}

impl Drop for OwedEnd {
    fn drop(&mut self) {
        if let Some(maker) = self.maker.upgrade().filter(|_| !self.has_ended) {
            maker.end(&self.version, Err(ReadError::Source(Errno::EIO)), false);
        }
    }
}

/// A sample that is being made.
#[derive(Default)]
struct Flight {
    /// Whether its original was asked for.
    has_begun: bool,
    /// Its original, until a thread makes the sample.
    arrived: Option<Arrived>,
    waiting: Vec<(Urgency, Waiting)>,
}

impl Flight {
    fn urgency(&self) -> Urgency {
        let waits = self.waiting.iter().any(|(urgency, _)| *urgency == Urgency::Demand);
        if waits { Urgency::Demand } else { Urgency::Prefetch }
    }
}

struct Kept {
    version: Fingerprint,
    used: Instant,
    made: Made,
}

impl Kept {
    fn weight(&self) -> u64 {
        self.made.as_ref().map_or(0, |bytes| bytes.len() as u64).max(LEAST)
    }
}

/// Samples that are being made, and those that were asked for last, the very last one at the end.
#[derive(Default)]
struct Samples {
    flights: HashMap<Fingerprint, Flight>,
    kept: VecDeque<Kept>,
}

impl Samples {
    /// A sample that is kept.
    fn kept(&mut self, version: &Fingerprint) -> Option<Made> {
        let nth = self.kept.iter().rposition(|kept| kept.version == *version)?;
        let mut kept = self.kept.remove(nth)?;
        // A failure is not kept for longer: the machine may have been to blame.
        if kept.made.is_ok() {
            kept.used = Instant::now();
        }
        let made = kept.made.clone();
        self.kept.push_back(kept);
        Some(made)
    }

    fn keep(&mut self, version: Fingerprint, made: Made) {
        self.kept.push_back(Kept { version, used: Instant::now(), made });
        let mut bytes: u64 = self.kept.iter().map(Kept::weight).sum();
        while bytes > KEPT_BYTES && self.kept.len() > 1 {
            bytes -= self.kept.pop_front().map_or(0, |kept| kept.weight());
        }
    }
}

/// How the samples of a recipe are made here.
enum Way {
    Image(Steps),
    Command(Sandbox),
}

impl Way {
    fn of(recipe: &Recipe) -> UserResult<Self> {
        let command = match &recipe.work {
            Work::Image(steps) => return Ok(Way::Image(steps.clone())),
            Work::Command(command) => command,
        };
        let name = &recipe.name;
        Sandbox::open(command).map(Way::Command).map_err(|reason| {
            let message = format!("derived samples `{name}` cannot be made by a command: {reason}");
            Error::new(ErrorKind::Config, message).hint(
                "a command runs in a user namespace: allow these (`sysctl user.max_user_namespaces`, \
                 `kernel.apparmor_restrict_unprivileged_userns`), or take it out of the configuration",
            )
        })
    }

    fn end_idle(&self) {
        if let Way::Command(sandbox) = self {
            sandbox.end_idle();
        }
    }
}

pub(super) struct Maker {
    source: Arc<dyn Source>,
    askers: KeyedPool<Arc<Path>>,
    makers: Pool,
    deliveries: Pool,
    originals: Arc<Quota>,
    images: Arc<Quota>,
    /// By the number of the recipe.
    ways: Vec<Way>,
    samples: Mutex<Samples>,
    /// By the number of the recipe.
    status: Mutex<Vec<DerivedStatus>>,
}

impl Maker {
    /// # Errors
    /// If the command of a recipe cannot be confined here.
    pub(super) fn new(source: Arc<dyn Source>, recipes: &[Arc<Recipe>]) -> UserResult<Arc<Self>> {
        let ways: UserResult<Vec<Way>> = recipes.iter().map(|recipe| Way::of(recipe)).collect();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let askers =
            KeyedPool::new("belady-originals", ASKING_PATIENCE, ASKED, ASKED_RESERVED, || ());
        let named = |recipe: &Arc<Recipe>| DerivedStatus {
            name: recipe.name.clone(),
            ..Default::default()
        };
        Ok(Arc::new(Maker {
            source,
            askers: askers.with_limits(HELD_UP_MAX, 1),
            makers: Pool::starting("belady-derive", processors, 1, || lower_priority(NICE)),
            deliveries: Pool::new("belady-derived", DELIVERIES, DELIVERIES),
            originals: Quota::new(ORIGINALS_BYTES),
            images: Quota::new(IMAGES_BYTES),
            ways: ways?,
            samples: Mutex::default(),
            status: Mutex::new(recipes.iter().map(named).collect()),
        }))
    }

    pub(super) fn status(&self) -> Vec<DerivedStatus> {
        self.status.lock().clone()
    }

    /// Forgets the samples that nobody has asked for in a while, and ends the processes that make none.
    pub(super) fn forget_idle(&self) {
        self.samples.lock().kept.retain(|kept| kept.used.elapsed() < KEPT_FOR);
        self.ways.iter().for_each(Way::end_idle);
    }

    /// Keeps a sample for a while that was made elsewhere. Never blocks.
    pub(super) fn keep(&self, version: Fingerprint, bytes: Vec<u8>) {
        self.samples.lock().keep(version, Ok(Arc::new(bytes)));
    }

    /// Has a sample made, unless it is there or is being made. Never blocks.
    pub(super) fn ask(self: &Arc<Self>, sample: Sample, urgency: Urgency, waiting: Waiting) {
        let mut samples = self.samples.lock();
        if let Some(made) = samples.kept(&sample.version) {
            drop(samples);
            return self.answer(urgency, waiting, made);
        }
        let flight = samples.flights.entry(sample.version).or_default();
        let is_first = flight.waiting.is_empty();
        // A prefetch may be far behind in a queue.
        let is_sooner = urgency == Urgency::Demand && flight.urgency() == Urgency::Prefetch;
        flight.waiting.push((urgency, waiting));
        let (has_begun, has_arrived) = (flight.has_begun, flight.arrived.is_some());
        drop(samples);
        if is_first || (is_sooner && !has_begun) {
            let (maker, original) = (Arc::downgrade(self), Arc::clone(&sample.original));
            self.askers.submit(urgency, original, move || {
                if let Some(maker) = maker.upgrade() {
                    maker.begin(sample);
                }
            });
        } else if is_sooner && has_arrived {
            self.submit(&sample.version, urgency);
        }
    }

    /// Says that there is no such version. Never blocks.
    pub(super) fn refuse(&self, urgency: Urgency, waiting: Waiting) {
        self.answer(urgency, waiting, Err(ReadError::Changed));
    }

    fn answer(&self, urgency: Urgency, waiting: Waiting, made: Made) {
        match waiting {
            Waiting::Size(thread) => {
                // Perhaps it does not wait any more.
                let _ = thread.send(made.map(|bytes| bytes.len() as u64));
            }
            Waiting::Delivery(deliver) => self.deliveries.submit(urgency, move || deliver(made)),
        }
    }

    /// Asks for the original, unless that was done.
    fn begin(self: Arc<Self>, sample: Sample) {
        let urgency = match self.samples.lock().flights.get_mut(&sample.version) {
            Some(flight) if !flight.has_begun => {
                flight.has_begun = true;
                flight.urgency()
            }
            _ => return,
        };
        let owed = OwedEnd::new(&self, &sample);
        match self.original_of(&sample) {
            Ok(original) => self.read(sample, &original, urgency, owed),
            // The next time the source may say something else.
            Err(error) => owed.end(Err(error), false),
        }
    }

    /// The attributes of the original, if it is the one of this version. Blocks.
    fn original_of(&self, sample: &Sample) -> Result<Stat, ReadError> {
        let stat = match self.source.stat(&sample.original) {
            Ok(stat) if stat.kind == Kind::File => stat,
            Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => return Err(ReadError::Changed),
            Err(errno) => return Err(ReadError::Source(errno)),
        };
        let present = derived(&sample.recipe, &stat).copied_version();
        let is_it = match sample.exact {
            true => present == sample.version,
            false => present.is_content_of(&sample.version),
        };
        is_it.then_some(stat).ok_or(ReadError::Changed)
    }

    /// Reads the original. A prefetch may block until others have less memory.
    fn read(self: Arc<Self>, sample: Sample, stat: &Stat, urgency: Urgency, owed: OwedEnd) {
        if stat.size > ORIGINAL_MAX {
            let reason =
                format!("it has {} bytes; no more than {ORIGINAL_MAX} are read", stat.size);
            return owed.end(self.failed(&sample, reason), true);
        }
        let reserved = match urgency {
            Urgency::Demand => self.originals.reserve_now(stat.size),
            Urgency::Prefetch => self.originals.reserve(stat.size),
        };
        let (path, exact, maker) =
            (Arc::clone(&sample.original), sample.exact, Arc::downgrade(&self));
        let deliver = move |read: Result<Vec<u8>, ReadError>| match (read, maker.upgrade()) {
            (Ok(bytes), Some(maker)) => maker.arrived(Arrived { sample, bytes, reserved, owed }),
            (Err(error), _) => owed.end(Err(error), false),
            (Ok(_), None) => {}
        };
        if stat.size == 0 {
            return deliver(Ok(Vec::new()));
        }
        self.source.read(vec![ReadRequest {
            path,
            fingerprint: stat.fingerprint(),
            is_sized: true,
            exact,
            offset: 0,
            length: stat.size as usize,
            urgency,
            deliver: Box::new(deliver),
        }]);
    }

    /// An original is here.
    fn arrived(self: Arc<Self>, arrived: Arrived) {
        let version = arrived.sample.version;
        let urgency = {
            let mut samples = self.samples.lock();
            let Some(flight) = samples.flights.get_mut(&version) else { return };
            flight.arrived = Some(arrived);
            flight.urgency()
        };
        self.submit(&version, urgency);
    }

    /// Has a thread make the sample of an original that is here, unless another one does.
    fn submit(self: &Arc<Self>, version: &Fingerprint, urgency: Urgency) {
        let (maker, version) = (Arc::downgrade(self), *version);
        self.makers.submit(urgency, move || {
            let Some(maker) = maker.upgrade() else { return };
            let arrived =
                maker.samples.lock().flights.get_mut(&version).and_then(|it| it.arrived.take());
            if let Some(Arrived { sample, bytes, reserved, owed }) = arrived {
                let (made, keeps) = maker.make(&sample, &bytes);
                drop((bytes, reserved));
                owed.end(made, keeps);
            }
        });
    }

    /// Makes a sample of its original. Says whether the same would come of it again.
    fn make(&self, sample: &Sample, original: &[u8]) -> (Made, bool) {
        let began = Instant::now();
        let made = catch_unwind(AssertUnwindSafe(|| match &self.ways[sample.nth] {
            Way::Image(steps) => self.make_image(steps, original).map_err(|fault| (fault, true)),
            Way::Command(sandbox) => self.run_command(sandbox, original),
        }));
        match made.unwrap_or_else(|_| Err((Fault("a thread failed".to_owned()), true))) {
            Ok(made) => {
                self.succeeded(sample, original, &made, began.elapsed());
                (Ok(Arc::new(made)), true)
            }
            Err((Fault(reason), keeps)) => (self.failed(sample, reason), keeps),
        }
    }

    fn make_image(&self, steps: &Steps, original: &[u8]) -> Result<Vec<u8>, Fault> {
        let _reserved = self.images.reserve(steps.memory(original)?);
        steps.make(Image::decode(original)?)
    }

    /// What a command makes of an original. If it is not to blame itself, it may make something the next time.
    fn run_command(&self, sandbox: &Sandbox, original: &[u8]) -> Result<Vec<u8>, (Fault, bool)> {
        // The runner has a copy of it.
        let _reserved = self.images.reserve(original.len() as u64);
        sandbox.run(original).map_err(|failure| {
            let is_its_own = matches!(failure, CommandFailure::Command(_));
            (Fault(failure.reason()), is_its_own)
        })
    }

    /// Notes that a sample was made.
    fn succeeded(&self, sample: &Sample, original: &[u8], made: &[u8], took: Duration) {
        let path = sample.original.display().to_string();
        let mut status = self.status.lock();
        let of_recipe = &mut status[sample.nth];
        of_recipe.made += 1;
        of_recipe.bytes += made.len() as u64;
        of_recipe.originals_bytes += original.len() as u64;
        of_recipe.seconds += took.as_secs_f64();
        // Its file was broken before.
        of_recipe.failures.retain(|known| known.path != path);
    }

    /// Notes that nothing can be made of a file.
    fn failed(&self, sample: &Sample, reason: String) -> Made {
        let failure = Failure { path: sample.original.display().to_string(), reason };
        let mut status = self.status.lock();
        let of_recipe = &mut status[sample.nth];
        of_recipe.failed += 1;
        if !of_recipe.failures.contains(&failure) {
            let Failure { path, reason } = &failure;
            tracing::warn!(%path, derived = %sample.recipe.name, "nothing can be derived: {reason}");
            of_recipe.failures.retain(|known| known.path != failure.path);
            if of_recipe.failures.len() == FAILURES_SHOWN {
                of_recipe.failures.remove(0);
            }
            of_recipe.failures.push(failure);
        }
        Err(ReadError::Source(Errno::EIO))
    }

    /// Ends a flight. Others who ask soon get the same if it `keeps`. Never blocks.
    fn end(&self, version: &Fingerprint, made: Made, keeps: bool) {
        let mut samples = self.samples.lock();
        let waiting = samples.flights.remove(version).map(|flight| flight.waiting);
        if keeps {
            samples.keep(*version, made.clone());
        }
        drop(samples);
        let (sizes, deliveries): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .flatten()
            .partition(|(_, waiting)| matches!(waiting, Waiting::Size(_)));
        for (urgency, waiting) in sizes.into_iter().chain(deliveries) {
            self.answer(urgency, waiting, made.clone());
        }
    }
}
