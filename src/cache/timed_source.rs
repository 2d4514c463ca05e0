//! Times each request to the source, once for all who want to know.
//!
//! 1. The latency of a request goes into the histogram of its operation, which `status` shows.
//! 2. An answer to a read goes to the [`Meter`]. If the limits that it finds have changed, the planner hears of
//!    them ([`Event::Limited`]).

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::errno::Errno;

use super::Inbox;
use crate::limiter::{Answer, FetchLimits, LATENCY_US_MAX, Meter};
use crate::plan::Event;
use crate::source::{Kind, ReadError, ReadRequest, Source, Stat};
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

/// The latencies of an operation since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latencies {
    pub count: u64,
    /// Microseconds that half of the requests did not exceed, and 99 and 99.9 of 100.
    pub p50_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub max_us: u64,
}

/// What is measured of a source.
pub struct SourceTimes {
    started: Instant,
    inbox: Arc<Inbox>,
    meter: Mutex<Meter>,
    in_flight: AtomicU32,
    /// By operation. `None` if there is no memory.
    histograms: [Option<Mutex<Histogram<u64>>>; Operation::ALL.len()],
}

impl SourceTimes {
    fn new(inbox: &Arc<Inbox>, meter: Meter) -> Self {
        let histogram = |_| Histogram::new_with_bounds(1, LATENCY_US_MAX, 2).ok().map(Mutex::new);
        inbox.put(Event::Limited(meter.limits()), None);
        SourceTimes {
            started: Instant::now(),
            inbox: Arc::clone(inbox),
            meter: Mutex::new(meter),
            in_flight: AtomicU32::new(0),
            histograms: Operation::ALL.map(histogram),
        }
    }

    /// Reads under way.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// The limits of the reads, and the bytes a second that they have brought of late.
    pub fn limits(&self) -> (FetchLimits, f64) {
        let meter = self.meter.lock();
        (meter.limits(), meter.rate())
    }

    pub fn latencies(&self, operation: Operation) -> Latencies {
        let Some(histogram) = &self.histograms[operation as usize] else {
            return Latencies::default();
        };
        let histogram = histogram.lock();
        Latencies {
            count: histogram.len(),
            p50_us: histogram.value_at_quantile(0.5),
            p99_us: histogram.value_at_quantile(0.99),
            p999_us: histogram.value_at_quantile(0.999),
            max_us: histogram.max(),
        }
    }

    /// Notes a number of requests that took this time each.
    fn note(&self, operation: Operation, latency: Duration, count: u32) {
        if let Some(histogram) = &self.histograms[operation as usize] {
            histogram.lock().saturating_record_n(latency.as_micros() as u64, u64::from(count));
        }
    }

    /// Times a call that waits for its answer.
    fn timed<T>(&self, operation: Operation, call: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let answer = call();
        self.note(operation, began.elapsed(), 1);
        answer
    }
}

/// A read under way.
struct TimedRead {
    times: Arc<SourceTimes>,
    began: Instant,
}

impl TimedRead {
    fn begin(times: &Arc<SourceTimes>) -> Self {
        times.in_flight.fetch_add(1, Ordering::Relaxed);
        TimedRead { times: Arc::clone(times), began: Instant::now() }
    }

    fn answered(&self, result: Result<&Vec<u8>, &ReadError>) {
        let times = &self.times;
        let latency = self.began.elapsed();
        times.note(Operation::Read, latency, 1);
        let latency_us = latency.as_micros() as u64;
        let at_us = times.started.elapsed().as_micros() as u64;
        let in_flight = times.in_flight();
        let mut meter = times.meter.lock();
        let limits = match result {
            Ok(bytes) => {
                let bytes = bytes.len() as u64;
                meter.answered(&Answer { at_us, latency_us, bytes, in_flight })
            }
            Err(ReadError::Source(Errno::ETIMEDOUT | Errno::EAGAIN)) => meter.overloaded(at_us),
            Err(_) => None,
        };
        drop(meter);
        if let Some(limits) = limits {
            times.inbox.put(Event::Limited(limits), None);
        }
    }
}

impl Drop for TimedRead {
    fn drop(&mut self) {
        self.times.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A source whose requests are timed.
pub struct TimedSource {
    source: Arc<dyn Source>,
    times: Arc<SourceTimes>,
}

impl TimedSource {
    /// Tells the planner behind `inbox` how much may be asked of `source`.
    pub fn new(source: Arc<dyn Source>, inbox: &Arc<Inbox>, meter: Meter) -> Self {
        TimedSource { source, times: Arc::new(SourceTimes::new(inbox, meter)) }
    }

    pub fn times(&self) -> &Arc<SourceTimes> {
        &self.times
    }
}

impl Source for TimedSource {
    fn lasting_identity(&self) -> u128 {
        self.source.lasting_identity()
    }

    fn list_in_parts(
        &self,
        directory: &Path,
        each: &mut dyn FnMut(&[OsString]),
    ) -> Result<(), Errno> {
        let began = Instant::now();
        let mut elsewhere = Duration::ZERO;
        let listed = self.source.list_in_parts(directory, &mut |names| {
            let began = Instant::now();
            each(names);
            elsewhere += began.elapsed();
        });
        self.times.note(Operation::List, began.elapsed().saturating_sub(elsewhere), 1);
        listed
    }

    fn stat(&self, path: &Path) -> Result<Stat, Errno> {
        self.times.timed(Operation::Stat, || self.source.stat(path))
    }

    fn stat_anew(&self, path: &Path) -> Result<Stat, Errno> {
        self.times.timed(Operation::Stat, || self.source.stat_anew(path))
    }

    fn stat_all(&self, directory: &Path, names: &[OsString]) -> Vec<Result<Stat, Errno>> {
        let began = Instant::now();
        let stats = self.source.stat_all(directory, names);
        let count = names.len() as u32;
        self.times.note(Operation::Stat, began.elapsed() / count.max(1), count);
        stats
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

    fn close_idle(&self) {
        self.source.close_idle();
    }

    fn read(&self, mut requests: Vec<ReadRequest>) {
        for request in &mut requests {
            let read = TimedRead::begin(&self.times);
            let deliver = std::mem::replace(&mut request.deliver, Box::new(|_| ()));
            request.deliver = Box::new(move |result| {
                read.answered(result.as_ref());
                drop(read);
                deliver(result);
            });
        }
        self.source.read(requests);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::config::Manners;
    use crate::source::{PosixSource, Urgency};

    fn source(directory: &Path, inbox: &Arc<Inbox>) -> TimedSource {
        let posix = Arc::new(PosixSource::open(directory, 1).unwrap());
        TimedSource::new(posix, inbox, Meter::new(8, Manners::Fair))
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
}
