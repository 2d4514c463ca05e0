//! The program under test: mounted, asked, killed and unmounted.

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

/// How much longer than the limit of an operation a command of ours is waited for.
const GRACE: Duration = Duration::from_secs(3);

/// How long a mount is tried again where the source is in trouble.
const TRIED: Duration = Duration::from_secs(45);

/// Starts the rest of its words in a cgroup, if the first is not empty, and with the limits of the
/// next two.
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
    /// Where it is mounted.
    pub(crate) points: Vec<PathBuf>,
    /// The memory that it may have.
    pub(crate) group: Option<MemoryGroup>,
    /// The daemon that serves.
    pub(crate) pid: Option<i32>,
}

impl Belady {
    /// Nothing is mounted yet.
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

    /// The command line, with a runtime directory of our own and no settings of others.
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

    /// Runs a command; its exit code and what it said, or none where it did not end.
    fn run(
        &self,
        kind: &'static str,
        subject: Subject,
        mut command: Command,
    ) -> Option<(i32, String)> {
        let said = self.ground.path(&format!("said-{kind}"));
        let operation = self.watch.begin(kind, subject);
        // The watch knows when it is too long; then it is given a moment to show itself.
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

    /// Mounts at all points. Where the source is in trouble it is tried again, until it is not.
    pub(crate) fn mount(&mut self) -> bool {
        let (points, before) = (self.points.clone(), self.pid);
        points.iter().all(|point| self.mount_at(point, before))
    }

    /// `before` is the daemon that was there before.
    fn mount_at(&mut self, point: &Path, before: Option<i32>) -> bool {
        let first = now();
        loop {
            let began = now();
            // The log begins anew.
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

    /// Tells of a panic that a log has.
    pub(crate) fn report_panic(&self) {
        if let Some(line) = panic_in(&self.ground.logs()) {
            self.watch.wrong(Wrong::Error, &format!("the daemon panicked: {line}"));
        }
    }

    /// Kills the daemon by a signal.
    pub(crate) fn kill(&self, by: Signal) {
        if let Some(pid) = self.pid {
            signal(pid, by);
        }
    }

    /// Whether the daemon runs that was mounted last.
    pub(crate) fn is_alive(&self) -> bool {
        self.pid.is_some_and(is_there)
    }

    /// Ends all mounts, the last first, and waits for the end of the daemon.
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

    /// Unmounts one point. One that is in use is tried again: a reader may be about to close a file.
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

    /// Waits for the end of the daemon, however long that takes to be a hang.
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

    /// Asks for the status of the first mount.
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

/// The command line, with a runtime directory of our own and no settings of others.
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
