//! A source for tests: a directory whose reads a test answers.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use nix::errno::Errno;

use super::{PosixSource, ReadRequest, Source, Stat};

pub(crate) struct StubSource<R> {
    directory: PosixSource,
    read: R,
}

impl<R: Fn(ReadRequest) + Send + Sync + 'static> StubSource<R> {
    pub(crate) fn new(directory: PosixSource, read: R) -> Self {
        StubSource { directory, read }
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

    fn stat(&self, path: &Path) -> Result<Stat, Errno> {
        self.directory.stat(path)
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

    fn close_idle(&self) {
        self.directory.close_idle();
    }

    fn read(&self, requests: Vec<ReadRequest>) {
        requests.into_iter().for_each(&self.read);
    }
}
