//! Ends a run that does not end by itself: after a signal, or when a scenario takes far too long.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::clock::{Nanos, nanos, now};
use crate::diagnose;
use crate::plan::Plan;
use crate::process::pids_of;
use crate::workspace::{Workspace, clear};

/// How long a scenario may take beyond its plan and six times the limit of an operation.
const EXTRA_TIME: Duration = Duration::from_secs(180);

/// How long a scenario may take to end after a signal.
const AFTER_SIGNAL: Duration = Duration::from_secs(20);

/// The exit code after a signal.
const SIGNALLED: i32 = 130;

#[derive(Debug)]
pub(crate) struct Watchdog {
    stop: Arc<AtomicBool>,
    /// When the scenario must be over.
    deadline: Arc<AtomicU64>,
    limit: Nanos,
}

/// Set by a signal.
static SIGNAL: AtomicBool = AtomicBool::new(false);

extern "C" fn note_signal(_: i32) {
    SIGNAL.store(true, Relaxed);
}

/// Lets signals ask for the end. They are not blocked, because programs that are started would inherit that.
fn handle_signals() -> io::Result<()> {
    let handler = SigHandler::Handler(note_signal);
    let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        // SAFETY: the handler does nothing but store a flag.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}

impl Watchdog {
    /// Starts to watch.
    ///
    /// # Errors
    /// If signals cannot be handled or no thread can be started.
    pub(crate) fn start(workspace: &Workspace, limit: Nanos) -> io::Result<Self> {
        handle_signals()?;
        let (stop, deadline) = (Arc::<AtomicBool>::default(), Arc::new(AtomicU64::new(Nanos::MAX)));
        let (root, belady) = (workspace.run_dir().to_owned(), workspace.belady.clone());
        let paths = [root, belady, workspace.slowpfs.clone()];
        let (flag, for_signal) = (Arc::clone(&stop), paths.clone());
        thread::Builder::new().name("signals".into()).spawn(move || {
            while !SIGNAL.load(Relaxed) {
                thread::sleep(Duration::from_millis(50));
            }
            flag.store(true, Relaxed);
            eprintln!("torture: a signal: the scenario ends");
            thread::sleep(AFTER_SIGNAL);
            clear_and_exit(&for_signal, SIGNALLED);
        })?;
        let due = Arc::clone(&deadline);
        thread::Builder::new().name("watchdog".into()).spawn(move || {
            while now() < due.load(Relaxed) {
                thread::sleep(Duration::from_millis(500));
            }
            eprintln!("torture: the scenario does not end: everything is killed");
            let [root, belady, _] = &paths;
            diagnose::print(&pids_of(belady, root), &[], &root.join("scenario"));
            clear_and_exit(&paths, 1);
        })?;
        Ok(Watchdog { stop, deadline, limit })
    }

    /// Sets the deadline of a scenario that begins.
    pub(crate) fn begin(&self, plan: &Plan) {
        let planned = plan.ends_ms() * 1_000_000 + 6 * self.limit + nanos(EXTRA_TIME);
        self.deadline.store(now() + planned, Relaxed);
    }

    /// Removes the deadline.
    pub(crate) fn end(&self) {
        self.deadline.store(Nanos::MAX, Relaxed);
    }

    /// Set when a signal has asked for the end.
    pub(crate) fn stop(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Whether a signal has asked for the end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Relaxed)
    }
}

/// Clears everything away, and exits.
fn clear_and_exit([root, belady, slowpfs]: &[PathBuf; 3], code: i32) -> ! {
    clear(root, belady, slowpfs);
    let _ = std::fs::remove_dir_all(root);
    std::process::exit(code)
}
