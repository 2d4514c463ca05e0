//! `belady config`: show and check settings.

use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::settings::SettingsArgs;
use super::{apart, say};
use crate::config::{Config, default_toml, render_show, resolve};
use crate::control::{self, Request};
use crate::error::Result;
use crate::mount::{absolute, host};
use crate::order::OrderSpec;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Print the settings that flags, environment and file come to, or those of a mount
    Show {
        /// A running mount
        mountpoint: Option<PathBuf>,
        /// Say where each value comes from
        #[arg(long)]
        origin: bool,
        /// Print the default settings file instead
        #[arg(long)]
        default: bool,
        #[command(flatten)]
        settings: Box<SettingsArgs>,
    },
    /// Check a settings file on this machine
    Check {
        /// The file
        file: PathBuf,
    },
}

pub(super) fn run(verb: &Verb) -> Result<()> {
    match verb {
        Verb::Show { default: true, .. } => say(default_toml().trim_end()),
        Verb::Show { mountpoint: Some(mountpoint), .. } => {
            let text = control::ask(&absolute(mountpoint), &Request::Config)?;
            say(text.as_str().unwrap_or_default().trim_end());
        }
        Verb::Show { origin, settings, .. } => {
            let (config, origins) = settings.build()?;
            say(render_show(&config, &origins, *origin).trim_end());
        }
        Verb::Check { file } => {
            let args = SettingsArgs { config: Some(file.clone()), ..SettingsArgs::default() };
            let (config, _) = args.build()?;
            apart::run(&config.cache.dir, || check(file, &config))?;
        }
    }
    Ok(())
}

fn check(file: &Path, config: &Config) -> Result<()> {
    let directory = &config.cache.dir;
    let cache = (!directory.as_os_str().is_empty()).then_some(directory.as_path());
    let settings = resolve(config, &host::detect_apart(cache))?;
    for stream in &settings.streams {
        stream.order.parse::<OrderSpec>().map_err(|e| e.context(&stream.name))?;
    }
    if let Some(fault) = settings.cache.disk_fault {
        return Err(fault);
    }
    say(format!("{}: ok", file.display()));
    for decision in &settings.decisions {
        say(format!("  {decision}"));
    }
    Ok(())
}
