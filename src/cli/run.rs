//! `belady run`: mounts, runs a command, unmounts, and says how long the command waited for data.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

use super::mount::{self, Started};
use super::report::{self, Report};
use super::settings::SettingsArgs;
use super::{status, warmup, warn};
use crate::config::Period;
use crate::control::{self, MountDirectory, Request, RunDirectory};
use crate::engine::Profile;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::absolute;
use crate::mount::namespace::{self, Entered};
use crate::profiler::Profiler;
use crate::run::{self, Daemon, Mounted, Signals};
use crate::stall::Meters;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A dataset to serve: at its own path, or at AT
    #[arg(required_unless_present = "no_mount", value_name = "SOURCE[=AT]")]
    sources: Vec<OsString>,
    #[command(flatten)]
    settings: SettingsArgs,
    /// Warm up before the command begins, for this time at most, as 10m
    #[arg(long, value_name = "TIME", conflicts_with = "no_mount")]
    stage: Option<Period>,
    /// Write the report into this file, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the report into this file, as a page for a browser
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Mount nothing: only say why the command is slow, and what it would gain
    #[arg(long)]
    no_mount: bool,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// A source, and where it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    source: PathBuf,
    at: PathBuf,
}

impl Wanted {
    /// `SOURCE`, or `SOURCE=AT`. A path that exists is a source, whatever is in its name.
    fn parse(text: &OsStr) -> Result<Self> {
        let bytes = text.as_bytes();
        let cut = bytes.iter().rposition(|byte| *byte == b'=');
        if let Some(cut) = cut.filter(|_| !Path::new(text).exists()) {
            let [source, at] = [&bytes[..cut], &bytes[cut + 1..]].map(OsStr::from_bytes);
            if source.is_empty() || at.is_empty() {
                let message = format!("{}: a source or its place is missing", text.display());
                return Err(Error::new(ErrorKind::Usage, message).hint("write SOURCE=AT"));
            }
            return Ok(Wanted { source: source.into(), at: absolute(Path::new(at)) });
        }
        if text.to_string_lossy().contains("://") {
            let message = format!("{} has no path of its own", text.display());
            let hint = "say where it is to be: SOURCE=AT";
            return Err(Error::new(ErrorKind::Usage, message).hint(hint));
        }
        Ok(Wanted { source: text.into(), at: absolute(Path::new(text)) })
    }

    fn mount(&self, settings: &SettingsArgs) -> mount::Args {
        mount::Args {
            source: self.source.clone(),
            mountpoint: self.at.clone(),
            settings: settings.clone(),
            foreground: false,
            json: false,
            of_run: true,
        }
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let wanted = args.sources.iter().map(|text| Wanted::parse(text)).collect::<Result<Vec<_>>>()?;
    if let Some(which) = mount::started_as_daemon() {
        let number = which.to_str().and_then(|which| which.parse::<usize>().ok());
        let wanted = number.and_then(|number| wanted.get(number));
        let none = || Error::new(ErrorKind::Internal, "a daemon without a mount");
        return mount::daemon(&wanted.ok_or_else(none)?.mount(&args.settings));
    }
    // What cannot be written is told before the command has run for hours.
    for path in args.report.iter().chain(&args.html) {
        std::fs::File::options().append(true).create(true).open(path).map_err(|error| {
            Error::new(ErrorKind::Usage, format!("{}: {error}", path.display()))
                .hint("give a file that can be written")
        })?;
    }
    let code = match args.no_mount {
        true => look_only(args)?,
        false => Run::begin()?.run(args, &wanted)?,
    };
    // The command's own code is that of the run.
    std::process::exit(code)
}

/// Starts the command. If it cannot be started, this says why, and gives the exit code.
fn start(args: &Args, signals: &Signals) -> std::result::Result<Child, i32> {
    run::start(&args.command, signals).map_err(|(code, why)| {
        warn(format!("belady: {why}"));
        code
    })
}

/// Runs the command without a mount, and says what was seen of it. Returns its exit code.
fn look_only(args: &Args) -> Result<i32> {
    run::hear_of_children()?;
    let signals = Signals::hold()?;
    let command = match start(args, &signals) {
        Ok(command) => command,
        Err(code) => return Ok(code),
    };
    let failed = |error: &std::io::Error| {
        warn(format!("belady: the command cannot be looked at: {error}"));
    };
    let profiler = Profiler::start(Meters::default).inspect_err(failed).ok();
    profiler.iter().for_each(|profiler| profiler.follow(command.id()));
    let code = run::supervise(&command, &mut [], &signals, |_| ())?;
    signals.release();
    if let Some(profiler) = profiler {
        let report = Report::of(Profile { seen: profiler.seen(None), ..Profile::default() });
        warn(report::text(&report).trim_end());
        write_reports(args, &[report]);
    }
    Ok(code)
}

/// Writes the reports where they are wanted. The exit code stays that of the command.
fn write_reports(args: &Args, reports: &[Report]) {
    if let Some(path) = &args.report {
        let text = serde_json::to_string(reports).map_err(std::io::Error::other);
        if let Err(error) = text.and_then(|text| std::fs::write(path, text + "\n")) {
            warn(format!("belady: {}: {error}", path.display()));
        }
    }
    if let Some(path) = &args.html
        && let Err(error) = report::write_page(path, reports)
    {
        warn(format!("belady: {error}"));
    }
}

/// A run, and what is to be ended with it.
struct Run {
    mounted: Vec<Mounted>,
    /// Whether a daemon has to be given the right to mount.
    gives_rights: bool,
    /// `None` if its mounts are seen by others.
    directory: Option<RunDirectory>,
}

impl Drop for Run {
    fn drop(&mut self) {
        let shared = self.mounted.iter().filter(|mounted| mounted.is_shared());
        for Mounted { mountpoint, .. } in shared {
            let request = Request::Unmount { mountpoint: mountpoint.clone(), force: true };
            if let Err(error) = control::ask(mountpoint, &request) {
                warn(format!("belady: {}: {error}", mountpoint.display()));
            }
        }
        run::end(&mut self.mounted);
    }
}

impl Run {
    fn begin() -> Result<Self> {
        run::hear_of_children()?;
        let (directory, gives_rights) = match namespace::enter() {
            Ok(entered) => (Some(RunDirectory::create()?), entered == Entered::UsersAndMounts),
            Err(why) => {
                warn(format!("belady: {why}; other processes of yours see the mounts, too"));
                (None, false)
            }
        };
        directory.as_ref().map_or(Ok(()), RunDirectory::cover)?;
        Ok(Run { mounted: Vec::new(), gives_rights, directory })
    }

    /// Returns the exit code of the command.
    fn run(mut self, args: &Args, wanted: &[Wanted]) -> Result<i32> {
        let here = std::env::current_dir();
        for (number, wanted) in wanted.iter().enumerate() {
            self.mount(number, &wanted.mount(&args.settings))?;
        }
        if let Some(Period(deadline)) = args.stage {
            let begun = Instant::now();
            for wanted in wanted {
                warmup::stage(&wanted.at, deadline.saturating_sub(begun.elapsed()))?;
            }
        }
        // The directory may be covered by now.
        let _ = here.and_then(std::env::set_current_dir);
        let signals = Signals::hold()?;
        let command = match start(args, &signals) {
            Ok(command) => command,
            Err(code) => return Ok(code),
        };
        let say = |words: String| warn(format!("belady: {words}"));
        let code = run::supervise(&command, &mut self.mounted, &signals, say)?;
        // A daemon may take long to end. Whoever does not want to wait can end the run.
        signals.release();
        let mut reports = Vec::new();
        for mounted in self.mounted.iter().filter(|mounted| mounted.is_own()) {
            // A daemon that ends now has nothing to tell.
            if let Ok(told) = warmup::ask(&mounted.mountpoint, &Request::Status) {
                warn(status::summary(&told).trim_end());
            }
            if let Ok(mut report) = report::ask(&mounted.mountpoint, None) {
                report.predict(&[]);
                warn(report::text(&report).trim_end());
                reports.push(report);
            }
        }
        write_reports(args, &reports);
        Ok(code)
    }

    fn mount(&mut self, number: usize, args: &mount::Args) -> Result<()> {
        let gives_rights = self.gives_rights;
        let tie = |command: &mut Command| run::tie(command, gives_rights);
        let started = mount::start(args, &number.to_string(), tie);
        // Its log is removed with the run.
        if started.is_err() && self.directory.is_some() {
            let last = run::last_lines(&MountDirectory::of(&args.mountpoint).log());
            if !last.is_empty() {
                warn(format!("belady: {}{last}", args.mountpoint.display()));
            }
        }
        let Started { ready, daemon, log } = started?;
        warn(format!("belady {}: {}", env!("CARGO_PKG_VERSION"), ready.line));
        ready.notes.iter().for_each(|note| warn(format!("  {note}")));
        let daemon = daemon.map_or(Daemon::Shared, Daemon::Own);
        self.mounted.push(Mounted { mountpoint: args.mountpoint.clone(), daemon, log });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_at_its_own_path_unless_another_one_is_given() {
        let parsed = |text: &str| Wanted::parse(OsStr::new(text));
        let wanted = |source: &str, at: &str| Wanted { source: source.into(), at: at.into() };
        assert_eq!(parsed("/data/a"), Ok(wanted("/data/a", "/data/a")));
        assert_eq!(parsed("/data/a=/mnt/b"), Ok(wanted("/data/a", "/mnt/b")));
        assert_eq!(parsed("/data/a=b=/mnt/b"), Ok(wanted("/data/a=b", "/mnt/b")));
        assert_eq!(parsed("s3://bucket/x=/mnt/b"), Ok(wanted("s3://bucket/x", "/mnt/b")));
        for wrong in ["s3://bucket/x", "=/mnt/b", "/data/a="] {
            assert_eq!(parsed(wrong).unwrap_err().kind(), ErrorKind::Usage, "{wrong}");
        }
        let top = tempfile::tempdir().unwrap();
        let named = top.path().join("a=b");
        std::fs::create_dir(&named).unwrap();
        assert_eq!(Wanted::parse(named.as_os_str()).unwrap().at, named);
    }
}
