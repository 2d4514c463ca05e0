//! Copies of a buffer's samples, for use without a mount.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::sync_channel;

use serde_json::{Value, json};

use super::answers::usage;
use super::notes::{Note, Notes};
use super::{ExportReport, PATIENCE, ending};
use crate::error::Result;
use crate::rehearsal::views::{KeptSample, Views};

/// Copies samples to a new directory, as `CLASS/FILE`. Returns how many, and which cannot be read. Blocks.
///
/// # Errors
/// If there is no such buffer, or if the directory cannot be written. Copies made until then stay.
pub(super) fn export(views: &Views, notes: &Notes, name: &str, directory: &Path) -> Result<Value> {
    let unknown = || usage(format!("there is no rehearsal buffer `{name}`"));
    let buffer = views.buffer(name).ok_or_else(unknown)?;
    let cannot =
        |error: std::io::Error| usage(format!("cannot export to {}: {error}", directory.display()));
    fs::create_dir(directory).map_err(cannot)?;
    let (send, made) = sync_channel(1);
    // The command may have given up.
    let shown = Box::new(move |snapshot| drop(send.send(snapshot)));
    notes.send(Note::Show { buffer, shown }).map_err(|_| ending())?;
    let snapshot = made.recv_timeout(PATIENCE).map_err(|_| ending())?.map_err(|_| ending())?;
    let mut report = ExportReport::default();
    for (class, files) in &snapshot.classes {
        let folder = directory.join(class);
        fs::create_dir_all(&folder).map_err(cannot)?;
        for file in files {
            let Some(sample) = file.sample() else { continue };
            match sample.bytes.read() {
                Ok(bytes) => {
                    write(sample, &bytes, &folder.join(&file.name)).map_err(cannot)?;
                    report.copied += 1;
                }
                Err(error) => {
                    report.refused.note(&sample.source, &error.to_string());
                    let sample = sample.id;
                    // The buffer thread gives the sample up if it is damaged.
                    notes.send(Note::Damaged { buffer, sample }).map_err(|_| ending())?;
                }
            }
        }
    }
    Ok(json!(report))
}

/// A copy gives no user more rights than the source.
fn write(sample: &KeptSample, bytes: &[u8], path: &Path) -> std::io::Result<()> {
    let mode = u32::from(sample.access.mode & 0o666) | 0o600;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(bytes)
}
