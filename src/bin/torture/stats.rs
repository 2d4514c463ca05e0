//! Counts operations, faults and failures.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clock::{Nanos, seconds};
use crate::plan::Fault;

/// Kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Failure {
    /// Bytes, sizes or names that the source never had at that time.
    Bytes,
    /// An error that no fault explains.
    Error,
    /// An operation that took longer than any fault explains.
    Hang,
    /// The kernel killed the daemon for want of memory.
    OutOfMemory,
}

/// The longest stall with a cause.
#[derive(Clone, Debug)]
pub(crate) struct Stall {
    pub(crate) lasted: Nanos,
    /// The kind of the operation and its subject.
    pub(crate) what: String,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Operations by kind.
    pub(crate) operations: BTreeMap<&'static str, u64>,
    /// Bytes that were read and compared.
    pub(crate) bytes: u64,
    /// Errors that a fault explains.
    pub(crate) explained: u64,
    /// Changes at the source by kind.
    pub(crate) edits: BTreeMap<&'static str, u64>,
    /// Faults by kind.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// Kills of a daemon in push mode.
    pub(crate) kills: u64,
    /// Cycles of mount and umount.
    pub(crate) cycles: u64,
    /// Scenarios that have ended.
    pub(crate) scenarios: u64,
    /// Failures by kind.
    pub(crate) failures: BTreeMap<Failure, u64>,
    /// One line for each of the first findings of a scenario.
    pub(crate) findings: Vec<String>,
    /// The longest stall by cause.
    pub(crate) stalls: BTreeMap<&'static str, Stall>,
}

/// The counts of a run, which all threads add to.
#[derive(Debug, Default)]
pub(crate) struct Stats(Mutex<Counts>);

/// How many findings of a scenario and a kind are reported word by word.
const FINDINGS: usize = 8;

/// Shorter stalls are not reported.
const STALL: Nanos = 100_000_000;

impl Stats {
    pub(crate) fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation that has ended, and notes the longest stall of its cause.
    pub(crate) fn count_operation(
        &self,
        kind: &'static str,
        took: Nanos,
        cause: &'static str,
        subject: &str,
    ) {
        let mut counts = self.counts();
        *counts.operations.entry(kind).or_default() += 1;
        let longest = counts.stalls.get(cause).map_or(STALL, |stall| stall.lasted);
        if took > longest {
            let what = format!("{kind} of {subject}");
            counts.stalls.insert(cause, Stall { lasted: took, what });
        }
    }

    pub(crate) fn count_fault(&self, fault: Fault) {
        *self.counts().faults.entry(fault.name()).or_default() += 1;
    }

    /// Counts a change of a file of the source.
    pub(crate) fn count_edit(&self, kind: &'static str) {
        *self.counts().edits.entry(kind).or_default() += 1;
    }

    /// Counts a failure. Reports it at once, unless many of its kind were reported before.
    pub(crate) fn count_failure(&self, kind: Failure, scenario: u64, what: &str) {
        let mut counts = self.counts();
        *counts.failures.entry(kind).or_default() += 1;
        let begin = format!("scenario {scenario}: {}", kind.name());
        let reported = counts.findings.iter().filter(|line| line.starts_with(&begin)).count();
        let line = match reported {
            0..FINDINGS => format!("{begin}: {what}"),
            FINDINGS => format!("{begin}: and more of them, which are only counted"),
            _ => return,
        };
        eprintln!("WRONG {line}");
        counts.findings.push(line);
    }
}

impl Failure {
    pub(crate) const ALL: [Failure; 4] =
        [Failure::Bytes, Failure::Error, Failure::Hang, Failure::OutOfMemory];

    /// Its name in the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Failure::Bytes => "wrong bytes",
            Failure::Error => "unexpected errors",
            Failure::Hang => "hangs",
            Failure::OutOfMemory => "OOM kills",
        }
    }
}

impl Counts {
    /// The number of all failures.
    pub(crate) fn all_failures(&self) -> u64 {
        self.failures.values().sum()
    }

    /// The counts as JSON.
    pub(crate) fn json(&self, seed: u64, ran: Nanos) -> serde_json::Value {
        let stalls: BTreeMap<_, _> = self
            .stalls
            .iter()
            .map(|(cause, stall)| {
                let stall = serde_json::json!({
                    "seconds": seconds(stall.lasted), "what": stall.what,
                });
                (*cause, stall)
            })
            .collect();
        let wrong = |kind| self.failures.get(&kind).copied().unwrap_or(0);
        serde_json::json!({
            "seed": seed,
            "seconds": seconds(ran),
            "scenarios": self.scenarios,
            "operations": self.operations,
            "bytes": self.bytes,
            "explained_errors": self.explained,
            "edits": self.edits,
            "faults": self.faults,
            "kills_in_push_mode": self.kills,
            "cycles": self.cycles,
            "wrong_bytes": wrong(Failure::Bytes),
            "unexpected_errors": wrong(Failure::Error),
            "hangs": wrong(Failure::Hang),
            "oom_kills": wrong(Failure::OutOfMemory),
            "longest_stalls": stalls,
            "findings": self.findings,
        })
    }

    /// The counts as a table.
    pub(crate) fn print(&self, seed: u64, ran: Nanos) {
        println!("\nseed {seed}, {} scenarios in {:.0} s", self.scenarios, seconds(ran));
        let section = |title: &str, rows: &BTreeMap<&'static str, u64>| {
            println!("{title}");
            rows.iter().for_each(|(name, count)| println!("  {name:48} {count:>12}"));
        };
        section("operations", &self.operations);
        println!("  {:48} {:>12}", "bytes compared", self.bytes);
        println!("  {:48} {:>12}", "errors that a fault explains", self.explained);
        section("changes at the source", &self.edits);
        section("faults", &self.faults);
        println!("rounds");
        println!("  {:48} {:>12}", "kills in push mode", self.kills);
        println!("  {:48} {:>12}", "mount and umount cycles", self.cycles);
        println!("longest stall by cause");
        for (cause, Stall { lasted, what }) in &self.stalls {
            println!("  {cause:48} {:>10.2} s  {what}", seconds(*lasted));
        }
        println!("wrong");
        for kind in Failure::ALL {
            println!("  {:48} {:>12}", kind.name(), self.failures.get(&kind).unwrap_or(&0));
        }
        self.findings.iter().for_each(|finding| println!("  {finding}"));
    }
}
