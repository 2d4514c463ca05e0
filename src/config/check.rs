//! Sections that stand for themselves: their keys need neither the host nor other sections.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use tracing_subscriber::EnvFilter;

use super::schema::{Consistency, Control, LogConfig, MountConfig, SourceConfig, StreamConfig};
use super::settings::{LogSettings, MountSettings, SourceSettings};
use crate::error::{Error, ErrorKind, Result};

/// More threads than this in a scan only queue at the metadata server.
const SCAN_THREADS: RangeInclusive<u32> = 1..=256;

/// The kernel's queue is one; threads beyond this only contend for it.
const MOUNT_THREADS: RangeInclusive<u32> = 1..=64;

/// The error for a setting that cannot be.
pub(super) fn wrong(message: String) -> Error {
    Error::new(ErrorKind::Config, message)
}

pub(super) fn source(source: &SourceConfig) -> Result<SourceSettings> {
    Ok(SourceSettings {
        revalidate: match source.consistency {
            Consistency::Immutable => None,
            Consistency::Revalidate => Some(source.revalidate.0),
        },
        scan_threads: within("source.scan-threads", source.scan_threads, &SCAN_THREADS)?,
    })
}

pub(super) fn mount(mount: &MountConfig) -> Result<MountSettings> {
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
        mode: mount.mode,
        threads: within("mount.threads", mount.threads, &MOUNT_THREADS)?,
        options: mount.options.clone(),
    })
}

pub(super) fn log(log: &LogConfig) -> Result<LogSettings> {
    if let Err(error) = log.level.parse::<EnvFilter>() {
        let message = format!("log.level: {:?} is not a filter: {error}", log.level);
        return Err(wrong(message).hint("write it like \"info\" or \"info,belady::plan=debug\""));
    }
    Ok(LogSettings { level: log.level.clone(), file: path("log.file", &log.file)? })
}

pub(super) fn streams(streams: &[StreamConfig]) -> Result<Vec<StreamConfig>> {
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

/// `value`, if it is in `range`.
pub(super) fn within<T: PartialOrd + Display + Copy>(
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
pub(super) fn path(key: &str, path: &Path) -> Result<Option<PathBuf>> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    if !path.is_absolute() {
        return Err(wrong(format!("{key} \"{}\" is not an absolute path", path.display()))
            .hint("a mount runs in the background, where relative paths mean something else"));
    }
    Ok(Some(path.to_path_buf()))
}
