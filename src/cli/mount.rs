//! `belady mount`: in the background by default.
//!
//! The command starts itself again as the daemon, with stdout as a pipe. The daemon writes lines of JSON to
//! it: the number of names seen, and in the end what is mounted, or the error. The command returns when the
//! mount serves.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

use super::settings::SettingsArgs;
use super::terminal::{Escaping, escaped};
use super::{say, say_json, warn};
use crate::config::{Settings, Size, View, render_show, resolve};
use crate::control::{self, MountDirectory, MountNote, Request, SourceLock};
use crate::disk::unless_it_hangs;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{self, Plan, Ready, absolute, host};
use crate::process::has_ended;
use crate::source::Location;

/// Set in the environment of the daemon that `belady mount` starts: which mount of the command it serves.
const DAEMON: &str = "BELADY_DAEMON";

/// The first mount of a command.
const FIRST: &str = "0";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to serve: a directory, a URL such as s3://BUCKET/DIRECTORY, or with `--as files` one archive
    pub(super) source: PathBuf,
    /// Empty directory to mount at, or SOURCE itself
    pub(super) mountpoint: PathBuf,
    #[command(flatten)]
    pub(super) settings: SettingsArgs,
    /// Stay in the foreground
    #[arg(short, long)]
    pub(super) foreground: bool,
    /// Print what is mounted as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Whether it is mounted by `belady run`
    #[arg(skip)]
    pub(super) of_run: bool,
}

/// What the daemon tells the command that started it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum DaemonMessage {
    Seen(u64),
    Ready(Ready),
    Failed { code: u8, message: String },
}

pub(super) fn run(args: &Args) -> Result<()> {
    if started_as_daemon().is_some() {
        return daemon(args);
    }
    if args.foreground {
        return run_in_foreground(args);
    }
    let started = start(args, FIRST, |_| ())?;
    announce(&started.ready, args.json);
    Ok(())
}

/// Which mount of its command this process is the daemon of, as [`start`] was told; `None` if it is the command.
pub(super) fn started_as_daemon() -> Option<OsString> {
    std::env::var_os(DAEMON)
}

fn run_in_foreground(args: &Args) -> Result<()> {
    let early = plan(args, CacheDisk::Skip)?;
    let lock = Mutex::new(lock_source(&early)?);
    mount::prepare(&early.source, &early.mountpoint)?;
    let plan = plan(args, CacheDisk::Look)?;
    log_to_stderr(&plan.settings);
    serve(&plan, |message| match message {
        DaemonMessage::Ready(ready) => {
            drop(lock.lock().unwrap_or_else(PoisonError::into_inner).take());
            announce(&ready, args.json);
        }
        DaemonMessage::Seen(_) | DaemonMessage::Failed { .. } => {}
    })
}

/// A mount that serves.
pub(super) struct Started {
    pub(super) ready: Ready,
    /// Its daemon; `None` if it shares the one of an earlier mount.
    pub(super) daemon: Option<Child>,
    /// The log of the daemon.
    pub(super) log: PathBuf,
}

/// Mounts in the background, and returns when the mount serves. The daemon is told that it is `which` of its command's
/// mounts. `tie` prepares its process.
pub(super) fn start(args: &Args, which: &str, tie: impl FnOnce(&mut Command)) -> Result<Started> {
    let plan = plan(args, CacheDisk::Skip)?;
    // The lock is kept until the mount serves. Another command that mounts the source waits, and then shares
    // it.
    let lock = lock_source(&plan)?;
    mount::prepare(&plan.source, &plan.mountpoint)?;
    let directory = MountDirectory::of(&plan.mountpoint);
    let log = &plan.settings.log.file;
    let log = if log.as_os_str().is_empty() { directory.log() } else { log.clone() };
    if let Some(ready) = attach(&plan)? {
        return Ok(Started { ready, daemon: None, log });
    }
    directory.create()?;
    let mut command = daemon_command(which, &log, lock.as_ref())?;
    tie(&mut command);
    let (ready, daemon) = await_daemon(&mut command, &plan, &log)?;
    Ok(Started { ready, daemon: Some(daemon), log })
}

/// Who looks at the cache directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CacheDisk {
    /// The process that mounts.
    Look,
    /// Not the command that starts the daemon: if the disk hung, the command could not end.
    Skip,
}

/// Checks everything that can be checked before anything is started.
fn plan(args: &Args, disk: CacheDisk) -> Result<Plan> {
    let (mut config, origins) = args.settings.build()?;
    let rendered = render_show(&config, &origins, true);
    if disk == CacheDisk::Skip {
        config.cache.dir = PathBuf::new();
        config.cache.disk = Size::Auto;
        config.rehearsal.clear();
    }
    let directory = config.cache.dir.clone();
    let cache = (!directory.as_os_str().is_empty()).then_some(directory.as_path());
    let source = Location::parse(&args.source, &config.source)?;
    let mountpoint = absolute(&args.mountpoint);
    let mut host = host::detect(cache, Some((&source, config.source.view)));
    let apart = (!host.cache_hangs)
        .then(|| check_apart_unless_hanging(cache, &source, &mountpoint))
        .flatten();
    host.cache_hangs |= apart.is_none() && cache.is_some();
    let settings = resolve(&config, &host)?;
    if settings.cache.disk.is_some() {
        apart.unwrap_or(Ok(()))?;
    }
    Ok(Plan { source, mountpoint, settings, rendered, of_run: args.of_run })
}

/// Checks that the cache directory is apart from the others; `None` if its disk does not answer.
fn check_apart_unless_hanging(
    cache: Option<&Path>,
    source: &Location,
    mountpoint: &Path,
) -> Option<Result<()>> {
    let (cache, source, mountpoint) = (cache?.to_owned(), source.clone(), mountpoint.to_owned());
    unless_it_hangs(move || mount::check_apart(&cache, &source, &mountpoint)).unwrap_or_else(
        |error| Some(Err(Error::new(ErrorKind::Internal, format!("thread: {error}")))),
    )
}

/// Waits until no other command of this user is mounting the source.
fn lock_source(plan: &Plan) -> Result<Option<SourceLock>> {
    let Some(identity) = plan.source.identity() else { return Ok(None) };
    let waits = || {
        let source = plan.source.name().display();
        warn(format!("belady: {source} is being mounted already; waiting until that is there"));
    };
    SourceLock::acquire(identity, waits)
}

/// If this user has mounted the source already, shows that mount at this mount point too, instead of starting
/// a second daemon.
fn attach(plan: &Plan) -> Result<Option<Ready>> {
    let (found, view) = (plan.source.identity(), plan.settings.source.view);
    let same = |note: &MountNote| {
        let shows = Some(note.identity) == found && note.view == view;
        let is_mount = plan.source.path() == Some(&note.mountpoint);
        shows || view == View::Directory && is_mount
    };
    let stays = |note: &MountNote| !has_ended(note.pid) && (plan.of_run || !note.of_run);
    for note in control::mount_notes()?.into_iter().filter(same).filter(stays) {
        let socket = MountDirectory::of(&note.mountpoint).socket();
        let mountpoint = plan.mountpoint.clone();
        if control::call(&socket, &Request::Status).is_err() {
            continue;
        }
        control::call(&socket, &Request::Attach { mountpoint })?;
        let first = note.mountpoint.display();
        let mut notes = vec![format!("shares the daemon of {first}, whose settings apply")];
        for stream in &plan.settings.streams {
            let (stream, order) = (stream.name.clone(), stream.order.clone());
            let words = control::call(&socket, &Request::SetOrder { stream, order })?;
            notes.push(format!("order: {}", words.as_str().unwrap_or_default()));
        }
        let (source, at) = (note.source.display(), plan.mountpoint.display());
        return Ok(Some(Ready { line: format!("{source} is mounted at {at}"), notes }));
    }
    Ok(None)
}

fn announce(ready: &Ready, json: bool) {
    if json {
        return say_json(ready);
    }
    say(format!("belady {}: {}", env!("CARGO_PKG_VERSION"), ready.line));
    for note in &ready.notes {
        say(format!("  {note}"));
    }
}

fn log_to_stderr(settings: &Settings) {
    let filter = EnvFilter::try_from_env("BELADY_LOG").unwrap_or_else(|_| {
        EnvFilter::try_new(format!(
            "{},fuser=error,object_store=warn,scylla=warn",
            settings.log.level
        ))
        .unwrap_or_default()
    });
    // Colours are escape sequences, too, so there are none.
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Escaping(std::io::stderr()))
        .with_ansi(false)
        // The log may be on a full disk. Its error would be printed there as well, and that panics.
        .log_internal_errors(false);
    // A second subscriber in one process (a test) leaves the first in place.
    let _ = logs.try_init();
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::force_capture();
        tracing::error!(%backtrace, "{panic}");
    }));
}

/// Mounts, and tells the progress until the mount serves. Returns when the mount has ended.
fn serve(plan: &Plan, tell: impl Fn(DaemonMessage) + Send + Sync) -> Result<()> {
    let seen = AtomicU64::new(0);
    let (scanning, over) = mpsc::channel::<()>();
    // After that nothing more is reported, since the command does not listen any more.
    let is_ready = Mutex::new(false);
    std::thread::scope(|scope| {
        let (tell, seen, is_ready) = (&tell, &seen, &is_ready);
        let lock = || is_ready.lock().unwrap_or_else(PoisonError::into_inner);
        scope.spawn(move || {
            let pause = Duration::from_millis(200);
            while over.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                let is_ready = lock();
                if !*is_ready {
                    tell(DaemonMessage::Seen(seen.load(Ordering::Relaxed)));
                }
            }
        });
        mount::run(plan, seen, move |ready| {
            drop(scanning);
            let mut is_ready = lock();
            tell(DaemonMessage::Ready(ready.clone()));
            *is_ready = true;
        })
    })
}

/// Runs as the daemon: without a terminal or a working directory, with stdout as a pipe to the command.
pub(super) fn daemon(args: &Args) -> Result<()> {
    // Fails only if the daemon already leads a session.
    let _ = nix::unistd::setsid();
    let plan = plan(args, CacheDisk::Look).inspect_err(tell_failure)?;
    log_to_stderr(&plan.settings);
    let _ = std::env::set_current_dir("/");
    let tell = |message: DaemonMessage| {
        let serves = matches!(message, DaemonMessage::Ready(_));
        let mut line = serde_json::to_string(&message).unwrap_or_default();
        line.push('\n');
        let mut stdout = std::io::stdout();
        let written = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
        if written.is_err() {
            // The command was ended before the mount served, so the mount is not wanted. The signal takes
            // down what is mounted by now.
            let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM);
        } else if serves && let Ok(nothing) = std::fs::File::open("/dev/null") {
            // Gives the lock to the next command.
            let _ = nix::unistd::dup2_stdin(nothing);
        }
    };
    let outcome = serve(&plan, tell);
    if let Err(error) = &outcome {
        tracing::error!(%error, "ended");
        tell_failure(error);
    }
    outcome
}

fn tell_failure(error: &Error) {
    let (code, message) = (error.kind().exit_code(), error.to_string());
    let line = serde_json::to_string(&DaemonMessage::Failed { code, message }).unwrap_or_default();
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// This command once more, as the daemon of `which` of its mounts.
fn daemon_command(which: &str, log: &Path, lock: Option<&SourceLock>) -> Result<Command> {
    let fails = |error: std::io::Error| unusable(&format!("log {}", log.display()), &error);
    // A log that the settings name may be that of several mounts of one command.
    if which == FIRST {
        std::fs::File::create(log).map_err(fails)?;
    }
    let log_file = std::fs::File::options().create(true).append(true).open(log).map_err(fails)?;
    let program = std::env::current_exe().map_err(|error| unusable("belady itself", &error))?;
    // A killed command may have left a daemon that has not ended yet. It has the lock until it ends.
    let input = lock.map_or_else(|| Ok(Stdio::null()), SourceLock::input);
    let input = input.map_err(|error| unusable("the daemon's input", &error))?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).env(DAEMON, which);
    command.stdin(input).stdout(Stdio::piped()).stderr(log_file);
    Ok(command)
}

fn unusable(what: &str, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Mount, format!("{what}: {error}"))
}

/// Starts the daemon, and shows its progress until its mount serves.
fn await_daemon(command: &mut Command, plan: &Plan, log: &Path) -> Result<(Ready, Child)> {
    let started = command.spawn();
    let mut child = started.map_err(|error| unusable("the daemon cannot be started", &error))?;
    let bar = ProgressBar::new_spinner();
    bar.set_style(
        ProgressStyle::with_template("{spinner} scanning {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_spinner()),
    );
    let lines = child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines());
    for line in lines.map_while(std::result::Result::ok) {
        match serde_json::from_str(&line) {
            Ok(DaemonMessage::Seen(seen)) => {
                let source = escaped(&plan.source.name().display().to_string());
                bar.set_message(format!("{source}: {seen} names"));
                bar.tick();
            }
            Ok(DaemonMessage::Ready(ready)) => {
                bar.finish_and_clear();
                return Ok((ready, child));
            }
            Ok(DaemonMessage::Failed { code, message }) => {
                bar.finish_and_clear();
                return Err(Error::new(ErrorKind::of_exit_code(code), message));
            }
            Err(_) => {}
        }
    }
    bar.finish_and_clear();
    let _ = child.wait();
    Err(Error::new(ErrorKind::Mount, "the daemon ended before the mount served")
        .hint(format!("its log is {}", log.display())))
}
