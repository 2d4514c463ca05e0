//! What the kernel may do to a mount: a deadlock of some versions, and settings that end requests or drop
//! names.

use super::judge::{Row, Verdict};

/// The kernel and its settings for FUSE.
#[derive(Clone, Debug)]
pub struct System {
    /// The release, as `uname -r` prints it.
    pub release: String,
    /// The build, as `uname -v` prints it.
    pub build: String,
    /// Whether threads may be IO flushers: their allocations of memory never wait for filesystems.
    pub can_be_io_flusher: bool,
    /// After how many seconds expired names are dropped, with their pages (`fuse.inval_wq`). 0: never. None
    /// if the kernel does not have that.
    pub drops_names: Option<u64>,
    /// After how many seconds an unanswered request ends the mount: by default, and at most, if the daemon
    /// asks for another time. 0: never.
    pub timeouts: [u64; 2],
}

/// Whether a kernel has the deadlock of servers whose opens are no requests. Such a kernel may evict the
/// inode of a file while a readahead of it is under way. If that is caused by the server's allocation of
/// memory for the reply, the server waits for its own reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadlock {
    Absent,
    Present,
    /// A distribution's kernel, whose number does not tell.
    Unknown,
}

/// A kernel's version: three numbers.
type Version = (u32, u32, u32);

/// Stable series: the first version with the deadlock, and the first one without it again.
const SERIES: [(Version, Version); 5] = [
    ((5, 15, 196), (5, 15, 198)),
    ((6, 1, 158), (6, 1, 160)),
    ((6, 6, 115), (6, 6, 120)),
    ((6, 9, 0), (6, 12, 64)),
    ((6, 13, 0), (6, 18, 3)),
];

/// Series from which distributions with version numbers of their own may have the deadlock.
const TAKEN_OVER: [(u32, u32); 2] = [(5, 14), (6, 18)];

const FIXED: &str = "5.15.198, 6.1.160, 6.6.120, 6.12.64, 6.18.3";

impl System {
    /// Whether the kernel has the deadlock, as far as its version tells.
    pub fn deadlock(&self) -> Deadlock {
        let Some(version) = self.version() else {
            let series = version_in(&self.release).map(|(major, minor, _)| (major, minor));
            let may = |series| (TAKEN_OVER[0]..=TAKEN_OVER[1]).contains(&series);
            return if series.is_none_or(may) { Deadlock::Unknown } else { Deadlock::Absent };
        };
        let has = SERIES.iter().any(|(from, until)| (*from..*until).contains(&version));
        if has { Deadlock::Present } else { Deadlock::Absent }
    }

    /// The version of kernel.org. None if a distribution counts in its own way. Debian has it in the build.
    fn version(&self) -> Option<Version> {
        let debian = self.build.split_once("Debian ").and_then(|(_, version)| version_in(version));
        let version = debian.or_else(|| version_in(&self.release))?;
        let counts_otherwise = debian.is_none() && version.2 == 0 && self.release.contains('-');
        (!counts_otherwise).then_some(version)
    }

    /// After how many seconds an unanswered request ends the mount, if there is a limit.
    fn timeout(&self) -> Option<u64> {
        self.timeouts.into_iter().filter(|seconds| *seconds > 0).min()
    }
}

/// The version at the beginning of a text. A missing third number is 0.
fn version_in(text: &str) -> Option<Version> {
    let digits = |part: &str| part.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    let mut parts = text.split('.');
    let (major, minor) = (digits(parts.next()?)?, digits(parts.next()?)?);
    Some((major, minor, parts.next().and_then(digits).unwrap_or(0)))
}

/// A row for each thing that the kernel may do.
pub(super) fn rows(system: &System) -> Vec<Row> {
    let mut rows = vec![deadlock(system)];
    rows.extend(dropped_names(system));
    rows.push(timeouts(system));
    rows
}

/// The warnings of a mount, a line each: what was found, and what to do. There is none of the deadlock if
/// opens are requests (`opens`), or if threads are kept out of it (`is_io_flusher`).
pub fn hazards(system: &System, opens: bool, is_io_flusher: bool) -> Vec<String> {
    let mut rows = rows(system);
    rows.retain(|row| row.result != Verdict::Ok);
    rows.retain(|row| row.check != DEADLOCK || !opens && !is_io_flusher);
    let line = |row: Row| {
        let fix = row.fix.unwrap_or_default();
        format!("warning: {}: {}; to mend it: {fix}", row.check, row.found)
    };
    rows.into_iter().map(line).collect()
}

const DEADLOCK: &str = "readahead deadlock";

fn deadlock(system: &System) -> Row {
    let release = &system.release;
    let found = match system.deadlock() {
        Deadlock::Absent => return Row::ok(DEADLOCK, format!("Linux {release} does not have it")),
        Deadlock::Present => format!("Linux {release} has it"),
        Deadlock::Unknown => {
            format!("whether Linux {release} has it is for its distribution to say")
        }
    };
    if system.can_be_io_flusher {
        let found = format!("{found}; the daemon keeps out of it (PR_SET_IO_FLUSHER)");
        let fix = format!("none is needed; Linux {FIXED} and 6.19 do not have it");
        return Row::note(DEADLOCK, found).fix(fix);
    }
    let found = format!("{found}: a mount may hang for good when memory is short");
    Row::note(DEADLOCK, found).fix(format!(
        "Linux {FIXED}, 6.19 or newer, or CAP_SYS_RESOURCE (root has it), or mount.mode=keep-cache"
    ))
}

fn dropped_names(system: &System) -> Option<Row> {
    const CHECK: &str = "expired names";
    Some(match system.drops_names? {
        0 => Row::ok(CHECK, "are kept until they are asked for again"),
        seconds => {
            let found = format!(
                "the kernel drops them after {seconds} s, with their pages: samples are fetched again"
            );
            Row::note(CHECK, found).fix("echo 0 > /sys/module/fuse/parameters/inval_wq")
        }
    })
}

fn timeouts(system: &System) -> Row {
    const CHECK: &str = "request timeouts";
    let Some(seconds) = system.timeout() else { return Row::ok(CHECK, "there are none") };
    let found = format!(
        "the kernel ends a mount that leaves a request unanswered for {seconds} s, as a source that \
         hangs makes it do"
    );
    Row::note(CHECK, found).fix(
        "before the mount: sysctl fs.fuse.default_request_timeout=0 fs.fuse.max_request_timeout=0",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(release: &str, build: &str) -> System {
        System {
            release: release.into(),
            build: build.into(),
            can_be_io_flusher: false,
            drops_names: None,
            timeouts: [0, 0],
        }
    }

    #[test]
    fn kernels_with_the_deadlock_are_known_by_their_versions() {
        let (absent, present, unknown) = (Deadlock::Absent, Deadlock::Present, Deadlock::Unknown);
        for (release, build, wanted) in [
            ("5.10.246", "#1 SMP", absent),
            ("5.15.195", "#1 SMP", absent),
            ("5.15.197-microsoft-standard-WSL2", "#1 SMP", present),
            ("5.15.198", "#1 SMP", absent),
            ("6.1.157", "#1 SMP", absent),
            ("6.1.159", "#1 SMP", present),
            ("6.6.114.1-microsoft-standard-WSL2", "#1 SMP", absent),
            ("6.6.119", "#1 SMP", present),
            ("6.8.12", "#1 SMP", absent),
            ("6.9.0", "#1 SMP", present),
            ("6.10", "#1 SMP", present),
            (
                "6.12.63+deb13-amd64",
                "#1 SMP PREEMPT_DYNAMIC Debian 6.12.63-1 (2025-12-30)",
                present,
            ),
            ("6.12.64", "#1 SMP", absent),
            ("6.17.8-300.fc43.x86_64", "#1 SMP", present),
            ("6.18.2-arch2-1", "#1 SMP", present),
            ("6.18.44-fc-v657", "#1 SMP PREEMPT_DYNAMIC @0", absent),
            ("6.19.0-rc3", "#1 SMP", absent),
            ("7.4.1", "#1 SMP", absent),
            // Distributions that count in their own way.
            ("6.1.0-42-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.159-1 (2025-12-30)", present),
            ("6.1.0-31-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.128-1 (2025-02-07)", absent),
            ("6.8.0-45-generic", "#45-Ubuntu SMP", unknown),
            ("5.14.0-570.el9.x86_64", "#1 SMP", unknown),
            ("4.18.0-553.el8_10.x86_64", "#1 SMP", absent),
            ("7.0.0-10-generic", "#10-Ubuntu SMP", absent),
            ("something else", "", unknown),
        ] {
            assert_eq!(of(release, build).deadlock(), wanted, "{release} {build}");
        }
    }

    #[test]
    fn a_mount_warns_of_what_concerns_it() {
        let bad = System { drops_names: Some(60), timeouts: [0, 30], ..of("6.18.2", "#1 SMP") };
        let warns = |system: &System, opens, is_io_flusher| {
            hazards(system, opens, is_io_flusher)
                .iter()
                .map(|line| line.len())
                .filter(|n| *n > 40)
                .count()
        };
        assert_eq!(
            [warns(&bad, false, false), warns(&bad, true, false), warns(&bad, false, true)],
            [3, 2, 2]
        );
        let good = System { drops_names: Some(0), ..of("6.18.44", "#1 SMP") };
        assert_eq!(warns(&good, false, false), 0);
        assert!(hazards(&bad, false, false)[1].contains("inval_wq"));
        let limited = System { timeouts: [120, 60], ..good };
        assert!(hazards(&limited, false, false)[0].contains("for 60 s"));
    }
}
