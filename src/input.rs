//! Reads files that a user names, whole and within limits.
//!
//! A name on the command line may lead to a device without end, to a pipe without a writer, or to a wrong
//! file of a terabyte. Every such file is read here. Its kind is checked before the first byte, and its bytes
//! are checked as they come. Reading ends at the first byte that breaks a limit.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::libc;

use crate::error::{Error, ErrorKind, Result};

/// How many bytes of a file are searched for a NUL byte, which tells that it is no text.
const PROBE_BYTES: usize = 4096;

/// Bytes per read.
const STEP_BYTES: usize = 1 << 20;

/// What a file may be, and how much of it is read.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The kind of the error if the file breaks a limit.
    pub kind: ErrorKind,
    /// The most bytes of the file.
    pub bytes: usize,
    /// The most bytes of one line of a text.
    pub line: usize,
    /// Whether the file may be binary.
    pub binary: bool,
    /// Whether the file may be a pipe. A daemon could wait for a pipe without end.
    pub pipe: bool,
    /// The most bytes that there is memory for.
    pub memory: usize,
}

impl Limits {
    /// Settings. A mount reads them twice, so a pipe cannot give them.
    pub const CONFIG: Limits = Limits {
        kind: ErrorKind::Config,
        bytes: 1 << 20,
        line: 1 << 20,
        binary: false,
        pipe: false,
        memory: usize::MAX,
    };

    /// The labels of a rehearsal buffer's samples.
    pub const LABELS: Limits = Limits { bytes: 1 << 30, line: 64 << 10, ..Self::CONFIG };

    /// Access orders, as text or as numbers.
    pub const ORDER: Limits = Limits {
        kind: ErrorKind::Order,
        bytes: 4 << 30,
        line: 64 << 10,
        binary: true,
        pipe: true,
        memory: usize::MAX,
    };

    /// Lists of a dataset's files. A list in JSON may be one line.
    pub const MANIFEST: Limits = Limits { line: 4 << 30, binary: false, ..Self::ORDER };

    /// Weights of samples, as text or as numbers.
    pub const WEIGHTS: Limits = Limits { bytes: 1 << 30, ..Self::ORDER };

    /// Lines that a command passes to a daemon.
    pub const LIST: Limits = Limits {
        kind: ErrorKind::Usage,
        bytes: 120 << 20,
        line: 64 << 10,
        binary: false,
        pipe: true,
        memory: usize::MAX,
    };

    /// Paths with numbers. One line may have thousands of numbers.
    pub const NUMBERS: Limits = Limits { bytes: 256 << 20, line: 16 << 20, ..Self::LIST };

    /// A report, which is one line of JSON.
    pub const REPORT: Limits = Limits { line: 120 << 20, ..Self::LIST };

    /// The same limits for a daemon with this much memory in bytes. It must not wait for the writer of a
    /// pipe.
    pub fn for_daemon(self, memory: usize) -> Self {
        Limits { pipe: false, memory, ..self }
    }
}

/// Reads a file.
///
/// # Errors
/// Of the kind of the limits: when the file cannot be read, is a directory or a device, or breaks a limit.
pub fn read(path: &Path, limits: &Limits) -> Result<Vec<u8>> {
    let name = path.display().to_string();
    let bytes = open(path, limits).and_then(|file| read_all(file, limits));
    bytes.map_err(|refusal| refusal.into_error(&name, limits))
}

/// Reads a file of text.
///
/// # Errors
/// As [`read`], and when the text is not UTF-8.
pub fn read_text(path: &Path, limits: &Limits) -> Result<String> {
    text(read(path, limits)?, &path.display().to_string(), limits)
}

/// Reads standard input, whatever kind of file it is.
pub fn read_stdin(limits: &Limits) -> Result<Vec<u8>> {
    read_all(io::stdin().lock(), limits).map_err(|refusal| refusal.into_error(STDIN, limits))
}

/// Reads standard input as text.
pub fn read_stdin_text(limits: &Limits) -> Result<String> {
    text(read_stdin(limits)?, STDIN, limits)
}

const STDIN: &str = "standard input";

fn text(bytes: Vec<u8>, name: &str, limits: &Limits) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::new(limits.kind, format!("cannot read {name}: byte {at} is not UTF-8"))
    })
}

/// Why a file was not read.
enum Refusal {
    Failed(io::Error),
    /// It is a file of this kind.
    Kind(&'static str),
    /// It has more bytes than the limit.
    TooLong,
    /// A line, counted from 1, is too long.
    Line(usize),
    Binary,
    /// There is no memory for more than this number of bytes.
    Memory(usize),
}

impl Refusal {
    fn into_error(self, name: &str, limits: &Limits) -> Error {
        let error = |what: String| Error::new(limits.kind, format!("cannot read {name}: {what}"));
        match self {
            Refusal::Failed(why) => error(why.to_string()),
            Refusal::Kind(kind) => {
                let hint = if limits.pipe { "a file or a pipe" } else { "a regular file" };
                error(format!("it is {kind}")).hint(format!("name {hint}"))
            }
            Refusal::TooLong => error(format!("it has more than {} bytes", limits.bytes))
                .hint("is it the right file? if it is, give less of it, or give it in parts"),
            Refusal::Line(number) => {
                error(format!("line {number} has more than {} bytes", limits.line))
                    .hint("is it the right file? each line is an entry of its own")
            }
            Refusal::Binary => {
                error("it has a NUL byte and is no text".into()).hint("is it the right file?")
            }
            Refusal::Memory(bytes) => {
                error(format!("there is no memory for more than {bytes} bytes of it"))
                    .hint("raise the limit on memory, or give less of it")
            }
        }
    }
}

/// Opens a file of an allowed kind. Opening waits only for a pipe that is allowed.
fn open(path: &Path, limits: &Limits) -> std::result::Result<File, Refusal> {
    let found = std::fs::metadata(path).map_err(Refusal::Failed)?;
    check_kind(&found, limits)?;
    let flags = if found.is_file() { libc::O_NONBLOCK } else { 0 };
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(Refusal::Failed)?;
    // The path may lead to another file than before.
    let found = file.metadata().map_err(Refusal::Failed)?;
    check_kind(&found, limits)?;
    if found.is_file() && found.len() > limits.bytes as u64 {
        return Err(Refusal::TooLong);
    }
    if found.is_file() && found.len() > limits.memory as u64 {
        return Err(Refusal::Memory(limits.memory));
    }
    Ok(file)
}

fn check_kind(found: &Metadata, limits: &Limits) -> std::result::Result<(), Refusal> {
    let kind = found.file_type();
    // Users name `/dev/null` as an empty file.
    let is_null = kind.is_char_device() && found.rdev() == libc::makedev(1, 3);
    if kind.is_file() || is_null || kind.is_fifo() && limits.pipe {
        return Ok(());
    }
    Err(Refusal::Kind(match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    }))
}

/// Reads all bytes, within the limits.
fn read_all(mut from: impl Read, limits: &Limits) -> std::result::Result<Vec<u8>, Refusal> {
    let (mut bytes, mut lines) = (Vec::new(), Lines { number: 1, length: 0 });
    loop {
        let had = bytes.len();
        if had > limits.memory || bytes.try_reserve(STEP_BYTES).is_err() {
            return Err(Refusal::Memory(had.min(limits.memory)));
        }
        let step = from.by_ref().take(STEP_BYTES as u64).read_to_end(&mut bytes);
        step.map_err(Refusal::Failed)?;
        let is_text = !bytes[..bytes.len().min(PROBE_BYTES)].contains(&0);
        if !is_text && !limits.binary {
            return Err(Refusal::Binary);
        }
        if is_text {
            lines.advance(&bytes[had..], limits.line).map_err(Refusal::Line)?;
        }
        if bytes.len() > limits.bytes {
            return Err(Refusal::TooLong);
        }
        if bytes.len() == had {
            return Ok(bytes);
        }
    }
}

/// A position in the lines of a text.
struct Lines {
    /// The number of the line, from 1.
    number: usize,
    /// Bytes of this line so far.
    length: usize,
}

impl Lines {
    /// Moves on by these bytes. The error is the first line that is longer than `most`.
    fn advance(&mut self, bytes: &[u8], most: usize) -> std::result::Result<(), usize> {
        let mut parts = bytes.split(|byte| *byte == b'\n');
        let first = parts.next().map_or(0, <[u8]>::len);
        self.length += first;
        for part in parts {
            if self.length > most {
                return Err(self.number);
            }
            (self.number, self.length) = (self.number + 1, part.len());
        }
        if self.length > most { Err(self.number) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    const SMALL: Limits = Limits { bytes: 3 << 20, line: 100, ..Limits::LIST };

    /// An endless source that counts its bytes.
    struct Endless(u8, usize);

    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            buffer.fill(self.0);
            self.1 += buffer.len();
            Ok(buffer.len())
        }
    }

    fn why(path: &Path, limits: &Limits) -> String {
        read(path, limits).map(|bytes| bytes.len()).unwrap_err().to_string()
    }

    #[test]
    fn a_file_within_the_limits_is_read_whole() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("list");
        let text = format!("{}\n", "x".repeat(100)).repeat(25_000);
        fs::write(&path, &text).unwrap();
        assert_eq!(read_text(&path, &SMALL).unwrap(), text);
        assert_eq!(read(Path::new("/dev/null"), &SMALL).unwrap(), b"");
        // The kernel reports a size of 0 for such a file.
        assert!(!read(Path::new("/proc/self/status"), &Limits::LIST).unwrap().is_empty());
        let pipe = root.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let writer = {
            let pipe = pipe.clone();
            thread::spawn(move || fs::write(pipe, "a\nb"))
        };
        assert_eq!(read(&pipe, &SMALL).unwrap(), b"a\nb");
        writer.join().unwrap().unwrap();
    }

    #[test]
    fn directories_sockets_and_devices_are_not_read() {
        let root = tempfile::tempdir().unwrap();
        let (pipe, socket) = (root.path().join("pipe"), root.path().join("socket"));
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        for limits in [Limits::CONFIG, Limits::ORDER, Limits::MANIFEST, Limits::LIST] {
            assert!(why(Path::new("/dev/zero"), &limits).contains("it is a device"));
            assert!(why(root.path(), &limits).contains("it is a directory"));
            assert!(why(&socket, &limits).contains("it is a socket"));
            // The pipe has no writer.
            let why = why(&pipe, &limits.for_daemon(1 << 20));
            assert!(why.contains("it is a pipe") && why.contains("hint: name a regular file"));
        }
    }

    #[test]
    fn a_file_that_is_too_long_is_not_begun() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("long");
        let file = fs::File::create(&path).unwrap();
        for limits in [Limits::CONFIG, Limits::ORDER, Limits::MANIFEST, Limits::LIST] {
            file.set_len(limits.bytes as u64 + 1).unwrap();
            assert!(why(&path, &limits).contains(&format!("more than {} bytes", limits.bytes)));
        }
    }

    #[test]
    fn a_file_for_which_there_is_no_memory_is_not_begun() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("long");
        fs::File::create(&path).unwrap().set_len(3 << 20).unwrap();
        let limits = Limits::ORDER.for_daemon(2 << 20);
        assert!(why(&path, &limits).contains("no memory for more than 2097152 bytes of it"));
        let mut zeros = Endless(0, 0);
        assert!(matches!(read_all(&mut zeros, &limits), Err(Refusal::Memory(_))));
        assert_eq!(zeros.1, 3 << 20);
    }

    #[test]
    fn reading_ends_at_the_first_byte_that_cannot_be_right() {
        let mut zeros = Endless(0, 0);
        assert!(matches!(read_all(&mut zeros, &SMALL), Err(Refusal::Binary)));
        assert_eq!(zeros.1, STEP_BYTES);
        let mut line = Endless(b'x', 0);
        assert!(matches!(read_all(&mut line, &SMALL), Err(Refusal::Line(1))));
        assert_eq!(line.1, STEP_BYTES);
        let mut empty = Endless(b'\n', 0);
        assert!(matches!(read_all(&mut empty, &SMALL), Err(Refusal::TooLong)));
        assert_eq!(empty.1, SMALL.bytes + STEP_BYTES);
        let numbers = Limits { binary: true, ..SMALL };
        assert!(matches!(read_all(Endless(0, 0), &numbers), Err(Refusal::TooLong)));
    }

    #[test]
    fn lines_are_counted_across_steps() {
        let mut lines = Lines { number: 1, length: 0 };
        assert_eq!(lines.advance(b"ab\nabc\nab", 3), Ok(()));
        assert_eq!((lines.number, lines.length), (3, 2));
        assert_eq!(lines.advance(b"c\nabcd", 3), Err(4));
        let long = [b"x\n".as_slice(), &[b'y'; 200]].concat();
        assert!(matches!(read_all(long.as_slice(), &SMALL), Err(Refusal::Line(2))));
    }
}
