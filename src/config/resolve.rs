//! From [`Config`] and [`Host`] to [`Settings`].
//!
//! Memory first, since the window is a part of it; then the disk tier; then the keys that stand
//! for themselves. Each choice leaves a line in `decisions`. The first relation that does not
//! hold is the error.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use tracing_subscriber::EnvFilter;

use super::schema::{
    CacheConfig, Config, Consistency, Control, LogConfig, MountConfig, PolicyChoice,
    PrefetchConfig, SourceConfig, StreamConfig,
};
use super::settings::{
    CacheSettings, DiskSettings, Host, LogSettings, MountSettings, PolicyName, PrefetchSettings,
    Settings, SourceSettings,
};
use super::units::{Bytes, Size, share};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::BLOCK_BYTES;

/// Share of the memory limit that `cache.ram = "auto"` takes at most: loaders and the framework
/// need the rest, and page cache beyond a budget is what the out-of-memory killer comes for.
const AUTO_RAM_OF_LIMIT_PERCENT: f64 = 25.0;

/// Share of the available memory that it takes at most: a busy host is not made busier.
const AUTO_RAM_OF_AVAILABLE_PERCENT: f64 = 50.0;

/// What `cache.min-free = "auto"` leaves free of the filesystem, as the written default does.
const AUTO_MIN_FREE_PERCENT: f64 = 5.0;

/// More threads than this in a scan only queue at the metadata server.
const SCAN_THREADS: RangeInclusive<u32> = 1..=256;

/// A fetch may hold a block: 1024 are a gibibyte, more than any source has to be asked at once.
const INFLIGHT: RangeInclusive<u32> = 1..=1024;

/// The kernel's queue is one; threads beyond this only contend for it.
const MOUNT_THREADS: RangeInclusive<u32> = 1..=64;

impl Config {
    /// Decides what was left to belady and checks every relation between keys and host.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a number out of range, a relation that does not hold or a path
    /// that is not absolute; [`ErrorKind::Cache`] if the space of `cache.dir` is not known.
    pub fn resolve(&self, host: &Host) -> Result<Settings> {
        let mut decisions = Vec::new();
        let ram_bytes = ram(self.cache.ram, host, &mut decisions)?;
        let disk = disk(&self.cache, host, &mut decisions)?;
        let policy = policy(self.cache.policy, &mut decisions);
        let prefetch = prefetch(&self.prefetch, ram_bytes, &mut decisions)?;
        Ok(Settings {
            source: source(&self.source)?,
            cache: CacheSettings { ram_bytes, disk, policy },
            prefetch,
            mount: mount(&self.mount)?,
            log: log(&self.log)?,
            streams: streams(&self.streams)?,
            decisions,
        })
    }
}

fn wrong(message: String) -> Error {
    Error::new(ErrorKind::Config, message)
}

fn human(bytes: u64) -> String {
    Bytes(bytes).human()
}

fn ram(size: Size, host: &Host, decisions: &mut Vec<String>) -> Result<u64> {
    let limit = human(host.memory_limit);
    let bytes = match size.of(host.memory_limit) {
        Some(bytes) => bytes,
        None => {
            let of_limit = share(AUTO_RAM_OF_LIMIT_PERCENT, host.memory_limit);
            let of_available = share(AUTO_RAM_OF_AVAILABLE_PERCENT, host.memory_available);
            let bytes = of_limit.min(of_available);
            let because = if of_limit <= of_available {
                format!("{AUTO_RAM_OF_LIMIT_PERCENT}% of the memory limit {limit}")
            } else {
                let available = human(host.memory_available);
                format!("{AUTO_RAM_OF_AVAILABLE_PERCENT}% of the available memory {available}")
            };
            decisions.push(format!("cache.ram auto: {} = {because}", human(bytes)));
            bytes
        }
    };
    if let Size::Percent(_) = size {
        decisions.push(format!("cache.ram {size}: {} of the memory limit {limit}", human(bytes)));
    }
    if bytes > host.memory_limit {
        let bytes = human(bytes);
        return Err(wrong(format!("cache.ram {bytes} is more than the memory limit {limit}"))
            .hint("the limit is that of the host or of the cgroup; \"25%\" is a share of it"));
    }
    if bytes < BLOCK_BYTES {
        let (bytes, block) = (human(bytes), human(BLOCK_BYTES));
        return Err(wrong(format!("cache.ram {bytes} is less than one block of {block}"))
            .hint("give the mount more memory, or write cache.ram as a number of bytes"));
    }
    Ok(bytes)
}

fn disk(
    cache: &CacheConfig,
    host: &Host,
    decisions: &mut Vec<String>,
) -> Result<Option<DiskSettings>> {
    let off = cache.disk == Size::Bytes(Bytes(0));
    if off || (cache.dir.as_os_str().is_empty() && cache.disk == Size::Auto) {
        return Ok(None);
    }
    let written = cache.disk;
    let Some(dir) = path("cache.dir", &cache.dir)? else {
        return Err(wrong(format!("cache.disk is \"{written}\" but cache.dir is empty"))
            .hint("name a local directory in cache.dir, or leave cache.disk out"));
    };
    let (free, total) = host.cache_free.ok_or_else(|| {
        let message = format!("the free space of cache.dir \"{}\" is not known", dir.display());
        Error::new(ErrorKind::Cache, message)
    })?;
    let min_free_bytes =
        cache.min_free.of(total).unwrap_or_else(|| share(AUTO_MIN_FREE_PERCENT, total));
    let usable = free.saturating_sub(min_free_bytes);
    let space = format!("free {} less min-free {}", human(free), human(min_free_bytes));
    let bytes = match written {
        Size::Bytes(bytes) => bytes.0,
        Size::Auto => usable,
        Size::Percent(percent) => share(percent, free).min(usable),
    };
    if bytes > usable {
        let message = format!("cache.disk {} does not fit: {space}", human(bytes));
        return Err(wrong(message).hint("\"auto\" takes what there is"));
    }
    if bytes < BLOCK_BYTES {
        decisions.push(format!("cache.disk {written}: no disk tier, since {space} holds no block"));
        return Ok(None);
    }
    match written {
        Size::Auto => decisions.push(format!("cache.disk auto: {} = {space}", human(bytes))),
        Size::Percent(_) => {
            decisions.push(format!("cache.disk {written}: {}, from {space}", human(bytes)));
        }
        Size::Bytes(_) => {}
    }
    Ok(Some(DiskSettings { dir, bytes, min_free_bytes }))
}

fn policy(choice: PolicyChoice, decisions: &mut Vec<String>) -> Option<PolicyName> {
    match choice {
        PolicyChoice::Auto => {
            decisions.push("cache.policy auto: by what is known of each stream's order".to_owned());
            None
        }
        PolicyChoice::Belady => Some(PolicyName::Belady),
        PolicyChoice::Lru => Some(PolicyName::Lru),
        PolicyChoice::Minio => Some(PolicyName::Minio),
        PolicyChoice::UnreadFirst => Some(PolicyName::UnreadFirst),
        PolicyChoice::None => Some(PolicyName::None),
    }
}

fn prefetch(
    prefetch: &PrefetchConfig,
    ram_bytes: u64,
    decisions: &mut Vec<String>,
) -> Result<PrefetchSettings> {
    let window_bytes = prefetch.window.of(ram_bytes);
    match (prefetch.window, window_bytes) {
        (_, Some(window)) if window > ram_bytes => {
            let (window, ram) = (human(window), human(ram_bytes));
            return Err(wrong(format!("prefetch.window {window} is more than cache.ram {ram}"))
                .hint("the window is a part of cache.ram: make it smaller or cache.ram larger"));
        }
        (_, Some(window)) if window < BLOCK_BYTES => {
            let (window, block) = (human(window), human(BLOCK_BYTES));
            let message = format!("prefetch.window {window} is less than one block of {block}");
            return Err(wrong(message).hint("prefetch.enabled = false turns reading ahead off"));
        }
        (Size::Percent(_), Some(window)) => {
            let (window, ram) = (human(window), human(ram_bytes));
            decisions
                .push(format!("prefetch.window {}: {window} of cache.ram {ram}", prefetch.window));
        }
        (_, None) if prefetch.enabled => {
            decisions.push(
                "prefetch.window auto: by the measured speed of source and readers".to_owned(),
            );
        }
        _ => {}
    }
    Ok(PrefetchSettings {
        enabled: prefetch.enabled,
        inflight: within("prefetch.inflight", prefetch.inflight, &INFLIGHT)?,
        window_bytes,
        start: prefetch.start,
    })
}

fn source(source: &SourceConfig) -> Result<SourceSettings> {
    Ok(SourceSettings {
        revalidate: match source.consistency {
            Consistency::Immutable => None,
            Consistency::Revalidate => Some(source.revalidate.0),
        },
        scan_threads: within("source.scan-threads", source.scan_threads, &SCAN_THREADS)?,
    })
}

fn mount(mount: &MountConfig) -> Result<MountSettings> {
    if mount.force_allow_other && !mount.allow_other {
        return Err(wrong("mount.force-allow-other needs mount.allow-other".to_owned())
            .hint("set mount.allow-other = true, or leave mount.force-allow-other out"));
    }
    if let Control::Dir(dir) = &mount.control
        && path("mount.control", dir)?.is_none()
    {
        return Err(wrong("mount.control is empty".to_owned())
            .hint("write \"auto\", \"off\" or a directory"));
    }
    for option in &mount.options {
        if option.is_empty() || option.contains([',', ' ', '\n', '\0']) {
            let message = format!("mount.options: {option:?} is not one mount option");
            return Err(wrong(message).hint("write them like [\"noatime\", \"nodev\"]"));
        }
        if matches!(option.as_str(), "allow_other" | "allow_root") {
            return Err(wrong(format!("mount.options: {option} is decided by belady"))
                .hint("set mount.allow-other = true"));
        }
    }
    Ok(MountSettings {
        allow_other: mount.allow_other,
        force_allow_other: mount.force_allow_other,
        control: mount.control.clone(),
        threads: within("mount.threads", mount.threads, &MOUNT_THREADS)?,
        options: mount.options.clone(),
    })
}

fn log(log: &LogConfig) -> Result<LogSettings> {
    if let Err(error) = log.level.parse::<EnvFilter>() {
        let message = format!("log.level: {:?} is not a filter: {error}", log.level);
        return Err(wrong(message).hint("write it like \"info\" or \"info,belady::plan=debug\""));
    }
    Ok(LogSettings { level: log.level.clone(), file: path("log.file", &log.file)? })
}

fn streams(streams: &[StreamConfig]) -> Result<Vec<StreamConfig>> {
    for (index, StreamConfig { name, order }) in streams.iter().enumerate() {
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() {
            return Err(wrong(format!("stream[{index}] has no name"))
                .hint("give it one, such as name = \"train\""));
        }
        if !name.chars().all(plain) {
            return Err(wrong(format!("stream[{index}].name {name:?} is not a plain name"))
                .hint("use letters, digits, '-', '_' and '.'"));
        }
        if order.trim().is_empty() {
            return Err(wrong(format!("stream `{name}` has no order"))
                .hint("a stream without a known order need not be written down"));
        }
        if streams.iter().take(index).any(|other| other.name == *name) {
            return Err(wrong(format!("two streams are called `{name}`"))
                .hint("names tell streams apart in status and commands"));
        }
    }
    Ok(streams.to_vec())
}

fn within<T: PartialOrd + Display + Copy>(
    key: &str,
    value: T,
    range: &RangeInclusive<T>,
) -> Result<T> {
    if range.contains(&value) {
        return Ok(value);
    }
    let (least, most) = (range.start(), range.end());
    Err(wrong(format!("{key} {value} is not from {least} to {most}")))
}

/// A path that does not depend on where belady was started; `None` if empty.
fn path(key: &str, path: &Path) -> Result<Option<PathBuf>> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    if !path.is_absolute() {
        return Err(wrong(format!("{key} \"{}\" is not an absolute path", path.display()))
            .hint("a mount runs in the background, where relative paths mean something else"));
    }
    Ok(Some(path.to_path_buf()))
}
