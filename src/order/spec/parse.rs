//! Parses the string form of an [`OrderSpec`].

use std::path::PathBuf;
use std::str::FromStr;

use super::{IndexSpec, OrderSpec, SequenceSpec};
use crate::error::{Error, Result};
use crate::order::containers::Container;
use crate::order::index::{Filter, Sorting};
use crate::order::samplers::{Key, Sampler, check_positive, parse_number, wrong};
use crate::order::{Split, suggest};

const FILE: &str = "file";

pub(super) const COMMON_KEYS: [&str; 7] =
    ["index", "column", "root", "ext", "count", "split", "whole_batches"];

impl FromStr for OrderSpec {
    type Err = Error;

    /// Parses `NAME[:key=value,...]`; see the [module](crate::order::spec).
    fn from_str(text: &str) -> Result<Self> {
        parse(text).map_err(|error| error.context(format_args!("order '{text}'")))
    }
}

fn parse(text: &str) -> Result<OrderSpec> {
    let (head, keys) = split_head(text)?;
    match head {
        Head::File("") => Err(wrong("a file has no name")),
        Head::File(path) => with_common_keys(SequenceSpec::File(PathBuf::from(path)), &[], keys),
        Head::Sampler(name) => {
            let mut sampler = Sampler::named(name).ok_or_else(|| {
                let known = suggest::hint(name, &names());
                wrong(format!("unknown sampler '{name}'"))
                    .hint(format!("{known} (an order file in the working directory is file:NAME)"))
            })?;
            let rest = set_own_keys(&mut sampler, keys)?;
            let valid = sampler.validate();
            let own: Vec<_> = sampler.keys().iter().map(|key| key.name).collect();
            // A misspelt key is reported first: the parameters may be wrong because of it.
            let spec = with_common_keys(SequenceSpec::Sampler(sampler), &own, rest)?;
            valid.map(|()| spec)
        }
    }
}

/// The words that a spec may begin with.
fn names() -> Vec<&'static str> {
    Sampler::all().iter().map(|sampler| sampler.name()).chain([FILE]).collect()
}

/// What a spec begins with.
enum Head<'t> {
    Sampler(&'t str),
    File(&'t str),
}

/// Keys and values, in the order they are given.
type Keys<'t> = Vec<(&'t str, String)>;

fn split_head(text: &str) -> Result<(Head<'_>, Keys<'_>)> {
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
    if names().contains(&name) {
        if after.is_none() && rest.is_some() {
            return Err(wrong(format!("keys follow '{name}' after a colon: '{name}:key=value'")));
        }
        let keys = text.split_once(':').map(|(_, keys)| keys);
        return Ok((Head::Sampler(name), split_keys(keys)?));
    }
    let is_path = match after {
        None => first.contains(['/', '.']),
        // A misspelt sampler may have a path among its keys.
        Some(_) => first.contains('/') && suggest::nearest(name, names()).is_none(),
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
            // `ext=` takes several endings with commas between them.
            endings.push(',');
            endings.push_str(part);
        } else {
            return Err(wrong(format!("'{part}' is not of the form key=value")));
        }
    }
    Ok(keys)
}

/// Sets the sampler's keys. Returns the keys that are not its own.
fn set_own_keys<'t>(sampler: &mut Sampler, keys: Keys<'t>) -> Result<Keys<'t>> {
    let mut own = sampler.keys();
    let mut rest = Keys::new();
    let given = |key: &&Key<'_>| keys.iter().any(|(name, _)| *name == key.name);
    let missing =
        own.iter().filter(|key| !given(key)).find_map(|key| Some((key.name, key.required?)));
    for (name, value) in keys {
        match own.iter_mut().find(|key| key.name == name) {
            Some(key) => key.set(&value)?,
            None => rest.push((name, value)),
        }
    }
    // A misspelt key is reported first: it may be the missing one.
    match missing.filter(|_| !rest.iter().any(|(name, _)| !COMMON_KEYS.contains(name))) {
        Some((key, required)) => Err(wrong(format!("{key}= is missing")).hint(required.hint)),
        None => Ok(rest),
    }
}

/// Sets the keys of all orders and refuses other keys. `own` are the keys of the sampler.
fn with_common_keys(sequence: SequenceSpec, own: &[&str], keys: Keys<'_>) -> Result<OrderSpec> {
    let (index, filter) = (IndexSpec::Sorted(sequence.sorting()), Filter::default());
    let (count, splits, whole_batches) = (None, Vec::new(), None);
    let mut spec = OrderSpec { sequence, index, filter, count, splits, whole_batches };
    let mut column = None;
    for (key, value) in keys {
        match key {
            "index" => spec.index = index_spec(&value)?,
            "column" => column = Some(value),
            "root" => spec.filter.root = value,
            "ext" => spec.filter.ext = endings(&value)?,
            "count" => spec.count = Some(parse_number(key, &value)?),
            "split" => spec.splits = Split::parse(&value)?,
            "whole_batches" => {
                let batch: u32 = parse_number(key, &value)?;
                check_positive(key, batch.into())?;
                spec.whole_batches = Some(batch);
            }
            _ => return Err(unknown_key(&spec.sequence, own, key)),
        }
    }
    match (&mut spec.index, column) {
        (IndexSpec::Manifest { column, .. }, given) => *column = given,
        (IndexSpec::Sorted(_) | IndexSpec::Samples(_), None) => {}
        (IndexSpec::Sorted(_) | IndexSpec::Samples(_), Some(_)) => {
            return Err(wrong("column= is of a manifest").hint("write index=manifest:FILE"));
        }
    }
    Ok(spec)
}

fn unknown_key(sequence: &SequenceSpec, own: &[&str], key: &str) -> Error {
    let name = match sequence {
        SequenceSpec::Sampler(sampler) => sampler.name(),
        SequenceSpec::File(_) => FILE,
    };
    let known = [own, &COMMON_KEYS].concat();
    let hint = match key {
        "drop_last" => "a loader's drop_last=True is whole_batches= with its batch size".to_owned(),
        _ => suggest::hint(key, &known),
    };
    wrong(format!("{name} has no key '{key}'")).hint(hint)
}

fn index_spec(value: &str) -> Result<IndexSpec> {
    match value.split_once(':') {
        Some(("manifest", "")) => return Err(wrong("the manifest has no name")),
        Some(("manifest", path)) => {
            return Ok(IndexSpec::Manifest { file: PathBuf::from(path), column: None });
        }
        None if value == "manifest" => {
            return Err(wrong("index=manifest needs a file").hint("write index=manifest:FILE"));
        }
        _ => {}
    }
    if let Some(container) = Container::parse(value) {
        return container.map(IndexSpec::Samples);
    }
    let sorting = Sorting::WORDS.iter().find(|(word, _)| *word == value);
    sorting.map(|(_, sorting)| IndexSpec::Sorted(*sorting)).ok_or_else(|| {
        let known: Vec<_> = Sorting::WORDS.iter().map(|(word, _)| *word).collect();
        let known = [known.as_slice(), &["manifest"], &Container::FORMS].concat();
        let hint = suggest::hint(value, &known);
        wrong(format!("unknown index order '{value}'")).hint(hint)
    })
}

fn endings(value: &str) -> Result<Vec<String>> {
    let endings: Vec<_> = value.split(',').map(str::to_owned).collect();
    if endings.iter().any(String::is_empty) {
        return Err(wrong(format!("ext={value} holds an empty ending")));
    }
    Ok(endings)
}
