//! The file of the learner's journal, beside the store: bytes with a checksum, replaced as a whole.

use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;

use crate::disk::AtomicFile;

/// The first bytes: the format's name and version.
const MAGIC: [u8; 8] = *b"blyjrnl1";

/// The bytes before the content: magic, its length and its CRC-32C.
const HEAD: usize = 20;

/// The content of the journal; none if there is no journal yet.
///
/// # Errors
/// In words, if it has more than `most` bytes, is another user's, is damaged or cannot be read.
pub(super) fn read(place: &AtomicFile, most: u64) -> Result<Option<Vec<u8>>, String> {
    let file = match place.open() {
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

/// Replaces the journal, which this process has in use.
///
/// # Errors
/// The disk's; the journal is then as it was.
pub(super) fn replace(place: &AtomicFile, content: &[u8]) -> io::Result<()> {
    place.replace(|mut file| {
        file.write_all(&MAGIC)?;
        file.write_all(&(content.len() as u64).to_le_bytes())?;
        file.write_all(&crc32c::crc32c(content).to_le_bytes())?;
        file.write_all(content)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    const MOST: u64 = 1000;

    fn some_place() -> (tempfile::TempDir, PathBuf, AtomicFile) {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("journal");
        let place = AtomicFile::at(&path).unwrap();
        (home, path, place)
    }

    #[test]
    fn what_is_written_is_read() {
        let (_home, _, place) = some_place();
        assert_eq!(read(&place, MOST), Ok(None));
        for content in [&b"one"[..], &[7; 1000], b""] {
            replace(&place, content).unwrap();
            assert_eq!(read(&place, MOST), Ok(Some(content.to_vec())));
        }
    }

    #[test]
    fn damage_is_noticed() {
        let (_home, path, place) = some_place();
        replace(&place, b"what was seen").unwrap();
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            fs::write(&path, &damaged).unwrap();
            assert!(read(&place, MOST).is_err(), "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert!(read(&place, MOST).is_err(), "{at} bytes");
        }
        fs::write(&path, [&whole[..], b"more"].concat()).unwrap();
        assert!(read(&place, MOST).is_err());
        fs::write(&path, &whole).unwrap();
        assert!(read(&place, 5).is_err_and(|words| words.contains("more than 5")));
    }

    #[test]
    fn nothing_else_is_followed_or_waited_for() {
        let (home, path, place) = some_place();
        let elsewhere = home.path().join("elsewhere");
        fs::write(&elsewhere, "somebody's").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(read(&place, MOST).is_err());
        replace(&place, b"ours").unwrap();
        assert_eq!(fs::read(&elsewhere).unwrap(), b"somebody's");
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(read(&place, MOST).is_err());
    }
}
