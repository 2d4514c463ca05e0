//! A source for tests: a directory whose reads a test answers.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;

use super::{Kind, PosixSource, ReadRequest, Source, Stat};

pub(crate) struct StubSource<R> {
    directory: PosixSource,
    /// What listings tell of the sizes of files, if they tell a guess.
    guess: Option<u64>,
    /// Whether it makes its files, so that their versions are known before their sizes are.
    makes: bool,
    is_hedged: bool,
    /// Whether files lie one behind the other.
    has_neighbours: bool,
    /// The name of the files whose attributes cannot be had.
    broken: Option<&'static str>,
    pub(crate) overloads: AtomicU64,
    read: R,
}

impl<R: Fn(ReadRequest) + Send + Sync + 'static> StubSource<R> {
    pub(crate) fn new(directory: PosixSource, read: R) -> Self {
        let overloads = AtomicU64::new(0);
        StubSource {
            directory,
            guess: None,
            makes: false,
            is_hedged: false,
            has_neighbours: false,
            broken: None,
            overloads,
            read,
        }
    }

    pub(crate) fn guessing(directory: PosixSource, guess: u64, read: R) -> Self {
        StubSource { guess: Some(guess), ..Self::new(directory, read) }
    }

    pub(crate) fn making(directory: PosixSource, guess: u64, read: R) -> Self {
        StubSource { makes: true, ..Self::guessing(directory, guess, read) }
    }

    pub(crate) fn with_broken(self, name: &'static str) -> Self {
        StubSource { broken: Some(name), ..self }
    }

    pub(crate) fn with_neighbours(self) -> Self {
        StubSource { has_neighbours: true, ..self }
    }

    pub(crate) fn hedged(directory: PosixSource, read: R) -> Self {
        StubSource { is_hedged: true, ..Self::new(directory, read) }
    }
}

impl<R: Fn(ReadRequest) + Send + Sync + 'static> Source for StubSource<R> {
    fn lasting_identity(&self) -> u128 {
        self.directory.lasting_identity()
    }

    fn list_in_parts(
        &self,
        directory: &Path,
        each: &mut dyn FnMut(&[OsString]),
    ) -> Result<(), Errno> {
        self.directory.list_in_parts(directory, each)
    }

    fn is_hedged(&self) -> bool {
        self.is_hedged
    }

    fn overloads(&self) -> u64 {
        self.overloads.load(Ordering::Relaxed)
    }

    fn tells_sizes(&self) -> bool {
        self.guess.is_none()
    }

    fn stat_all(&self, directory: &Path, names: &[OsString]) -> Vec<Result<Stat, Errno>> {
        let listed = |stat: Stat| match self.guess {
            Some(guess) => {
                let version_has_size = !self.makes;
                Stat { is_sized: false, version_has_size, ..stat.with_size(guess) }
            }
            None => stat,
        };
        names.iter().map(|name| self.stat(&directory.join(name)).map(listed)).collect()
    }

    fn stat(&self, path: &Path) -> Result<Stat, Errno> {
        let is_broken =
            path.file_name().is_some_and(|name| self.broken.is_some_and(|of| of == name));
        if is_broken { Err(Errno::EIO) } else { self.directory.stat(path) }
    }

    fn listed_kinds(&self, directory: &Path) -> HashMap<OsString, Kind> {
        self.directory.listed_kinds(directory)
    }

    fn stat_anew(&self, path: &Path) -> Result<Stat, Errno> {
        self.directory.stat_anew(path)
    }

    fn read_link(&self, path: &Path) -> Result<OsString, Errno> {
        self.directory.read_link(path)
    }

    fn list_xattrs(&self, path: &Path) -> Result<Vec<u8>, Errno> {
        self.directory.list_xattrs(path)
    }

    fn xattr(&self, path: &Path, name: &OsStr) -> Result<Vec<u8>, Errno> {
        self.directory.xattr(path, name)
    }

    fn space(&self) -> Result<[u64; 7], Errno> {
        self.directory.space()
    }

    fn lie_behind(&self, _directory: &Path, names: &[OsString]) -> Option<Vec<bool>> {
        self.has_neighbours.then(|| (0..names.len()).map(|nth| nth > 0).collect())
    }

    fn close_idle(&self) {
        self.directory.close_idle();
    }

    fn read(&self, requests: Vec<ReadRequest>) {
        requests.into_iter().for_each(&self.read);
    }
}
