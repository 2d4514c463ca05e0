//! `belady top`: what a mount and its loaders do, live.
//!
//! 1. The daemon is asked for its status and for its latest epochs, again and again.
//! 2. A [`View`] tells what happened between two answers.
//! 3. It is drawn on the terminal (`screen`), or printed as a line (`--plain`).

mod screen;
mod view;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use super::report::{self, Report};
use super::terminal::is_on_terminal;
use super::warmup::understood;
use super::{mount_point_of, say};
use crate::control::{self, MountDirectory, Request};
use crate::engine::Status;
use crate::error::{Error, ErrorKind, Result};
use screen::Screen;
use view::View;

/// The pause between two looks for keys while the daemon is asked.
const KEYS_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where it is mounted; may be left out if there is one mount
    mountpoint: Option<PathBuf>,
    /// Seconds from one look to the next one
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// End after so many looks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Print one line for each look; this is the default if the output is no terminal
    #[arg(long)]
    plain: bool,
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "write a number of seconds between 0.1 and 3600".to_owned())
}

/// What a daemon says at one moment.
struct Answer {
    at: Instant,
    status: Status,
    report: Report,
}

impl Answer {
    fn of(mountpoint: &Path) -> Result<Self> {
        let status = understood(control::ask(mountpoint, &Request::Status)?)?;
        Ok(Answer { at: Instant::now(), status, report: report::ask(mountpoint, Some(1))? })
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mountpoint = mount_point_of(args.mountpoint.as_deref())?;
    // An error at the beginning is told before the screen is taken.
    let mut last = Answer::of(&mountpoint)?;
    let mut view = View::since_mount(&last);
    let mut screen = match args.plain || !is_on_terminal() {
        true => None,
        false => Some(Screen::open()?),
    };
    let mut left = args.count;
    loop {
        match &mut screen {
            Some(screen) => screen.draw(&view)?,
            None => say(view.line()),
        }
        left = left.map(|left| left - 1);
        if left == Some(0) {
            return Ok(());
        }
        let due = last.at + Duration::from_secs_f64(args.interval);
        let now = match &mut screen {
            Some(screen) => match next_answer(&mountpoint, due, screen, &view)? {
                Some(now) => now,
                None => return Ok(()),
            },
            None => {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                Answer::of(&mountpoint)
            }
        };
        let now = now.map_err(|error| match has_ended(&mountpoint) {
            true => Error::new(
                ErrorKind::Mount,
                format!("{}: the mount has ended", mountpoint.display()),
            ),
            false => error,
        })?;
        view = View::between(&last, &now);
        last = now;
    }
}

/// Asks the daemon when it is time, on another thread: it may take long, and keys work meanwhile. `None` if the user leaves.
fn next_answer(
    mountpoint: &Path,
    due: Instant,
    screen: &mut Screen,
    view: &View,
) -> Result<Option<Result<Answer>>> {
    if screen.wait(due, view)? {
        return Ok(None);
    }
    let (send, answer) = sync_channel(1);
    let mountpoint = mountpoint.to_path_buf();
    // Nobody takes the answer if the user has left.
    std::thread::spawn(move || drop(send.send(Answer::of(&mountpoint))));
    loop {
        match answer.recv_timeout(KEYS_EVERY) {
            Ok(answer) => return Ok(Some(answer)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new(ErrorKind::Internal, "the question to the daemon failed"));
            }
        }
        if screen.wait(Instant::now(), view)? {
            return Ok(None);
        }
    }
}

fn has_ended(mountpoint: &Path) -> bool {
    !MountDirectory::of(mountpoint).socket().exists()
}
