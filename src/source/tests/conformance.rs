//! What every source has to do, checked against files in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, mpsc};
use std::time::{Duration, UNIX_EPOCH};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::error::{Error, ErrorKind, Result as UserResult};
use crate::source::keyed::{Keyed, KeyedSource, say_fault};
use crate::source::tree::{Access, Blob, Listing, PathFault, hash};
use crate::source::{Fingerprint, Kind, Pool, ReadError, ReadRequest, Source, Stat, Urgency};
use crate::sync::{Condvar, Mutex};

/// Files by path.
pub(in crate::source) type Files = BTreeMap<PathBuf, Vec<u8>>;

/// Operations of a random check, unless the environment says how many.
const OPERATIONS: usize = 20_000;
const OPERATIONS_VARIABLE: &str = "BELADY_OPERATIONS";

const PATIENCE: Duration = Duration::from_secs(180);

/// Files of many sizes in some directories.
pub(in crate::source) fn some_files() -> Files {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let sizes = [0, 1, 511, 512, 513, 4096, 20_000, 110_000, (1 << 20) + 7];
    let file = |nth: usize| {
        let path = match nth % 4 {
            0 => PathBuf::from(format!("n{:02}/{nth}.jpg", nth % 3)),
            1 => PathBuf::from(format!("deep/er/n{:02}/{nth}.jpg", nth % 5)),
            2 => PathBuf::from(format!("{nth}")),
            _ => PathBuf::from(format!("names/{} ü {nth}", "long".repeat(40))),
        };
        let bytes = (0..sizes[nth % sizes.len()]).map(|_| random.random()).collect();
        (path, bytes)
    };
    (0..60).map(file).collect()
}

/// Reads a range of a version of a file.
pub(in crate::source) fn read_version(
    source: &dyn Source,
    path: &Path,
    fingerprint: Fingerprint,
    offset: u64,
    length: usize,
) -> Result<Vec<u8>, ReadError> {
    answer(source, path, fingerprint, true, (offset, length))
}

/// Reads a file whose attributes have no size.
pub(in crate::source) fn read_unsized(
    source: &dyn Source,
    path: &Path,
    stat: &Stat,
) -> Result<Vec<u8>, ReadError> {
    assert!(!stat.is_sized);
    answer(source, path, stat.fingerprint(), false, (0, stat.size as usize))
}

fn answer(
    source: &dyn Source,
    path: &Path,
    fingerprint: Fingerprint,
    is_sized: bool,
    (offset, length): (u64, usize),
) -> Result<Vec<u8>, ReadError> {
    let (send, answer) = mpsc::channel();
    source.read(vec![ReadRequest {
        path: path.into(),
        fingerprint,
        is_sized,
        exact: true,
        offset,
        length,
        urgency: Urgency::Demand,
        deliver: Box::new(move |read| send.send(read).unwrap()),
    }]);
    answer.recv_timeout(PATIENCE).unwrap()
}

/// The attributes of a file as a listing of its directory has them.
pub(in crate::source) fn listed_stat(source: &dyn Source, path: &Path) -> Stat {
    let name = path.file_name().unwrap().to_owned();
    source.stat_all(path.parent().unwrap(), &[name]).remove(0).unwrap()
}

/// All of a file. Nobody asks for no bytes.
pub(in crate::source) fn read(source: &dyn Source, path: &Path) -> Result<Vec<u8>, ReadError> {
    let stat = source.stat(path).map_err(ReadError::Source)?;
    match stat.size as usize {
        0 => Ok(Vec::new()),
        size => read_version(source, path, stat.fingerprint(), 0, size),
    }
}

pub(in crate::source) fn wait_until(mut condition: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "the condition is never met");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// All directories that the files are in, with the names in each.
fn directories(files: &Files) -> Shown {
    let mut found: Shown = BTreeMap::new();
    for path in files.keys() {
        let mut at = path.as_path();
        while let (Some(above), Some(name)) = (at.parent(), at.file_name()) {
            found.entry(above.into()).or_default().insert(name.to_str().unwrap().into());
            at = above;
        }
    }
    found
}

/// Checks that a source shows exactly these files.
pub(in crate::source) fn check(source: &dyn Source, files: &Files) {
    let shown = directories(files);
    for directory in shown.keys() {
        check_listing(source, &shown, directory);
        assert_eq!(source.stat(directory).unwrap().kind, Kind::Directory);
    }
    let mut inodes = HashMap::new();
    for (path, bytes) in files {
        let stat = source.stat(path).unwrap();
        assert_eq!((stat.kind, stat.size), (Kind::File, bytes.len() as u64), "{}", path.display());
        assert!(inodes.insert(stat.identity, path).is_none(), "{}", path.display());
        assert_eq!(stat, source.stat_anew(path).unwrap());
        assert!(read(source, path).unwrap() == *bytes, "{}", path.display());
        let listed = listed_stat(source, path);
        assert_eq!(listed.is_sized, source.tells_sizes());
        assert_eq!(listed.sized_as(&stat).fingerprint(), stat.fingerprint());
        if !listed.is_sized {
            let read = read_unsized(source, path, &listed);
            assert!(read == Err(ReadError::Changed) || read.unwrap() == *bytes);
        }
    }
    check_errors(source, files);
    check_at_once(source, files);
    check_at_random(source, files);
}

/// Reads all files of each directory at once, and then without the first byte of each.
fn check_at_once(source: &dyn Source, files: &Files) {
    let shown = directories(files);
    for (directory, names) in &shown {
        for from in [0, 1] {
            let paths = names.iter().map(|name| directory.join(name));
            let paths: Vec<PathBuf> =
                paths.filter(|path| files.get(path).is_some_and(|it| it.len() > from)).collect();
            let (requests, answers) = requests_for(source, files, &paths, from);
            source.read(requests);
            expect(&answers, files, &paths, from);
        }
    }
}

/// The number of a request, with its answer.
type Answered = (usize, Result<Vec<u8>, ReadError>);

/// Requests for the bytes of some files from an offset on, and what their answers come to.
fn requests_for(
    source: &dyn Source,
    files: &Files,
    paths: &[PathBuf],
    from: usize,
) -> (Vec<ReadRequest>, mpsc::Receiver<Answered>) {
    let (send, answers) = mpsc::channel();
    let request = |(nth, path): (usize, &PathBuf)| {
        let send = send.clone();
        ReadRequest {
            path: path.as_path().into(),
            fingerprint: source.stat(path).unwrap().fingerprint(),
            is_sized: true,
            exact: true,
            offset: from as u64,
            length: files[path].len() - from,
            urgency: Urgency::Prefetch,
            deliver: Box::new(move |read| send.send((nth, read)).unwrap()),
        }
    };
    (paths.iter().enumerate().map(request).collect(), answers)
}

fn expect(answers: &mpsc::Receiver<Answered>, files: &Files, paths: &[PathBuf], from: usize) {
    for _ in paths {
        let (nth, read) = answers.recv_timeout(PATIENCE).unwrap();
        assert!(read.unwrap() == files[&paths[nth]][from..], "{}", paths[nth].display());
    }
}

/// Checks that reads are begun at once though the store does not answer, and that all of them are answered when it does
/// again. The store answers nothing from `hold` on, until what that returns is dropped.
pub(in crate::source) fn check_slow<H>(
    source: &dyn Source,
    files: &Files,
    hold: impl FnOnce() -> H,
) {
    let paths: Vec<PathBuf> =
        files.iter().filter(|(_, bytes)| !bytes.is_empty()).map(|(path, _)| path.clone()).collect();
    let (requests, answers) = requests_for(source, files, &paths, 0);
    let (send, begun) = mpsc::channel();
    std::thread::scope(|scope| {
        let held = hold();
        scope.spawn(move || {
            source.read(requests);
            send.send(()).unwrap();
        });
        let begun = begun.recv_timeout(PATIENCE);
        let early = answers.recv_timeout(Duration::from_millis(100));
        drop(held);
        begun.expect("who begins to read is held up");
        assert_eq!(early.unwrap_err(), mpsc::RecvTimeoutError::Timeout, "it is not held");
    });
    expect(&answers, files, &paths, 0);
}

/// A process that is stopped, until this is dropped.
pub(in crate::source) struct Stopped(Pid);

impl Stopped {
    pub(in crate::source) fn new(child: &std::process::Child) -> Self {
        let pid = Pid::from_raw(child.id().cast_signed());
        kill(pid, Signal::SIGSTOP).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        wait_until(|| state().contains(") T "));
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill(self.0, Signal::SIGCONT).unwrap();
    }
}

/// Answers wait for it as long as it is closed.
#[derive(Default)]
pub(in crate::source) struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
}

/// Opens the gate when it is dropped.
pub(in crate::source) struct Closed(Arc<Gate>);

impl Gate {
    pub(in crate::source) fn close(self: &Arc<Self>) -> Closed {
        *self.is_closed.lock() = true;
        Closed(Arc::clone(self))
    }

    /// Waits until it is open.
    pub(in crate::source) fn pass(&self) {
        let mut is_closed = self.is_closed.lock();
        while *is_closed {
            is_closed = self.opened.wait(is_closed);
        }
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        *self.0.is_closed.lock() = false;
        self.0.opened.notify_all();
    }
}

fn check_errors(source: &dyn Source, files: &Files) {
    let file = files.keys().next().unwrap();
    for missing in [Path::new("no such name"), &file.with_file_name("no such name")] {
        assert_eq!(source.stat(missing).unwrap_err(), Errno::ENOENT);
    }
    let listed = source.list_in_parts(Path::new("no such name"), &mut |_| ());
    assert_eq!(listed.unwrap_err(), Errno::ENOENT);
    assert!(source.list_in_parts(file, &mut |_| ()).is_err());
    let (path, bytes) = files.iter().find(|(_, bytes)| !bytes.is_empty()).unwrap();
    let mut other = source.stat(path).unwrap();
    other.mtime_ns += 1_000_000_000;
    other.identity.1 ^= 1;
    let read = read_version(source, path, other.fingerprint(), 0, bytes.len());
    assert_eq!(read.unwrap_err(), ReadError::Changed);
}

/// Reads ranges of files, many at once, in any order, and asks for names in between.
fn check_at_random(source: &dyn Source, all: &Files) {
    let shown = directories(all);
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let files: Vec<_> = all.iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
    let stats: Vec<_> = files.iter().map(|(path, _)| source.stat(path).unwrap()).collect();
    let told = std::env::var(OPERATIONS_VARIABLE).ok();
    let mut left = told.map_or(OPERATIONS, |told| told.parse().unwrap());
    while left > 0 {
        let (path, bytes) = files[random.random_range(0..files.len())];
        check_name(source, &shown, (path, bytes));
        let at_once = random.random_range(1..=64).min(left);
        left -= at_once;
        let (send, answers) = mpsc::channel();
        let request = |_| {
            let nth = random.random_range(0..files.len());
            let (path, bytes) = files[nth];
            let offset = random.random_range(0..bytes.len());
            let length = random.random_range(1..=(bytes.len() - offset).min(40_000));
            let send = send.clone();
            ReadRequest {
                path: path.as_path().into(),
                fingerprint: stats[nth].fingerprint(),
                is_sized: true,
                exact: true,
                offset: offset as u64,
                length,
                urgency: if random.random() { Urgency::Demand } else { Urgency::Prefetch },
                deliver: Box::new(move |read| send.send((nth, offset, length, read)).unwrap()),
            }
        };
        source.read((0..at_once).map(request).collect());
        for _ in 0..at_once {
            let (nth, offset, length, read) = answers.recv_timeout(PATIENCE).unwrap();
            assert!(
                read.unwrap() == files[nth].1[offset..offset + length],
                "{nth} {offset} {length}"
            );
        }
    }
}

/// Names by directory.
type Shown = BTreeMap<PathBuf, BTreeSet<String>>;

/// Asks for a file, and lists its directory.
fn check_name(source: &dyn Source, shown: &Shown, (path, bytes): (&Path, &[u8])) {
    let stat = source.stat(path).unwrap();
    assert_eq!((stat.kind, stat.size), (Kind::File, bytes.len() as u64), "{}", path.display());
    check_listing(source, shown, path.parent().unwrap());
}

fn check_listing(source: &dyn Source, shown: &Shown, directory: &Path) {
    assert_eq!(listed(source, directory), shown[directory], "{}", directory.display());
}

/// The names that a source lists in a directory.
fn listed(source: &dyn Source, directory: &Path) -> BTreeSet<String> {
    let mut listed = BTreeSet::new();
    let mut add = |part: &[OsString]| {
        listed.extend(part.iter().map(|name| name.to_str().unwrap().to_owned()));
    };
    source.list_in_parts(directory, &mut add).unwrap();
    listed
}

/// The files of a source, which a test changes while the source is open.
pub(in crate::source) trait Store {
    /// Writes a file. It is the `nth` write.
    fn put(&self, path: &str, bytes: &[u8], nth: u32);

    /// Deletes a file, and directories without files.
    fn delete(&self, path: &str);
}

/// Checks that files that are rewritten, come and go are shown as they are, and that bytes of another version are never
/// given. The store has to be empty.
pub(in crate::source) fn check_changes<S: Source>(store: &impl Store, open: impl FnOnce() -> S) {
    let [x, y, new, only] = ["d/x", "d/y", "d/new", "gap/only"].map(Path::new);
    for (nth, (path, bytes)) in (1..).zip([("d/x", "old"), ("d/y", "other"), ("gap/only", "o")]) {
        store.put(path, bytes.as_bytes(), nth);
    }
    let source = open();
    let version = |path: &Path| source.stat(path).map(|stat| (stat.fingerprint(), stat.size));
    let read_old = |path: &Path, (fingerprint, size): (Fingerprint, u64)| {
        read_version(&source, path, fingerprint, 0, size as usize).unwrap_err()
    };
    let (mut known, other) = (version(x).unwrap(), version(y).unwrap());
    for (nth, bytes) in (4..).zip(["new", "longer", "s"]) {
        store.put("d/x", bytes.as_bytes(), nth);
        assert_eq!(read_old(x, known), ReadError::Changed, "{bytes}");
        wait_until(|| version(x).is_ok_and(|version| version != known));
        assert_eq!(read(&source, x).unwrap(), bytes.as_bytes());
        known = version(x).unwrap();
    }
    assert_eq!((version(y).unwrap(), read(&source, y).unwrap()), (other, b"other".to_vec()));
    store.put("d/new", b"new", 7);
    wait_until(|| version(new).is_ok());
    assert_eq!(read(&source, new).unwrap(), b"new");
    store.delete("d/y");
    let gone = [ReadError::Changed, ReadError::Source(Errno::ENOENT)];
    assert!(gone.contains(&read_old(y, other)));
    wait_until(|| version(y) == Err(Errno::ENOENT));
    // The only file of a directory, which leaves a gap between others.
    store.delete("gap/only");
    wait_until(|| version(only) == Err(Errno::ENOENT));
    wait_until(|| source.stat(Path::new("gap")).is_err_and(|errno| errno == Errno::ENOENT));
    let left = [(x.to_owned(), b"s".to_vec()), (new.to_owned(), b"new".to_vec())];
    let shown = directories(&left.into());
    wait_until(|| shown.keys().all(|directory| listed(&source, directory) == shown[directory]));
    assert_eq!(read(&source, x).unwrap(), b"s");
}

/// Blobs in memory, with the version of each.
pub(super) struct Memory {
    files: Arc<Mutex<Versions>>,
    /// Waited for before each answer to a read.
    gate: Arc<Gate>,
    answers: Pool,
}

impl Memory {
    fn new(files: Arc<Mutex<Versions>>) -> Self {
        Memory { files, gate: Arc::default(), answers: Pool::new("answers", 1, 0) }
    }
}

type Versions = BTreeMap<PathBuf, (Vec<u8>, u64)>;

const ACCESS: Access = Access { mode: 0o444, uid: 0, gid: 0 };

impl Keyed for Memory {
    type Key = PathBuf;

    fn lasting_identity(&self) -> u128 {
        7
    }

    fn list(&self, known: Option<u64>, seen: &AtomicU64) -> UserResult<Option<Listing<PathBuf>>> {
        let files = self.files.lock().clone();
        let version = |(path, (_, version)): (&PathBuf, &(Vec<u8>, u64))| {
            hash(&[path.to_str().unwrap().as_bytes(), &version.to_le_bytes()])
        };
        let state = files.iter().map(version).fold(0, u64::wrapping_add);
        if known == Some(state) {
            return Ok(None);
        }
        seen.store(files.len() as u64, std::sync::atomic::Ordering::Relaxed);
        let blob = |(path, (bytes, version)): (&PathBuf, &(Vec<u8>, u64))| {
            let (size, key) = (bytes.len() as u64, path.clone());
            let (version, access) = (*version, ACCESS);
            let blob = Blob { size: Some(size), mtime_ns: 1, changed_ns: 1, version, access, key };
            (path.clone(), blob)
        };
        let blobs = files.iter().map(blob).collect();
        let access = [(PathBuf::new(), ACCESS)].into();
        Ok(Some(Listing { blobs, directories: Vec::new(), access, state, guess: 0 }))
    }

    fn refuse(&self, fault: &PathFault) -> Error {
        Error::new(ErrorKind::Source, say_fault(fault))
    }

    fn is_current(&self, blob: &Blob<PathBuf>) -> Result<bool, Errno> {
        let files = self.files.lock();
        Ok(files.get(&blob.key).is_some_and(|(_, version)| *version == blob.version))
    }

    fn read(&self, blob: &Blob<PathBuf>, request: ReadRequest) {
        let files = self.files.lock();
        let now = files.get(&blob.key).filter(|(_, version)| *version == blob.version);
        let from = request.offset as usize;
        let bytes = now.map(|(bytes, _)| bytes[from..from + request.length].to_vec());
        let (gate, deliver) = (Arc::clone(&self.gate), request.deliver);
        self.answers.submit(request.urgency, move || {
            gate.pass();
            deliver(bytes.ok_or(ReadError::Changed));
        });
    }

    fn space(&self) -> Result<[u64; 7], Errno> {
        Ok([0; 7])
    }
}

#[test]
fn a_directory_conforms() {
    let directory = tempfile::tempdir().unwrap();
    let files = some_files();
    for (path, bytes) in &files {
        let path = directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    check(&crate::source::PosixSource::open(directory.path(), 8).unwrap(), &files);
}

#[test]
fn blobs_in_memory_conform() {
    let files = some_files();
    let versions = files.iter().map(|(path, bytes)| (path.clone(), (bytes.clone(), 1))).collect();
    let store = Memory::new(Arc::new(Mutex::new(versions)));
    let (seen, gate) = (AtomicU64::new(0), Arc::clone(&store.gate));
    let source = KeyedSource::open(store, &seen).unwrap();
    assert_eq!(seen.into_inner(), files.len() as u64);
    check(&source, &files);
    check_slow(&source, &files, || gate.close());
}

#[test]
fn a_listing_that_fails_is_told() {
    let files = Arc::<Mutex<Versions>>::default();
    let source = KeyedSource::open(Memory::new(Arc::clone(&files)), &AtomicU64::new(0)).unwrap();
    assert_eq!(source.failures(), None);
    files.lock().insert("../x".into(), (Vec::new(), 1));
    wait_until(|| source.stat(Path::new("y")) == Err(Errno::EIO));
    let failures = source.failures().unwrap();
    assert_eq!((failures.count, &*failures.key), (1, "the listing"));
    assert!(failures.reason.contains("leads out of the tree"), "{failures:?}");
}

/// A directory of this machine.
struct Directory(tempfile::TempDir);

impl Store for Directory {
    fn put(&self, path: &str, bytes: &[u8], nth: u32) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = std::fs::File::create(path).unwrap();
        file.write_all(bytes).unwrap();
        // Some kernels give files that are written shortly after each other the same time.
        file.set_modified(UNIX_EPOCH + Duration::from_secs(nth.into())).unwrap();
    }

    fn delete(&self, path: &str) {
        let path = self.0.path().join(path);
        std::fs::remove_file(&path).unwrap();
        // It may have other files.
        let _ = std::fs::remove_dir(path.parent().unwrap());
    }
}

#[test]
fn a_directory_that_changes_conforms() {
    let directory = Directory(tempfile::tempdir().unwrap());
    let open = || crate::source::PosixSource::open(directory.0.path(), 8).unwrap();
    check_changes(&directory, open);
}

impl Store for Arc<Mutex<Versions>> {
    fn put(&self, path: &str, bytes: &[u8], nth: u32) {
        self.lock().insert(path.into(), (bytes.to_vec(), u64::from(nth)));
    }

    fn delete(&self, path: &str) {
        self.lock().remove(Path::new(path)).unwrap();
    }
}

#[test]
fn blobs_in_memory_that_change_conform() {
    let files = Arc::<Mutex<Versions>>::default();
    let open = || KeyedSource::open(Memory::new(Arc::clone(&files)), &AtomicU64::new(0)).unwrap();
    check_changes(&files, open);
}
