//! The program under test: mounts, queries, kills and unmounts belady.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::cgroup::MemoryGroup;
use crate::clock::{nanos, now};
use crate::ground::Ground;
use crate::plan::{Limit, Plan};
use crate::process::{self, Ended, is_there, signal};
use crate::tally::Wrong;
use crate::target::Subject;
use crate::watch::Watch;

/// How long a command may still run after something has hung.
const GRACE: Duration = Duration::from_secs(3);

/// How long mounting is retried while the source is in trouble.
const TRIED: Duration = Duration::from_secs(45);

/// Runs its arguments from the fourth on. The first, if not empty, is the cgroup's file of processes. The
/// next two are limits.
const LIMITED: &str = r#"
[ -z "$1" ] || echo $$ > "$1"
[ -z "$2" ] || ulimit -n "$2"
[ -z "$3" ] || ulimit -f "$3"
shift 3
exec "$@"
"#;

/// How a mount is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// `belady umount`.
    Umount,
    /// `belady umount --force`.
    Force,
    /// SIGTERM to the daemon.
    Terminate,
    /// SIGINT to the daemon.
    Interrupt,
}

/// The mounts of an episode.
#[derive(Debug)]
pub(crate) struct Belady {
    ground: Arc<Ground>,
    watch: Arc<Watch>,
    plan: Plan,
    source: PathBuf,
    cache: Vec<String>,
    /// Where the source is mounted.
    pub(crate) points: Vec<PathBuf>,
    /// The limit of the daemon's memory.
    pub(crate) group: Option<MemoryGroup>,
    /// The daemon that serves.
    pub(crate) pid: Option<i32>,
}

impl Belady {
    pub(crate) fn new(
        ground: Arc<Ground>,
        watch: Arc<Watch>,
        plan: &Plan,
        source: PathBuf,
        cache: Vec<String>,
    ) -> io::Result<Self> {
        let points = (0..plan.points).map(|nth| ground.path(&format!("mount{nth}"))).collect();
        let name = format!("belady-torture-{}-{}", std::process::id(), plan.number);
        let group = plan.memory_mib.map(|mib| MemoryGroup::new(&name, mib << 20)).transpose()?;
        Ok(Belady { ground, watch, plan: plan.clone(), source, cache, points, group, pid: None })
    }

    fn command(&self, words: &[OsString]) -> Command {
        let mut command = command(&self.ground);
        command.args(words);
        command
    }

    fn mount_command(&self, point: &Path) -> Command {
        let group = self.group.as_ref().map(|group| group.processes().into_os_string());
        let (mut files, mut size) = (OsString::new(), OsString::new());
        match self.plan.limit {
            Limit::None => {}
            Limit::Descriptors(most) => files = most.to_string().into(),
            Limit::FileSize(most) => size = most.to_string().into(),
        }
        let inner = self.command(&[]);
        let mut command = Command::new("bash");
        command.args(["-c", LIMITED, "limited"]).arg(group.unwrap_or_default());
        command.arg(files).arg(size).arg(inner.get_program());
        command.arg("mount").arg(&self.source).arg(point).args(self.plan.options());
        command.args(&self.cache);
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Runs a command. Returns its exit code and output, or `None` if it did not end.
    fn run(
        &self,
        kind: &'static str,
        subject: Subject,
        mut command: Command,
    ) -> Option<(i32, String)> {
        let said = self.ground.path(&format!("said-{kind}"));
        let operation = self.watch.begin(kind, subject);
        // If the watch finds the command too slow, the command gets a moment to end.
        let mut hung_since = None;
        let patience = || {
            if self.watch.has_hung() {
                let since = *hung_since.get_or_insert_with(now);
                return now() - since < nanos(GRACE);
            }
            true
        };
        let ended = process::run(&mut command, &said, patience);
        drop(operation);
        match ended {
            Ok(Ended::With(status, said)) => Some((status.code().unwrap_or(-1), said)),
            Ok(Ended::Never) => None,
            Err(error) => Some((-1, error.to_string())),
        }
    }

    /// Mounts at all points. While the source is in trouble, mounting is retried.
    pub(crate) fn mount(&mut self) -> bool {
        let (points, before) = (self.points.clone(), self.pid);
        points.iter().all(|point| self.mount_at(point, before))
    }

    /// `before` is the daemon of the previous mount.
    fn mount_at(&mut self, point: &Path, before: Option<i32>) -> bool {
        let first = now();
        loop {
            let began = now();
            // A new mount begins a new log.
            self.report_panic();
            let is_early = began - first < nanos(TRIED) + self.watch.limit();
            let command = self.mount_command(point);
            let is_left = before.is_some_and(is_there);
            let subject = if is_left { Subject::Remount } else { Subject::Mount };
            match self.run("mount", subject, command) {
                Some((0, _)) => {
                    self.pid = self.ground.daemon_of(point);
                    return true;
                }
                None => return false,
                Some(_) if is_early && self.watch.excuses.source_was_in_trouble(began, now()) => {
                    thread::sleep(Duration::from_millis(100));
                }
                Some((code, said)) => {
                    let what = format!("belady mount ends with {code}: {}", said.trim());
                    self.watch.wrong(Wrong::Error, &what);
                    return false;
                }
            }
            if self.watch.has_hung() {
                return false;
            }
        }
    }

    /// Reports a panic in a log.
    pub(crate) fn report_panic(&self) {
        if let Some(line) = panic_in(&self.ground.logs()) {
            self.watch.wrong(Wrong::Error, &format!("the daemon panicked: {line}"));
        }
    }

    pub(crate) fn kill(&self, by: Signal) {
        if let Some(pid) = self.pid {
            signal(pid, by);
        }
    }

    /// Whether the daemon of the last mount runs.
    pub(crate) fn is_alive(&self) -> bool {
        self.pid.is_some_and(is_there)
    }

    /// Ends all mounts, the last first, and waits until the daemon has ended.
    pub(crate) fn end(&mut self, end: End) -> bool {
        let ended = match end {
            End::Umount | End::Force => {
                let points = self.points.clone();
                points.iter().rev().all(|point| self.umount(point, end == End::Force))
            }
            End::Terminate | End::Interrupt => {
                let sent = if end == End::Terminate { Signal::SIGTERM } else { Signal::SIGINT };
                self.pid.into_iter().for_each(|pid| signal(pid, sent));
                true
            }
        };
        ended && self.has_ended(end)
    }

    /// Unmounts one point. If it is in use, that is retried: a reader may be about to close a file.
    fn umount(&self, point: &Path, force: bool) -> bool {
        const IN_USE: i32 = 8;
        let mut words: Vec<OsString> = vec!["umount".into(), point.into()];
        if force {
            words.push("--force".into());
        }
        let began = now();
        loop {
            let name = if force { "umount --force" } else { "umount" };
            match self.run(name, Subject::End("the mount"), self.command(&words)) {
                Some((0, _)) => return true,
                Some((IN_USE, _)) if !force && now() - began < self.watch.limit() => {
                    thread::sleep(Duration::from_millis(20));
                }
                Some((code, said)) => {
                    let what = format!("belady {name} ends with {code}: {}", said.trim());
                    self.watch.wrong(Wrong::Error, &what);
                    return false;
                }
                None => return false,
            }
        }
    }

    /// Waits until the daemon has ended, or something hangs.
    fn has_ended(&mut self, end: End) -> bool {
        let Some(pid) = self.pid else { return true };
        let kind = match end {
            End::Umount => "end after umount",
            End::Force => "end after umount --force",
            End::Terminate => "end after SIGTERM",
            End::Interrupt => "end after SIGINT",
        };
        let operation = self.watch.begin(kind, Subject::End("the daemon"));
        while is_there(pid) && !self.watch.has_hung() {
            thread::sleep(Duration::from_millis(2));
        }
        drop(operation);
        let ended = !is_there(pid);
        if ended {
            self.pid = None;
        }
        ended
    }

    /// Asks for the status of a mount. An error is wrong unless the mount is away.
    pub(crate) fn status(ground: &Ground, watch: &Watch, point: &Path) {
        let began = now();
        let mut command = command(ground);
        command.args(["status", "--json"]).arg(point);
        let operation = watch.begin("status", Subject::Local("the mount"));
        let said = ground.path("said-status");
        let mut hung_since = None;
        let ended = process::run(&mut command, &said, || {
            let since = watch.has_hung().then(|| *hung_since.get_or_insert_with(now));
            since.is_none_or(|since| now() - since < nanos(GRACE))
        });
        drop(operation);
        if let Ok(Ended::With(status, said)) = ended
            && !status.success()
            && !watch.excuses.is_away(began, now())
            && !watch.has_hung()
        {
            let what = format!("belady status ends with {status}: {}", said.trim());
            watch.wrong(Wrong::Error, &what);
        }
    }
}

/// The first line of a log that tells of a panic.
fn panic_in(logs: &str) -> Option<&str> {
    logs.lines().find(|line| line.contains("panicked"))
}

/// A command of belady with the run's own runtime directory, and without settings of the environment.
fn command(ground: &Ground) -> Command {
    let mut command = Command::new(&ground.belady);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("BELADY_") {
            command.env_remove(name);
        }
    }
    command.env("XDG_RUNTIME_DIR", ground.path("run"));
    command
}
