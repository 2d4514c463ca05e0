//! A trace of a mount: what its readers, its source and its cache disk did when, for a viewer such as Perfetto.
//!
//! 1. For some seconds, each read at the source, read of the cache disk, push and wait is noted with its time (`cache/spans`).
//!    So is each open of a file. The profiler notes each look at a worker.
//! 2. Each worker has a lane with its states, and one with its waits. What overlaps has several lanes.
//! 3. A read ahead is joined by an arrow to the open for which it was made: the next one of this file.
//!
//! The format is the JSON of Chrome's trace viewer ("Trace Event Format", Google). Times are microseconds since the start.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Engine;
use crate::cache::{READ_AHEAD, Span, Spans};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::FileId;
use crate::profiler::{Look, Profiler};
use crate::stall::State;
use crate::sync::Mutex;

/// Opens that are kept at most.
const OPENS_MAX: usize = 1_000_000;

/// The pause between two looks whether the mount has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The process of the daemon's lanes. No process has this number.
const DAEMON: u32 = 0;

/// The number of a lane with waits is that of its task and this. No task has so high a number.
const WAITS: u64 = 1 << 32;

/// Who opens what, while somebody traces.
#[derive(Default)]
pub(super) struct Opens {
    is_on: AtomicBool,
    noted: Mutex<Vec<Open>>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    at: Instant,
    task: u32,
    file: FileId,
}

impl Opens {
    pub(super) fn note(&self, task: u32, file: FileId) {
        if !self.is_on.load(Ordering::Relaxed) {
            return;
        }
        let mut noted = self.noted.lock();
        if noted.len() < OPENS_MAX {
            noted.push(Open { at: Instant::now(), task, file });
        }
    }

    /// Whether nobody traced until now.
    fn begin(&self) -> bool {
        !self.is_on.swap(true, Ordering::Relaxed)
    }

    fn end(&self) -> Vec<Open> {
        let noted = std::mem::take(&mut *self.noted.lock());
        self.is_on.store(false, Ordering::Relaxed);
        noted
    }
}

/// What was noted.
pub struct Trace {
    began: Instant,
    /// Reads at the source, what was done with blocks, and waits.
    reads: Vec<Span>,
    blocks: Vec<Span>,
    waits: Vec<Span>,
    opens: Vec<(Open, Arc<Path>)>,
    looks: Vec<Look>,
    left_out: u64,
}

impl Trace {
    pub(super) fn take(engine: &Engine, time: Duration) -> Result<Self> {
        if !engine.opens.begin() {
            let message = "another `belady trace` goes on at this mount";
            return Err(Error::new(ErrorKind::Busy, message).hint("wait until it has ended"));
        }
        let cache = &engine.core.cache;
        let all: [&Spans; 3] = [&engine.times.spans, &cache.traffic().spans, &cache.waits().spans];
        let began = Instant::now();
        all.iter().for_each(|spans| spans.begin());
        engine.profiler.iter().for_each(Profiler::begin_trace);
        while began.elapsed() < time && !engine.serving.is_over() {
            sleep(LOOK_EVERY.min(time.saturating_sub(began.elapsed())));
        }
        let [(reads, a), (blocks, b), (waits, c)] = all.map(|spans| {
            let (mut noted, left_out) = spans.end();
            noted.sort_by_key(|span| span.began);
            (noted, left_out)
        });
        let looks = engine.profiler.iter().flat_map(Profiler::end_trace).collect();
        let mut paths: HashMap<FileId, Arc<Path>> = HashMap::new();
        let mut opens = Vec::new();
        for open in engine.opens.end() {
            let path = || Some(Arc::from(engine.core.catalog.path_of(open.file)?));
            if let Some(path) = paths.get(&open.file).cloned().or_else(path) {
                paths.insert(open.file, Arc::clone(&path));
                opens.push((open, path));
            }
        }
        Ok(Trace { began, reads, blocks, waits, opens, looks, left_out: a + b + c })
    }

    /// How much was noted.
    pub fn summary(&self) -> Value {
        json!({
            "reads": self.reads.len(),
            "blocks": self.blocks.len(),
            "waits": self.waits.len(),
            "opens": self.opens.len(),
            "looks": self.looks.len(),
            "left_out": self.left_out,
        })
    }

    /// Writes the events as one JSON value.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn write(&self, out: &mut dyn Write) -> Result<()> {
        let failed = |error| Error::new(ErrorKind::Internal, format!("the trace: {error}"));
        let mut first = true;
        let mut all = Vec::new();
        self.add_lanes_of_readers(&mut all);
        self.add_lanes_of_daemon(&mut all);
        out.write_all(b"{\"traceEvents\":[\n").map_err(failed)?;
        for event in all {
            let comma = if std::mem::take(&mut first) { "" } else { ",\n" };
            write!(out, "{comma}{event}").map_err(failed)?;
        }
        out.write_all(b"\n],\"displayTimeUnit\":\"ms\"}\n").map_err(failed)
    }

    /// Microseconds from the start.
    fn us(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.began).as_micros() as u64
    }

    /// The process for which each task reads, as far as it is known.
    fn trainers(&self) -> BTreeMap<u32, u32> {
        self.looks.iter().map(|look| (look.task, look.trainer)).collect()
    }

    /// The states of workers, and the waits of all tasks.
    fn add_lanes_of_readers(&self, all: &mut Vec<Value>) {
        let trainers = self.trainers();
        let of = |task: u32| trainers.get(&task).copied().unwrap_or(task);
        for trainer in trainers.values().collect::<BTreeSet<_>>() {
            all.push(name_of("process_name", *trainer, 0, &format!("job {trainer}")));
        }
        let mut lanes: BTreeMap<u32, Vec<&Look>> = BTreeMap::new();
        self.looks.iter().for_each(|look| lanes.entry(look.task).or_default().push(look));
        for (task, looks) in lanes {
            let lane = (of(task), u64::from(task));
            all.push(name_of("thread_name", lane.0, lane.1, &format!("worker {task}")));
            let runs: Vec<&[&Look]> = looks.chunk_by(|a, b| a.state == b.state).collect();
            for (nth, run) in runs.iter().enumerate() {
                // A state lasts until the next one is seen.
                let next = runs.get(nth + 1).map_or(run[run.len() - 1].at, |next| next[0].at);
                let (from, to) = (self.us(run[0].at), self.us(next));
                all.push(slice(words(run[0].state), "worker", lane, (from, to - from)));
            }
        }
        let mut known = BTreeSet::new();
        for span in &self.waits {
            let lane = (of(span.task), WAITS + u64::from(span.task));
            if known.insert(span.task) {
                let name = format!("waits of {}", span.task);
                all.push(name_of("thread_name", lane.0, lane.1, &name));
            }
            all.push(self.slice_of(span, "wait", lane));
        }
    }

    /// What the daemon did, and the opens that it was done for.
    fn add_lanes_of_daemon(&self, all: &mut Vec<Value>) {
        all.push(name_of("process_name", DAEMON, 0, "belady"));
        let blocks = |what: &str| -> Vec<&Span> {
            self.blocks.iter().filter(|span| span.what == what).collect()
        };
        self.add_lanes(all, "cache disk", 2_000, &blocks("disk read"));
        self.add_lanes(all, "push", 3_000, &blocks("push"));
        let reads: Vec<&Span> = self.reads.iter().collect();
        let lanes = self.add_lanes(all, "source", 1_000, &reads);
        let trainers = self.trainers();
        let mut opens: HashMap<&Path, Vec<&Open>> = HashMap::new();
        for (open, path) in &self.opens {
            opens.entry(path).or_default().push(open);
            let pid = trainers.get(&open.task).copied().unwrap_or(open.task);
            all.push(json!({
                "ph": "i", "s": "t", "cat": "open", "name": path.to_string_lossy(),
                "pid": pid, "tid": open.task, "ts": self.us(open.at),
            }));
        }
        for (number, (read, lane)) in self.reads.iter().zip(lanes).enumerate() {
            let path = read.path.as_ref().filter(|_| read.what == READ_AHEAD);
            let of_file = path.and_then(|path| opens.get(&**path));
            let Some(open) = of_file.and_then(|opens| next(opens, read.began)) else { continue };
            let pid = trainers.get(&open.task).copied().unwrap_or(open.task);
            let end = |ph: &str, pid: u32, tid: u64, at: Instant| {
                json!({
                    "ph": ph, "bp": "e", "cat": "sample", "name": "read for", "id": number,
                    "pid": pid, "tid": tid, "ts": self.us(at),
                })
            };
            all.push(end("s", DAEMON, lane, read.began));
            all.push(end("f", pid, open.task.into(), open.at));
        }
    }

    /// Spans in the order of their begin, in as many lanes as overlap. Returns the lane of each.
    fn add_lanes(&self, all: &mut Vec<Value>, kind: &str, first: u64, spans: &[&Span]) -> Vec<u64> {
        let mut free_at: Vec<Instant> = Vec::new();
        let mut lanes = Vec::with_capacity(spans.len());
        for span in spans {
            let free = free_at.iter().position(|free| *free <= span.began);
            let nth = free.unwrap_or_else(|| {
                let lane = first + free_at.len() as u64;
                let name = format!("{kind} {}", free_at.len() + 1);
                all.push(name_of("thread_name", DAEMON, lane, &name));
                free_at.push(span.began);
                free_at.len() - 1
            });
            free_at[nth] = span.began + span.took;
            lanes.push(first + nth as u64);
            all.push(self.slice_of(span, kind, (DAEMON, first + nth as u64)));
        }
        lanes
    }

    fn slice_of(&self, span: &Span, kind: &str, lane: (u32, u64)) -> Value {
        let (from, to) = (self.us(span.began), self.us(span.began + span.took));
        let mut slice = slice(span.what, kind, lane, (from, to - from));
        if let Some(path) = &span.path {
            slice["args"] = json!({ "file": path.to_string_lossy(), "bytes": span.bytes });
        }
        slice
    }
}

/// The first open after a moment.
fn next<'a>(opens: &[&'a Open], at: Instant) -> Option<&'a Open> {
    opens.get(opens.partition_point(|open| open.at < at)).copied()
}

fn slice(name: &str, kind: &str, (pid, tid): (u32, u64), (ts, dur): (u64, u64)) -> Value {
    json!({
        "ph": "X", "name": name, "cat": kind, "pid": pid, "tid": tid, "ts": ts, "dur": dur,
    })
}

fn name_of(what: &str, pid: u32, tid: u64, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": name } })
}

fn words(state: State) -> &'static str {
    match state {
        State::Runs => "processor",
        State::Fetches => "fetch",
        State::HasNoWork => "no work",
        State::Elsewhere => "elsewhere",
        State::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Trace {
        let began = Instant::now();
        let at = |ms: u64| began + Duration::from_millis(ms);
        let path: Arc<Path> = Arc::from(Path::new("d/a \"b\".jpg"));
        let span = |what, from: u64, to: u64, task| Span {
            what,
            path: (task == 0).then(|| Arc::clone(&path)),
            task,
            bytes: 9,
            began: at(from),
            took: Duration::from_millis(to - from),
        };
        let look = |ms, state| Look { at: at(ms), trainer: 7, task: 8, state };
        let open = |ms| (Open { at: at(ms), task: 8, file: FileId(0) }, Arc::clone(&path));
        Trace {
            began,
            reads: vec![span("read ahead", 10, 30, 0), span("read ahead", 20, 40, 0)],
            blocks: vec![span("push", 40, 41, 0), span("disk read", 50, 60, 0)],
            waits: vec![span("late", 25, 40, 8)],
            opens: vec![open(5), open(25)],
            looks: vec![look(0, State::Runs), look(20, State::Runs), look(40, State::Fetches)],
            left_out: 0,
        }
    }

    fn events(trace: &Trace) -> Vec<Value> {
        let mut out = Vec::new();
        trace.write(&mut out).unwrap();
        let value: Value = serde_json::from_slice(&out).unwrap();
        value["traceEvents"].as_array().unwrap().clone()
    }

    #[test]
    fn all_that_was_noted_has_a_lane_and_a_read_is_joined_to_its_open() {
        let events = events(&trace());
        let of = |kind: &str| -> Vec<&Value> {
            events.iter().filter(|event| event["cat"] == kind).collect()
        };
        let lanes: Vec<&Value> = of("source").iter().map(|event| &event["tid"]).collect();
        assert_eq!(lanes, [1_000, 1_001], "they overlap");
        assert_eq!((of("push").len(), of("cache disk").len(), of("open").len()), (1, 1, 2));
        let states: Vec<String> =
            of("worker").iter().map(|event| event["name"].to_string()).collect();
        assert_eq!(states, ["\"processor\"", "\"fetch\""]);
        assert_eq!(of("worker")[0]["dur"], 40_000);
        assert_eq!((&of("wait")[0]["dur"], &of("wait")[0]["pid"]), (&15_000.into(), &7.into()));
        // Both reads are for the second open.
        let arrows: Vec<_> =
            of("sample").iter().map(|event| (&event["ph"], &event["ts"])).collect();
        let (begin, end) = (Value::from("s"), Value::from("f"));
        let at = |us: u64| Value::from(us);
        assert_eq!(
            arrows,
            [
                (&begin, &at(10_000)),
                (&end, &at(25_000)),
                (&begin, &at(20_000)),
                (&end, &at(25_000))
            ]
        );
        assert!(of("open")[0]["name"] == "d/a \"b\".jpg");
    }

    #[test]
    fn an_empty_trace_is_json() {
        let none = || Vec::new();
        let (began, opens, looks) = (Instant::now(), Vec::new(), Vec::new());
        let empty = Trace {
            began,
            reads: none(),
            blocks: none(),
            waits: none(),
            opens,
            looks,
            left_out: 0,
        };
        assert_eq!(events(&empty).len(), 1);
    }
}
