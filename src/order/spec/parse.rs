//! Parses the string form of an [`OrderSpec`].

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use super::{IndexSpec, OrderSpec, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::order::index::Filter;
use crate::order::samplers::{Distributed, Random, Sampler};
use crate::order::suggest;

const DISTRIBUTED: &str = "torch-distributed";
const RANDOM: &str = "torch-random";
const SEQUENTIAL: &str = "sequential";
const FILE: &str = "file";
const NAMES: [&str; 4] = [DISTRIBUTED, RANDOM, SEQUENTIAL, FILE];

const INDEXES: [&str; 3] = ["imagefolder", "path", "manifest"];
const COMMON_KEYS: [&str; 4] = ["index", "root", "ext", "count"];
const DISTRIBUTED_KEYS: [&str; 7] =
    ["seed", "epoch", "world", "rank", "drop_last", "shuffle", "set_epoch"];
const RANDOM_KEYS: [&str; 3] = ["seed", "epoch", "persistent_workers"];

/// The name of a sampler in a spec.
pub(super) fn name(sampler: &Sampler) -> &'static str {
    match sampler {
        Sampler::TorchDistributed(_) => DISTRIBUTED,
        Sampler::TorchRandom(_) => RANDOM,
        Sampler::Sequential => SEQUENTIAL,
    }
}

impl FromStr for OrderSpec {
    type Err = Error;

    /// Parses `NAME[:key=value,...]`; see the [module](crate::order::spec).
    fn from_str(text: &str) -> Result<Self> {
        parse(text).map_err(|error| error.context(format_args!("order '{text}'")))
    }
}

fn parse(text: &str) -> Result<OrderSpec> {
    let (head, keys) = split(text)?;
    match head {
        Head::File("") => Err(wrong("a file has no name")),
        Head::File(path) => finish(Source::File(PathBuf::from(path)), FILE, keys),
        Head::Sampler(DISTRIBUTED) => {
            let (sampler, keys) = distributed(keys)?;
            finish(Source::Sampler(Sampler::TorchDistributed(sampler)), DISTRIBUTED, keys)
        }
        Head::Sampler(RANDOM) => {
            let (sampler, keys) = random(keys)?;
            finish(Source::Sampler(Sampler::TorchRandom(sampler)), RANDOM, keys)
        }
        Head::Sampler(SEQUENTIAL) => finish(Source::Sampler(Sampler::Sequential), SEQUENTIAL, keys),
        Head::Sampler(unknown) => {
            let error = wrong(format!("unknown sampler '{unknown}'"));
            let known = suggest::hint(unknown, &NAMES);
            Err(error
                .hint(format!("{known} (an order file in the working directory is file:NAME)")))
        }
    }
}

fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Order, message)
}

/// What a spec begins with.
enum Head<'t> {
    Sampler(&'t str),
    File(&'t str),
}

/// Keys and values, in the order they are given.
type Keys<'t> = Vec<(&'t str, String)>;

fn split(text: &str) -> Result<(Head<'_>, Keys<'_>)> {
    let (first, rest) = match text.split_once(',') {
        Some((first, rest)) => (first, Some(rest)),
        None => (text, None),
    };
    let (name, after) = match first.split_once(':') {
        Some((name, after)) => (name, Some(after)),
        None => (first, None),
    };
    if let (FILE, Some(path)) = (name, after) {
        return Ok((Head::File(path), split_keys(rest)?));
    }
    if NAMES.contains(&name) {
        if after.is_none() && rest.is_some() {
            return Err(wrong(format!("keys follow '{name}' after a colon: '{name}:key=value'")));
        }
        let keys = text.split_once(':').map(|(_, keys)| keys);
        return Ok((Head::Sampler(name), split_keys(keys)?));
    }
    let is_path = match after {
        None => first.contains(['/', '.']),
        // A sampler's name with a typo may have a path among its keys.
        Some(_) => first.contains('/') && suggest::nearest(name, NAMES).is_none(),
    };
    if is_path {
        return Ok((Head::File(first), split_keys(rest)?));
    }
    Ok((Head::Sampler(name), Vec::new()))
}

fn split_keys(text: Option<&str>) -> Result<Keys<'_>> {
    let mut keys = Keys::new();
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(keys) };
    for part in text.split(',') {
        if let Some((key, value)) = part.split_once('=') {
            if keys.iter().any(|(known, _)| *known == key) {
                return Err(wrong(format!("'{key}' is given twice")));
            }
            keys.push((key, value.to_owned()));
        } else if let Some(("ext", endings)) = keys.last_mut() {
            // The endings of ext= have commas between them.
            endings.push(',');
            endings.push_str(part);
        } else {
            return Err(wrong(format!("'{part}' is not of the form key=value")));
        }
    }
    Ok(keys)
}

fn distributed(keys: Keys<'_>) -> Result<(Distributed, Keys<'_>)> {
    let mut sampler = Distributed::default();
    let keys = take(keys, |key, value| {
        match key {
            "seed" => sampler.seed = number(key, value)?,
            "epoch" => sampler.epoch = number(key, value)?,
            "world" => sampler.world = number(key, value)?,
            "rank" => sampler.rank = number(key, value)?,
            "drop_last" => sampler.drop_last = boolean(key, value)?,
            "shuffle" => sampler.shuffle = boolean(key, value)?,
            "set_epoch" => sampler.set_epoch = boolean(key, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if sampler.rank >= sampler.world {
        let message = format!("rank {} is not in a world of {}", sampler.rank, sampler.world);
        return Err(wrong(message).hint("ranks count from 0 and world= says how many there are"));
    }
    Ok((sampler, keys))
}

fn random(keys: Keys<'_>) -> Result<(Random, Keys<'_>)> {
    let mut sampler = Random::new(0);
    let mut seed = None;
    let keys = take(keys, |key, value| {
        match key {
            "seed" => seed = Some(number(key, value)?),
            "epoch" => sampler.epoch = number(key, value)?,
            "persistent_workers" => sampler.persistent_workers = boolean(key, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    sampler.seed = seed.ok_or_else(|| {
        wrong("a seed is missing").hint("give the loader's generator a seed and name it in seed=")
    })?;
    Ok((sampler, keys))
}

/// Gives every key to `set`, which says whether it took it; returns those it did not.
fn take<'t>(keys: Keys<'t>, mut set: impl FnMut(&str, &str) -> Result<bool>) -> Result<Keys<'t>> {
    let mut rest = Keys::new();
    for (key, value) in keys {
        if !set(key, &value)? {
            rest.push((key, value));
        }
    }
    Ok(rest)
}

/// Reads the keys of all orders and refuses what is left.
fn finish(source: Source, name: &str, keys: Keys<'_>) -> Result<OrderSpec> {
    let (index, filter) = (IndexSpec::Path, Filter::default());
    let mut spec = OrderSpec { source, index, filter, count: None };
    let rest = take(keys, |key, value| {
        match key {
            "index" => spec.index = index_spec(value)?,
            "root" => spec.filter.root = value.to_owned(),
            "ext" => spec.filter.ext = endings(value)?,
            "count" => spec.count = Some(number(key, value)?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    match rest.first() {
        None => Ok(spec),
        Some((key, _)) => Err(unknown_key(name, key)),
    }
}

fn unknown_key(name: &str, key: &str) -> Error {
    let own: &[&str] = match name {
        DISTRIBUTED => &DISTRIBUTED_KEYS,
        RANDOM => &RANDOM_KEYS,
        _ => &[],
    };
    let known = [own, &COMMON_KEYS].concat();
    wrong(format!("{name} has no key '{key}'")).hint(suggest::hint(key, &known))
}

fn index_spec(value: &str) -> Result<IndexSpec> {
    match value.split_once(':') {
        Some(("manifest", "")) => Err(wrong("the manifest has no name")),
        Some(("manifest", path)) => Ok(IndexSpec::Manifest(PathBuf::from(path))),
        None if value == "imagefolder" => Ok(IndexSpec::ImageFolder),
        None if value == "path" => Ok(IndexSpec::Path),
        None if value == "manifest" => {
            Err(wrong("index=manifest needs a file").hint("write index=manifest:FILE"))
        }
        _ => {
            let error = wrong(format!("unknown index order '{value}'"));
            Err(error.hint(suggest::hint(value, &INDEXES)))
        }
    }
}

fn endings(value: &str) -> Result<Vec<String>> {
    let endings: Vec<_> = value.split(',').map(str::to_owned).collect();
    if endings.iter().any(String::is_empty) {
        return Err(wrong(format!("ext={value} holds an empty ending")));
    }
    Ok(endings)
}

fn number<T: FromStr<Err: Display>>(key: &str, value: &str) -> Result<T> {
    value.parse().map_err(|error| wrong(format!("{key}={value}: {error}")))
}

fn boolean(key: &str, value: &str) -> Result<bool> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(wrong(format!("{key}={value} is neither true nor false"))),
    }
}
