//! A memory cgroup for the daemon, for both versions of the controller.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How long a group may stay in use after its processes have ended.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct MemoryGroup {
    path: PathBuf,
    is_v2: bool,
}

impl MemoryGroup {
    /// Makes a group with a limit in bytes.
    ///
    /// # Errors
    /// If no hierarchy with a memory controller takes a group.
    pub(crate) fn new(name: &str, limit: u64) -> io::Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let below = |controller: &str| {
            let has_it = |line: &&str| {
                let names = line.split(':').nth(1);
                names.is_some_and(|names| names.split(',').any(|name| name == controller))
            };
            let line = own.lines().find(has_it);
            line.and_then(|line| line.splitn(3, ':').nth(2)).unwrap_or("/").trim_start_matches('/')
        };
        let hierarchies = [
            ("/sys/fs/cgroup/memory", below("memory"), false),
            ("/sys/fs/cgroup", below(""), true),
        ];
        for (top, below, is_v2) in hierarchies {
            for parent in [Path::new(top).join(below), PathBuf::from(top)] {
                let group = MemoryGroup { path: parent.join(name), is_v2 };
                if fs::create_dir(&group.path).is_err() {
                    continue;
                }
                if group.limit(limit).is_ok() {
                    return Ok(group);
                }
            }
        }
        Err(io::Error::other("no cgroup hierarchy with a memory controller takes a group"))
    }

    fn file(&self, first: &str, second: &str) -> PathBuf {
        self.path.join(if self.is_v2 { second } else { first })
    }

    /// Sets the limit. The kernel refuses a limit that it cannot enforce at once.
    pub(crate) fn limit(&self, bytes: u64) -> io::Result<()> {
        fs::write(self.file("memory.limit_in_bytes", "memory.max"), bytes.to_string())
    }

    /// How many processes the kernel has killed for want of memory.
    pub(crate) fn kills(&self) -> u64 {
        let file = self.file("memory.oom_control", "memory.events");
        let text = fs::read_to_string(file).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// The file that takes process ids.
    pub(crate) fn processes(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let began = Instant::now();
        while fs::remove_dir(&self.path).is_err() && began.elapsed() < TIMEOUT {
            thread::sleep(Duration::from_millis(20));
        }
    }
}
