//! Writes a file that is replaced only when the new one is whole.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::NamedTempFile;

use crate::error::{Error, Result};

/// Calls `write` with the new file. `refuse` makes an error of one that belongs to the file.
///
/// # Errors
/// That of `write`, or if the file cannot be written. Then the old file stays.
pub(super) fn replace<T>(
    path: &Path,
    refuse: impl Fn(io::Error) -> Error,
    write: impl FnOnce(&mut dyn Write) -> Result<T>,
) -> Result<T> {
    // A pipe or a device must not be replaced.
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let mut out = BufWriter::new(File::options().write(true).open(path).map_err(&refuse)?);
        let value = write(&mut out)?;
        out.flush().map_err(refuse)?;
        return Ok(value);
    }
    // A link stays, and the file that it leads to is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut named = tempfile::Builder::new();
    let named = named.prefix(".belady-").permissions(Permissions::from_mode(0o666));
    let file = named.tempfile_in(directory.unwrap_or(Path::new("."))).map_err(&refuse)?;
    let mut out = BufWriter::new(file);
    let value = write(&mut out)?;
    let file: NamedTempFile = out.into_inner().map_err(|error| refuse(error.into_error()))?;
    file.persist(&path).map_err(|error| refuse(error.error))?;
    Ok(value)
}
