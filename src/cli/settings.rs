//! Builds settings from flags, environment and config file, in the same way for every verb.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Deserialize;
use serde::de::value::{Error as ValueError, StrDeserializer};

use crate::config::{Config, KEYS, Layers, Origins, SourceConfig, View};
use crate::error::{Error, ErrorKind, Result};
use crate::input::{self, Limits};
use crate::mount::absolute;
use crate::order::OrderSpec;

/// Options of mount(8) and fstab that mean nothing to belady.
const IGNORED: [&str; 11] = [
    "ro", "nosuid", "nodev", "noatime", "_netdev", "nofail", "auto", "noauto", "user", "nouser",
    "defaults",
];

/// How commands that take no settings ask a source: as the variables for the settings say.
pub(super) fn source_settings() -> SourceConfig {
    let text = |name: &str| std::env::var(format!("BELADY_SOURCE_{name}")).unwrap_or_default();
    SourceConfig {
        credentials: std::env::var_os("BELADY_SOURCE_CREDENTIALS").unwrap_or_default().into(),
        rows: text("ROWS"),
        path: text("PATH"),
        data: text("DATA"),
        size: text("SIZE"),
        ..SourceConfig::default()
    }
}

/// The view of a dataset. Commands have this flag that take no settings.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Shown {
    /// What is shown: the `directory`, or the `files` in its tar and zip files
    #[arg(
        long = "as",
        value_name = "VIEW",
        env = "BELADY_SOURCE_VIEW",
        default_value = "directory",
        value_parser = views(),
        hide_possible_values = true
    )]
    pub(super) view: View,
}

fn views() -> impl TypedValueParser<Value = View> {
    let named = |name: String| View::deserialize(StrDeserializer::<ValueError>::new(&name));
    PossibleValuesParser::new(["directory", "files"]).try_map(named)
}

/// Flags that set settings.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct SettingsArgs {
    /// Settings file (TOML)
    #[arg(long, value_name = "FILE", env = "BELADY_CONFIG")]
    pub(super) config: Option<PathBuf>,
    /// Set one key, as `cache.ram=4GiB`; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// Local directory for samples that RAM does not hold; there is no default one
    #[arg(long, value_name = "DIR")]
    pub(super) cache_dir: Option<PathBuf>,
    /// Memory to use: 4GiB, 25%, auto
    #[arg(long, value_name = "SIZE")]
    pub(super) ram: Option<String>,
    /// Space to use in the cache directory: 900GiB, 80%, auto
    #[arg(long, alias = "nvme", value_name = "SIZE")]
    pub(super) disk: Option<String>,
    /// What is shown: the `directory`, or the `files` in its tar and zip files
    #[arg(long = "as", value_name = "VIEW")]
    pub(super) view: Option<String>,
    /// Nodes that work together: hosts:A,B:PORT,..., dns:NAME:PORT, slurm, or by existing servers redis[s]://A,B:PORT,...
    #[arg(long, value_name = "NODES")]
    pub(super) cluster: Option<String>,
    /// Memory of this node's shard of the cluster, a part of --ram: 16GiB, 25%, auto
    #[arg(long, value_name = "SIZE")]
    pub(super) cluster_ram: Option<String>,
    /// Access order: a file, or a sampler as `torch-distributed:seed=0,index=imagefolder`
    #[arg(long, value_name = "FILE|SPEC")]
    pub(super) order: Option<String>,
    /// Access order of one of several readers; may be repeated
    #[arg(long, value_name = "NAME=FILE|SPEC")]
    pub(super) stream: Vec<String>,
    /// Options as in fstab, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(super) options: Vec<String>,
}

impl SettingsArgs {
    /// Merges the layers: flags, then environment, file and defaults.
    ///
    /// # Errors
    /// If a file cannot be read, or a setting is wrong.
    pub(super) fn build(&self) -> Result<(Config, Origins)> {
        let mut layers = Layers::new();
        let (options, config) = self.mount_options()?;
        if let Some(path) = config.as_ref().or(self.config.as_ref()) {
            let text = input::read_text(path, &Limits::CONFIG)?;
            layers = layers.file(path.to_string_lossy(), &text);
        }
        let env = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        layers = layers.env(env);
        for option in &options {
            layers = match option.split_once('=') {
                Some((key, value)) => layers.flag(key, value, "-o"),
                None => layers,
            };
        }
        if let Some(directory) = &self.cache_dir {
            // A link is not resolved here, so that it is refused: it must not lead the cache elsewhere.
            let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.clone());
            let text = directory.to_str().ok_or_else(|| {
                let message = format!("cache.dir: {} is not text", directory.display());
                Error::new(ErrorKind::Config, message)
                    .hint("settings are text: give a directory whose path is UTF-8")
            })?;
            layers = layers.flag("cache.dir", text, "--cache-dir");
        }
        if let Some(ram) = &self.ram {
            layers = layers.flag("cache.ram", ram, "--ram");
        }
        if let Some(disk) = &self.disk {
            layers = layers.flag("cache.disk", disk, "--disk");
        }
        if let Some(view) = &self.view {
            layers = layers.flag("source.view", view, "--as");
        }
        if let Some(nodes) = &self.cluster {
            layers = layers.flag("cluster.join", nodes, "--cluster");
        }
        if let Some(ram) = &self.cluster_ram {
            layers = layers.flag("cluster.ram", ram, "--cluster-ram");
        }
        for set in &self.set {
            layers = layers.set(set);
        }
        if let Some(order) = &self.order {
            layers = layers.stream("default", order, "--order");
        }
        for stream in &self.stream {
            let (name, order) = stream.split_once('=').ok_or_else(|| {
                Error::new(ErrorKind::Usage, format!("--stream {stream:?} is not NAME=ORDER"))
            })?;
            layers = layers.stream(name, order, "--stream");
        }
        let (mut config, origins) = layers.build()?;
        for stream in &mut config.streams {
            let order = absolute_order(&stream.order);
            stream.order = order.map_err(|e| e.context(format!("stream {}", stream.name)))?;
        }
        Ok((config, origins))
    }

    /// The settings in `-o`, as `key=value`, and the config file if `-o` names one.
    fn mount_options(&self) -> Result<(Vec<String>, Option<PathBuf>)> {
        let (mut settings, mut passed, mut config) = (Vec::new(), Vec::new(), None);
        for option in self.options.iter().flat_map(|list| list.split(',')) {
            let name = option.replace('_', "-");
            match option.split_once('=') {
                _ if IGNORED.contains(&option) || option.starts_with("x-") => {}
                None if option.is_empty() => {}
                None if name == "allow-other" => settings.push("mount.allow-other=true".into()),
                None if option == "rw" => {
                    return Err(Error::new(ErrorKind::Usage, "-o rw: the mount is read-only"));
                }
                Some(("config", path)) => config = Some(PathBuf::from(path)),
                Some(("ram", size)) => settings.push(format!("cache.ram={size}")),
                Some(("disk" | "nvme", size)) => settings.push(format!("cache.disk={size}")),
                Some(("cache_dir" | "cache-dir", path)) => {
                    settings.push(format!("cache.dir={path}"));
                }
                Some((key, value)) if KEYS.iter().any(|known| known.name() == key) => {
                    settings.push(format!("{key}={value}"));
                }
                _ => passed.push(option.to_string()),
            }
        }
        if !passed.is_empty() {
            settings.push(format!("mount.options={}", passed.join(",")));
        }
        Ok((settings, config))
    }
}

/// The order, with absolute paths of the files that it names: the daemon has another working directory.
///
/// # Errors
/// If the text is no order.
pub(super) fn absolute_order(text: &str) -> Result<String> {
    let mut spec: OrderSpec = text.parse()?;
    for path in spec.file_paths_mut() {
        *path = absolute(path);
    }
    Ok(spec.to_string())
}
