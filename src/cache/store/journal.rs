//! The file of the journal, beside the store: bytes that are replaced as a whole.
//!
//! It is written under another name, synced and renamed, so that after any crash it is as before or
//! as after. A checksum over all of it says whether it is what was written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::libc;

const NAME: &str = "journal";
const NEXT: &str = "journal.next";

/// What it begins with: the format's name and version.
const MAGIC: [u8; 8] = *b"blyjrnl1";

/// Before the bytes: magic, their number and their CRC-32C.
const HEAD: usize = 20;

/// What the directory of a store has in its journal; none where there is no journal yet.
///
/// # Errors
/// In words where it has more than `most` bytes, belongs to somebody else, is damaged or cannot be
/// read.
pub fn read(home: &Path, most: u64) -> Result<Option<Vec<u8>>, String> {
    let mut options = OpenOptions::new();
    // What is no file must not be waited for.
    let options = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match options.open(home.join(NAME)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let found = file.metadata().map_err(|error| error.to_string())?;
    if !found.is_file() || found.uid() != nix::unistd::geteuid().as_raw() {
        return Err("it is not a file of this user".into());
    }
    let mut bytes = Vec::new();
    let read = file.take(most.saturating_add(HEAD as u64 + 1)).read_to_end(&mut bytes);
    read.map_err(|error| error.to_string())?;
    let head = bytes.first_chunk::<HEAD>().ok_or("it is cut off")?;
    if head[..8] != MAGIC {
        return Err("it is of another format".into());
    }
    let length = head[8..16].try_into().map_or(0, u64::from_le_bytes);
    let checksum = head[16..].try_into().map_or(0, u32::from_le_bytes);
    if length > most {
        return Err(format!("it has {length} bytes, more than {most}"));
    }
    let content = &bytes[HEAD..];
    if content.len() as u64 != length || crc32c::crc32c(content) != checksum {
        return Err("it is damaged".into());
    }
    bytes.drain(..HEAD);
    Ok(Some(bytes))
}

/// Replaces the journal of a store's directory, which this process has in use.
///
/// # Errors
/// The disk's; the journal is then as it was.
pub fn replace(home: &Path, content: &[u8]) -> io::Result<()> {
    let next = home.join(NEXT);
    // Left by a crash.
    let _ = fs::remove_file(&next);
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let mut file = options.open(&next)?;
    let written = (|| {
        file.write_all(&MAGIC)?;
        file.write_all(&(content.len() as u64).to_le_bytes())?;
        file.write_all(&crc32c::crc32c(content).to_le_bytes())?;
        file.write_all(content)?;
        file.sync_all()
    })();
    if let Err(error) = written {
        let _ = fs::remove_file(&next);
        return Err(error);
    }
    fs::rename(&next, home.join(NAME))?;
    File::open(home)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 1000;

    #[test]
    fn what_is_written_is_read() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(read(home.path(), MOST), Ok(None));
        for content in [&b"one"[..], &[7; 1000], b""] {
            replace(home.path(), content).unwrap();
            assert_eq!(read(home.path(), MOST), Ok(Some(content.to_vec())));
        }
        // A crash before the rename leaves what was there.
        fs::write(home.path().join(NEXT), "half").unwrap();
        assert_eq!(read(home.path(), MOST), Ok(Some(Vec::new())));
        replace(home.path(), b"two").unwrap();
        assert_eq!(read(home.path(), MOST), Ok(Some(b"two".to_vec())));
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn damage_is_noticed() {
        let home = tempfile::tempdir().unwrap();
        replace(home.path(), b"what was seen").unwrap();
        let path = home.path().join(NAME);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            fs::write(&path, &damaged).unwrap();
            assert!(read(home.path(), MOST).is_err(), "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert!(read(home.path(), MOST).is_err(), "{at} bytes");
        }
        fs::write(&path, [&whole[..], b"more"].concat()).unwrap();
        assert!(read(home.path(), MOST).is_err());
        fs::write(&path, &whole).unwrap();
        assert!(read(home.path(), 5).is_err_and(|words| words.contains("more than 5")));
    }

    #[test]
    fn nothing_else_is_followed_or_waited_for() {
        let home = tempfile::tempdir().unwrap();
        let elsewhere = home.path().join("elsewhere");
        fs::write(&elsewhere, "somebody's").unwrap();
        let path = home.path().join(NAME);
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(read(home.path(), MOST).is_err());
        replace(home.path(), b"ours").unwrap();
        assert_eq!(fs::read(&elsewhere).unwrap(), b"somebody's");
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(read(home.path(), MOST).is_err());
    }
}
