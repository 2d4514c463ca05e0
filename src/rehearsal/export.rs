//! Copies of a buffer's samples, for use without a mount.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::sync_channel;

use serde_json::{Value, json};

use super::answers::Refusals;
use super::{Note, PATIENCE, Rehearsal};
use crate::error::{Error, ErrorKind, Result};
use crate::rehearsal::views::Sample;

impl Rehearsal {
    /// Copies samples to a new directory, as `CLASS/FILE`. Returns how many, and which cannot be read.
    /// Blocks.
    ///
    /// # Errors
    /// If there is no such buffer, or if the directory cannot be written. Copies made until then stay.
    pub(super) fn export(&self, name: &str, directory: &Path) -> Result<Value> {
        let buffer = self.views.place(name).ok_or_else(|| {
            Error::new(ErrorKind::Usage, format!("there is no rehearsal buffer `{name}`"))
        })?;
        let cannot = |error: std::io::Error| {
            let message = format!("cannot export to {}: {error}", directory.display());
            Error::new(ErrorKind::Usage, message)
        };
        fs::create_dir(directory).map_err(cannot)?;
        let (send, made) = sync_channel(1);
        // The command may have given up.
        let answer = Box::new(move |display| drop(send.send(display)));
        let ended = || Error::new(ErrorKind::Busy, "the mount is ending");
        self.notes.send(Note::Show { buffer, shown: answer }).map_err(|_| ended())?;
        let display = made.recv_timeout(PATIENCE).ok().flatten().ok_or_else(ended)?;
        let (mut copied, mut refused) = (0_u64, Refusals::default());
        for (class, exhibits) in &display.classes {
            let folder = directory.join(class);
            fs::create_dir_all(&folder).map_err(cannot)?;
            for exhibit in exhibits {
                let Some(sample) = exhibit.sample() else { continue };
                match sample.pinned.read() {
                    Ok(bytes) => {
                        write(sample, &bytes, &folder.join(&exhibit.name)).map_err(cannot)?;
                        copied += 1;
                    }
                    Err(error) => {
                        refused.note(&sample.source, &error.to_string());
                        let sample = sample.id;
                        // The owner gives the sample up if it is damaged.
                        self.notes.send(Note::Damaged { buffer, sample }).map_err(|_| ended())?;
                    }
                }
            }
        }
        Ok(json!({ "copied": copied, "refused": refused.count, "why": refused.why }))
    }
}

/// A copy gives no user more rights than the source.
fn write(sample: &Sample, bytes: &[u8], path: &Path) -> std::io::Result<()> {
    let mode = u32::from(sample.access.mode & 0o666) | 0o600;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(bytes)
}
