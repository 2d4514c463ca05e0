//! Looks at everything that a mount would need: what `belady doctor` judges.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, PosixFadviseAdvice, openat2, posix_fadvise};
use nix::ifaddrs::getifaddrs;
use nix::libc;
use nix::net::if_::InterfaceFlags;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statfs::statfs;
use nix::unistd::{AccessFlags, access};

use super::{host, kernel, namespace};
use crate::config::{Budget, Config, View, resolve};
use crate::control;
use crate::doctor::{
    ClusterFindings, DirectoryFindings, Filesystem, Findings, Fusermount, MemoryFindings,
    SourceFindings, StoreFindings, TrialFindings,
};
use crate::error::{Error as UserError, ErrorKind as UserErrorKind, Result as UserResult};
use crate::fuse;
use crate::peers::{self, Program};
use crate::sandbox::Sandbox;
use crate::source::{Kind, Location, Opening, ReadError, ReadRequest, Source, Stat, Urgency};
use crate::store::directory;

/// How many bytes a measurement moves.
pub const MEASURED_BYTES: u64 = 32 << 20;

/// The size of a read or write of a measurement, and its alignment.
const CHUNK: usize = 1 << 20;
const ALIGNMENT: usize = 4096;

/// How many names are looked at to find files.
const NAMES_MAX: usize = 10_000;

/// Names of a source whose attributes are asked for at once.
const NAMES_AT_ONCE: usize = 64;

/// Looks at the machine, at what is shown of the source, at the cache directory, and at what a shard of a `cluster`
/// needs. `moved` is called with the bytes
/// that a measurement moved since the last call. Together they are at most [`MEASURED_BYTES`] for the source, and twice that for the
/// cache directory.
pub fn examine(
    source: Option<UserResult<Location>>,
    view: View,
    cache: Option<&Path>,
    cluster: bool,
    moved: &dyn Fn(u64),
) -> Findings {
    let words = |error: Error| error.to_string();
    // First: the trial mount has threads.
    let namespace = namespace::try_out();
    Findings {
        namespace,
        commands: Sandbox::try_out(),
        root: nix::unistd::geteuid().is_root(),
        device: OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .map(|_| ())
            .map_err(words),
        fusermount: fusermount(),
        user_allow_other: fs::read_to_string("/etc/fuse.conf")
            .is_ok_and(|text| text.lines().any(|line| line.trim() == "user_allow_other")),
        mount: fuse::probe().map_err(|error| error.message().to_owned()),
        openat2: openat2(AT_FDCWD, "/", OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC))
            .map(|_| ())
            .map_err(|errno| errno.desc().to_owned()),
        cachestat: cachestat().map_err(words),
        can_abort: fuse::can_abort(),
        open_files: limit(Resource::RLIMIT_NOFILE),
        processes: limit(Resource::RLIMIT_NPROC),
        halt_poll_ns: halt_poll_ns(),
        reclaim: reclaim(),
        system: kernel::examine(),
        memory: memory(),
        runtime: control::create_runtime()
            .map(|path| path.display().to_string())
            .map_err(|error| error.message().to_owned()),
        source: source.map(|source| examine_source(&source?, view, moved)),
        cache: cache.map(|path| examine_cache(path, moved).map_err(words)),
        cluster: cluster.then(examine_cluster),
    }
}

/// Looks for a server program, and tries two shards out.
fn examine_cluster() -> ClusterFindings {
    let program = Program::find(&std::env::var_os("PATH").unwrap_or_default());
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let trial = program.as_ref().ok().map(|program| {
        let trial = peers::try_out(program, Ipv4Addr::LOCALHOST.into());
        trial.map(|trial| TrialFindings {
            met_ms: milliseconds(trial.met),
            read_us: milliseconds(trial.read) * 1e3,
        })
    });
    let program = program.map(|program| program.to_string());
    ClusterFindings { program, trial, addresses: addresses() }
}

/// The addresses of this machine that others may reach, with their interfaces.
fn addresses() -> Vec<String> {
    let all = getifaddrs().into_iter().flatten();
    let up = all.filter(|found| found.flags.contains(InterfaceFlags::IFF_UP));
    let named = up.filter_map(|found| {
        let address = found.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        let v6 = address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()));
        let ip = v4.or(v6).filter(|ip| !ip.is_loopback())?;
        let is_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        (!is_local).then(|| format!("{ip} ({})", found.interface_name))
    });
    named.collect()
}

fn limit(resource: Resource) -> u64 {
    getrlimit(resource).map_or(u64::MAX, |(soft, _)| soft)
}

/// How long idle processors wait for work, if this virtual machine decides that itself.
fn halt_poll_ns() -> Option<u64> {
    let read = |path| fs::read_to_string(path).ok();
    let driver = read("/sys/devices/system/cpu/cpuidle/current_governor")?;
    let ns = read("/sys/module/haltpoll/parameters/guest_halt_poll_ns")?;
    (driver.trim() == "haltpoll").then(|| ns.trim().parse().ok())?
}

/// If DAMON pages out cold memory, by its module or as an administrator has set it up: the command that ends
/// that.
fn reclaim() -> Option<String> {
    let is = |path: &Path, word| fs::read_to_string(path).is_ok_and(|text| text.trim() == word);
    let module = Path::new("/sys/module/damon_reclaim/parameters/enabled");
    if is(module, "Y") {
        return Some(format!("echo N > {}", module.display()));
    }
    let pages_out = |kdamond: &PathBuf| {
        let schemes = entries(kdamond.join("contexts")).flat_map(|c| entries(c.join("schemes")));
        let mut schemes = schemes.filter(|scheme| is(&scheme.join("action"), "pageout"));
        is(&kdamond.join("state"), "on") && schemes.next().is_some()
    };
    let kdamond = entries("/sys/kernel/mm/damon/admin/kdamonds".into()).find(pages_out)?;
    Some(format!("echo off > {}", kdamond.join("state").display()))
}

fn entries(directory: PathBuf) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn fusermount() -> Option<Fusermount> {
    let path = std::env::var_os("PATH")?;
    let program =
        std::env::split_paths(&path).map(|p| p.join("fusermount3")).find(|p| p.is_file())?;
    let output = Command::new(&program).arg("--version").output().ok()?;
    let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let mode = fs::metadata(&program).ok()?.permissions().mode();
    Some(Fusermount {
        path: program.display().to_string(),
        version: printed.rsplit(' ').next().unwrap_or_default().to_owned(),
        setuid: mode & 0o4000 != 0,
    })
}

/// Calls cachestat(2) on a file of our own.
fn cachestat() -> Result<()> {
    use std::os::fd::AsRawFd;
    /// It is the same on all architectures, and older C libraries do not name it.
    const SYS_CACHESTAT: libc::c_long = 451;
    let file = tempfile::tempfile()?;
    let range = [0u64; 2];
    let mut pages = [0u64; 5];
    // SAFETY: both structures are as long as the kernel's, and live until the call is over.
    let result = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), pages.as_mut_ptr(), 0)
    };
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

fn memory() -> MemoryFindings {
    let host = host::detect(None, None);
    let (limit, available) = (host.memory_limit, host.memory_available);
    match resolve(&Config::default(), &host) {
        Ok(settings) => {
            let ram = &settings.cache;
            let mut budget = Budget::new(ram.ram_configured_bytes, ram.ram_bytes);
            budget.fit(&host::readings(), 0);
            let decided = settings.decisions.into_iter().find(|line| line.starts_with("cache.ram"));
            let because = budget.reduced().map(str::to_owned).or(decided).unwrap_or_default();
            MemoryFindings { limit, available, budget: budget.present(), because }
        }
        Err(error) => {
            MemoryFindings { limit, available, budget: 0, because: error.message().to_owned() }
        }
    }
}

fn filesystem(path: &Path) -> Result<Filesystem> {
    Ok(Filesystem::of_magic(statfs(path)?.filesystem_type().0 as u32))
}

/// Measures the source. It is only read.
fn examine_source(
    location: &Location,
    view: View,
    moved: &dyn Fn(u64),
) -> UserResult<SourceFindings> {
    if let (Some(path), View::Directory) = (location.path(), view) {
        let found = examine_directory(path, moved)
            .map_err(|error| UserError::new(UserErrorKind::Source, error.to_string()))?;
        return Ok(SourceFindings::Directory(found));
    }
    Ok(SourceFindings::Store(examine_store(location, view, moved)?))
}

/// Reads files one after the other.
fn examine_store(
    location: &Location,
    view: View,
    moved: &dyn Fn(u64),
) -> UserResult<StoreFindings> {
    let source = Opening::for_names(view, &AtomicU64::new(0)).open(location)?;
    let failed = |what: String| UserError::new(UserErrorKind::Source, what);
    let (mut bytes, mut answers) = (0, Vec::new());
    for (path, stat) in files_of(&*source).map_err(|errno| failed(errno.desc().to_owned()))? {
        let say = |errno: Errno| failed(format!("{}: {}", path.display(), errno.desc()));
        let mut began = Instant::now();
        let mut read = read_begin(&*source, &path, &stat);
        // The source may have to be asked for the size first.
        if read == Err(ReadError::Changed) && !stat.is_sized {
            let stat = source.stat(&path).map_err(say)?;
            began = Instant::now();
            read = read_begin(&*source, &path, &stat);
        }
        match read {
            Ok(count) => {
                bytes += count as u64;
                answers.push(began.elapsed().as_secs_f64());
                moved(count as u64);
            }
            Err(ReadError::Source(errno)) => return Err(say(errno)),
            // It changes just now.
            Err(ReadError::Changed) => {}
        }
    }
    let seconds: f64 = answers.iter().sum();
    Ok(StoreFindings {
        name: location.name().display().to_string(),
        answer_ms: answers.iter().copied().reduce(f64::min).map(|seconds| seconds * 1e3),
        read: (bytes > 0).then(|| (bytes as f64 / seconds.max(1e-6)) as u64),
        advice: source.advice(),
    })
}

/// Reads the beginning of a file, and waits for it. Returns the number of bytes.
fn read_begin(
    source: &dyn Source,
    path: &Path,
    stat: &Stat,
) -> std::result::Result<usize, ReadError> {
    let (send, answer) = mpsc::channel();
    source.read(vec![ReadRequest {
        path: path.into(),
        fingerprint: stat.fingerprint(),
        is_sized: stat.is_sized,
        exact: true,
        offset: 0,
        length: stat.size.min(CHUNK as u64) as usize,
        urgency: Urgency::Demand,
        // Whoever waits for it waits until it is there.
        deliver: Box::new(move |read| {
            let _ = send.send(read.map(|bytes| bytes.len()));
        }),
    }]);
    // A source that is closed drops the request.
    answer.recv().unwrap_or(Err(ReadError::Source(Errno::EIO)))
}

/// Files of a source, until there are enough bytes or names.
fn files_of(source: &dyn Source) -> std::result::Result<Vec<(PathBuf, Stat)>, Errno> {
    let (mut found, mut bytes, mut names) = (Vec::new(), 0, 0);
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        let mut inside = Vec::new();
        let listed = source.list_in_parts(&directory, &mut |part| inside.extend_from_slice(part));
        if listed == Err(Errno::EPERM) && !directory.as_os_str().is_empty() {
            continue;
        }
        listed?;
        for part in inside.chunks(NAMES_AT_ONCE) {
            for (name, stat) in part.iter().zip(source.stat_all(&directory, part)) {
                let (path, stat) = (directory.join(name), stat?);
                names += 1;
                match stat.kind {
                    Kind::Directory => directories.push(path),
                    _ if stat.size > 0 => {
                        bytes += stat.size.min(CHUNK as u64);
                        found.push((path, stat));
                    }
                    _ => {}
                }
            }
            if bytes >= MEASURED_BYTES || names >= NAMES_MAX {
                return Ok(found);
            }
        }
    }
    Ok(found)
}

/// Measures a directory.
fn examine_directory(path: &Path, moved: &dyn Fn(u64)) -> Result<DirectoryFindings> {
    let (mut measurement, mut refused) = (ReadMeasurement::new(), None);
    for file in files(path)? {
        if measurement.bytes >= MEASURED_BYTES {
            break;
        }
        // A mount would still serve the other files.
        if let Err(error) = measurement.read(&file, moved) {
            refused.get_or_insert_with(|| at(&file, &error));
        }
    }
    if let Some(error) = refused.filter(|_| measurement.bytes == 0) {
        return Err(error);
    }
    Ok(DirectoryFindings {
        filesystem: filesystem(path)?,
        writable: access(path, AccessFlags::W_OK).is_ok(),
        direct: (measurement.bytes > 0).then_some(measurement.direct),
        read: measurement.rate(),
        write: None,
        path: path.display().to_string(),
    })
}

/// Regular files below a directory, until there are enough bytes or names.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut bytes, mut names) = (Vec::new(), 0, 0);
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        let entries = match fs::read_dir(&directory) {
            Err(error) if directory == root => return Err(at(root, &error)),
            entries => entries.into_iter().flatten().flatten(),
        };
        for entry in entries {
            let Ok(stat) = entry.metadata() else { continue };
            names += 1;
            if stat.is_dir() {
                directories.push(entry.path());
            } else if stat.is_file() && stat.len() > 0 {
                bytes += stat.len();
                found.push(entry.path());
            }
            if bytes >= MEASURED_BYTES || names >= NAMES_MAX {
                return Ok(found);
            }
        }
    }
    Ok(found)
}

/// Measures the cache directory, with a file that is deleted afterwards.
fn examine_cache(path: &Path, moved: &dyn Fn(u64)) -> Result<DirectoryFindings> {
    if path.exists() {
        directory::check(path).map_err(|error| Error::other(error.message().to_owned()))?;
    }
    // A mount would make it.
    let existing = path.ancestors().find(|ancestor| ancestor.is_dir()).unwrap_or(Path::new("."));
    let scratch = tempfile::Builder::new().prefix("belady-doctor-").tempfile_in(existing);
    let scratch = scratch.map_err(|error| at(existing, &error))?;
    let write = write_rate(scratch.path(), moved).map_err(|error| at(existing, &error))?;
    let mut measurement = ReadMeasurement::new();
    measurement.read(scratch.path(), moved).map_err(|error| at(existing, &error))?;
    Ok(DirectoryFindings {
        path: path.display().to_string(),
        filesystem: filesystem(existing)?,
        writable: true,
        direct: Some(measurement.direct),
        read: measurement.rate(),
        write: Some(write),
    })
}

fn at(path: &Path, error: &Error) -> Error {
    Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Opens a file past the page cache, if that is possible. Returns whether it is.
fn open_direct(options: &mut OpenOptions, path: &Path) -> Result<(File, bool)> {
    match options.custom_flags(libc::O_DIRECT).open(path) {
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            Ok((options.custom_flags(0).open(path)?, false))
        }
        opened => Ok((opened?, true)),
    }
}

fn forget_pages(file: &File) {
    let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
}

/// A buffer with the alignment for `O_DIRECT`.
struct AlignedBuffer(Vec<u8>);

impl AlignedBuffer {
    fn new() -> Self {
        // Bytes that no filesystem can compress.
        let mix = |at: usize| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        AlignedBuffer((0..CHUNK + ALIGNMENT).map(|at| mix(at) as u8).collect())
    }

    fn get(&mut self) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(ALIGNMENT);
        &mut self.0[start..start + CHUNK]
    }
}

fn rate(bytes: u64, start: Instant) -> u64 {
    (bytes as f64 / start.elapsed().as_secs_f64().max(1e-6)) as u64
}

/// Bytes a second of writing and syncing a file.
fn write_rate(path: &Path, moved: &dyn Fn(u64)) -> Result<u64> {
    let (mut file, _) = open_direct(OpenOptions::new().write(true), path)?;
    let mut buffer = AlignedBuffer::new();
    let start = Instant::now();
    for _ in 0..MEASURED_BYTES / CHUNK as u64 {
        file.write_all(buffer.get())?;
        moved(CHUNK as u64);
    }
    file.sync_data()?;
    let rate = rate(MEASURED_BYTES, start);
    forget_pages(&file);
    Ok(rate)
}

/// One reader, one file after the other.
struct ReadMeasurement {
    buffer: AlignedBuffer,
    bytes: u64,
    direct: bool,
    seconds: f64,
}

impl ReadMeasurement {
    fn new() -> Self {
        ReadMeasurement { buffer: AlignedBuffer::new(), bytes: 0, direct: true, seconds: 0.0 }
    }

    fn read(&mut self, path: &Path, moved: &dyn Fn(u64)) -> Result<()> {
        let start = Instant::now();
        let (mut file, direct) = open_direct(OpenOptions::new().read(true), path)?;
        self.direct &= direct;
        if !direct {
            forget_pages(&file);
        }
        while self.bytes < MEASURED_BYTES {
            let count = file.read(self.buffer.get())?;
            self.bytes += count as u64;
            moved(count as u64);
            // A short read past the page cache is the end of the file.
            if count == 0 || direct && count % ALIGNMENT != 0 {
                break;
            }
        }
        self.seconds += start.elapsed().as_secs_f64();
        if !direct {
            forget_pages(&file);
        }
        Ok(())
    }

    fn rate(&self) -> Option<u64> {
        (self.bytes > 0).then(|| (self.bytes as f64 / self.seconds.max(1e-6)) as u64)
    }
}
