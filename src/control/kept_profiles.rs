//! The profiles of mounts that have ended, for `belady report --last`: one file for each mount point.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::MountDirectory;
use crate::disk::AtomicFile;
use crate::engine::Profile;
use crate::error::{Error, ErrorKind, Result};
use crate::state_directory::state_directory;

/// Profiles that are kept, the latest ones.
const KEPT_MAX: usize = 100;

fn directory() -> Option<PathBuf> {
    Some(state_directory()?.join("profiles"))
}

/// Keeps the profile of a mount, unless nobody has read there. A failure is no error.
pub fn keep_profile(mountpoint: &Path, profile: &Profile) {
    let Some(directory) = directory().filter(|_| !profile.seen.epochs.is_empty()) else { return };
    let kept = keep(&directory.join(file_name(mountpoint)), profile);
    if let Err(error) = kept.and_then(|()| forget_old(&directory)) {
        tracing::warn!(%error, directory = %directory.display(), "what was seen of loaders is not kept");
    }
}

fn file_name(mountpoint: &Path) -> String {
    format!("{}.json", MountDirectory::of(mountpoint).name())
}

fn keep(file: &Path, profile: &Profile) -> std::io::Result<()> {
    let directory = file.parent().unwrap_or(file);
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    AtomicFile::at(file)?.replace(|mut out| Ok(serde_json::to_writer(&mut out, profile)?))
}

/// The kept profiles with their times, the latest first.
fn all(directory: &Path) -> std::io::Result<Vec<(SystemTime, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            found.push((entry.metadata()?.modified()?, path));
        }
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

fn forget_old(directory: &Path) -> std::io::Result<()> {
    all(directory)?.into_iter().skip(KEPT_MAX).try_for_each(|(_, path)| fs::remove_file(path))
}

/// The kept profile of the last mount at a path, or of the mount that ended last.
///
/// # Errors
/// If there is none, or it cannot be read.
pub fn kept_profile(mountpoint: Option<&Path>) -> Result<Profile> {
    let none = || {
        let message = "no report is kept: no mount in which somebody has read has ended";
        Error::new(ErrorKind::Mount, message).hint("`belady report` tells of mounts that run")
    };
    let directory = directory().ok_or_else(none)?;
    let latest = || all(&directory).unwrap_or_default().into_iter().next().map(|(_, path)| path);
    let file = match mountpoint {
        Some(mountpoint) => directory.join(file_name(mountpoint)),
        None => latest().ok_or_else(none)?,
    };
    let text = match fs::read(&file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(none()),
        read => read.map_err(|error| unreadable(&file, error))?,
    };
    serde_json::from_slice(&text).map_err(|error| unreadable(&file, error))
}

fn unreadable(file: &Path, error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, format!("{}: {error}", file.display()))
}
