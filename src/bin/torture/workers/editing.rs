//! Changes the source under the mount, in all ways in which files change.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rand::RngExt;
use rand::rngs::ChaCha8Rng;

use super::walking::TEMPORARY_PREFIX;
use crate::clock::now;
use crate::history::{self, Body};
use crate::scenario::Scenario;
use crate::stats::Failure;

/// Changes files, one after the other.
pub(super) fn run(scenario: &Scenario, random: &mut ChaCha8Rng) {
    let pause = Duration::from_millis(scenario.plan.readers.edit_every_ms);
    while scenario.wait_while_paused() {
        let file = &scenario.history.files[random.random_range(0..scenario.history.files.len())];
        match edit(scenario, file, random) {
            Ok(kind) => scenario.watch.stats.count_edit(kind),
            Err(error) => {
                let what = format!("an edit of the source: {error}");
                scenario.watch.report(Failure::Error, &what);
            }
        }
        scenario.sleep(pause);
    }
}

/// Changes a file in one way. A change of metadata alone makes another version of the file, too.
fn edit(
    scenario: &Scenario,
    file: &history::File,
    random: &mut ChaCha8Rng,
) -> io::Result<&'static str> {
    let path = scenario.in_source(&file.name);
    let size = random.random_range(1..300_000);
    let new = Body { content: file.next_content(), size };
    let Some(old) = file.body() else {
        replace(scenario, file, new, &path)?;
        return Ok("create");
    };
    Ok(match random.random_range(0..20) {
        // The same size: only times and the inode differ.
        0..4 => {
            replace(scenario, file, Body { size: old.size, ..new }, &path)?;
            "replace by one of the same size"
        }
        4..8 => {
            replace(scenario, file, new, &path)?;
            "replace"
        }
        8..10 => {
            let bytes = file.bytes(new);
            file.rewrite(new, now, || fs::write(&path, bytes))?;
            "rewrite in place"
        }
        10..12 if old.size > 0 => {
            let size = random.random_range(0..old.size);
            let cut = || File::options().write(true).open(&path)?.set_len(size);
            file.replace(Some(Body { size, ..old }), now, cut)?;
            "truncate"
        }
        12..14 => {
            let longer = Body { size: old.size + size, ..old };
            let bytes = file.bytes(longer);
            let more = &bytes[old.size as usize..];
            file.rewrite(longer, now, || {
                File::options().append(true).open(&path)?.write_all(more)
            })?;
            "append"
        }
        14 => {
            file.replace(None, now, || fs::remove_file(&path))?;
            "remove"
        }
        15 | 16 => {
            let touch = || File::options().write(true).open(&path)?.set_modified(SystemTime::now());
            file.replace(Some(old), now, touch)?;
            "touch"
        }
        17 => {
            let mode = [0o644, 0o444, 0o600, 0o755][random.random_range(0..4)];
            let permissions = Permissions::from_mode(mode);
            file.replace(Some(old), now, || fs::set_permissions(&path, permissions))?;
            "chmod"
        }
        _ => {
            let name = format!("{TEMPORARY_PREFIX}{}", random.random_range(0..1000));
            let link = path.with_file_name(name);
            file.replace(Some(old), now, || fs::hard_link(&path, &link))?;
            scenario.sleep(Duration::from_millis(random.random_range(0..50)));
            file.replace(Some(old), now, || fs::remove_file(&link))?;
            "ln"
        }
    })
}

/// Replaces a file by another, or makes it.
fn replace(scenario: &Scenario, file: &history::File, body: Body, path: &Path) -> io::Result<()> {
    let made = scenario.workspace.path("made");
    fs::write(&made, file.bytes(body))?;
    file.replace(Some(body), now, || fs::rename(&made, path))
}
