//! Mounts, serves until told to stop, and unmounts.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use fuser::{Config, MountOption, Session, SessionACL, SessionUnmounter};
use nix::mount::{MntFlags, umount2};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::geteuid;

use crate::cli::MountArgs;
use crate::control::Control;
use crate::engine::Engine;
use crate::fs::{Options, SlowFs, Source};
use crate::model::{Model, Params};
use crate::stats::StatsFile;

/// Why the filesystem stops.
enum End {
    /// A signal asked for it.
    Signal,
    /// It was unmounted from outside, or the session failed.
    Session(io::Result<()>),
}

/// Mounts a filesystem with these parameters, and serves until a signal or an unmount.
pub(crate) fn serve(args: &MountArgs, params: Params) -> Result<(), String> {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    // Before any thread starts, so that all threads inherit the mask and one thread waits for signals.
    signals.thread_block().map_err(|e| format!("cannot block signals: {e}"))?;
    raise_descriptor_limit();
    let mountpoint = check(args)?;
    let engine = Arc::new(new_engine(args, params)?);
    let control = args.control.as_deref().map(|path| {
        let control = Control::bind(path).map_err(|e| cannot("listen at", path, &e))?;
        control.serve(engine.clone()).map_err(|e| cannot("listen at", path, &e))?;
        Ok::<_, String>(control)
    });
    let control = control.transpose()?;
    let mut stats = args.stats.clone().map(StatsFile::new);
    let update = |stats: &mut Option<StatsFile>| {
        let written = stats.as_mut().map_or(Ok(()), |file| file.update(&engine.stats));
        written.and_then(|()| engine.flush_trace())
    };
    update(&mut stats).map_err(|e| format!("cannot write counters or trace: {e}"))?;

    let mut session = session(args, &mountpoint, &engine)?;
    let mut unmounter = session.unmount_callable();
    let ends = start(session, signals, &engine).map_err(|e| format!("no threads: {e}"))?;
    if let Some(kib) = args.ra_kb {
        set_readahead(&mountpoint, kib)
            .map_err(|e| cannot("set the readahead of", &mountpoint, &e))?;
    }
    announce(args).map_err(|e| format!("cannot write to stdout: {e}"))?;

    let end = loop {
        match ends.recv_timeout(Duration::from_millis(100)) {
            Ok(end) => break end,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                // A disk may be full. The counters can still be read from the mount.
                let _ = update(&mut stats);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break End::Signal,
        }
    };
    let result = finish(end, &engine, &mountpoint, &mut unmounter, &ends);
    update(&mut stats).map_err(|e| format!("cannot write counters or trace: {e}"))?;
    drop(control);
    result
}

/// Finds errors early, so that the message can name them. Returns the real path of the mount point.
fn check(args: &MountArgs) -> Result<PathBuf, String> {
    for dir in [&args.source, &args.mountpoint] {
        let metadata = fs::metadata(dir).map_err(|e| cannot("use", dir, &e))?;
        if !metadata.is_dir() {
            return Err(format!("{} is not a directory", dir.display()));
        }
    }
    let device = Path::new("/dev/fuse");
    fs::metadata(device).map_err(|e| format!("{} (is FUSE there?)", cannot("use", device, &e)))?;
    let mountpoint =
        fs::canonicalize(&args.mountpoint).map_err(|e| cannot("resolve", &args.mountpoint, &e))?;
    if device_of_mount(&mountpoint).map_err(|e| format!("cannot list mounts: {e}"))?.is_some() {
        return Err(format!("{} is busy: something is mounted there", mountpoint.display()));
    }
    Ok(mountpoint)
}

fn new_engine(args: &MountArgs, params: Params) -> Result<Engine, String> {
    let model = Model::new(params, args.seed);
    let create = |path: &PathBuf| File::create(path).map_err(|e| cannot("create", path, &e));
    Ok(Engine::new(model, args.trace.as_ref().map(create).transpose()?))
}

fn session(
    args: &MountArgs,
    mountpoint: &Path,
    engine: &Arc<Engine>,
) -> Result<Session<SlowFs>, String> {
    let options = Options {
        ttl: Duration::from_secs_f64(args.ttl),
        client_cache: args.client_cache,
        direct_io: args.direct_io,
        readdirplus: !args.no_readdirplus,
        coarse_times: args.coarse_times,
    };
    let source = Source::open(&args.source).map_err(|e| cannot("open", &args.source, &e.into()))?;
    let filesystem = SlowFs::new(source, engine.clone(), options)
        .map_err(|e| cannot("read", &args.source, &e))?;
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::RO,
        MountOption::FSName("slowpfs".to_owned()),
        MountOption::DefaultPermissions,
    ];
    // Users other than root may do this only if /etc/fuse.conf allows it.
    config.acl = if geteuid().is_root() { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = usize::try_from(args.threads).ok();
    Session::new(filesystem, mountpoint, &config).map_err(|e| cannot("mount at", mountpoint, &e))
}

/// Starts to serve. The channel reports the end of the session, and a signal.
fn start(
    session: Session<SlowFs>,
    signals: SigSet,
    engine: &Arc<Engine>,
) -> io::Result<mpsc::Receiver<End>> {
    let (tell, ends) = mpsc::channel();
    let named = |name: &str| thread::Builder::new().name(name.to_owned());
    let timer = engine.clone();
    named("timer").spawn(move || timer.replies.run(&timer.stats))?;
    let from_session = tell.clone();
    // If the receiver is gone, the end does not matter any more.
    named("session").spawn(move || drop(from_session.send(End::Session(session.run()))))?;
    named("signals").spawn(move || {
        if signals.wait().is_ok() {
            let _ = tell.send(End::Signal);
        }
    })?;
    Ok(ends)
}

/// Ends the operations in flight, and unmounts.
fn finish(
    end: End,
    engine: &Engine,
    mountpoint: &Path,
    unmounter: &mut SessionUnmounter,
    ends: &mpsc::Receiver<End>,
) -> Result<(), String> {
    // Requests that wait in the kernel would keep the mount busy, and their callers would wait for ever.
    engine.replies.stop();
    if let End::Session(result) = end {
        return result.map_err(|e| format!("the session failed: {e}"));
    }
    if unmounter.unmount().is_err() {
        detach(mountpoint).map_err(|e| cannot("unmount", mountpoint, &e))?;
    }
    // Requests that were just accepted get their answers before the session ends.
    for _ in 0..60_000 {
        if engine.stats.in_flight() == 0 {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    // The session ends with the last open file. Processes that keep a file open longer get ENOTCONN.
    match ends.recv_timeout(Duration::from_secs(2)) {
        Ok(End::Session(Err(error))) => Err(format!("the session failed: {error}")),
        _ => Ok(()),
    }
}

/// Unmounts a mount that is in use. New processes do not find it, and processes inside can finish.
fn detach(mountpoint: &Path) -> io::Result<()> {
    match umount2(mountpoint, MntFlags::MNT_DETACH) {
        // Another process has unmounted it meanwhile.
        Ok(()) | Err(nix::errno::Errno::EINVAL) => Ok(()),
        Err(nix::errno::Errno::EPERM) => {
            let status =
                Command::new("fusermount3").arg("-uz").arg("--").arg(mountpoint).status()?;
            if status.success() { Ok(()) } else { Err(io::Error::other("fusermount3 failed")) }
        }
        Err(error) => Err(error.into()),
    }
}

/// Announces that the filesystem is mounted.
fn announce(args: &MountArgs) -> io::Result<()> {
    let (source, mountpoint) = (args.source.display(), args.mountpoint.display());
    let preset = args.preset.name();
    let mut out = io::stdout().lock();
    writeln!(out, "slowpfs: {source} is mounted at {mountpoint} (preset {preset})")?;
    out.flush()
}

/// Sets how far the kernel reads ahead on the mount.
fn set_readahead(mountpoint: &Path, kib: u32) -> io::Result<()> {
    let device = device_of_mount(mountpoint)?.ok_or(io::ErrorKind::NotFound)?;
    fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), kib.to_string())
}

/// The device, as MAJOR:MINOR, of the topmost mount at `path`. The mount is not touched.
fn device_of_mount(path: &Path) -> io::Result<Option<String>> {
    let mounts = fs::read("/proc/self/mountinfo")?;
    let found = mounts.split(|&b| b == b'\n').rev().find_map(|line| {
        let mut fields = line.split(|&b| b == b' ');
        let device = fields.nth(2)?;
        let is_it = unescape(fields.nth(1)?) == path.as_os_str().as_bytes();
        is_it.then(|| String::from_utf8_lossy(device).into_owned())
    });
    Ok(found)
}

/// Unescapes a path of mountinfo: space, tab, newline and backslash are three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..]) => {
                path.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            _ => {
                path.push(*first);
                rest = tail;
            }
        }
    }
    path
}

/// Raises the limit of descriptors: every file that is open on the mount is a descriptor here.
fn raise_descriptor_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // If this fails, fewer files can be open at a time.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// "cannot WHAT PATH: why".
fn cannot(what: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_found_by_their_real_names() {
        assert_eq!(unescape(br"/a\040b\134c"), b"/a b\\c");
        assert!(device_of_mount(Path::new("/proc")).expect("mountinfo").is_some());
        assert_eq!(device_of_mount(Path::new("/no/such")).expect("mountinfo"), None);
    }
}
