//! Which program carries a shard.

use std::ffi::OsStr;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// Program names, the best one first.
const NAMES: [&str; 2] = ["valkey-server", "redis-server"];

/// Before Redis 7.0, no command both reads a value and takes its place if there is none (`SET NX GET`). Valkey
/// began at 7.2.
pub(super) const LEAST: Version = Version(7, 0, 0);

/// How long a program may take to tell its version, and how many bytes are read of that.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
const WORDS_MOST: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u32, u32, u32);

/// A server program that can carry a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub path: PathBuf,
    pub version: Version,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Version(major, minor, patch) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path.display(), self.version)
    }
}

impl Program {
    /// The best program in the directories of a search path, such as that of the variable PATH.
    ///
    /// # Errors
    /// What was found instead.
    pub fn find(search_path: &OsStr) -> Result<Self, String> {
        let mut found = NAMES.iter().flat_map(|name| {
            // What is found from the working directory may be anyone's.
            let directories = std::env::split_paths(search_path).filter(|path| path.is_absolute());
            directories.map(move |directory| directory.join(name))
        });
        let mut refused = Vec::new();
        let usable = found.find_map(|path| match examine(&path)? {
            Ok(program) if program.version >= LEAST => Some(program),
            Ok(program) => {
                refused.push(format!("{program} is older than {LEAST}"));
                None
            }
            Err(why) => {
                refused.push(why);
                None
            }
        });
        usable.ok_or_else(|| match refused.is_empty() {
            true => format!("neither {} nor {} is on the PATH", NAMES[0], NAMES[1]),
            false => refused.join("; "),
        })
    }

    /// The program at a path.
    ///
    /// # Errors
    /// If there is none, or it is too old.
    pub fn at(path: &Path) -> Result<Self, String> {
        let none = || Err(format!("{} is no program", path.display()));
        let program = examine(path).unwrap_or_else(none)?;
        match program.version >= LEAST {
            true => Ok(program),
            false => Err(format!("{program} is older than {LEAST}")),
        }
    }
}

/// What a program says of itself; `None` if there is none at this path.
fn examine(path: &Path) -> Option<Result<Program, String>> {
    if !path.is_file() {
        return None;
    }
    let said = match output_of(Command::new(path).arg("--version"), ANSWER_WAIT, WORDS_MOST) {
        Ok(said) => said,
        Err(error) => return Some(Err(format!("{} cannot be run: {error}", path.display()))),
    };
    let program = parse_version(&said).map(|version| Program { path: path.to_owned(), version });
    let line = said.lines().next().unwrap_or_default();
    Some(program.ok_or_else(|| format!("{} does not tell its version: {line:?}", path.display())))
}

/// Runs a program and returns the first `most` bytes of its output. A program that runs longer than `wait` is killed.
///
/// # Errors
/// If it cannot be started.
pub(super) fn output_of(
    command: &mut Command,
    wait: Duration,
    most: u64,
) -> std::io::Result<String> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let (send, said) = channel::<Vec<u8>>();
    if let Some(output) = child.stdout.take() {
        let read = move || {
            let mut words = Vec::new();
            let _ = output.take(most).read_to_end(&mut words);
            let _ = send.send(words);
        };
        // Without a thread, it says nothing.
        let _ = thread::Builder::new().spawn(read);
    }
    let words = said.recv_timeout(wait).unwrap_or_default();
    let _ = child.kill();
    let _ = child.wait();
    Ok(String::from_utf8_lossy(&words).into_owned())
}

/// The version in a line such as `Redis server v=7.0.15 sha=...`.
fn parse_version(said: &str) -> Option<Version> {
    Version::parse(said.split_whitespace().find_map(|word| word.strip_prefix("v="))?)
}

impl Version {
    /// Reads a version such as `7.0.15`.
    pub(super) fn parse(version: &str) -> Option<Self> {
        let mut numbers = version.split('.').map(|number| {
            let digits = number.split(|letter: char| !letter.is_ascii_digit()).next();
            digits.and_then(|digits| digits.parse().ok())
        });
        Some(Version(numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A program in a directory of its own that prints a line.
    fn put(top: &Path, directory: &str, name: &str, line: &str) -> PathBuf {
        put_script(top, directory, name, &format!("echo '{line}'"))
    }

    /// Another process makes it: a program that another test starts at this moment has a copy of what this one has
    /// open, and a file that is open for writing cannot be run.
    fn put_script(top: &Path, directory: &str, name: &str, script: &str) -> PathBuf {
        let directory = top.join(directory);
        fs::create_dir_all(&directory).unwrap();
        let (text, path) = (directory.join("text"), directory.join(name));
        fs::write(&text, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Command::new("cp").arg(&text).arg(&path).status().unwrap().success());
        path
    }

    fn find(top: &Path, directories: &[&str]) -> Result<Program, String> {
        let paths = directories.iter().map(|directory| top.join(directory));
        Program::find(&std::env::join_paths(paths).unwrap())
    }

    #[test]
    fn the_best_program_that_is_new_enough_is_found() {
        let top = tempfile::tempdir().unwrap();
        let redis = put(top.path(), "b", "redis-server", "Redis server v=7.0.15 sha=0:0 bits=64");
        put(top.path(), "a", "redis-server", "Redis server v=6.2.7 sha=0:0 bits=64");
        let found = find(top.path(), &["a", "none", "b"]).unwrap();
        assert_eq!(found, Program { path: redis, version: Version(7, 0, 15) });
        let valkey = put(top.path(), "c", "valkey-server", "Valkey server v=8.1.0-rc2 sha=0:0");
        let found = find(top.path(), &["a", "b", "c"]).unwrap();
        assert_eq!(found, Program { path: valkey, version: Version(8, 1, 0) });
    }

    #[test]
    fn programs_that_do_not_fit_are_named() {
        let top = tempfile::tempdir().unwrap();
        put(top.path(), "old", "redis-server", "Redis server v=6.2.7 sha=0:0 bits=64");
        put(top.path(), "odd", "valkey-server", "hello");
        put(top.path(), "new", "redis-server", "Redis server v=7.0.15 sha=0:0 bits=64");
        fs::create_dir_all(top.path().join("dir/redis-server")).unwrap();
        let refused = find(top.path(), &["old", "odd", "dir"]).unwrap_err();
        assert!(refused.contains("redis-server 6.2.7 is older than 7.0.0"), "{refused}");
        assert!(refused.contains("does not tell its version: \"hello\""), "{refused}");
        let from_here = format!("{}{}/new", "../".repeat(20), top.path().display());
        assert!(Program::at(&Path::new(&from_here).join("redis-server")).is_ok());
        let relative = Program::find(OsStr::new(&from_here)).unwrap_err();
        assert!(relative.contains("is on the PATH"), "{relative}");
        let none = find(top.path(), &["dir", "none"]).unwrap_err();
        assert_eq!(none, "neither valkey-server nor redis-server is on the PATH");
    }

    #[test]
    fn a_program_that_says_nothing_is_not_waited_for() {
        let top = tempfile::tempdir().unwrap();
        let silent = put_script(top.path(), "a", "valkey-server", "exec sleep 600");
        let said = output_of(&mut Command::new(silent), Duration::from_millis(50), 9).unwrap();
        assert_eq!(said, "");
    }
}
