//! Which program carries a shard.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Program names, the best one first.
const NAMES: [&str; 2] = ["valkey-server", "redis-server"];

/// Before Redis 7.0, no command both reads a value and takes its place if there is none (`SET NX GET`). Valkey
/// began at 7.2.
const LEAST: Version = Version(7, 0, 0);

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
            std::env::split_paths(search_path).map(move |directory| directory.join(name))
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
    let said = match Command::new(path).arg("--version").output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => return Some(Err(format!("{} cannot be run: {error}", path.display()))),
    };
    let program = parse_version(&said).map(|version| Program { path: path.to_owned(), version });
    let line = said.lines().next().unwrap_or_default();
    Some(program.ok_or_else(|| format!("{} does not tell its version: {line:?}", path.display())))
}

/// The version in a line such as `Redis server v=7.0.15 sha=...`.
fn parse_version(said: &str) -> Option<Version> {
    let version = said.split_whitespace().find_map(|word| word.strip_prefix("v="))?;
    let mut numbers = version.split('.').map(|number| {
        let digits = number.split(|letter: char| !letter.is_ascii_digit()).next();
        digits.and_then(|digits| digits.parse().ok())
    });
    Some(Version(numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A program in a directory of its own that prints a line.
    fn put(top: &Path, directory: &str, name: &str, line: &str) -> PathBuf {
        let directory = top.join(directory);
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join(name);
        fs::write(&path, format!("#!/bin/sh\necho '{line}'\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
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
        fs::create_dir_all(top.path().join("dir/redis-server")).unwrap();
        let refused = find(top.path(), &["old", "odd", "dir"]).unwrap_err();
        assert!(refused.contains("redis-server 6.2.7 is older than 7.0.0"), "{refused}");
        assert!(refused.contains("does not tell its version: \"hello\""), "{refused}");
        let none = find(top.path(), &["dir", "none"]).unwrap_err();
        assert_eq!(none, "neither valkey-server nor redis-server is on the PATH");
    }
}
