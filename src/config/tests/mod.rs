//! Tests of the room as its callers see it.

mod budget;
mod layers;
mod rehearsal;
mod resolve;
mod show;
mod texts;
mod units;

use super::*;
use crate::error::{Error, ErrorKind};

const GIB: u64 = 1 << 30;

const HOST: Host = Host {
    memory_limit: 64 * GIB,
    memory_available: 48 * GIB,
    cores: 16,
    cache_free: Some((500 * GIB, 1000 * GIB)),
    cache_in_memory: false,
    cache_hangs: false,
    cache_held: 0,
    buffers_held: 0,
};

fn set(assignments: &[&str]) -> Result<Config, Error> {
    let layers = assignments.iter().fold(Layers::new(), |layers, text| layers.set(*text));
    layers.build().map(|(config, _)| config)
}

fn refused(layers: Layers) -> String {
    layers.build().map(|(config, _)| config).unwrap_err().to_string()
}

fn settings(assignments: &[&str]) -> Result<Settings, Error> {
    resolve(&set(assignments)?, &HOST)
}
