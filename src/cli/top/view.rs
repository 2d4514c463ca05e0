//! What a mount and its loaders did between two answers of the daemon.

use std::time::{SystemTime, UNIX_EPOCH};

use super::Answer;
use crate::cli::report::LoaderNow;
use crate::cli::status::{lead, limited_by, time};
use crate::config::Bytes;
use crate::engine::Status;

/// A tier and how full it is.
pub(super) struct Gauge {
    pub(super) name: &'static str,
    /// A share of its budget.
    pub(super) full: f64,
    pub(super) words: String,
}

pub(super) struct View {
    pub(super) title: String,
    /// The time of which the lines tell.
    pub(super) over: &'static str,
    pub(super) loaders: Vec<LoaderNow>,
    /// What the readers do, the lead, the source, and what is wrong: each with its name.
    pub(super) lines: Vec<(&'static str, String)>,
    pub(super) gauges: Vec<Gauge>,
}

impl View {
    /// The means since the mount began.
    pub(super) fn since_mount(now: &Answer) -> Self {
        let mut view = Self::of(&Status::default(), now, now.status.uptime_s.max(1) as f64);
        view.over = "since the mount";
        view
    }

    pub(super) fn between(before: &Answer, now: &Answer) -> Self {
        Self::of(&before.status, now, (now.at - before.at).as_secs_f64())
    }

    fn of(before: &Status, now: &Answer, seconds: f64) -> Self {
        let Answer { status, report, .. } = now;
        let over = Over { before, now: status, seconds: seconds.max(0.001) };
        let mut lines = vec![("readers", over.readers())];
        lines.extend(over.waits().map(|waits| ("waits", waits)));
        lines.extend(lead(status).map(|lead| ("lead", lead)));
        lines.push(("source", over.source()));
        lines.extend(over.others().map(|others| ("others", others)));
        lines.extend(faults(status).map(|faults| ("faults", faults)));
        View {
            over: "now",
            title: format!(
                "{} at {} (pid {}), mounted for {}",
                status.source,
                status.mountpoints.join(", "),
                status.pid,
                time(status.uptime_s * 1_000_000),
            ),
            loaders: LoaderNow::all(report),
            lines,
            gauges: gauges(status),
        }
    }

    /// All of it in a line.
    pub(super) fn line(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let (hour, minute, second) = (now / 3600 % 24, now / 60 % 60, now % 60);
        let mut parts = vec![format!("{hour:02}:{minute:02}:{second:02}Z {}", self.over)];
        parts.extend(self.loaders.iter().map(LoaderNow::line));
        parts.extend(self.lines.iter().map(|(name, words)| format!("{name}: {words}")));
        parts.extend(self.gauges.iter().map(|gauge| format!("{}: {}", gauge.name, gauge.words)));
        parts.join(" | ")
    }
}

/// Two states of a mount, so many seconds apart.
struct Over<'a> {
    before: &'a Status,
    now: &'a Status,
    seconds: f64,
}

impl Over<'_> {
    /// By how much a count has grown in a second.
    fn rate(&self, of: impl Fn(&Status) -> u64) -> f64 {
        of(self.now).saturating_sub(of(self.before)) as f64 / self.seconds
    }

    fn bytes(&self, of: impl Fn(&Status) -> u64) -> String {
        Bytes(self.rate(of) as u64).human()
    }

    fn readers(&self) -> String {
        let opens = self.rate(|status| status.counters.opens);
        let share = |count: fn(&Status) -> u64| 100.0 * self.rate(count) / opens.max(1e-9);
        let found = match opens > 0.0 {
            true => format!(
                ": {:.0} % ready, {:.0} % on the way, {:.0} % cold",
                share(|status| status.counters.hits),
                share(|status| status.counters.late),
                share(|status| status.counters.cold),
            ),
            false => String::new(),
        };
        format!("{opens:.0} opens/s{found}; {} wait now", self.now.waiting)
    }

    /// How many readers waited on average, by cause.
    fn waits(&self) -> Option<String> {
        let total = |status: &Status, cause: &str| {
            status.waits.get(cause).map_or(0, |waits| waits.total_us)
        };
        let mut causes: Vec<(f64, &String)> = Vec::new();
        for cause in self.now.waits.keys() {
            let waiting = self.rate(|status| total(status, cause)) / 1e6;
            if waiting >= 0.005 {
                causes.push((waiting, cause));
            }
        }
        causes.sort_by(|a, b| b.0.total_cmp(&a.0));
        let words: Vec<String> =
            causes.iter().map(|(waiting, cause)| format!("{cause} {waiting:.2}")).collect();
        let all: f64 = causes.iter().map(|(waiting, _)| waiting).sum();
        let plural = if (0.995..1.005).contains(&all) { "reader waits" } else { "readers wait" };
        (!words.is_empty()).then(|| format!("{all:.2} {plural} on average: {}", words.join(", ")))
    }

    fn source(&self) -> String {
        let times = &self.now.source_times;
        let of = |status: &Status, part: fn(&crate::cache::Latencies) -> u64| {
            status.source_times.operations.get("read").map_or(0, part)
        };
        let reads = self.rate(|status| of(status, |reads| reads.count));
        let busy = self.rate(|status| of(status, |reads| reads.total_us));
        let mean = match reads > 0.0 {
            true => format!(" of {} each", time((busy / reads) as u64)),
            false => String::new(),
        };
        format!(
            "{}/s, {reads:.0} reads/s{mean}, {} under way of {}; limited by {}",
            self.bytes(|status| status.counters.source_bytes),
            times.in_flight,
            times.limit,
            limited_by(self.now),
        )
    }

    /// What the cache disk and other nodes give.
    fn others(&self) -> Option<String> {
        let disk = self.rate(|status| status.counters.tier_bytes);
        let nodes = self.rate(|status| status.counters.member_bytes);
        let words = [("the cache disk", disk), ("nodes of the cluster", nodes)];
        let words: Vec<String> = words
            .iter()
            .filter(|(_, rate)| *rate >= 1.0)
            .map(|(name, rate)| format!("{}/s from {name}", Bytes(*rate as u64).human()))
            .collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

fn gauges(status: &Status) -> Vec<Gauge> {
    let gauge = |name, bytes: u64, budget: u64, what: &str| Gauge {
        name,
        full: if budget > 0 { (bytes as f64 / budget as f64).min(1.0) } else { 0.0 },
        words: format!("{} {what} of {}", Bytes(bytes).human(), Bytes(budget).human()),
    };
    let ram = gauge("ram", status.ram.kept, status.ram.budget, "kept");
    let staged = gauge("staged", status.staged, status.window, "ahead");
    let disk = status.disk.as_ref().map(|disk| gauge("disk", disk.stored, disk.budget, "stored"));
    [ram, staged].into_iter().chain(disk).collect()
}

/// What is wrong, in words.
fn faults(status: &Status) -> Option<String> {
    let mut words: Vec<String> = Vec::new();
    let counts = [
        (status.read_errors, "reads failed"),
        (status.store_errors, "records of the cache disk were damaged"),
        (status.changed_files, "files have changed at the source"),
        (status.stuck_notifications, "notifications wait in the kernel"),
    ];
    for (count, what) in counts.iter().filter(|(count, _)| *count > 0) {
        words.push(format!("{count} {what}"));
    }
    let disk = status.disk_state.iter().filter(|state| *state != "normal");
    words.extend(disk.map(|state| format!("the cache disk is {state}")));
    let refused = |tier: &str, reduced: &Option<String>| {
        reduced.as_ref().map(|reason| format!("{tier} is reduced: {reason}"))
    };
    words.extend(refused("RAM", &status.ram.reduced));
    words.extend(status.disk.as_ref().and_then(|disk| refused("the cache disk", &disk.reduced)));
    let left =
        status.orders.iter().any(|order| !order.progress.is_empty() && !order.progress.following);
    words.extend(left.then(|| "readers have left the order that was told".to_owned()));
    (!words.is_empty()).then(|| words.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Latencies;

    fn status(seconds: u64) -> Status {
        let mut status = Status { uptime_s: seconds, waiting: 2, ..Status::default() };
        status.counters.opens = 100 * seconds;
        status.counters.hits = 75 * seconds;
        status.counters.late = 25 * seconds;
        status.counters.source_bytes = seconds << 20;
        let latencies = |count, total_us| Latencies { count, total_us, ..Latencies::default() };
        status.waits.insert("late".into(), latencies(25 * seconds, 1_500_000 * seconds));
        status.waits.insert("cold".into(), latencies(0, 0));
        let reads = latencies(10 * seconds, 80_000 * seconds);
        status.source_times.operations.insert("read".into(), reads);
        status
    }

    #[test]
    fn rates_are_those_between_two_answers() {
        let (before, now) = (status(3), status(5));
        let over = Over { before: &before, now: &now, seconds: 2.0 };
        assert_eq!(
            over.readers(),
            "100 opens/s: 75 % ready, 25 % on the way, 0 % cold; 2 wait now"
        );
        assert_eq!(over.waits().unwrap(), "1.50 readers wait on average: late 1.50");
        assert!(over.source().starts_with("1 MiB/s, 10 reads/s of 8.0 ms each, 0 under way of 0"));
        let same = Over { before: &now, now: &now, seconds: 1.0 };
        assert_eq!(same.readers(), "0 opens/s; 2 wait now");
        assert_eq!((same.waits(), same.others()), (None, None));
        let restarted = Over { before: &now, now: &before, seconds: 1.0 };
        assert!(restarted.readers().starts_with("0 opens/s"));
    }

    #[test]
    fn faults_are_told_if_there_are_any() {
        let mut status = status(1);
        assert_eq!(faults(&status), None);
        status.read_errors = 3;
        status.disk_state = Some("full".into());
        assert_eq!(faults(&status).unwrap(), "3 reads failed; the cache disk is full");
    }
}
