//! Checks the sections that depend neither on the host nor on other sections. Only rehearsal buffers depend
//! on the disk tier, too.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use tracing_subscriber::EnvFilter;

use super::schema::{
    Consistency, Control, DerivedConfig, DerivedFormat, LogConfig, MountConfig, RehearsalConfig,
    SourceConfig, StreamConfig,
};
use super::settings::{DiskSettings, RehearsalSettings, SourceSettings};
use super::units::{Bytes, Period};
use crate::buffer::{Capacity, Classes, Rules};
use crate::derive::{Choice, Command, Format, Limits, Recipe, Steps, Work};
use crate::error::{Error, ErrorKind, Result};

/// The most pixels of a side that an image is resized or cropped to.
const SIDE_MAX: u32 = 8192;

/// How much memory the command of a recipe may have.
const MEMORY_LIMITS: RangeInclusive<Bytes> = Bytes(64 << 20)..=Bytes(1 << 40);

/// How large a sample may be that a command makes.
const OUTPUT_LIMITS: RangeInclusive<Bytes> = Bytes(1)..=Bytes(256 << 20);

/// Names of buffers and of derived samples are names of directories.
const NAME_BYTES: usize = 64;

/// The error for an impossible setting.
pub(super) fn config_error(message: String) -> Error {
    Error::new(ErrorKind::Config, message)
}

pub(super) fn source(source: &SourceConfig) -> Result<SourceSettings> {
    Ok(SourceSettings {
        view: source.view,
        credentials: path("source.credentials", &source.credentials)?.unwrap_or_default(),
        revalidate: match source.consistency {
            Consistency::Immutable => None,
            Consistency::Revalidate => Some(source.revalidate.0),
        },
        // In a scan, more threads than this only queue at the metadata server.
        scan_threads: within("source.scan-threads", source.scan_threads, 1..=256)?,
    })
}

pub(super) fn mount(mount: &MountConfig) -> Result<MountConfig> {
    if mount.force_allow_other && !mount.allow_other {
        return Err(config_error("mount.force-allow-other needs mount.allow-other".to_owned())
            .hint("set mount.allow-other = true, or leave mount.force-allow-other out"));
    }
    for (key, wish) in [("mount.control", &mount.control), ("mount.rehearsal", &mount.rehearsal)] {
        if let Control::Dir(dir) = wish
            && path(key, dir)?.is_none()
        {
            return Err(config_error(format!("{key} is empty"))
                .hint("write \"auto\", \"off\" or a directory"));
        }
    }
    for option in &mount.options {
        if option.is_empty() || option.contains([',', ' ', '\n', '\0']) {
            let message = format!("mount.options: {option:?} is not one mount option");
            return Err(config_error(message).hint("write them like [\"noatime\", \"nodev\"]"));
        }
        if matches!(option.as_str(), "allow_other" | "allow_root") {
            return Err(config_error(format!("mount.options: {option} is decided by belady"))
                .hint("set mount.allow-other = true"));
        }
    }
    // The kernel has one queue, and more threads than this only contend for it.
    within("mount.threads", mount.threads, 1..=64)?;
    Ok(mount.clone())
}

pub(super) fn log(log: &LogConfig) -> Result<LogConfig> {
    if let Err(error) = log.level.parse::<EnvFilter>() {
        let message = format!("log.level: {:?} is not a filter: {error}", log.level);
        return Err(
            config_error(message).hint("write it like \"info\" or \"info,belady::plan=debug\"")
        );
    }
    path("log.file", &log.file)?;
    Ok(log.clone())
}

pub(super) fn streams(streams: &[StreamConfig]) -> Result<Vec<StreamConfig>> {
    for (index, StreamConfig { name, order }) in streams.iter().enumerate() {
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() {
            return Err(config_error(format!("stream[{index}] has no name"))
                .hint("give it one, such as name = \"train\""));
        }
        if !name.chars().all(plain) {
            return Err(config_error(format!("stream[{index}].name {name:?} is not a plain name"))
                .hint("use letters, digits, '-', '_' and '.'"));
        }
        if order.trim().is_empty() {
            return Err(config_error(format!("stream `{name}` has no order"))
                .hint("a stream without a known order need not be written down"));
        }
        if streams.iter().take(index).any(|other| other.name == *name) {
            return Err(config_error(format!("two streams are called `{name}`"))
                .hint("names tell streams apart in status and commands"));
        }
    }
    Ok(streams.to_vec())
}

pub(super) fn rehearsal(
    buffers: &BTreeMap<String, RehearsalConfig>,
    disk: std::result::Result<&DiskSettings, &String>,
) -> Result<Vec<RehearsalSettings>> {
    let mut all = 0;
    let resolve = |(name, buffer): (&String, &RehearsalConfig)| {
        let key = format!("rehearsal.{name}");
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if name.is_empty() || name.len() > NAME_BYTES || !name.chars().all(plain) {
            let message = format!("rehearsal.{name:?} is not a plain name");
            return Err(config_error(message)
                .hint("its views are a directory of this name: use letters, digits, '-' and '_'"));
        }
        let capacity = buffer.size.0;
        if capacity.limit() == 0 && buffer.latent == 0 {
            return Err(config_error(format!("{key} has no size"))
                .hint("write size = 5000 for samples, or size = \"2GiB\""));
        }
        let disk = disk.map_err(|why| {
            config_error(format!("{key} needs a cache disk, and {why}")).hint(
                "what a buffer holds is kept there: name a local directory with room in cache.dir",
            )
        })?;
        if let Capacity::Bytes(bytes) = capacity {
            all = u64::saturating_add(all, bytes);
        }
        if all > disk.buffers_bytes {
            let (asked, tier) = (Bytes(all).human(), Bytes(disk.buffers_bytes).human());
            return Err(config_error(format!(
                "{key}.size: buffers of {asked} do not fit cache.disk {tier}"
            ))
            .hint("make the buffer smaller, or cache.disk larger"));
        }
        let offer_rate = within(&format!("{key}.offer-rate"), buffer.offer_rate, 0.0..=1.0)?;
        if let Classes::Labels(file) = &buffer.classes {
            path(&format!("{key}.classes"), file)?;
        }
        Ok(RehearsalSettings {
            name: name.clone(),
            rules: Rules { policy: buffer.policy, capacity, seed: u64::from(buffer.seed) },
            classes: buffer.classes.clone(),
            root: inside(&format!("{key}.root"), &buffer.root)?,
            // A buffer that holds no samples takes no offers.
            offer_rate: if capacity.limit() == 0 { 0.0 } else { offer_rate },
            distance: buffer.distance as usize,
            // Names of slots have four digits.
            slots: within(&format!("{key}.slots"), buffer.slots, 0..=10_000)?,
            shared: buffer.shared,
            batch: within(&format!("{key}.batch"), buffer.batch, 1..=u32::MAX)?,
            replay: buffer.replay,
            latent: within(&format!("{key}.latent"), buffer.latent, 0..=1 << 20)?,
        })
    };
    buffers.iter().map(resolve).collect()
}

pub(super) fn derived(all: &[DerivedConfig]) -> Result<Vec<Recipe>> {
    let recipe = |(index, derived): (usize, &DerivedConfig)| {
        let name = &derived.name;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let key = format!("derived[{index}]");
        if name.is_empty() || name.len() > NAME_BYTES || !name.chars().all(plain) {
            let message = format!("{key}.name {name:?} is not a plain name");
            return Err(config_error(message).hint(
                "its samples are in a directory of this name: use letters, digits, '-' and '_'",
            ));
        }
        if all.iter().take(index).any(|other| other.name == *name) {
            return Err(config_error(format!("two [[derived]] are called `{name}`"))
                .hint("their samples are in directories of these names"));
        }
        let from =
            Choice::parse(&derived.from).map_err(|error| error.context(format!("{key}.from")))?;
        let work = match derived.command.is_empty() {
            true => Work::Image(steps(&key, derived)?),
            false => Work::Command(command(&key, derived)?),
        };
        let at = path(&format!("{key}.at"), &derived.at)?;
        if at.is_some() && all.iter().take(index).any(|other| other.at == derived.at) {
            let message = format!("two [[derived]] have the path {}", derived.at.display());
            return Err(config_error(message).hint("there is one link at a path"));
        }
        // Without a slash at the end.
        let at = at.map(|at| at.components().collect());
        Ok(Recipe { name: name.clone(), at, from, work })
    };
    all.iter().enumerate().map(recipe).collect()
}

/// What is made of an image.
fn steps(key: &str, derived: &DerivedConfig) -> Result<Steps> {
    let DerivedConfig { suffix, time_limit, memory_limit, output_limit, .. } =
        DerivedConfig::default();
    if derived.suffix != suffix {
        let message = format!("{key}.suffix needs {key}.command");
        return Err(config_error(message).hint("the name of an image tells its format already"));
    }
    if (derived.time_limit, derived.memory_limit, derived.output_limit)
        != (time_limit, memory_limit, output_limit)
    {
        return Err(config_error(format!("the limits of {key} need {key}.command")));
    }
    let some = |key: String, pixels: u32| {
        let pixels = within(&key, pixels, 0..=SIDE_MAX)?;
        Ok::<_, Error>((pixels > 0).then_some(pixels))
    };
    let resize = some(format!("{key}.resize"), derived.resize)?;
    let crop = some(format!("{key}.crop"), derived.crop)?;
    if let (Some(resize), Some(crop)) = (resize, crop)
        && crop > resize
    {
        let message = format!("{key}.crop {crop} is more than {key}.resize {resize}");
        return Err(config_error(message).hint("a square is cut out of what is left"));
    }
    let quality = within(&format!("{key}.quality"), derived.quality, 1..=100)?;
    let format = match derived.format {
        DerivedFormat::Jpeg => Format::Jpeg { quality: quality as u8 },
        DerivedFormat::Png => Format::Png,
        DerivedFormat::Npy => Format::Npy,
    };
    Ok(Steps { resize, crop, format })
}

/// The command of a recipe.
fn command(key: &str, derived: &DerivedConfig) -> Result<Command> {
    let DerivedConfig { command, suffix, time_limit, memory_limit, output_limit, .. } = derived;
    let default = DerivedConfig::default();
    if (derived.resize, derived.crop, derived.format, derived.quality)
        != (default.resize, default.crop, default.format, default.quality)
    {
        let message = format!("{key} has a command, and resize, crop, format or quality");
        return Err(config_error(message).hint("let the command do all that is to be done"));
    }
    if command.trim().is_empty() || command.contains('\0') {
        return Err(config_error(format!("{key}.command {command:?} is not a command")));
    }
    if suffix.len() > NAME_BYTES || suffix.contains(|c: char| c == '/' || c.is_control()) {
        let message = format!("{key}.suffix {suffix:?} is not the end of a name");
        return Err(config_error(message).hint("write it like \".wav\""));
    }
    let times = Period(Duration::from_secs(1))..=Period(Duration::from_secs(3600));
    Ok(Command {
        line: command.clone(),
        suffix: suffix.clone(),
        limits: Limits {
            time: within(&format!("{key}.time-limit"), *time_limit, times)?.0,
            memory: within(&format!("{key}.memory-limit"), *memory_limit, MEMORY_LIMITS)?.0,
            output: within(&format!("{key}.output-limit"), *output_limit, OUTPUT_LIMITS)?.0,
        },
    })
}

/// A path within the dataset, in the form in which paths are compared.
fn inside(key: &str, path: &Path) -> Result<PathBuf> {
    let mut inside = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => inside.push(name),
            Component::CurDir => {}
            _ => {
                let message = format!("{key} \"{}\" is not within the dataset", path.display());
                return Err(config_error(message).hint("write it like root = \"train\""));
            }
        }
    }
    Ok(inside)
}

pub(super) fn within<T: PartialOrd + Display + Copy>(
    key: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<T> {
    if range.contains(&value) {
        return Ok(value);
    }
    let (least, most) = (range.start(), range.end());
    Err(config_error(format!("{key} {value} is not from {least} to {most}")))
}

/// A path that does not depend on where belady was started; `None` if empty.
pub(super) fn path(key: &str, path: &Path) -> Result<Option<PathBuf>> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    if !path.is_absolute() {
        return Err(config_error(format!("{key} \"{}\" is not an absolute path", path.display()))
            .hint("a mount runs in the background, where relative paths mean something else"));
    }
    Ok(Some(path.to_path_buf()))
}
