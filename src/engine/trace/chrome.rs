//! The JSON of Chrome's trace viewer ("Trace Event Format", Google), which Perfetto reads, too.
//!
//! Each worker has a lane with its states. What may overlap has as many lanes as needed: slices of a lane must not cross. Times
//! are microseconds since the start of the trace. An arrow leads from a read ahead to the open for which it was made: the
//! next one of its file.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use super::Trace;
use crate::cache::{DISK_READ, PUSH, READ_AHEAD, Span};
use crate::profiler::Look;

/// The process of the daemon's lanes, and of readers whose number is not known. No process has this number.
const DAEMON: u32 = 0;

/// Numbers of lanes that are no tasks begin here. Tasks have lower ones, and a viewer wants 32 bits.
const LANES: u32 = 1 << 24;

pub(super) fn write(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"{\"traceEvents\":[\n")?;
    let looks = trace.looks.iter();
    let trainers = looks.map(|look| (look.task, look.trainer)).collect();
    let mut events = Events { trace, out, trainers, lanes: LANES };
    events.name("process_name", DAEMON, 0, "belady")?;
    events.add_workers()?;
    events.add_waits()?;
    events.add_opens()?;
    let of = |what: &str| trace.blocks.iter().filter(|span| span.what == what).collect::<Vec<_>>();
    events.add_lanes(DAEMON, "cache disk", &of(DISK_READ))?;
    events.add_lanes(DAEMON, "push", &of(PUSH))?;
    let reads: Vec<&Span> = trace.reads.iter().collect();
    let lanes = events.add_lanes(DAEMON, "source", &reads)?;
    events.add_arrows(&lanes)?;
    // The last event has no comma behind it.
    writeln!(
        out,
        "{}",
        json!({ "ph": "M", "name": "trace_end", "pid": DAEMON, "tid": 0, "args": {} })
    )?;
    out.write_all(b"],\"displayTimeUnit\":\"ms\"}\n")
}

struct Events<'a> {
    trace: &'a Trace,
    out: &'a mut dyn Write,
    /// The process for which each task reads, as far as it is known.
    trainers: BTreeMap<u32, u32>,
    /// The number of the next lane that is no task.
    lanes: u32,
}

impl Events<'_> {
    fn add(&mut self, event: &Value) -> io::Result<()> {
        writeln!(self.out, "{event},")
    }

    fn name(&mut self, what: &str, pid: u32, tid: u32, name: &str) -> io::Result<()> {
        self.add(&json!({
            "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": name },
        }))
    }

    /// Microseconds from the start.
    fn us(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.trace.began).as_micros() as u64
    }

    fn process_of(&self, task: u32) -> u32 {
        self.trainers.get(&task).copied().unwrap_or(task)
    }

    /// What each worker did. A state lasts until the next one is seen.
    fn add_workers(&mut self) -> io::Result<()> {
        for trainer in self.trainers.values().copied().collect::<BTreeSet<u32>>() {
            self.name("process_name", trainer, 0, &format!("job {trainer}"))?;
        }
        let mut lanes: BTreeMap<u32, Vec<&Look>> = BTreeMap::new();
        self.trace.looks.iter().for_each(|look| lanes.entry(look.task).or_default().push(look));
        for (task, looks) in lanes {
            let pid = self.process_of(task);
            let kind = if task == pid { "process" } else { "worker" };
            self.name("thread_name", pid, task, &format!("{kind} {task}"))?;
            let runs: Vec<&[&Look]> = looks.chunk_by(|a, b| a.state == b.state).collect();
            for (nth, run) in runs.iter().enumerate() {
                let next = runs.get(nth + 1).map_or(run[run.len() - 1].at, |next| next[0].at);
                let (from, to) = (self.us(run[0].at), self.us(next));
                self.add(&json!({
                    "ph": "X", "cat": "worker", "name": run[0].state.words(),
                    "pid": pid, "tid": task, "ts": from, "dur": to - from,
                }))?;
            }
        }
        Ok(())
    }

    fn add_waits(&mut self) -> io::Result<()> {
        let mut of_task: BTreeMap<u32, Vec<&Span>> = BTreeMap::new();
        self.trace.waits.iter().for_each(|span| of_task.entry(span.task).or_default().push(span));
        for (task, spans) in of_task {
            let name = match task {
                0 => "waits of unknown readers".to_owned(),
                _ => format!("waits of {task}"),
            };
            self.add_lanes(self.process_of(task), &name, &spans)?;
        }
        Ok(())
    }

    fn add_opens(&mut self) -> io::Result<()> {
        let trace = self.trace;
        for (open, path) in &trace.opens {
            let kind = if open.is_sighting { "sighting" } else { "open" };
            self.add(&json!({
                "ph": "i", "s": "t", "cat": kind, "name": path.to_string_lossy(),
                "pid": self.process_of(open.task), "tid": open.task, "ts": self.us(open.at),
            }))?;
        }
        Ok(())
    }

    /// Spans in the order of their begin, in as many lanes as overlap. Returns the lane of each.
    fn add_lanes(&mut self, pid: u32, name: &str, spans: &[&Span]) -> io::Result<Vec<u32>> {
        let mut free_at: Vec<Instant> = Vec::new();
        let mut lanes = Vec::with_capacity(spans.len());
        let first = self.lanes;
        for span in spans {
            let free = free_at.iter().position(|free| *free <= span.began);
            let nth = free.unwrap_or(free_at.len());
            let lane = first + nth as u32;
            if free.is_none() {
                free_at.push(span.began);
                self.name("thread_name", pid, lane, &format!("{name} {}", nth + 1))?;
            }
            free_at[nth] = span.began + span.took;
            lanes.push(lane);
            let (from, to) = (self.us(span.began), self.us(span.began + span.took));
            let mut slice = json!({
                "ph": "X", "cat": category(name), "name": span.what,
                "pid": pid, "tid": lane, "ts": from, "dur": to - from,
            });
            if let Some(path) = &span.path {
                slice["args"] = json!({ "file": path.to_string_lossy(), "bytes": span.bytes });
            }
            self.add(&slice)?;
        }
        self.lanes += free_at.len() as u32;
        Ok(lanes)
    }

    /// Joins each open to the first read ahead of its file since the open before.
    fn add_arrows(&mut self, lanes: &[u32]) -> io::Result<()> {
        let trace = self.trace;
        let mut ahead: HashMap<&Path, Vec<(&Span, u32)>> = HashMap::new();
        for (span, lane) in
            trace.reads.iter().zip(lanes).filter(|(span, _)| span.what == READ_AHEAD)
        {
            span.path.iter().for_each(|path| ahead.entry(path).or_default().push((span, *lane)));
        }
        let mut before: HashMap<&Path, Instant> = HashMap::new();
        for (number, (open, path)) in trace.opens.iter().enumerate() {
            let since = before.insert(path, open.at);
            let is_for_it = |(span, _): &&(&Span, u32)| {
                since.is_none_or(|since| since < span.began) && span.began <= open.at
            };
            let Some((span, lane)) =
                ahead.get(&**path).and_then(|spans| spans.iter().find(is_for_it))
            else {
                continue;
            };
            self.add(&self.end_of_arrow("s", number, (DAEMON, *lane), span.began))?;
            let reader = (self.process_of(open.task), open.task);
            self.add(&self.end_of_arrow("f", number, reader, open.at))?;
        }
        Ok(())
    }

    fn end_of_arrow(&self, ph: &str, id: usize, (pid, tid): (u32, u32), at: Instant) -> Value {
        json!({
            "ph": ph, "bp": "e", "cat": "sample", "name": "read for", "id": id,
            "pid": pid, "tid": tid, "ts": self.us(at),
        })
    }
}

fn category(name: &str) -> &str {
    if name.starts_with("waits of") { "wait" } else { name }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::Open;
    use super::*;
    use crate::ids::FileId;
    use crate::stall::State;

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
        let open = |ms, is_sighting| {
            (Open { at: at(ms), task: 8, file: FileId(0), is_sighting }, Arc::clone(&path))
        };
        Trace {
            began,
            reads: vec![
                span(READ_AHEAD, 10, 30, 0),
                span("read on demand", 20, 40, 0),
                span(READ_AHEAD, 50, 60, 0),
            ],
            blocks: vec![span(PUSH, 40, 41, 0), span(DISK_READ, 50, 60, 0)],
            waits: vec![span("late", 25, 40, 8), span("late", 30, 45, 8)],
            opens: vec![open(5, false), open(25, false), open(70, true), open(71, false)],
            looks: vec![look(0, State::Runs), look(20, State::Runs), look(40, State::Fetches)],
            left_out: 0,
            was_ended: false,
        }
    }

    fn events(trace: &Trace) -> Vec<Value> {
        let mut out = Vec::new();
        write(trace, &mut out).unwrap();
        let value: Value = serde_json::from_slice(&out).unwrap();
        value["traceEvents"].as_array().unwrap().clone()
    }

    #[test]
    fn all_that_was_noted_has_a_lane() {
        let events = events(&trace());
        let of = |kind: &str| -> Vec<&Value> {
            events.iter().filter(|event| event["cat"] == kind).collect()
        };
        let count = |kind: &str| of(kind).len();
        assert_eq!(
            (count("push"), count("cache disk"), count("open"), count("sighting")),
            (1, 1, 3, 1)
        );
        let states: Vec<&Value> = of("worker").iter().map(|event| &event["name"]).collect();
        assert_eq!(states, ["processor", "fetch"]);
        assert_eq!(of("worker")[0]["dur"], 40_000);
        assert_eq!((&of("wait")[0]["dur"], &of("wait")[0]["pid"]), (&15_000.into(), &7.into()));
        assert!(of("open")[0]["name"] == "d/a \"b\".jpg");
        assert!(events.iter().all(|event| event["tid"].as_u64().unwrap() < 1 << 32));
    }

    #[test]
    fn slices_of_a_lane_do_not_cross() {
        let mut ends: HashMap<String, u64> = HashMap::new();
        let events = events(&trace());
        for event in events.iter().filter(|event| event["ph"] == "X") {
            let lane = format!("{} {}", event["pid"], event["tid"]);
            let (from, took) = (event["ts"].as_u64().unwrap(), event["dur"].as_u64().unwrap());
            let end = ends.entry(lane).or_default();
            assert!(*end <= from, "{event}");
            *end = from + took;
        }
    }

    #[test]
    fn an_open_is_joined_to_the_read_ahead_that_was_for_it() {
        let events = events(&trace());
        let arrows: Vec<(&Value, u64)> = events
            .iter()
            .filter(|event| event["cat"] == "sample")
            .map(|event| (&event["ph"], event["ts"].as_u64().unwrap()))
            .collect();
        let (begin, end) = (&Value::from("s"), &Value::from("f"));
        assert_eq!(arrows, [(begin, 10_000), (end, 25_000), (begin, 50_000), (end, 70_000)]);
    }

    #[test]
    fn an_empty_trace_is_json() {
        let empty = Trace {
            began: Instant::now(),
            reads: Vec::new(),
            blocks: Vec::new(),
            waits: Vec::new(),
            opens: Vec::new(),
            looks: Vec::new(),
            left_out: 0,
            was_ended: true,
        };
        assert_eq!(events(&empty).len(), 2);
    }
}
