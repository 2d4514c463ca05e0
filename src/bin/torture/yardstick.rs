//! A reader of a local file, which shows how long everybody waits on this machine.
//!
//! What it waits longer than usual is subtracted from what others have waited at that time.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::clock::{Nanos, now};

/// How often it reads.
const EVERY: Duration = Duration::from_millis(10);

/// A wait that is worth to be remembered.
const LONG: Nanos = 30_000_000;

/// The waits of the reader.
#[derive(Debug, Default)]
pub(crate) struct Yardstick {
    waits: Mutex<Vec<(Nanos, Nanos)>>,
    /// When the round that goes on began.
    since: AtomicU64,
    over: AtomicBool,
}

impl Yardstick {
    /// Starts to read in a directory on a local disk.
    pub(crate) fn start(directory: &Path) -> std::io::Result<(Arc<Self>, JoinHandle<()>)> {
        let yardstick = Arc::new(Yardstick::default());
        let (path, reader) = (directory.join("yardstick"), Arc::clone(&yardstick));
        fs::write(&path, [7; 4096])?;
        let thread = thread::Builder::new().name("yardstick".into()).spawn(move || {
            while !reader.over.load(Relaxed) {
                let began = now();
                reader.since.store(began, Relaxed);
                thread::sleep(EVERY);
                // Errors are not what it measures.
                let _ = fs::read(&path);
                let made = path.with_extension("made");
                let _ = fs::File::create(&made).and_then(|mut file| file.write_all(b"x"));
                let _ = fs::remove_file(&made);
                let ended = now();
                if ended - began > LONG {
                    let mut waits = reader.waits.lock().unwrap_or_else(PoisonError::into_inner);
                    waits.push((began, ended));
                }
            }
        })?;
        Ok((yardstick, thread))
    }

    /// It has measured enough.
    pub(crate) fn stop(&self) {
        self.over.store(true, Relaxed);
    }

    /// How much of the time between the two it has waited.
    pub(crate) fn waited(&self, began: Nanos, ended: Nanos) -> Nanos {
        let overlap = |from: Nanos, until: Nanos| until.min(ended).saturating_sub(from.max(began));
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let late = waits.iter().rev().take_while(|wait| wait.1 >= began);
        let past: Nanos = late.map(|&(from, until)| overlap(from, until)).sum();
        let since = self.since.load(Relaxed);
        let present = if since > 0 && now() > since + LONG { overlap(since, now()) } else { 0 };
        past + present
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_count_as_far_as_they_overlap() {
        let yardstick = Yardstick::default();
        yardstick.waits.lock().expect("no panic").extend([(0, 10), (20, 40), (50, 60)]);
        assert_eq!(yardstick.waited(30, 55), 15);
        assert_eq!(yardstick.waited(61, 99), 0);
    }
}
