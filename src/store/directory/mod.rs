//! Where stores are: the cache directory, which many sources and daemons may use.
//!
//! ```text
//! CACHE_DIR/belady-store-v3/          the version of the format; ours alone, mode 0700
//!     CACHEDIR.TAG                    keeps backups out
//!     3f09c2.../                      one store, named after the identity of its source
//!         owner                       whose it is; locked while a daemon uses it
//!         index-00000001 segment-... file-...  the store
//!         catalog                     what the last mount knew of the source's names
//!         journal                     what was learnt of the orders in which loaders read
//! CACHE_DIR/belady-rehearsal-v1/3f09c2.../   the buffers of a source, a directory each: no cache,
//!                                     their content may be nowhere else
//!         NAME/latent                 the codes beside a buffer
//! CACHE_DIR/belady-trash-.../         what is being deleted
//! ```
//!
//! belady touches nothing else, nor directories with such names that belong to other users.

mod disks;
mod list;
#[cfg(test)]
mod tests;
mod trash;

use std::fs::{self, DirBuilder, File};
use std::hash::Hasher;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat};
use nix::libc;
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::disk::{AtomicFile, hold};
use crate::error::{Error, ErrorKind, Result};
use crate::process::{has_ended, is_ending};
pub use disks::note_disk;
pub use list::{StoreInfo, disk_bytes, stores};
pub use trash::{discard, reclaim};
use trash::{discard_older, empty_trash};

/// Version of the format, including the index and the segments.
const VERSION: u32 = 3;

const STORES: &str = "belady-store-v";
/// Buffers stay when stores of older formats are deleted.
const BUFFERS: &str = "belady-rehearsal-v1";
const LATENT: &str = "latent";
const OWNER: &str = "owner";
const CATALOG: &str = "catalog";
const JOURNAL: &str = "journal";
const TAG_NAME: &str = "CACHEDIR.TAG";
const TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
    # Samples of slow filesystems, cached by belady. `belady cache rm` deletes them.\n";

/// How long a store in use is waited for: its daemon may be about to end, or a command may be checking
/// whether it is in use.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// The same for a mount: another daemon may just have lost its mount point.
const MOUNT_PATIENCE: Duration = Duration::from_secs(5);
/// The same while its daemon is ending: it stores what is left, or it was killed and still waits for the
/// disk.
const END_PATIENCE: Duration = Duration::from_secs(60);
const LOCK_RETRY: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    #[serde(with = "crate::paths")]
    pub source: PathBuf,
    /// Tells the source from other ones that are at the same path at other times.
    pub identity: String,
    /// The last process that used the store.
    #[serde(default)]
    pub pid: u32,
}

impl Owner {
    /// The owner of the store for a source at this path.
    pub fn new(source: &Path, identity: u128) -> Self {
        let identity = format!("{identity:x}");
        Owner { source: source.to_path_buf(), identity, pid: 0 }
    }

    fn name(&self) -> String {
        let mut hasher = SipHasher24::new();
        hasher.write(self.source.as_os_str().as_bytes());
        hasher.write(&[0]);
        hasher.write(self.identity.as_bytes());
        format!("{:016x}", hasher.finish128().h1)
    }
}

/// The directory of a store, in use by this process while this value lives.
pub struct StoreDir {
    path: PathBuf,
    directory: Arc<OwnedFd>,
    owner_file: Flock<File>,
    lock: Option<DirLock>,
}

/// Shows other processes that a store is in use, and that this use is not about to end. It is a lock of the
/// directory itself, which holds even if the owner file is deleted.
pub struct DirLock(Flock<OwnedFd>);

impl DirLock {
    /// Makes other processes wait for the end of this use, which is near.
    pub fn announce_end(&self) {
        // If that fails, the lock is gone, but the owner file is still locked.
        let _ = self.0.relock(FlockArg::LockSharedNonblock);
    }
}

impl StoreDir {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn catalog(&self) -> AtomicFile {
        AtomicFile::new(&self.directory, CATALOG)
    }

    /// The file for what was learnt of the orders in which loaders read.
    pub fn journal(&self) -> AtomicFile {
        AtomicFile::new(&self.directory, JOURNAL)
    }

    /// Takes out the lock of the directory. It must be dropped after this value.
    pub fn take_lock(&mut self) -> Option<DirLock> {
        self.lock.take()
    }

    /// Notes that the store is in use now, as the modification time of the owner file.
    pub fn note_use(&self) {
        // If that fails, the store looks unused. It is not deleted while it is in use.
        let _ = self.owner_file.set_modified(SystemTime::now());
    }
}

fn refuse(directory: &Path, what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Cache, format!("cache.dir {}: {what}", directory.display()))
}

/// The error of a cache directory: [`ErrorKind::Disk`] if the disk itself fails or has no room.
pub fn cannot(cache: &Path, error: &std::io::Error) -> Error {
    let fails = matches!(
        error.raw_os_error(),
        Some(
            libc::EIO
                | libc::ENXIO
                | libc::ENODEV
                | libc::EREMOTEIO
                | libc::ETIMEDOUT
                | libc::EUCLEAN
                | libc::EBADMSG
                | libc::ESTALE
                | libc::EHOSTDOWN
                | libc::ESHUTDOWN
                | libc::ENOSPC
                | libc::EDQUOT
                | libc::EFBIG
        )
    );
    // The kernel makes a failing disk read-only. If nothing was ever stored there, it is rather the wrong
    // disk.
    let fails = fails || error.raw_os_error() == Some(libc::EROFS) && has_stores(cache);
    let kind = if fails { ErrorKind::Disk } else { ErrorKind::Cache };
    Error::new(kind, format!("cache.dir {}: {error}", cache.display())).hint(advice(error))
}

/// What to do about an error of the disk that holds a cache directory.
pub fn advice(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOENT) => {
            "is it what --cache-dir of the mount was, and the disk mounted that it is on?"
        }
        Some(libc::ENOTDIR | libc::ELOOP) => "a cache directory is a directory, and no link to one",
        Some(libc::EACCES | libc::EPERM) => "only its owner can use it: be that user, or root",
        Some(libc::EROFS) => "the disk is read-only: mount it writable, or give another directory",
        Some(libc::ENOSPC | libc::EDQUOT) => {
            "make room on the disk or in the quota, or give another directory"
        }
        Some(libc::EFBIG) => "raise the limit on the size of files, `ulimit -f`",
        _ => "`dmesg` says more where the disk fails; a directory on another one does without it",
    }
}

/// Whether a cache directory has had stores.
fn has_stores(cache: &Path) -> bool {
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().as_bytes().starts_with(STORES.as_bytes()))
}

/// Makes a directory and its name durable. An existing directory stays as it is.
fn make(directory: &Path) -> std::io::Result<()> {
    let try_make = || DirBuilder::new().mode(0o700).create(directory);
    let (mut made, parent) = (try_make(), directory.parent());
    if let (Err(error), Some(parent)) = (&made, parent)
        && error.kind() == std::io::ErrorKind::NotFound
    {
        make(parent)?;
        made = try_make();
    }
    match made {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Ok(()),
        made => made?,
    }
    parent.map_or(Ok(()), sync_names)
}

/// Makes the names in a directory durable, if its filesystem can.
fn sync_names(directory: &Path) -> std::io::Result<()> {
    // If we may not open it, its owner is responsible.
    let Ok(opened) = File::open(directory) else { return Ok(()) };
    opened.sync_all().or_else(|error| match error.raw_os_error() {
        Some(libc::EINVAL | libc::EOPNOTSUPP) => Ok(()),
        _ => Err(error),
    })
}

/// Makes a directory, or checks that an existing one is ours.
fn make_own(cache: &Path, directory: &Path) -> Result<()> {
    loop {
        make(directory).map_err(|error| match cannot(cache, &error) {
            failing if failing.kind() == ErrorKind::Disk => failing,
            _ => refuse(cache, format!("cannot be written: {error}"))
                .hint("give a writable local directory"),
        })?;
        // The directory was deleted meanwhile, so it is made again.
        if let Some(found) = if_there(cache, fs::symlink_metadata(directory))? {
            return check_own(cache, &found);
        }
    }
}

/// None if there is no such file: another process may delete a store at any moment.
fn if_there<T>(cache: &Path, found: std::io::Result<T>) -> Result<Option<T>> {
    match found {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some).map_err(|error| cannot(cache, &error)),
    }
}

fn check_own(cache: &Path, found: &fs::Metadata) -> Result<()> {
    if found.is_symlink() {
        return Err(refuse(cache, "is not a directory but a link")
            .hint("give the directory itself, so that nobody can point it elsewhere"));
    }
    if !found.is_dir() {
        return Err(refuse(cache, "is not a directory but a file").hint("give a directory"));
    }
    let me = nix::unistd::geteuid().as_raw();
    if found.uid() != me {
        let message = format!("belongs to user {}, not to you (user {me})", found.uid());
        return Err(refuse(cache, message).hint("use a cache directory of your own"));
    }
    Ok(())
}

/// Whether an existing directory can be a cache directory. Writes nothing.
///
/// # Errors
/// If it is no directory, or belongs to another user.
pub fn check(cache: &Path) -> Result<()> {
    let found = fs::symlink_metadata(cache).map_err(|error| cannot(cache, &error))?;
    check_own(cache, &found)
}

/// Takes the directory of a source's store into use, and makes it if it is missing.
///
/// # Errors
/// If the cache directory cannot be used, and [`ErrorKind::Busy`] if the store is in use.
pub fn claim(cache: &Path, owner: &Owner) -> Result<StoreDir> {
    make_own(cache, cache)?;
    let stores = cache.join(format!("{STORES}{VERSION}"));
    make_own(cache, &stores)?;
    let path = stores.join(owner.name());
    match tag(&stores) {
        // On a full disk, stored samples can still be read.
        Err(error) if path.join(OWNER).exists() => tracing::warn!(%error, "{TAG_NAME} is missing"),
        tagged => tagged.map_err(|error| cannot(cache, &error))?,
    }
    discard_older(cache);
    empty_trash(cache);
    loop {
        make_own(cache, &path)?;
        if let Some(store_dir) = lock(cache, &path, MOUNT_PATIENCE)? {
            return write_owner(store_dir, owner).map_err(|error| cannot(cache, &error));
        }
        // It was deleted before it was locked, so another one is made.
    }
}

/// Makes sure that the tag of our stores is whole: a full disk may have cut it short.
fn tag(stores: &Path) -> std::io::Result<()> {
    let path = stores.join(TAG_NAME);
    if fs::read(&path).is_ok_and(|found| found == TAG.as_bytes()) {
        return Ok(());
    }
    fs::write(&path, TAG)
}

/// The directory of one of a source's rehearsal buffers, made if it is missing. A process that has the source's
/// store in use also has its buffers in use.
///
/// # Errors
/// If the cache directory cannot be used.
pub fn buffer(cache: &Path, owner: &Owner, name: &str) -> Result<PathBuf> {
    let mut path = cache.to_path_buf();
    for part in [BUFFERS, &owner.name(), name] {
        path.push(part);
        make_own(cache, &path)?;
    }
    Ok(path)
}

/// The directory of the codes beside a buffer, made if it is missing.
///
/// # Errors
/// If the cache directory cannot be used.
pub fn latent(cache: &Path, owner: &Owner, name: &str) -> Result<PathBuf> {
    let path = buffer(cache, owner, name)?.join(LATENT);
    make_own(cache, &path)?;
    Ok(path)
}

/// Takes an existing store into use.
///
/// # Errors
/// [`ErrorKind::Busy`] if another process uses it.
pub fn claim_existing(cache: &Path, found: &StoreInfo) -> Result<StoreDir> {
    let gone = || refuse(cache, format!("the store {} has just been removed", found.name));
    lock(cache, &found.path, LOCK_PATIENCE)?.ok_or_else(gone)
}

/// Locks a store's directory, and waits for `patience` if it is in use. None if the directory is gone or
/// was replaced.
fn lock(cache: &Path, path: &Path, patience: Duration) -> Result<Option<StoreDir>> {
    let mut waited = Duration::ZERO;
    let Some(directory) = if_there(cache, hold(path))? else { return Ok(None) };
    let file = loop {
        let Some(opened) = if_there(cache, open_owner(&directory))? else { return Ok(None) };
        match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
            Ok(file) => break file,
            Err((file, Errno::EWOULDBLOCK)) => {
                let pid = read_owner(file).map(|owner| owner.pid);
                let ends = pid.is_some_and(is_ending) || is_about_to_end(&directory);
                if waited < if ends { END_PATIENCE } else { patience } {
                    std::thread::sleep(LOCK_RETRY);
                    waited += LOCK_RETRY;
                    continue;
                }
                return Err(match pid {
                    Some(pid) if is_ending(pid) => held_by_killed(path, pid),
                    Some(pid) if has_ended(pid) => busy(path, " by a process of another container"),
                    Some(pid) => busy(path, &format!(" by process {pid}")),
                    None => busy(path, ""),
                });
            }
            Err((_, errno)) => {
                return Err(refuse(cache, format!("cannot be locked: {}", errno.desc()))
                    .hint("give a local directory"));
            }
        }
    };
    let same = |found: &fs::Metadata, locked: &fs::Metadata| {
        (found.dev(), found.ino()) == (locked.dev(), locked.ino())
    };
    let (found, locked) = (fs::metadata(path.join(OWNER)), file.metadata());
    if !matches!((&found, &locked), (Ok(found), Ok(locked)) if same(found, locked)) {
        return Ok(None);
    }
    let lock = match lock_exclusively(&directory, patience) {
        // The owner file is new: the one that the store's user has locked was deleted.
        Err(Errno::EWOULDBLOCK) => return Err(busy(path, "")),
        // If directories cannot be locked, no other process has this lock.
        lock => lock.ok(),
    };
    Ok(Some(StoreDir { path: path.to_path_buf(), lock, directory, owner_file: file }))
}

/// The kernel holds a killed daemon as long as its source does not answer.
fn held_by_killed(path: &Path, pid: u32) -> Error {
    let what = format!(
        "the store {} is in use by what is left of process {pid}: it was killed, and waits in the kernel",
        path.display()
    );
    Error::new(ErrorKind::Busy, what)
        .hint("it lasts until the source answers; until then mount without a --cache-dir, or give another")
}

fn busy(path: &Path, by: &str) -> Error {
    Error::new(ErrorKind::Busy, format!("the store {} is in use{by}", path.display()))
        .hint("use that mount of the source, or give another --cache-dir")
}

/// Locks the directory itself, once no process uses it or checks whether it is in use.
fn lock_exclusively(directory: &OwnedFd, patience: Duration) -> nix::Result<DirLock> {
    let mut waited = Duration::ZERO;
    loop {
        match lock_directory(directory, FlockArg::LockExclusiveNonblock) {
            Err(Errno::EWOULDBLOCK)
                if waited < if is_about_to_end(directory) { END_PATIENCE } else { patience } =>
            {
                std::thread::sleep(LOCK_RETRY);
                waited += LOCK_RETRY;
            }
            locked => return locked.map(DirLock),
        }
    }
}

/// Whether the store's use, if there is one, is about to end: no process holds the exclusive lock.
fn is_about_to_end(directory: &OwnedFd) -> bool {
    lock_directory(directory, FlockArg::LockSharedNonblock).is_ok()
}

fn lock_directory(directory: &OwnedFd, how: FlockArg) -> nix::Result<Flock<OwnedFd>> {
    // Opened again, since a lock belongs to the open file description and not to the directory.
    let again = openat(directory, ".", OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    Flock::lock(again, how).map_err(|(_, errno)| errno)
}

fn open_owner(store: &OwnedFd) -> std::io::Result<File> {
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(openat(store, OWNER, flags, Mode::S_IRUSR | Mode::S_IWUSR)?.into())
}

fn read_owner(mut file: File) -> Option<Owner> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

fn write_owner(mut store_dir: StoreDir, owner: &Owner) -> std::io::Result<StoreDir> {
    let text = serde_json::to_vec(&Owner { pid: std::process::id(), ..owner.clone() })?;
    let file = &mut *store_dir.owner_file;
    let known = file.try_clone().ok().and_then(read_owner).is_some();
    let mut write = || {
        file.rewind()?;
        file.write_all(&text)?;
        file.set_len(text.len() as u64)
    };
    match write() {
        // On a full disk, stored samples can still be read.
        Err(error) if known => tracing::warn!(%error, "who uses the store is not noted"),
        result => result?,
    }
    Ok(store_dir)
}

fn path_of(cache: &Path, owner: &Owner) -> PathBuf {
    cache.join(format!("{STORES}{VERSION}")).join(owner.name())
}

/// Bytes that the store of a source takes on the disk. 0 if there is no store.
pub fn store_bytes(cache: &Path, owner: &Owner) -> u64 {
    disk_bytes(&path_of(cache, owner))
}

/// Bytes that the rehearsal buffers of a source and their codes take on the disk.
pub fn buffer_bytes(cache: &Path, owner: &Owner) -> u64 {
    let entries = fs::read_dir(cache.join(BUFFERS).join(owner.name())).into_iter().flatten();
    let buffers = entries.flatten().map(|entry| entry.path());
    buffers.map(|buffer| disk_bytes(&buffer) + disk_bytes(&buffer.join(LATENT))).sum()
}

/// The path of a source's saved catalog, which may not exist.
pub fn catalog(cache: &Path, owner: &Owner) -> PathBuf {
    path_of(cache, owner).join(CATALOG)
}
