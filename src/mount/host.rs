//! What this machine offers: memory, processors, space.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;

use crate::config::Host;

/// Looks at the machine, and at the filesystem of the cache directory if there is one.
pub fn detect(cache_directory: Option<&Path>) -> Host {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = meminfo_bytes(&meminfo, "MemTotal:").unwrap_or(1 << 30);
    let available = meminfo_bytes(&meminfo, "MemAvailable:").unwrap_or(total / 2);
    let limit = cgroup_limit(Path::new("/sys/fs/cgroup"), "/proc/self/cgroup");
    let memory_limit = limit.unwrap_or(u64::MAX).min(total);
    Host {
        memory_limit,
        memory_available: available.min(memory_limit),
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
        cache_free: cache_directory.and_then(space),
    }
}

/// Bytes free and in all on the filesystem that a directory is on or will be made on.
fn space(directory: &Path) -> Option<(u64, u64)> {
    let existing = directory.ancestors().find(|ancestor| ancestor.exists())?;
    let space = statvfs(existing).ok()?;
    let unit = space.fragment_size();
    Some((space.blocks_available() * unit, space.blocks() * unit))
}

fn meminfo_bytes(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The least memory limit of this process's cgroup and those above it, of either version.
fn cgroup_limit(root: &Path, membership: &str) -> Option<u64> {
    let membership = fs::read_to_string(membership).ok()?;
    let mut limits = Vec::new();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (base, file) = match controllers {
            "" => (root.to_path_buf(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let below: PathBuf = Path::new(path).components().skip(1).collect();
        for ancestor in below.ancestors() {
            let text = fs::read_to_string(base.join(ancestor).join(file)).unwrap_or_default();
            limits.extend(text.trim().parse::<u64>().ok());
        }
    }
    limits.into_iter().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
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
        let membership = at("self");
        assert_eq!(cgroup_limit(root.path(), membership.to_str().unwrap()), Some(536_870_912));
    }

    #[test]
    fn the_second_version_is_read_too() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        write(at("self"), "0::/job\n");
        write(at("job/memory.max"), "1000000\n");
        assert_eq!(cgroup_limit(root.path(), at("self").to_str().unwrap()), Some(1_000_000));
        write(at("job/memory.max"), "max\n");
        assert_eq!(cgroup_limit(root.path(), at("self").to_str().unwrap()), None);
    }

    #[test]
    fn meminfo_is_in_kibibytes() {
        assert_eq!(
            meminfo_bytes("MemTotal:  16 kB\nMemAvailable: 8 kB\n", "MemAvailable:"),
            Some(8192)
        );
    }
}
