//! Times each request to the source, once for all who want to know.
//!
//! 1. The latency of a request goes into the timings of its operation, which `status` shows. Reads that the source is
//!    asked for at once count as one.
//! 2. An answer to a read goes to the [`Meter`]. If the limits that it finds have changed, the planner hears of
//!    them ([`Event::Limited`]).
//! 3. A read that has been under way for [`HELD_UP`](crate::source::HELD_UP) may hang, and does not count against the
//!    limit. Otherwise a part of the source that hangs would stop all fetches ahead. If the source says that it is
//!    asked too much, the limit falls.
//! 4. A source over a network may be asked for late bytes a second time ([`Hedges`], `Cache::hedge`). Its answers say
//!    what is late, and how often that may be done.
//! 5. Listings and calls for attributes tell [`Calls`], which finds how many of them the source serves best at once
//!    ([`SourceTimes::metadata_at_once`]).
//! 6. If there is a cap on the rate, the bytes of all reads are counted. Once they are too many, the planner hears that
//!    no fetch may begin, until they are paid for ([`RateCap`]). Readers never wait for that.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::{Inbox, Latencies, READ_AHEAD, Span, Spans, Timings};
use crate::limiter::{Answer, FetchLimits, Hedges, Limiter, MetadataLimits, Meter, RateCap};
use crate::plan::Event;
use crate::source::{
    Calls, Kind, ReadError, ReadRequest, Source, SourceFailures, Stat, UnderWay, Urgency,
};
use crate::sync::Mutex;

/// What a source is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    List,
    Stat,
    /// Links, extended attributes and the space of the filesystem.
    Other,
}

impl Operation {
    pub const ALL: [Operation; 4] =
        [Operation::Read, Operation::List, Operation::Stat, Operation::Other];

    pub fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::List => "list",
            Operation::Stat => "stat",
            Operation::Other => "other",
        }
    }
}

/// A read is late if it takes longer than this share of the others. The fewest that tell.
const LATE: f64 = 0.95;
const TELLING_MIN: u64 = 100;

/// The longest sleep of the thread that waits until bytes are paid for.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What is measured of a source.
pub struct SourceTimes {
    started: Instant,
    inbox: Arc<Inbox>,
    meter: Mutex<Meter>,
    /// Reads under way.
    under_way: Mutex<UnderWay>,
    /// [`Source::overloads`] that are known, by operation.
    overloads: [AtomicU64; Operation::ALL.len()],
    lists: Calls,
    stats: Calls,
    cap: Option<Mutex<RateCap>>,
    /// `None` if the source is not asked a second time.
    hedges: Option<Mutex<Hedges>>,
    /// Whether no fetch may begin. It is held while the planner is told.
    is_paused: Mutex<bool>,
    /// Whether that was so since the last look.
    was_paused: AtomicBool,
    /// Bytes that were asked for.
    asked: AtomicU64,
    /// By operation.
    timings: [Timings; Operation::ALL.len()],
    /// Each read, while somebody traces.
    pub spans: Spans,
}

impl SourceTimes {
    fn new(
        inbox: &Arc<Inbox>,
        meter: Meter,
        [lists, stats]: [Limiter; 2],
        rate: Option<u64>,
        source: &dyn Source,
    ) -> Self {
        inbox.put(Event::Limited(meter.limits()), None);
        SourceTimes {
            started: Instant::now(),
            inbox: Arc::clone(inbox),
            meter: Mutex::new(meter),
            under_way: Mutex::default(),
            overloads: Operation::ALL.map(|_| AtomicU64::new(source.overloads())),
            lists: Calls::new(lists),
            stats: Calls::new(stats),
            cap: rate.map(|rate| Mutex::new(RateCap::new(rate))),
            hedges: source.is_hedged().then(Mutex::default),
            is_paused: Mutex::default(),
            was_paused: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            timings: Default::default(),
            spans: Spans::default(),
        }
    }

    /// Reads under way.
    pub fn in_flight(&self) -> u32 {
        self.under_way.lock().count()
    }

    /// Tells the planner of the limits.
    fn tell(&self, is_paused: &bool) {
        let limits = self.meter.lock().limits();
        let fetches = self.fetches(&limits, *is_paused);
        self.inbox.put(Event::Limited(FetchLimits { fetches, ..limits }), None);
    }

    /// Fetches that may be under way: what is held up does not count, and with a cap no more than its rate needs.
    fn fetches(&self, limits: &FetchLimits, is_paused: bool) -> u32 {
        if is_paused {
            return 0;
        }
        // Long requests over a slow link seem to be held up, too.
        let held_up = self.under_way.lock().held_up().min(limits.fetches);
        let fetches = limits.fetches.saturating_add(held_up);
        match &self.cap {
            Some(cap) => {
                let latency_us = self.latencies(Operation::Read).p50_us;
                fetches.min(cap.lock().fetches(limits.mean_bytes(), latency_us))
            }
            None => fetches,
        }
    }

    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Tells the planner whether fetches may begin.
    fn set_paused(&self, pause: bool) {
        let mut is_paused = self.is_paused.lock();
        self.was_paused.fetch_or(pause, Ordering::Relaxed);
        if *is_paused != pause {
            *is_paused = pause;
            self.tell(&is_paused);
        }
    }

    /// Whether the cap on the rate lets no fetch begin.
    pub fn is_paused(&self) -> bool {
        *self.is_paused.lock()
    }

    /// Bytes that were asked for since the start, and whether the cap has let no fetch begin since the last call.
    pub fn demand(&self) -> (u64, bool) {
        let was_paused = self.was_paused.swap(false, Ordering::Relaxed);
        (self.asked.load(Ordering::Relaxed), was_paused || self.is_paused())
    }

    /// Changes the cap on the rate, if there is one, to so many bytes a second.
    pub fn set_rate(&self, bytes_per_s: u64) {
        if let Some(cap) = &self.cap {
            cap.lock().set_rate(self.now_us(), bytes_per_s);
            self.tell(&self.is_paused.lock());
        }
    }

    /// Counts bytes that are asked for. Returns whether they are more than the cap allows.
    fn count(&self, bytes: u64) -> bool {
        self.asked.fetch_add(bytes, Ordering::Relaxed);
        let Some(cap) = &self.cap else { return false };
        let now_us = self.now_us();
        let mut cap = cap.lock();
        cap.take(now_us, bytes);
        cap.pause_us(now_us) > 0
    }

    /// Waits until all bytes that were asked for are paid for.
    fn wait_until_paid(&self) {
        while let Some(cap) = &self.cap {
            match cap.lock().pause_us(self.now_us()) {
                0 => return,
                pause_us => thread::sleep(Duration::from_micros(pause_us).min(PAUSE_MAX)),
            }
        }
    }

    /// Looks for reads that are held up.
    fn look(&self) {
        let is_new = self.under_way.lock().count_held_up();
        if is_new {
            self.tell(&self.is_paused.lock());
        }
    }

    /// The limits of the reads, and the bytes a second that they have brought of late.
    pub fn limits(&self) -> (FetchLimits, f64) {
        let meter = self.meter.lock();
        (meter.limits(), meter.rate())
    }

    /// How many listings, and how many calls for attributes, the source serves best at once.
    pub fn metadata_limits(&self) -> MetadataLimits {
        MetadataLimits { lists: self.lists.limit(), stats: self.stats.limit() }
    }

    /// How many of them may be under way: those that are held up do not count.
    pub fn metadata_at_once(&self) -> MetadataLimits {
        MetadataLimits { lists: self.lists.at_once(), stats: self.stats.at_once() }
    }

    pub fn latencies(&self, operation: Operation) -> Latencies {
        self.timings[operation as usize].latencies()
    }

    /// Seconds by which a read takes longer for each byte. `None` if that cannot be told from the reads so far.
    pub fn seconds_per_byte(&self) -> Option<f64> {
        self.meter.lock().seconds_per_byte()
    }

    /// The time after which a read is late. `None` as long as too few were answered, or if the source is not asked a
    /// second time.
    pub(super) fn late_after(&self) -> Option<Duration> {
        self.hedges.as_ref()?;
        self.timings[Operation::Read as usize].at(LATE, TELLING_MIN)
    }

    /// Whether the source may be asked a second time now. Counts it.
    pub(super) fn take_hedge(&self) -> bool {
        self.hedges.as_ref().is_some_and(|hedges| hedges.lock().take())
    }

    /// Reads for which the source was asked a second time.
    pub fn asked_again(&self) -> u64 {
        self.hedges.as_ref().map_or(0, |hedges| hedges.lock().taken())
    }

    /// Notes a number of requests that took this time each.
    fn note(&self, operation: Operation, latency: Duration, count: u32) {
        self.timings[operation as usize].note_all(latency, count);
    }

    /// Whether the source has said since the last answer to such an operation that it is asked too much. It has said so
    /// `overloads` times by now.
    fn is_asked_too_much(&self, operation: Operation, overloads: u64) -> bool {
        self.overloads[operation as usize].fetch_max(overloads, Ordering::Relaxed) < overloads
    }

    /// Times a call that waits for its answer.
    fn timed<T>(&self, operation: Operation, call: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let answer = call();
        self.note(operation, began.elapsed(), 1);
        answer
    }
}

/// A read under way, or several that the source was asked for at once: they come together.
struct TimedRead {
    times: Arc<SourceTimes>,
    number: u64,
    began: Instant,
    /// What is read, if somebody traces: the file, and whether a reader waits for it.
    traced: Option<(Arc<Path>, bool)>,
}

impl TimedRead {
    fn begin(times: &Arc<SourceTimes>) -> Self {
        let began = Instant::now();
        let number = times.under_way.lock().begin(began);
        TimedRead { times: Arc::clone(times), number, began, traced: None }
    }

    /// Notes what is read, if somebody traces.
    fn trace(&mut self, request: &ReadRequest) {
        let is_demanded = request.urgency == Urgency::Demand;
        let is_traced = self.times.spans.is_on();
        self.traced = is_traced.then(|| (Arc::clone(&request.path), is_demanded));
    }

    /// `overloads`: how often the source has said by now that it is asked too much.
    fn answered(&self, result: Result<u64, ReadError>, overloads: u64) {
        let times = &self.times;
        let latency = self.began.elapsed();
        if let Some((path, is_demanded)) = &self.traced {
            times.spans.note(|| Span {
                what: if *is_demanded { "read on demand" } else { READ_AHEAD },
                path: Some(Arc::clone(path)),
                task: 0,
                bytes: result.unwrap_or_default(),
                began: self.began,
                took: latency,
            });
        }
        times.note(Operation::Read, latency, 1);
        if let Some(hedges) = &times.hedges {
            hedges.lock().answered();
        }
        let latency_us = latency.as_micros() as u64;
        let at_us = times.now_us();
        let in_flight = times.under_way.lock().counted();
        let is_asked_too_much = times.is_asked_too_much(Operation::Read, overloads);
        let mut meter = times.meter.lock();
        let limits = match result {
            _ if is_asked_too_much => meter.overloaded(at_us),
            Ok(bytes) => {
                meter.answered(&Answer { at_us, latency_us, bytes, in_flight, requests: 1 })
            }
            Err(ReadError::Source(errno)) if is_overload(errno) => meter.overloaded(at_us),
            Err(_) => None,
        };
        drop(meter);
        if limits.is_some() {
            times.tell(&times.is_paused.lock());
        }
    }
}

impl Drop for TimedRead {
    fn drop(&mut self) {
        self.times.under_way.lock().end(self.number);
    }
}

/// Whether a source says by this error that it is overloaded.
fn is_overload(errno: Errno) -> bool {
    matches!(errno, Errno::ETIMEDOUT | Errno::EAGAIN)
}

/// A source whose requests are timed.
pub struct TimedSource {
    source: Arc<dyn Source>,
    times: Arc<SourceTimes>,
    /// Wakes the thread that ends pauses; `None` without a cap on the rate.
    pauses: Option<mpsc::Sender<()>>,
}

impl TimedSource {
    /// Tells the planner behind `inbox` how much may be asked of `source`: at most `rate` bytes a second. Two limiters
    /// find how many listings, and how many calls for attributes, it serves best.
    pub fn new(
        source: Arc<dyn Source>,
        inbox: &Arc<Inbox>,
        meter: Meter,
        metadata: [Limiter; 2],
        rate: Option<u64>,
    ) -> Self {
        let times = SourceTimes::new(inbox, meter, metadata, rate, &*source);
        let times = Arc::new(times);
        let pauses = rate.and_then(|_| end_pauses(&times));
        TimedSource { source, times, pauses }
    }

    pub fn times(&self) -> &Arc<SourceTimes> {
        &self.times
    }

    fn is_asked_too_much(&self, operation: Operation) -> bool {
        self.times.is_asked_too_much(operation, self.source.overloads())
    }

    /// Attributes of names that are asked for in one call.
    fn stat_some(&self, directory: &Path, names: &[OsString]) -> Vec<Result<Stat, Errno>> {
        let (call, began) = (self.times.stats.begin(), Instant::now());
        let stats = self.source.stat_all(directory, names);
        let count = names.len() as u32;
        self.times.note(Operation::Stat, began.elapsed() / count.max(1), count);
        let is_asked_too_much = self.is_asked_too_much(Operation::Stat);
        if is_asked_too_much || stats.iter().any(|stat| stat.is_err_and(is_overload)) {
            call.overloaded();
        } else {
            let requests = if self.source.asks_one_by_one() { names.len() } else { 1 };
            call.answered(names.len(), requests);
        }
        stats
    }
}

/// Starts the thread that ends pauses. It ends with the sender. If it cannot be started, there is no cap.
fn end_pauses(times: &Arc<SourceTimes>) -> Option<mpsc::Sender<()>> {
    let (send, pauses) = mpsc::channel();
    let times = Arc::clone(times);
    let thread = thread::Builder::new().name("belady-rate".into());
    let started = thread.spawn(move || {
        while pauses.recv().is_ok() {
            times.wait_until_paid();
            times.set_paused(false);
        }
    });
    let failed = |error: &std::io::Error| tracing::warn!(%error, "prefetch.rate is not kept");
    started.inspect_err(failed).ok().map(|_| send)
}

impl Source for TimedSource {
    fn lasting_identity(&self) -> u128 {
        self.source.lasting_identity()
    }

    fn tree_identity(&self) -> u128 {
        self.source.tree_identity()
    }

    fn is_hedged(&self) -> bool {
        self.source.is_hedged()
    }

    fn overloads(&self) -> u64 {
        self.source.overloads()
    }

    fn failures(&self) -> Option<SourceFailures> {
        self.source.failures()
    }

    fn tells_sizes(&self) -> bool {
        self.source.tells_sizes()
    }

    fn asks_one_by_one(&self) -> bool {
        self.source.asks_one_by_one()
    }

    fn list_in_parts(
        &self,
        directory: &Path,
        each: &mut dyn FnMut(&[OsString]),
    ) -> Result<(), Errno> {
        let (call, began) = (self.times.lists.begin(), Instant::now());
        let (mut elsewhere, mut count) = (Duration::ZERO, 0);
        let listed = self.source.list_in_parts(directory, &mut |names| {
            let began = Instant::now();
            each(names);
            elsewhere += began.elapsed();
            count += names.len();
        });
        self.times.note(Operation::List, began.elapsed().saturating_sub(elsewhere), 1);
        match listed {
            _ if self.is_asked_too_much(Operation::List) => call.overloaded(),
            // The whole call counts, as it does for who bounds the calls under way.
            Ok(()) => call.answered(count, 1),
            Err(errno) if is_overload(errno) => call.overloaded(),
            Err(_) => {}
        }
        listed
    }

    fn stat(&self, path: &Path) -> Result<Stat, Errno> {
        self.times.timed(Operation::Stat, || self.source.stat(path))
    }

    fn stat_anew(&self, path: &Path) -> Result<Stat, Errno> {
        self.times.timed(Operation::Stat, || self.source.stat_anew(path))
    }

    fn stat_all(&self, directory: &Path, names: &[OsString]) -> Vec<Result<Stat, Errno>> {
        if !self.source.asks_one_by_one() {
            return self.stat_some(directory, names);
        }
        let (mut found, mut left) = (Vec::with_capacity(names.len()), names);
        while !left.is_empty() {
            let count = self.times.stats.names_of_a_call().min(left.len());
            let (now, later) = left.split_at(count);
            found.append(&mut self.stat_some(directory, now));
            left = later;
        }
        found
    }

    fn listed_kinds(&self, directory: &Path) -> HashMap<OsString, Kind> {
        self.times.timed(Operation::List, || self.source.listed_kinds(directory))
    }

    fn read_link(&self, path: &Path) -> Result<OsString, Errno> {
        self.times.timed(Operation::Other, || self.source.read_link(path))
    }

    fn list_xattrs(&self, path: &Path) -> Result<Vec<u8>, Errno> {
        self.times.timed(Operation::Other, || self.source.list_xattrs(path))
    }

    fn xattr(&self, path: &Path, name: &OsStr) -> Result<Vec<u8>, Errno> {
        self.times.timed(Operation::Other, || self.source.xattr(path, name))
    }

    fn space(&self) -> Result<[u64; 7], Errno> {
        self.times.timed(Operation::Other, || self.source.space())
    }

    fn lie_behind(&self, directory: &Path, names: &[OsString]) -> Option<Vec<bool>> {
        self.source.lie_behind(directory, names)
    }

    fn close_idle(&self) {
        self.times.look();
        self.source.close_idle();
    }

    fn read(&self, mut requests: Vec<ReadRequest>) {
        let bytes: u64 = requests.iter().map(|request| request.length as u64).sum();
        if self.times.count(bytes)
            && let Some(pauses) = &self.pauses
        {
            self.times.set_paused(true);
            // The thread ends only with this source.
            let _ = pauses.send(());
        }
        let mut read = TimedRead::begin(&self.times);
        requests.iter().take(1).for_each(|first| read.trace(first));
        let (read, is_one) = (Arc::new(Mutex::new(Some(read))), requests.len() == 1);
        for request in &mut requests {
            let (read, source) = (Arc::clone(&read), Arc::clone(&self.source));
            let of_others = bytes - request.length as u64;
            let deliver = std::mem::replace(&mut request.deliver, Box::new(|_| ()));
            request.deliver = Box::new(move |result| {
                // The first answer ends it: the others only wait until this one is delivered. A request for another version
                // may be refused before the others are made.
                let tells = is_one || result != Err(ReadError::Changed);
                let begun = if tells { read.lock().take() } else { None };
                if let Some(read) = begun {
                    let all = result.as_ref().map(|own| own.len() as u64 + of_others);
                    read.answered(all.map_err(|error| *error), source.overloads());
                }
                drop((read, source));
                deliver(result);
            });
        }
        drop(read);
        self.source.read(requests);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::config::Manners;
    use crate::source::stub::StubSource;
    use crate::source::{HELD_UP, PosixSource};

    fn source(directory: &Path, inbox: &Arc<Inbox>) -> TimedSource {
        let posix = Arc::new(PosixSource::open(directory, 1).unwrap());
        TimedSource::new(posix, inbox, Meter::new(8, Manners::Fair), metadata(), None)
    }

    fn metadata() -> [Limiter; 2] {
        [0; 2].map(|_| Limiter::of_metadata(128, Manners::Fair))
    }

    #[test]
    fn requests_are_timed_by_their_operation_and_reads_under_way_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a"), b"abc").unwrap();
        let inbox = Arc::new(Inbox::new(1));
        let source = source(directory.path(), &inbox);
        let mut messages = Vec::new();
        inbox.take(&mut messages, &mut Vec::new(), Duration::ZERO);
        let limits = FetchLimits { fetches: 8, ..FetchLimits::default() };
        assert!(matches!(messages[0].event, Event::Limited(told) if told == limits));

        source.list_in_parts(Path::new(""), &mut |_| ()).unwrap();
        let stat = source.stat(Path::new("a")).unwrap();
        source.stat_all(Path::new(""), &["a".into(), "b".into()]);
        let (send, answer) = mpsc::channel();
        let times = Arc::clone(source.times());
        source.read(vec![ReadRequest {
            path: Arc::from(Path::new("a")),
            fingerprint: stat.fingerprint(),
            is_sized: true,
            exact: true,
            offset: 0,
            length: 3,
            urgency: Urgency::Demand,
            deliver: Box::new(move |result| send.send((result, times.in_flight())).unwrap()),
        }]);
        let (result, in_flight) = answer.recv_timeout(Duration::from_secs(180)).unwrap();
        assert_eq!((result.unwrap(), in_flight), (b"abc".to_vec(), 0));
        let counts = Operation::ALL.map(|operation| source.times().latencies(operation).count);
        assert_eq!(counts, [1, 1, 3, 0]);
    }

    #[test]
    fn beyond_the_rate_no_fetch_begins_until_the_bytes_are_paid_for() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a"), vec![1; 100_000]).unwrap();
        let inbox = Arc::new(Inbox::new(1));
        let posix = Arc::new(PosixSource::open(directory.path(), 1).unwrap());
        let meter = Meter::new(8, Manners::Fair);
        let source = TimedSource::new(posix, &inbox, meter, metadata(), Some(200_000));
        let stat = source.stat(Path::new("a")).unwrap();
        let (send, answer) = mpsc::channel();
        source.read(vec![ReadRequest {
            path: Arc::from(Path::new("a")),
            fingerprint: stat.fingerprint(),
            is_sized: true,
            exact: true,
            offset: 0,
            length: 100_000,
            urgency: Urgency::Demand,
            deliver: Box::new(move |result| send.send(result).unwrap()),
        }]);
        assert_eq!(answer.recv().unwrap().unwrap().len(), 100_000, "readers do not wait");
        let mut told = Vec::new();
        while told.len() < 3 {
            let mut messages = Vec::new();
            inbox.take(&mut messages, &mut Vec::new(), Duration::from_millis(100));
            told.extend(messages.iter().filter_map(|message| match message.event {
                Event::Limited(limits) => Some(limits.fetches),
                _ => None,
            }));
            told.dedup();
        }
        // With so low a rate, one fetch at a time is enough.
        assert_eq!(told, [8, 0, 1]);
    }

    #[test]
    fn names_may_be_asked_for_while_a_directory_is_listed() {
        let directory = tempfile::tempdir().unwrap();
        (0..100).for_each(|n| std::fs::write(directory.path().join(n.to_string()), b"x").unwrap());
        let source = source(directory.path(), &Arc::new(Inbox::new(1)));
        let (top, mut found) = (Path::new(""), Vec::new());
        source
            .list_in_parts(top, &mut |names| {
                found.extend(names.iter().cloned().zip(source.stat_all(top, names)));
            })
            .unwrap();
        assert_eq!(found.len(), 100);
        for (name, stat) in found {
            assert_eq!(stat.unwrap().identity, source.stat(&top.join(name)).unwrap().identity);
        }
        let counts = Operation::ALL.map(|operation| source.times().latencies(operation).count);
        assert_eq!(counts, [0, 1, 200, 0]);
        assert_eq!(source.times().metadata_limits(), source.times().metadata_at_once());
    }

    #[test]
    fn a_source_that_is_asked_too_much_is_asked_for_less() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a"), b"all of it").unwrap();
        let inbox = Arc::new(Inbox::new(1));
        let posix = PosixSource::open(directory.path(), 1).unwrap();
        let stub = StubSource::new(posix, |request: ReadRequest| (request.deliver)(Ok(Vec::new())));
        let stub = Arc::new(stub);
        let overloads = Arc::clone(&stub);
        let meter = Meter::new(8, Manners::Fair);
        let source = TimedSource::new(stub, &inbox, meter, metadata(), None);
        let stat = source.stat(Path::new("a")).unwrap();
        let read = || {
            source.read(vec![ReadRequest {
                path: Path::new("a").into(),
                fingerprint: stat.fingerprint(),
                exact: true,
                offset: 0,
                length: 9,
                urgency: Urgency::Demand,
                is_sized: true,
                deliver: Box::new(|_| ()),
            }]);
            source.times().limits().0.fetches
        };
        let names = || {
            source.list_in_parts(Path::new(""), &mut |_| ()).unwrap();
            source.stat_all(Path::new(""), &["a".into()]);
            source.times().metadata_limits()
        };
        // The limits stay as long as the source does not complain.
        let before: Vec<_> = (0..8).map(|_| read()).collect();
        let many = names();
        overloads.overloads.fetch_add(1, Ordering::Relaxed);
        assert_eq!((before[7], read(), read()), (8, 5, 5));
        let fewer = names();
        assert!(fewer.lists < many.lists && fewer.stats < many.stats, "{fewer:?}");
        assert_eq!(names(), fewer);
    }

    /// A pool that ends drops its requests.
    #[test]
    fn a_read_that_is_never_answered_is_no_longer_counted() {
        let directory = tempfile::tempdir().unwrap();
        let source = source(directory.path(), &Arc::new(Inbox::new(1)));
        let read = TimedRead::begin(source.times());
        assert_eq!(source.times().in_flight(), 1);
        drop(read);
        assert_eq!(source.times().in_flight(), 0);
    }

    #[test]
    fn a_read_that_hangs_leaves_its_place_to_another() {
        let directory = tempfile::tempdir().unwrap();
        let inbox = Arc::new(Inbox::new(1));
        let source = source(directory.path(), &inbox);
        let times = source.times();
        let told = || {
            let mut messages = Vec::new();
            inbox.take(&mut messages, &mut Vec::new(), Duration::ZERO);
            messages.iter().rev().find_map(|message| match message.event {
                Event::Limited(limits) => Some(limits.fetches),
                _ => None,
            })
        };
        assert_eq!(told(), Some(8));
        let reads = [TimedRead::begin(times), TimedRead::begin(times)];
        source.close_idle();
        assert_eq!(told(), None);
        let long_ago = Instant::now().checked_sub(HELD_UP).unwrap();
        times.under_way.lock().began.insert(reads[0].number, long_ago);
        source.close_idle();
        assert_eq!(told(), Some(9));
        drop(reads);
        source.close_idle();
        assert_eq!((told(), times.in_flight()), (Some(8), 0));
    }
}
