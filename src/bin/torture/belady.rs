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
use crate::plan::{Limit, Plan};
use crate::process::{self, Ended, is_running, signal};
use crate::stats::Failure;
use crate::target::Subject;
use crate::watch::Watch;
use crate::workspace::Workspace;

/// How long a command may still run after something has hung.
const GRACE: Duration = Duration::from_secs(3);

/// How long mounting is retried while a fault hits the source.
const RETRY_TIME: Duration = Duration::from_secs(45);

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

/// The mounts of a scenario.
#[derive(Debug)]
pub(crate) struct Belady {
    workspace: Arc<Workspace>,
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
        workspace: Arc<Workspace>,
        watch: Arc<Watch>,
        plan: &Plan,
        source: PathBuf,
        cache: Vec<String>,
    ) -> io::Result<Self> {
        let points = (0..plan.points).map(|nth| workspace.path(&format!("mount{nth}"))).collect();
        let name = format!("belady-torture-{}-{}", std::process::id(), plan.number);
        let group = plan.memory_mib.map(|mib| MemoryGroup::new(&name, mib << 20)).transpose()?;
        Ok(Belady { workspace, watch, plan: plan.clone(), source, cache, points, group, pid: None })
    }

    fn command(&self, words: &[OsString]) -> Command {
        let mut command = command(&self.workspace);
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
        let file = self.workspace.path(&format!("output-{kind}"));
        let operation = self.watch.begin(kind, subject);
        let ended = process::run(&mut command, &file, until_hang(&self.watch));
        drop(operation);
        match ended {
            Ok(Ended::Exited(status, output)) => Some((status.code().unwrap_or(-1), output)),
            Ok(Ended::Killed) => None,
            Err(error) => Some((-1, error.to_string())),
        }
    }

    /// Mounts at all points. While a fault hits the source, mounting is retried.
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
            let is_early = began - first < nanos(RETRY_TIME) + self.watch.limit();
            let command = self.mount_command(point);
            let is_left = before.is_some_and(is_running);
            let subject = if is_left { Subject::Remount } else { Subject::Mount };
            match self.run("mount", subject, command) {
                Some((0, _)) => {
                    self.pid = self.workspace.daemon_of(point);
                    return true;
                }
                None => return false,
                Some(_) if is_early && self.watch.faults.source_had_fault(began, now()) => {
                    thread::sleep(Duration::from_millis(100));
                }
                Some((code, output)) => {
                    let what = format!("belady mount ends with {code}: {}", output.trim());
                    self.watch.report(Failure::Error, &what);
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
        if let Some(line) = panic_in(&self.workspace.logs()) {
            self.watch.report(Failure::Error, &format!("the daemon panicked: {line}"));
        }
    }

    pub(crate) fn kill(&self, by: Signal) {
        if let Some(pid) = self.pid {
            signal(pid, by);
        }
    }

    /// Whether the daemon of the last mount runs.
    pub(crate) fn is_alive(&self) -> bool {
        self.pid.is_some_and(is_running)
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
        ended && self.wait_for_end(end)
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
                Some((code, output)) => {
                    let what = format!("belady {name} ends with {code}: {}", output.trim());
                    self.watch.report(Failure::Error, &what);
                    return false;
                }
                None => return false,
            }
        }
    }

    /// Waits until the daemon has ended, or something hangs.
    fn wait_for_end(&mut self, end: End) -> bool {
        let Some(pid) = self.pid else { return true };
        let kind = match end {
            End::Umount => "end after umount",
            End::Force => "end after umount --force",
            End::Terminate => "end after SIGTERM",
            End::Interrupt => "end after SIGINT",
        };
        let operation = self.watch.begin(kind, Subject::End("the daemon"));
        while is_running(pid) && !self.watch.has_hung() {
            thread::sleep(Duration::from_millis(2));
        }
        drop(operation);
        let ended = !is_running(pid);
        if ended {
            self.pid = None;
        }
        ended
    }
}

/// Asks for the status of a mount. An error is reported if something is mounted.
pub(crate) fn check_status(workspace: &Workspace, watch: &Watch, point: &Path) {
    let began = now();
    let mut command = command(workspace);
    command.args(["status", "--json"]).arg(point);
    let operation = watch.begin("status", Subject::Local("the mount"));
    let file = workspace.path("output-status");
    let ended = process::run(&mut command, &file, until_hang(watch));
    drop(operation);
    if let Ok(Ended::Exited(status, output)) = ended
        && !status.success()
        && !watch.faults.was_unmounted(began, now())
        && !watch.has_hung()
    {
        let what = format!("belady status ends with {status}: {}", output.trim());
        watch.report(Failure::Error, &what);
    }
}

/// Lets a command run until something hangs, and then a moment longer.
fn until_hang(watch: &Watch) -> impl FnMut() -> bool {
    let mut hung_since = None;
    move || {
        let since = watch.has_hung().then(|| *hung_since.get_or_insert_with(now));
        since.is_none_or(|since| now() - since < nanos(GRACE))
    }
}

/// The first line of a log that tells of a panic.
fn panic_in(logs: &str) -> Option<&str> {
    logs.lines().find(|line| line.contains("panicked"))
}

/// A command of belady with the run's own runtime directory, and without settings of the environment.
fn command(workspace: &Workspace) -> Command {
    let mut command = Command::new(&workspace.belady);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("BELADY_") {
            command.env_remove(name);
        }
    }
    command.env("XDG_RUNTIME_DIR", workspace.path("run"));
    command
}
