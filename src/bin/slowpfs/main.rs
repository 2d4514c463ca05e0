//! slowpfs: serves a directory as a busy parallel filesystem would. An explicit model computes the delays.
//!
//! A tool for tests and measurements. A request passes through these parts:
//!
//! 1. [`mount`] mounts the filesystem. Threads of the FUSE session accept requests.
//! 2. [`fs`] decodes a request and finds its path.
//! 3. [`engine`] counts it ([`stats`]), looks for an injected fault ([`fault`]) and asks the [`model`] when
//!    the operation completes.
//! 4. [`fs`] does the real work on the source directory.
//! 5. [`reply_queue`] keeps the answer until its time, so that a few threads are enough for any number of
//!    operations in flight.
//!
//! [`control`] changes the model and the faults at run time.

mod cli;
mod control;
mod engine;
mod fault;
mod fs;
mod model;
mod mount;
mod reply_queue;
mod stats;

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use clap::{CommandFactory, Parser};

use cli::{Cli, Command, ModelArgs};
use model::{Model, Outcome, closed_loop, whole_file};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match (cli.command, cli.mount) {
        (Some(Command::Ctl { socket, words }), _) => ctl(&socket, &words),
        (Some(Command::Model(args)), _) => {
            println!("{}", predict(&args));
            Ok(())
        }
        (None, Some(args)) => mount::serve(&args, cli.overrides.apply(args.preset.params())),
        // The parser lets this through only if its rules contradict each other.
        (None, None) => Err(Cli::command().render_usage().to_string()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("slowpfs: {message}");
            ExitCode::FAILURE
        }
    }
}

/// What the model predicts for a load.
fn predict(args: &ModelArgs) -> serde_json::Value {
    let mut model = Model::new(args.overrides.apply(args.preset.params()), args.seed);
    let readers = usize::try_from(args.readers).unwrap_or(1);
    let Outcome { seconds, rate, mean_ms } =
        closed_loop(&mut model, readers, args.files, &whole_file(args.bytes));
    serde_json::json!({ "seconds": seconds, "files_per_s": rate, "mean_ms": mean_ms })
}

fn ctl(socket: &Path, words: &[String]) -> Result<(), String> {
    let answer = control::ask(socket, &words.join(" "))
        .map_err(|e| format!("cannot reach {}: {e}", socket.display()))?;
    match answer.trim_end().strip_prefix("error: ") {
        Some(error) => Err(error.to_owned()),
        None => {
            print!("{answer}");
            Ok(())
        }
    }
}

/// Locks. Ignores poison: a thread that panics leaves nothing half done that matters to other threads.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for reading, like [`locked`].
fn read_locked<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing, like [`locked`].
fn write_locked<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
