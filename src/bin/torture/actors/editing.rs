//! Changes the source under the mount, in all ways in which files change.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rand::RngExt;
use rand::rngs::ChaCha8Rng;

use super::walking::PASSING;
use crate::clock::now;
use crate::shadow::{self, Body};
use crate::stage::Stage;
use crate::tally::Wrong;

/// Changes files, one after the other.
pub(super) fn act(stage: &Stage, random: &mut ChaCha8Rng) {
    let pause = Duration::from_millis(stage.plan.readers.edit_every_ms);
    while stage.may_go_on() {
        let file = &stage.shadow.files[random.random_range(0..stage.shadow.files.len())];
        match edit(stage, file, random) {
            Ok(kind) => stage.watch.tally.edit(kind),
            Err(error) => {
                stage.watch.wrong(Wrong::Error, &format!("an edit of the source: {error}"));
            }
        }
        stage.sleep(pause);
    }
}

/// Changes a file in one way. A change of metadata alone makes another version of the file, too.
fn edit(stage: &Stage, file: &shadow::File, random: &mut ChaCha8Rng) -> io::Result<&'static str> {
    let path = stage.in_source(&file.name);
    let size = random.random_range(1..300_000);
    let new = Body { content: file.next_content(), size };
    let Some(old) = file.body() else {
        replace(stage, file, new, &path)?;
        return Ok("create");
    };
    Ok(match random.random_range(0..20) {
        // The same size: only times and the inode differ.
        0..4 => {
            replace(stage, file, Body { size: old.size, ..new }, &path)?;
            "replace by one of the same size"
        }
        4..8 => {
            replace(stage, file, new, &path)?;
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
            let link = path.with_file_name(format!("{PASSING}{}", random.random_range(0..1000)));
            file.replace(Some(old), now, || fs::hard_link(&path, &link))?;
            stage.sleep(Duration::from_millis(random.random_range(0..50)));
            file.replace(Some(old), now, || fs::remove_file(&link))?;
            "ln"
        }
    })
}

/// Replaces a file by another, or makes it.
fn replace(stage: &Stage, file: &shadow::File, body: Body, path: &Path) -> io::Result<()> {
    let made = stage.ground.path("made");
    fs::write(&made, file.bytes(body))?;
    file.replace(Some(body), now, || fs::rename(&made, path))
}
