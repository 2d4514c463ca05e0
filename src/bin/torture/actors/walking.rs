//! Lists directories, and judges whether the names are those of the source.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use rand::RngExt;
use rand::rngs::ChaCha8Rng;

use super::reading::{Way, read};
use crate::clock::now;
use crate::excuse::name_of;
use crate::plan::DIRECTORIES;
use crate::stage::Stage;
use crate::tally::Wrong;
use crate::target::Subject;

/// Begins the names that the editor makes for a moment.
pub(super) const PASSING: &str = "link-";

/// Lists directories and asks for attributes of their files.
pub(super) fn act(stage: &Stage, random: &mut ChaCha8Rng) {
    while stage.may_go_on() {
        let point = random.random_range(0..stage.points.len());
        if random.random_bool(0.1) {
            list(stage, point, "");
        } else {
            let directory = format!("d{}", random.random_range(0..DIRECTORIES));
            list(stage, point, &directory);
            for file in &stage.shadow.files {
                let is_here = file.name.starts_with(&directory);
                if is_here && random.random_bool(0.2) && stage.may_go_on() {
                    read(stage, point, file, Way::Stat, random);
                }
            }
        }
        stage.sleep(std::time::Duration::from_millis(random.random_range(0..60)));
    }
}

fn list(stage: &Stage, point: usize, directory: &str) {
    let path = stage.at_point(point, directory);
    let subject = Subject::Directory(directory.to_owned());
    let operation = stage.watch.begin("list", subject.clone());
    let began = operation.began;
    let names: io::Result<BTreeSet<String>> = fs::read_dir(path).and_then(|entries| {
        let name =
            |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
        entries.map(name).collect()
    });
    drop(operation);
    let ended = now();
    match names {
        // Then it is the directory under the mount.
        Ok(_) if stage.watch.excuses.is_away(began, ended) => {}
        Ok(names) => {
            for what in strange(stage, directory, &names, began, ended) {
                stage.watch.wrong(Wrong::Bytes, &format!("list of {}: {what}", subject.name()));
            }
        }
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            if stage.explains(errno, &subject, began, ended) {
                stage.watch.tally.counts().explained += 1;
            } else {
                let what = format!("list of {}: {}", subject.name(), name_of(errno));
                stage.watch.wrong(Wrong::Error, &what);
            }
        }
    }
}

/// What is wrong with the names in a directory.
fn strange(
    stage: &Stage,
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
    for file in &stage.shadow.files {
        let Some((inside, name)) = file.name.split_once('/') else { continue };
        if inside != directory {
            continue;
        }
        known.insert(name.to_owned());
        let permitted = file.permitted(&stage.shadow.promise, began, ended);
        let is_listed = names.contains(name);
        if is_listed && permitted.must_be_absent() {
            found.push(format!("{name} is listed and was removed long ago"));
        }
        if !is_listed && !permitted.may_be_absent() {
            found.push(format!("{name} is missing"));
        }
    }
    let others = names.difference(&known).filter(|name| !name.starts_with(PASSING));
    found.extend(others.map(|name| format!("{name} is in no source")));
    found
}
