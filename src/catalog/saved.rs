//! The catalog as a file: made at one mount, taken up by the next.
//!
//! The file is 16 bytes that name the format and its version, the length of what follows and its
//! checksum, the identity of the source, and the tables. It is written beside its place and renamed
//! to it. Its numbers are checked, since a wrong one could end the process; the rest is believed: its owner
//! could tell us anything anyway.
//!
//! It is read in one go and not mapped. If the disk fails or somebody has cut the file, a map ends the
//! process (SIGBUS); a read gives an error, and the source is scanned. All of the file is read in any case,
//! for its checksum and for rows that can be changed: a map would spare one copy, 35 ms of the 620 that a
//! remount of a million files with as many samples takes.

use std::fs::File;
use std::io::{BufWriter, Error, ErrorKind, Read, Result, Seek, Write};
use std::os::unix::fs::MetadataExt;

use super::tables::Tables;
use crate::disk::AtomicFile;

/// The format and its version.
const MAGIC: &[u8; 16] = b"belady catalog 4";

/// Before the tables: the magic, their length and their checksum.
const HEAD_BYTES: usize = 16 + 8 + 4;

fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

/// Refuses a file into which others could have written: a catalog says who may read what.
fn check_trust(file: &File) -> Result<()> {
    let found = file.metadata()?;
    let me = nix::unistd::geteuid().as_raw();
    if !found.is_file() || found.uid() != me && found.uid() != 0 {
        let message = format!("it belongs to user {}, not to you or root", found.uid());
        return Err(Error::new(ErrorKind::PermissionDenied, message));
    }
    if found.mode() & 0o022 != 0 {
        let message = "others than its owner can write to it";
        return Err(Error::new(ErrorKind::PermissionDenied, message));
    }
    Ok(())
}

/// The identity of the source and the tables in a file.
///
/// # Errors
/// The file's, [`ErrorKind::PermissionDenied`] for one that others could have written, and
/// [`ErrorKind::InvalidData`] for one that is damaged or of another format.
pub(super) fn read(place: &AtomicFile) -> Result<(u128, Tables)> {
    let mut file = place.open()?;
    check_trust(&file)?;
    let mut bytes = vec![0; HEAD_BYTES];
    file.read_exact(&mut bytes).map_err(|_| damaged("cut short"))?;
    check_magic(&bytes)?;
    file.read_to_end(&mut bytes)?;
    decode(&bytes)
}

/// Refuses a file that is none of ours, however long it is.
fn check_magic(head: &[u8]) -> Result<()> {
    match head.starts_with(MAGIC) {
        true => Ok(()),
        false => Err(damaged("it is no catalog, or one of another version of belady")),
    }
}

fn decode(bytes: &[u8]) -> Result<(u128, Tables)> {
    let (head, body) = bytes.split_at_checked(HEAD_BYTES).ok_or_else(|| damaged("cut short"))?;
    check_magic(head)?;
    if head[16..] != end_of_head(body.len() as u64, crc32c::crc32c(body)) {
        return Err(damaged("the checksum is wrong"));
    }
    let ((identity, tables), rest) = postcard::take_from_bytes::<(u128, Tables)>(body)
        .map_err(|error| damaged(&format!("it cannot be understood: {error}")))?;
    if !rest.is_empty() || !tables.is_consistent() {
        return Err(damaged("it contradicts itself"));
    }
    Ok((identity, tables))
}

fn end_of_head(length: u64, checksum: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&length.to_le_bytes());
    bytes[8..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Passes bytes on, and counts and sums them.
struct SummingWriter<W> {
    to: W,
    length: u64,
    checksum: u32,
}

impl<W: Write> Write for SummingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let written = self.to.write(bytes)?;
        self.length += written as u64;
        self.checksum = crc32c::crc32c_append(self.checksum, &bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> Result<()> {
        self.to.flush()
    }
}

/// Writes the tables of a source to a file, which is the new one or the one before whatever
/// happens. Nobody else may write it at the same time.
pub(super) fn write(identity: u128, tables: &Tables, place: &AtomicFile) -> Result<()> {
    place.replace(|mut file| {
        file.write_all(&[0; HEAD_BYTES])?;
        // Many small writes come out of the encoder: they are gathered before they are summed.
        let summed = SummingWriter { to: file, length: 0, checksum: 0 };
        let buffered = BufWriter::with_capacity(1 << 20, summed);
        let buffered = postcard::to_io(&(identity, tables), buffered).map_err(Error::other)?;
        let SummingWriter { length, checksum, .. } =
            buffered.into_inner().map_err(|e| e.into_error())?;
        file.rewind()?;
        file.write_all(&[&MAGIC[..], &end_of_head(length, checksum)].concat())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::tests::{Choice, some_tree};

    const IDENTITY: u128 = 7 << 100 | 5;

    /// The bytes of a file with these tables.
    fn encoded(tables: &Tables) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("catalog");
        write(IDENTITY, tables, &AtomicFile::at(&path).unwrap()).unwrap();
        std::fs::read(path).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let tables = some_tree().tables;
        let (identity, read) = decode(&encoded(&tables)).unwrap();
        assert_eq!(identity, IDENTITY);
        assert_eq!(format!("{read:?}"), format!("{tables:?}"));
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let bytes = encoded(&some_tree().tables);
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err());
        }
        for place in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[place] ^= 0x10;
            assert!(decode(&bytes).is_err(), "byte {place}");
        }
        assert!(decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    /// Whoever can write the file can make the checksum right.
    #[test]
    fn a_forged_file_is_refused_or_harmless() {
        let bytes = encoded(&some_tree().tables);
        let mut choice = Choice(1);
        for _ in 0..20_000 {
            let mut body = bytes[HEAD_BYTES..].to_vec();
            for _ in 0..=choice.below(3) {
                let place = choice.below(body.len() as u64) as usize;
                body[place] = choice.below(256) as u8;
            }
            let head = end_of_head(body.len() as u64, crc32c::crc32c(&body));
            let Ok((_, mut tables)) = decode(&[&MAGIC[..], &head, &body].concat()) else {
                continue;
            };
            // Content of any size would be cut into blocks here; the source is not asked for it.
            std::sync::Arc::make_mut(&mut tables.rows).iter_mut().for_each(|row| row.class = 0);
            let mut tree = crate::catalog::tree::Tree::of(tables);
            for file in tree.files() {
                let _ = (tree.path(file), tree.entry(file, tree.name(file)));
                let rows = tree.entries(file).map(|rows| rows.collect::<Vec<_>>());
                let named = |row| tree.name(tree.target(row)).len() < 1 << 20;
                assert!(rows.into_iter().flatten().all(named));
            }
            let mut changes = crate::catalog::Changes::default();
            tree.relist(crate::ids::FileId(0), Vec::new(), 1, &mut changes);
        }
    }

    #[test]
    fn a_file_that_others_can_write_is_not_trusted() {
        use std::os::unix::fs::{PermissionsExt, chown, symlink};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("catalog");
        let place = AtomicFile::at(&path).unwrap();
        write(IDENTITY, &some_tree().tables, &place).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert!(read(&place).is_ok());
        let link = directory.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(read(&AtomicFile::at(&link).unwrap()).is_err());
        for (mode, trusted) in [(0o644, true), (0o664, false), (0o602, false), (0o400, true)] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(read(&place).is_ok(), trusted, "{mode:o}");
        }
        if nix::unistd::geteuid().is_root() {
            chown(&path, Some(12345), None).unwrap();
            assert_eq!(read(&place).unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
    }
}
