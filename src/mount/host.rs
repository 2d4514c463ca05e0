//! What this machine offers: memory, processors, and space.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{FsType, TMPFS_MAGIC, statfs};
use nix::sys::statvfs::statvfs;

use crate::config::{Host, Reading, View};
use crate::disk::unless_it_hangs;
use crate::source::{Location, lasting_identity};
use crate::store::directory::{self, Owner};

const CGROUPS: &str = "/sys/fs/cgroup";
const MEMBERSHIP: &str = "/proc/self/cgroup";

const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

#[derive(Default)]
struct CacheDirectory {
    space: Option<(u64, u64)>,
    in_memory: bool,
    held: u64,
    held_by_buffers: u64,
}

/// Looks at the machine, and at the filesystem of the cache directory. What the store of this source holds
/// there counts as free. If the disk does not answer, a thread is left behind that waits for it.
pub fn detect(cache_directory: Option<&Path>, source: Option<(&Location, View)>) -> Host {
    let cache = cache_directory.map(|directory| {
        let (directory, owner) = (directory.to_path_buf(), source.and_then(owner_of));
        unless_it_hangs(move || find_cache(&directory, owner.as_ref()))
    });
    let hangs = matches!(cache, Some(Ok(None)));
    with_cache(cache.and_then(Result::ok).flatten().unwrap_or_default(), hangs)
}

/// The same, but waits if the disk does not answer: for a process that can be left behind.
pub fn detect_apart(cache_directory: Option<&Path>) -> Host {
    let find = |directory| find_cache(directory, None);
    with_cache(cache_directory.map(find).unwrap_or_default(), false)
}

fn with_cache(cache: CacheDirectory, cache_hangs: bool) -> Host {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = meminfo_bytes(&meminfo, "MemTotal:").unwrap_or(1 << 30);
    let available = meminfo_bytes(&meminfo, "MemAvailable:").unwrap_or(total / 2);
    let groups = memory_groups(Path::new(CGROUPS), Path::new(MEMBERSHIP));
    let limit = groups.iter().filter_map(MemoryGroup::limit).min();
    let memory_limit = limit.unwrap_or(u64::MAX).min(total);
    Host {
        memory_limit,
        memory_available: available.min(memory_limit),
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
        cache_free: cache.space.map(|(free, total)| (free + cache.held, total)),
        cache_in_memory: cache.in_memory,
        cache_hangs,
        cache_held: cache.held,
        buffers_held: cache.held_by_buffers,
    }
}

fn find_cache(directory: &Path, owner: Option<&Owner>) -> CacheDirectory {
    let existing = directory.ancestors().find(|ancestor| ancestor.exists());
    let in_memory = existing.is_some_and(is_in_memory);
    CacheDirectory {
        space: existing.and_then(space).map(|(free, total)| match in_memory {
            true => (free.min(left_to_store(&readings())), total),
            false => (free, total),
        }),
        in_memory,
        held: owner.map_or(0, |owner| directory::store_bytes(directory, owner)),
        held_by_buffers: owner.map_or(0, |owner| directory::buffer_bytes(directory, owner)),
    }
}

/// The owner of a source's store.
fn owner_of((source, view): (&Location, View)) -> Option<Owner> {
    Some(Owner::new(source.name(), lasting_identity(source, view)?))
}

/// How many bytes a store may take at this moment on a filesystem in memory.
fn left_to_store(readings: &[Reading]) -> u64 {
    let left = readings.iter().map(|reading| reading.to_store(0).fits());
    left.min().unwrap_or(u64::MAX)
}

fn is_in_memory(directory: &Path) -> bool {
    let kinds = [TMPFS_MAGIC, RAMFS_MAGIC];
    statfs(directory).is_ok_and(|found| kinds.contains(&found.filesystem_type()))
}

/// Free bytes and all bytes of a directory's filesystem.
fn space(directory: &Path) -> Option<(u64, u64)> {
    let space = statvfs(directory).ok()?;
    let unit = space.fragment_size();
    Some((space.blocks_available() * unit, space.blocks() * unit))
}

fn meminfo_bytes(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Limits and use at this moment: of the machine's memory, and of each cgroup of this process.
pub fn readings() -> Vec<Reading> {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let (total, available) =
        (meminfo_bytes(&meminfo, "MemTotal:"), meminfo_bytes(&meminfo, "MemAvailable:"));
    let machine = total.zip(available).map(|(limit, available)| {
        Reading::memory("the machine", limit, limit.saturating_sub(available))
    });
    let groups = memory_groups(Path::new(CGROUPS), Path::new(MEMBERSHIP));
    let total = total.unwrap_or(u64::MAX);
    groups.iter().filter_map(|group| group.reading(total)).chain(machine).collect()
}

/// A memory cgroup.
struct MemoryGroup {
    directory: PathBuf,
    name: PathBuf,
    is_v2: bool,
}

impl MemoryGroup {
    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.directory.join(file)).ok()
    }

    fn number(&self, v1: &str, v2: &str) -> Option<u64> {
        self.read(if self.is_v2 { v2 } else { v1 })?.trim().parse().ok()
    }

    fn limit(&self) -> Option<u64> {
        self.number("memory.limit_in_bytes", "memory.max")
    }

    /// Limit and use, if the limit is less than the machine has.
    fn reading(&self, machine: u64) -> Option<Reading> {
        let limit = self.limit().filter(|limit| *limit < machine)?;
        let used = self.number("memory.usage_in_bytes", "memory.current")?;
        let prefix = if self.is_v2 { "" } else { "total_" };
        let files = ["inactive_file", "active_file"].map(|list| format!("{prefix}{list}"));
        let stat = self.read("memory.stat")?;
        let pages: u64 = stat
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(key, _)| files.iter().any(|file| file == key))
            .filter_map(|(_, value)| value.parse::<u64>().ok())
            .sum();
        let what = format!("cgroup {}", self.name.display());
        Some(Reading::memory(what, limit, used.saturating_sub(pages)))
    }
}

/// The memory cgroups of this process, and those above them, of either version.
fn memory_groups(root: &Path, membership: &Path) -> Vec<MemoryGroup> {
    let membership = fs::read_to_string(membership).unwrap_or_default();
    let mut groups = Vec::new();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (base, is_v2) = match controllers {
            "" => (root.to_path_buf(), true),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (root.join("memory"), false)
            }
            _ => continue,
        };
        let below: PathBuf = Path::new(path).components().skip(1).collect();
        groups.extend(below.ancestors().map(|ancestor| MemoryGroup {
            directory: base.join(ancestor),
            name: Path::new("/").join(ancestor),
            is_v2,
        }));
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn groups(root: &Path) -> Vec<MemoryGroup> {
        memory_groups(root, &root.join("self"))
    }

    fn least_limit(root: &Path) -> Option<u64> {
        groups(root).iter().filter_map(MemoryGroup::limit).min()
    }

    fn readings(root: &Path, machine: u64) -> Vec<Reading> {
        groups(root).iter().filter_map(|group| group.reading(machine)).collect()
    }

    #[test]
    fn the_least_limit_of_all_ancestors_counts() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        write(at("self"), "4:memory:/job/step\n1:cpu:/\n0::/other\n");
        write(at("memory/memory.limit_in_bytes"), "9223372036854771712\n");
        write(at("memory/job/memory.limit_in_bytes"), "536870912\n");
        write(at("memory/job/step/memory.limit_in_bytes"), "1073741824\n");
        write(at("other/memory.max"), "max\n");
        assert_eq!(least_limit(root.path()), Some(536_870_912));
        write(at("memory/job/memory.usage_in_bytes"), "400000000\n");
        let stat = "cache 7\ninactive_file 1\ntotal_inactive_file 100000000\ntotal_active_file 5\n";
        write(at("memory/job/memory.stat"), stat);
        let job = Reading::memory("cgroup /job", 536_870_912, 299_999_995);
        assert_eq!(readings(root.path(), 1 << 40), [job], "the others have no use to read");
        assert_eq!(readings(root.path(), 536_870_912), [], "no limit where there is less memory");
    }

    #[test]
    fn the_second_version_is_read_too() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        write(at("self"), "0::/job\n");
        write(at("job/memory.max"), "1000000\n");
        assert_eq!(least_limit(root.path()), Some(1_000_000));
        write(at("job/memory.current"), "900000\n");
        write(at("job/memory.stat"), "anon 1\ninactive_file 500000\nactive_file 100000\n");
        let job = Reading::memory("cgroup /job", 1_000_000, 300_000);
        assert_eq!(readings(root.path(), 1 << 40), [job]);
        write(at("job/memory.max"), "max\n");
        assert_eq!(least_limit(root.path()), None);
    }

    #[test]
    fn meminfo_is_in_kibibytes() {
        assert_eq!(
            meminfo_bytes("MemTotal:  16 kB\nMemAvailable: 8 kB\n", "MemAvailable:"),
            Some(8192)
        );
    }
}
