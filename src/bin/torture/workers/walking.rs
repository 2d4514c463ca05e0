//! Lists directories, and judges whether the names are those of the source.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use rand::RngExt;
use rand::rngs::ChaCha8Rng;

use super::reading::{Way, read};
use crate::clock::now;
use crate::fault_log::name_of;
use crate::plan::DIRECTORIES;
use crate::scenario::Scenario;
use crate::stats::Failure;
use crate::target::Subject;

/// The prefix of names that the editor makes for a moment.
pub(super) const TEMPORARY_PREFIX: &str = "link-";

/// Lists directories and asks for attributes of their files.
pub(super) fn run(scenario: &Scenario, random: &mut ChaCha8Rng) {
    while scenario.wait_while_paused() {
        let point = random.random_range(0..scenario.points.len());
        if random.random_bool(0.1) {
            list(scenario, point, "");
        } else {
            let directory = format!("d{}", random.random_range(0..DIRECTORIES));
            list(scenario, point, &directory);
            for file in &scenario.history.files {
                let is_here = file.name.starts_with(&directory);
                if is_here && random.random_bool(0.2) && scenario.wait_while_paused() {
                    read(scenario, point, file, Way::Stat, random);
                }
            }
        }
        scenario.sleep(std::time::Duration::from_millis(random.random_range(0..60)));
    }
}

fn list(scenario: &Scenario, point: usize, directory: &str) {
    let path = scenario.at_point(point, directory);
    let subject = Subject::Directory(directory.to_owned());
    let operation = scenario.watch.begin("list", subject.clone());
    let began = operation.began;
    let names: io::Result<BTreeSet<String>> = fs::read_dir(path).and_then(|entries| {
        let name =
            |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
        entries.map(name).collect()
    });
    drop(operation);
    let ended = now();
    match names {
        // It may be the directory under the mount.
        Ok(_) if scenario.watch.faults.was_unmounted(began, ended) => {}
        Ok(names) => {
            for what in wrong_names(scenario, directory, &names, began, ended) {
                let what = format!("list of {}: {what}", subject.name());
                scenario.watch.report(Failure::Bytes, &what);
            }
        }
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            if scenario.explains(errno, &subject, began, ended) {
                scenario.watch.stats.counts().explained += 1;
            } else {
                let what = format!("list of {}: {}", subject.name(), name_of(errno));
                scenario.watch.report(Failure::Error, &what);
            }
        }
    }
}

/// What is wrong with the names in a directory.
fn wrong_names(
    scenario: &Scenario,
    directory: &str,
    names: &BTreeSet<String>,
    began: u64,
    ended: u64,
) -> Vec<String> {
    let mut found = Vec::new();
    let mut known = BTreeSet::new();
    if directory.is_empty() {
        known.extend((0..DIRECTORIES).map(|digit| format!("d{digit}")));
        found.extend(known.difference(names).map(|name| format!("{name} is missing")));
    }
    for file in &scenario.history.files {
        let Some((inside, name)) = file.name.split_once('/') else { continue };
        if inside != directory {
            continue;
        }
        known.insert(name.to_owned());
        let permitted = file.permitted(&scenario.history.staleness, began, ended);
        let is_listed = names.contains(name);
        if is_listed && permitted.must_be_absent() {
            found.push(format!("{name} is listed and was removed long ago"));
        }
        if !is_listed && !permitted.may_be_absent() {
            found.push(format!("{name} is missing"));
        }
    }
    let others = names.difference(&known).filter(|name| !name.starts_with(TEMPORARY_PREFIX));
    found.extend(others.map(|name| format!("{name} is in no source")));
    found
}
