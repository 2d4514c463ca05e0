//! A memory cgroup of a test's own, with either version of the controller.
//!
//! Goal: a limit that holds only for the processes of one test. Method: a group below our own, or at the top
//! if ours takes no children. Processes enter it before they start. It is removed when they have ended, even
//! if the test fails.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::fixture::wait_until;

pub(crate) struct MemoryGroup {
    path: PathBuf,
    second: bool,
}

impl MemoryGroup {
    /// A group with a limit in bytes.
    pub(crate) fn new(limit: u64) -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("belady-test-{}-{number}", std::process::id());
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let below = |controller: &str| {
            let line = own.lines().find(|line| {
                line.split(':')
                    .nth(1)
                    .is_some_and(|names| names.split(',').any(|n| n == controller))
            });
            line.and_then(|line| line.splitn(3, ':').nth(2)).unwrap_or("/").trim_start_matches('/')
        };
        let hierarchies = [
            ("/sys/fs/cgroup/memory", below("memory"), false),
            ("/sys/fs/cgroup", below(""), true),
        ];
        for (top, below, second) in hierarchies {
            for parent in [Path::new(top).join(below), PathBuf::from(top)] {
                let path = parent.join(&name);
                if fs::create_dir(&path).is_err() {
                    continue;
                }
                let group = MemoryGroup { path, second };
                if group.file("memory.limit_in_bytes", "memory.max").exists() {
                    group.limit(limit);
                    return group;
                }
            }
        }
        panic!("these tests need a memory cgroup: no hierarchy with that controller takes a group");
    }

    fn file(&self, first: &str, second: &str) -> PathBuf {
        self.path.join(if self.second { second } else { first })
    }

    pub(crate) fn name(&self) -> &str {
        self.path.file_name().and_then(OsStr::to_str).unwrap()
    }

    /// Sets the limit. The kernel accepts it when it could reclaim what exceeds it.
    #[track_caller]
    pub(crate) fn limit(&self, bytes: u64) {
        let file = self.file("memory.limit_in_bytes", "memory.max");
        wait_until("the limit", || fs::write(&file, bytes.to_string()).is_ok());
    }

    /// The most bytes that were charged at once.
    pub(crate) fn peak(&self) -> u64 {
        let file = self.file("memory.max_usage_in_bytes", "memory.peak");
        fs::read_to_string(file).unwrap().trim().parse().unwrap()
    }

    /// Processes that the kernel killed because memory ran out.
    pub(crate) fn killed(&self) -> u64 {
        let text = fs::read_to_string(self.file("memory.oom_control", "memory.events")).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.unwrap().trim().parse().unwrap()
    }

    /// The command, which enters the group before it starts.
    pub(crate) fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", r#"echo $$ > "$0" && exec "$@""#]).arg(self.path.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args());
        inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        inside
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Its processes have guards of their own, and end within moments.
        let start = Instant::now();
        while fs::remove_dir(&self.path).is_err() && start.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(20));
        }
    }
}
