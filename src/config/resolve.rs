//! Resolves a [`Config`] on a [`Host`] to [`Settings`].
//!
//! RAM comes first, since the prefetch window is a part of it, then the disk tier, then keys that depend on
//! no others. Each choice adds a line to `decisions`. The first relation that does not hold is the error.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use super::check::{self, config_error, path, within};
use super::schema::{
    CacheConfig, ClusterConfig, Config, Learn, OrderConfig, PolicyKind, PrefetchConfig,
};
use super::settings::{
    CacheSettings, ClusterSettings, DiskSettings, Host, LearnSettings, PrefetchSettings, Settings,
};
use super::units::{Bytes, Size, share};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::BLOCK_BYTES;
use crate::tls::Tls;

/// The most that `cache.ram = "auto"` takes of the memory limit. Loaders and the framework need the rest.
/// With more page cache, the out-of-memory killer may come.
const AUTO_RAM_OF_LIMIT_PERCENT: f64 = 25.0;

/// The most that it takes of the available memory: a busy host is not made busier.
const AUTO_RAM_OF_AVAILABLE_PERCENT: f64 = 50.0;

/// The part of the memory limit that `cache.ram` never takes, whatever is configured: the daemon and the job
/// live under the same limit.
pub(super) const RESERVED_PERCENT: f64 = 12.5;

/// The part of the filesystem that `cache.min-free = "auto"` leaves free, the same as the written default.
const AUTO_MIN_FREE_PERCENT: f64 = 5.0;

/// The smallest file that may be a file of its own in the cache directory.
const LARGE_FILE_MIN: u64 = 2 * BLOCK_BYTES;

/// The smallest shard: an idle server takes some 8 MB.
const SHARD_MIN: u64 = 16 << 20;

/// How long existing servers may keep samples that nobody reads.
const EXPIRES: RangeInclusive<Duration> =
    Duration::from_secs(60)..=Duration::from_secs(366 * 86_400);

/// By default, one thread for this many processors searches for seeds.
const LEARN_SHARE: u32 = 8;

/// Makes the choices that are left to belady, and checks the relations between keys and host.
///
/// # Errors
/// It is [`ErrorKind::Config`] if a number is out of range, a relation does not hold, or a path is not
/// absolute. It is [`ErrorKind::Cache`] if the space of `cache.dir` is not known.
pub fn resolve(config: &Config, host: &Host) -> Result<Settings> {
    let mut decisions = Vec::new();
    let (ram_bytes, ram_configured_bytes) = ram(config.cache.ram, host, &mut decisions);
    let cluster = cluster(&config.cluster, ram_bytes, &mut decisions)?;
    let shard_bytes = cluster.as_ref().map_or(0, |cluster| cluster.ram_bytes);
    let ram_bytes = ram_bytes - shard_bytes;
    let ram_configured_bytes = ram_configured_bytes - shard_bytes;
    let disk_fault = host.cache_hangs.then(|| hanging_disk_error(&config.cache.dir));
    let disk = match &disk_fault {
        Some(fault) => Err(fault.message().to_owned()),
        None => disk(&config.cache, host, &mut decisions)?,
    };
    let policy = config.cache.policy;
    if policy == PolicyKind::Auto {
        decisions.push("cache.policy auto: by what is known of each stream's order".to_owned());
    }
    let prefetch = prefetch(&config.prefetch, ram_bytes, &mut decisions)?;
    Ok(Settings {
        source: check::source(&config.source)?,
        learn: learn(&config.order, host)?,
        prefetch,
        cluster,
        rehearsal: check::rehearsal(&config.rehearsal, disk.as_ref())?,
        cache: CacheSettings {
            ram_bytes,
            ram_configured_bytes,
            disk: disk.ok(),
            disk_fault,
            policy,
        },
        mount: check::mount(&config.mount)?,
        log: check::log(&config.log)?,
        streams: check::streams(&config.streams)?,
        derived: check::derived(&config.derived)?,
        decisions,
    })
}

fn human(bytes: u64) -> String {
    Bytes(bytes).human()
}

/// The bytes that fit, and the bytes that are configured.
fn ram(size: Size, host: &Host, decisions: &mut Vec<String>) -> (u64, u64) {
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
    let most = host.memory_limit - share(RESERVED_PERCENT, host.memory_limit);
    if bytes > most {
        let (asked, fits) = (human(bytes), human(most));
        decisions.push(format!(
            "cache.ram shrunk from {asked} to {fits}, which fits the memory limit {limit}"
        ));
    }
    (bytes.min(most), bytes)
}

fn cluster(
    cluster: &ClusterConfig,
    ram_bytes: u64,
    decisions: &mut Vec<String>,
) -> Result<Option<ClusterSettings>> {
    if cluster.join.is_off() {
        return Ok(None);
    }
    let secret = path("cluster.secret", &cluster.secret)?.ok_or_else(|| {
        config_error("cluster.join is set, but cluster.secret is empty".to_owned())
            .hint("name a file in a directory that all nodes see and only you can enter")
    })?;
    let has_servers = cluster.join.servers().is_some();
    if !EXPIRES.contains(&cluster.expires.0) {
        let message = format!("cluster.expires {} is not between 1m and 366d", cluster.expires);
        return Err(config_error(message).hint("a day is 1d, and a week 7d"));
    }
    if !has_servers && !cluster.login.as_os_str().is_empty() {
        let message = "cluster.login is set, but cluster.join names no existing servers";
        return Err(config_error(message.to_owned()).hint("leave it out, or write redis://HOST"));
    }
    let (ram_bytes, servers_bytes) = match has_servers {
        true => (0, servers(cluster)?),
        false => (shard(cluster, ram_bytes, decisions)?, None),
    };
    Ok(Some(ClusterSettings {
        join: cluster.join.clone(),
        ram_bytes,
        servers_bytes,
        secret,
        login: path("cluster.login", &cluster.login)?.unwrap_or_default(),
        tls: tls(cluster)?,
        expires: cluster.expires.0,
        address: cluster.address.parse()?,
        group: cluster.group.clone(),
        source_rate: Some(cluster.source_rate.0).filter(|rate| *rate > 0),
        disk: cluster.disk && !has_servers,
        follow: cluster.follow,
        server: path("cluster.server", &cluster.server)?.unwrap_or_default(),
    }))
}

/// Bytes of servers that others administer, for all nodes together.
fn servers(cluster: &ClusterConfig) -> Result<Option<u64>> {
    let ClusterConfig { address, group, server, .. } = cluster;
    let of_shards = [
        ("address", !address.is_empty()),
        ("group", !group.is_empty()),
        ("server", !server.as_os_str().is_empty()),
    ];
    if let Some((key, _)) = of_shards.into_iter().find(|(_, is_set)| *is_set) {
        let message = format!("cluster.{key} is set, but this node has no shard of its own");
        return Err(
            config_error(message).hint("leave it out, or write cluster.join without redis://")
        );
    }
    match cluster.ram {
        Size::Auto => Ok(None),
        Size::Bytes(Bytes(bytes)) if bytes >= SHARD_MIN => Ok(Some(bytes)),
        other => {
            let least = human(SHARD_MIN);
            let message = format!("cluster.ram {other} is no amount of at least {least}");
            Err(config_error(message).hint("write the memory that all nodes use of all servers"))
        }
    }
}

/// The files for TLS; `None`: connections are without it.
fn tls(cluster: &ClusterConfig) -> Result<Option<Tls>> {
    let trusted = path("cluster.tls-ca", &cluster.tls_ca)?;
    let own = path("cluster.tls-cert", &cluster.tls_cert)?;
    let key = path("cluster.tls-key", &cluster.tls_key)?;
    let refuse = |what: &str, fix: &str| Err(config_error(what.to_owned()).hint(fix));
    let wants = cluster.join.servers().map(|servers| servers.tls);
    match (wants, trusted, own, key) {
        (None | Some(false), None, None, None) => Ok(None),
        (None, Some(trusted), Some(own), Some(key))
        | (Some(true), Some(trusted), Some(own), Some(key)) => {
            Ok(Some(Tls { trusted, own: Some((own, key)) }))
        }
        (Some(true), Some(trusted), None, None) => Ok(Some(Tls { trusted, own: None })),
        (Some(true), None, ..) => refuse(
            "cluster.tls-ca is empty, but cluster.join asks for TLS",
            "name a file of trusted certificates, such as /etc/ssl/certs/ca-certificates.crt",
        ),
        (Some(true), ..) => refuse(
            "one of cluster.tls-cert and cluster.tls-key is empty",
            "set both, or none of them",
        ),
        (Some(false), ..) => refuse(
            "cluster.tls-... is set, but cluster.join does not ask for TLS",
            "write rediss:// in place of redis://",
        ),
        (None, ..) => refuse(
            "one of cluster.tls-ca, cluster.tls-cert and cluster.tls-key is empty",
            "set all three, or none of them",
        ),
    }
}

/// Bytes of this node's shard.
fn shard(cluster: &ClusterConfig, ram_bytes: u64, decisions: &mut Vec<String>) -> Result<u64> {
    let bytes = cluster.ram.of(ram_bytes).unwrap_or(ram_bytes / 2);
    let (shard, ram) = (human(bytes), human(ram_bytes));
    if bytes < SHARD_MIN || bytes > ram_bytes {
        let least = human(SHARD_MIN);
        let message = format!("cluster.ram {shard} is not between {least} and cache.ram {ram}");
        return Err(config_error(message).hint("it is a part of cache.ram: make that larger"));
    }
    if !matches!(cluster.ram, Size::Bytes(_)) {
        decisions.push(format!("cluster.ram {}: {shard} of cache.ram {ram}", cluster.ram));
    }
    Ok(bytes)
}

/// The error of a cache disk that does not answer.
pub fn hanging_disk_error(cache: &Path) -> Error {
    let message = format!("cache.dir {}: the disk does not answer", cache.display());
    Error::new(ErrorKind::Disk, message)
        .hint("`dmesg` may say why; the next mount uses it where it answers again")
}

fn disk(
    cache: &CacheConfig,
    host: &Host,
    decisions: &mut Vec<String>,
) -> Result<std::result::Result<DiskSettings, String>> {
    if cache.disk == Size::Bytes(Bytes(0)) {
        return Ok(Err("cache.disk is 0".to_owned()));
    }
    if cache.dir.as_os_str().is_empty() && cache.disk == Size::Auto {
        return Ok(Err("cache.dir is empty".to_owned()));
    }
    let written = cache.disk;
    let Some(dir) = path("cache.dir", &cache.dir)? else {
        return Err(config_error(format!("cache.disk is \"{written}\" but cache.dir is empty"))
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
    let configured_bytes = match written {
        Size::Bytes(bytes) => bytes.0,
        Size::Auto => usable,
        Size::Percent(percent) => share(percent, free).min(usable),
    };
    let bytes = configured_bytes.min(usable);
    let buffers_bytes = match written {
        Size::Bytes(_) => configured_bytes.min(usable.saturating_add(host.buffers_held)),
        Size::Auto | Size::Percent(_) => bytes.saturating_add(host.buffers_held),
    };
    // A store or buffers that exist have to be opened: otherwise their space is not given back.
    if bytes < BLOCK_BYTES && host.cache_held == 0 && host.buffers_held == 0 {
        decisions.push(format!("cache.disk {written}: no disk tier, since {space} holds no block"));
        let dir = dir.display();
        return Ok(Err(format!("cache.dir \"{dir}\" has no room: {space} holds no block")));
    }
    match written {
        Size::Auto => decisions.push(format!("cache.disk auto: {} = {space}", human(bytes))),
        Size::Percent(_) => {
            decisions.push(format!("cache.disk {written}: {}, from {space}", human(bytes)));
        }
        Size::Bytes(_) if bytes < configured_bytes => {
            let (asked, fits) = (human(configured_bytes), human(bytes));
            decisions
                .push(format!("cache.disk shrunk from {asked} to {fits}, which fits: {space}"));
        }
        Size::Bytes(_) => {}
    }
    let large_file_bytes = cache.large_file.0;
    if large_file_bytes < LARGE_FILE_MIN {
        let (large, least) = (human(large_file_bytes), human(LARGE_FILE_MIN));
        return Err(config_error(format!("cache.large-file {large} is less than {least}"))
            .hint("smaller files are many: each would be a file in the cache directory"));
    }
    Ok(Ok(DiskSettings {
        in_memory: host.cache_in_memory,
        dir,
        bytes,
        configured_bytes,
        buffers_bytes,
        min_free_bytes,
        min_free_inodes: cache.min_free_inodes,
        large_file_bytes,
        slow_after: cache.slow_after.0,
    }))
}

fn learn(order: &OrderConfig, host: &Host) -> Result<Option<LearnSettings>> {
    // No dataset is worth more threads than this.
    let threads = match within("order.learn-threads", order.learn_threads, 0..=256)? {
        0 => (host.cores / LEARN_SHARE).max(1),
        set => set,
    };
    let nice = within("order.learn-nice", order.learn_nice, 0..=19)?;
    Ok(match order.learn {
        Learn::Off => None,
        Learn::Auto | Learn::NoCrack => {
            let crack = order.learn == Learn::Auto;
            let time = match order.learn_time.0 {
                Duration::ZERO => Duration::MAX,
                set => set,
            };
            Some(LearnSettings { crack, threads, nice, time })
        }
    })
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
            return Err(config_error(format!(
                "prefetch.window {window} is more than cache.ram {ram}"
            ))
            .hint("the window is a part of cache.ram: make it smaller or cache.ram larger"));
        }
        (_, Some(window)) if window < BLOCK_BYTES => {
            let (window, block) = (human(window), human(BLOCK_BYTES));
            let message = format!("prefetch.window {window} is less than one block of {block}");
            return Err(
                config_error(message).hint("prefetch.enabled = false turns reading ahead off")
            );
        }
        (Size::Percent(_), Some(window)) => {
            let (window, ram) = (human(window), human(ram_bytes));
            decisions
                .push(format!("prefetch.window {}: {window} of cache.ram {ram}", prefetch.window));
        }
        (_, None) if prefetch.enabled => {
            decisions.push(
                "prefetch.window auto: 40 samples of mean size, more where reads wait for it"
                    .to_owned(),
            );
        }
        _ => {}
    }
    Ok(PrefetchSettings {
        enabled: prefetch.enabled,
        // A fetch may hold a block, so these hold a gibibyte. No source has to be asked for more at once.
        inflight: within("prefetch.inflight", prefetch.inflight, 1..=1024)?,
        rate: Some(prefetch.rate.0).filter(|rate| *rate > 0),
        manners: prefetch.manners,
        window_bytes,
        // A request is in memory as a whole.
        request_bytes: within("prefetch.request", prefetch.request.0, 0..=64 << 20)?,
        start: prefetch.start,
    })
}
