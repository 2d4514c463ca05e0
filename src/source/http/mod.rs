//! A source whose samples are files on a web server.
//!
//! 1. A [`Site`] is the URL of a manifest, `https://HOST/DIRECTORY/MANIFEST`. There is no common way to list the
//!    directories of a web server. So the manifest names the files ([`manifest`]), each relative to its own directory.
//! 2. A read is one `GET`, with a range if a part is asked for ([`Asked::read`]). The answer has the ETag and the size
//!    of the file. If these are not the listed ones, the file has another version.
//! 3. A manifest without ETags tells no versions. Then files must never change. If it has no sizes either, the server
//!    is asked for the size of a file that is looked up, with a `HEAD`. Other files are taken to have the mean size.
//! 4. When a site is mounted, one file is looked at: servers exist that know no ranges, and manifests that are older
//!    than their files ([`look`]).

mod asked;
mod look;
mod manifest;
mod site;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nix::errno::Errno;
use nix::unistd::{getegid, geteuid};
use tokio::task::JoinSet;

use super::keyed::{Keyed, say_fault};
use super::object::Fault;
use super::remote::{PATIENCE, PATIENCE_OF_LISTINGS, Remote, SourceFailures};
use super::tree::{Access, Blob, Listing, NAME_BYTES_MAX, PathFault, hash};
use super::{ReadError, ReadRequest};
use crate::error::{Error, Result as UserResult};
use asked::{Asked, Listed, Wanted};
use look::{Unfit, look};
use manifest::Line;
pub(super) use site::Site;

/// If the manifest tells no size at all, the server is asked for so many.
const SIZES: usize = 64;

/// No line tells when its file was written.
const TIME_NS: i64 = 0;

/// A catalog takes a time of whole seconds for that of a filesystem where two changes within a second look the same.
const CHANGED_NS: i64 = 1;

const FORMAT: &str =
    "a line is PATH, or PATH and SIZE, or PATH, SIZE and ETAG, with tabs between them";

const VERSIONS: &str = "if files never change, set source.consistency=immutable; else each line \
                        needs PATH, SIZE and ETAG, with tabs between them";

const PATHS: &str = "PATH is relative to the directory of the manifest, without ./ and ../, and \
                     each one is there once";

/// The files that a manifest names.
pub(super) struct HttpStore {
    asked: Arc<Asked>,
    site: Site,
    /// Of each file.
    access: Access,
    /// What the first manifest has told of sizes.
    sizes: OnceLock<Sizes>,
    remote: Remote,
}

impl HttpStore {
    /// The files of a site. Nothing is asked of its server yet.
    ///
    /// # Errors
    /// If there can be no client.
    pub(super) fn open(site: &Site, is_immutable: bool) -> UserResult<Self> {
        Ok(HttpStore {
            asked: Asked::new(site, is_immutable)?.into(),
            site: site.clone(),
            access: Access { mode: 0o444, uid: geteuid().as_raw(), gid: getegid().as_raw() },
            sizes: OnceLock::new(),
            remote: Remote::new()?,
        })
    }

    /// The bytes of the manifest.
    fn manifest(&self) -> UserResult<Vec<u8>> {
        let asked = Arc::clone(&self.asked);
        let bytes = self.remote.wait(async move { asked.manifest().await });
        bytes.unwrap_or(Err(Fault::Gone)).map_err(|fault| self.site.refuse_manifest(&fault))
    }

    /// Refuses files whose versions nothing tells apart.
    fn check_versions(&self, lines: &[Line<'_>]) -> UserResult<()> {
        let unversioned = lines.iter().find(|line| line.etag.is_none());
        match unversioned.filter(|_| !self.asked.is_immutable) {
            Some(line) => {
                let why = format!("the manifest has no ETag of {}", line.path);
                Err(self.site.refuse(&why).hint(VERSIONS))
            }
            None => Ok(()),
        }
    }

    /// What the manifest tells of sizes. If it tells none, the server is asked for some.
    fn sizes(&self, lines: &[Line<'_>]) -> UserResult<Sizes> {
        let are_told = lines.iter().all(|line| line.size.is_some());
        if let Some(first) = self.sizes.get() {
            // The kernel was promised that listings have sizes.
            let has_lost = first.are_told && !are_told;
            let why = "the manifest no longer has the size of each file";
            return if has_lost { Err(self.site.refuse(why)) } else { Ok(*first) };
        }
        let guess = mean(lines.iter().filter_map(|line| line.size));
        let guess = guess.map_or_else(|| self.mean_of_some(lines), Ok)?;
        Ok(*self.sizes.get_or_init(|| Sizes { are_told, guess }))
    }

    /// The mean size of some files, all over the manifest.
    fn mean_of_some(&self, lines: &[Line<'_>]) -> UserResult<u64> {
        let some = lines.iter().step_by(lines.len().div_ceil(SIZES).max(1)).map(Listed::of);
        let (asked, some) = (Arc::clone(&self.asked), some.collect::<Vec<_>>());
        let found = self.remote.wait(async move {
            let (mut heads, mut sizes) = (JoinSet::new(), Vec::new());
            for listed in some {
                let asked = Arc::clone(&asked);
                heads.spawn(async move { asked.head(&listed, PATIENCE_OF_LISTINGS).await });
            }
            while let Some(found) = heads.join_next().await {
                sizes.push(found.unwrap_or(Err(Fault::Gone))?.size);
            }
            Ok(sizes)
        });
        let sizes = found.unwrap_or(Err(Fault::Gone));
        let sizes = sizes.map_err(|fault| self.site.refuse_fault("a file", &fault))?;
        Ok(mean(sizes.into_iter()).unwrap_or(1))
    }

    /// Looks at one file, if possible at one that can be read in parts.
    fn look(&self, lines: &[Line<'_>]) -> UserResult<()> {
        let has_parts = |line: &&Line<'_>| line.size.is_none_or(|size| size > 1);
        let Some(line) = lines.iter().find(has_parts).or_else(|| lines.first()) else {
            return Err(self.site.refuse("the manifest names no file").hint(FORMAT));
        };
        let (asked, listed, size) = (Arc::clone(&self.asked), Listed::of(line), line.size);
        let looked = self.remote.wait(async move { look(&asked, &listed, size).await });
        let looked = looked.unwrap_or(Err(Unfit::Fault(Fault::Gone)));
        looked.map_err(|unfit| unfit.refuse(&self.site, line.path))
    }

    /// The error for a reader of a file.
    fn errno(&self, fault: &Fault, blob: &Blob<Listed>) -> Errno {
        self.remote.within(|| fault.errno(Path::new(&*blob.key.path)))
    }
}

/// What is known of the sizes of all files.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Whether each line has one.
    are_told: bool,
    /// What other files are taken to have.
    guess: u64,
}

/// The file that a line is.
fn file(line: &Line<'_>, access: Access) -> (PathBuf, Blob<Listed>) {
    let Line { path, size, etag } = *line;
    let told = size.map_or_else(String::new, |size| size.to_string());
    let parts = [path, etag.unwrap_or_default(), &told];
    let version = hash(&parts.map(str::as_bytes));
    let (mtime_ns, changed_ns, key) = (TIME_NS, CHANGED_NS, Listed::of(line));
    (path.into(), Blob { size, mtime_ns, changed_ns, version, access, key })
}

/// The mean of sizes, if there are any.
fn mean(sizes: impl Iterator<Item = u64> + Clone) -> Option<u64> {
    let sum = sizes.clone().fold(0, u64::saturating_add);
    sum.checked_div(sizes.count() as u64).map(|mean| mean.max(1))
}

impl Keyed for HttpStore {
    type Key = Listed;

    fn lasting_identity(&self) -> u128 {
        self.site.identity()
    }

    fn list(&self, known: Option<u64>, seen: &AtomicU64) -> UserResult<Option<Listing<Listed>>> {
        let bytes = self.manifest()?;
        let state = hash(&[&bytes]);
        if known == Some(state) {
            return Ok(None);
        }
        let lines = manifest::parse(&bytes)
            .map_err(|fault| self.site.refuse(&fault.to_string()).hint(FORMAT))?;
        self.check_versions(&lines)?;
        if known.is_none() {
            self.look(&lines)?;
        }
        seen.store(lines.len() as u64, Ordering::Relaxed);
        let guess = self.sizes(&lines)?.guess;
        let blobs = lines.iter().map(|line| file(line, self.access)).collect();
        let access = [(PathBuf::new(), Access { mode: 0o555, ..self.access })].into();
        Ok(Some(Listing { blobs, directories: Vec::new(), access, state, guess }))
    }

    fn refuse(&self, fault: &PathFault) -> Error {
        let why = format!("the paths in the manifest are no tree: {}", say_fault(fault));
        self.site.refuse(&why).hint(PATHS)
    }

    fn is_hedged(&self) -> bool {
        true
    }

    fn overloads(&self) -> u64 {
        self.remote.overloads()
    }

    fn failures(&self) -> Option<SourceFailures> {
        self.remote.failures()
    }

    fn tells_sizes(&self) -> bool {
        self.sizes.get().is_none_or(|sizes| sizes.are_told)
    }

    fn find_size(&self, blob: &Blob<Listed>) -> Result<u64, Errno> {
        let (asked, listed) = (Arc::clone(&self.asked), blob.key.clone());
        let found = self.remote.wait(async move { asked.head(&listed, PATIENCE).await });
        let found = found.unwrap_or(Err(Fault::Gone));
        found.map(|found| found.size).map_err(|fault| self.errno(&fault, blob))
    }

    fn is_current(&self, blob: &Blob<Listed>) -> Result<bool, Errno> {
        if self.asked.is_immutable {
            return Ok(true);
        }
        let (asked, listed, size) = (Arc::clone(&self.asked), blob.key.clone(), blob.size);
        let found = self.remote.wait(async move { asked.is_current(&listed, size).await });
        let found = found.unwrap_or(Err(Fault::Gone));
        found.map_err(|fault| self.errno(&fault, blob))
    }

    fn read(&self, blob: &Blob<Listed>, request: ReadRequest) {
        let (asked, wanted) = (Arc::clone(&self.asked), Wanted::of(&blob.key, &request));
        self.remote.read(request.urgency, request.deliver, async move {
            match wanted {
                Some(wanted) => asked.read(&wanted).await,
                // The file may be too large for one answer, so its size has to be asked for first.
                None => Err(ReadError::Changed),
            }
        });
    }

    fn space(&self) -> Result<[u64; 7], Errno> {
        Ok([0, 0, 0, 0, 0, 4096, NAME_BYTES_MAX as u64])
    }
}

#[cfg(test)]
mod tests;
