//! Measures how long operations without belady wait on this machine.
//!
//! Each control repeats a step that belady's operations wait for in the kernel: a processor, a local file, work
//! on every processor, a thread, a program. If a control waits beyond its usual time, that wait is subtracted
//! from the waits of belady's operations at the same time.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::clock::{Nanos, now};

/// How long the file control sleeps. The sleep is a part of what it measures.
const SLEEP: Duration = Duration::from_millis(10);

/// The action of a control. Its errors do not matter.
type Action = fn(&Path);

/// The controls: name, action, and rest between two actions. A program is started seldom, because that takes
/// a processor for milliseconds.
const CONTROLS: [(&str, Action, Duration); 3] = [
    ("baseline file", use_file, Duration::ZERO),
    ("baseline cpus", wait_for_processors, Duration::from_millis(50)),
    ("baseline run", run_program, Duration::from_millis(500)),
];

/// The usual time of an action. Time beyond it counts as waiting.
const USUAL: Nanos = 30_000_000;

/// The waits of all controls.
#[derive(Debug, Default)]
pub(crate) struct Baseline {
    controls: [Control; CONTROLS.len()],
    over: AtomicBool,
}

/// The waits of a control.
#[derive(Debug, Default)]
struct Control {
    past: Mutex<Vec<(Nanos, Nanos)>>,
    /// When the current action began. 0 while the control rests.
    since: AtomicU64,
}

impl Baseline {
    /// Starts to measure, with files in a directory on a local disk.
    pub(crate) fn start(directory: &Path) -> std::io::Result<(Arc<Self>, Vec<JoinHandle<()>>)> {
        let baseline = Arc::new(Baseline::default());
        let mut threads = Vec::new();
        for (nth, (name, action, rest)) in CONTROLS.into_iter().enumerate() {
            let path = directory.join(name.replace(' ', "-"));
            fs::write(&path, [7; 4096])?;
            let baseline = Arc::clone(&baseline);
            let measure = move || {
                while !baseline.over.load(Relaxed) {
                    baseline.controls[nth].measure(|| action(&path));
                    thread::sleep(rest);
                }
            };
            threads.push(thread::Builder::new().name(name.into()).spawn(measure)?);
        }
        Ok((baseline, threads))
    }

    /// Stops measuring.
    pub(crate) fn stop(&self) {
        self.over.store(true, Relaxed);
    }

    /// How long the control that waited longest has waited between the two times.
    pub(crate) fn waited(&self, began: Nanos, ended: Nanos) -> Nanos {
        let waited = self.controls.iter().map(|control| control.waited(began, ended));
        waited.max().unwrap_or(0)
    }
}

impl Control {
    fn measure(&self, action: impl FnOnce()) {
        let began = now();
        self.since.store(began, Relaxed);
        action();
        let ended = now();
        if ended - began > USUAL {
            let wait = (began + USUAL, ended);
            self.past.lock().unwrap_or_else(PoisonError::into_inner).push(wait);
        }
        self.since.store(0, Relaxed);
    }

    fn waited(&self, began: Nanos, ended: Nanos) -> Nanos {
        let overlap = |from: Nanos, until: Nanos| until.min(ended).saturating_sub(from.max(began));
        // An action that ends just now is not counted twice.
        let past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        let late = past.iter().rev().take_while(|wait| wait.1 >= began);
        let waited: Nanos = late.map(|&(from, until)| overlap(from, until)).sum();
        let since = self.since.load(Relaxed);
        let is_counted = past.last().is_some_and(|&(from, _)| from == since + USUAL);
        let is_waiting = since > 0 && !is_counted;
        waited + if is_waiting { overlap(since + USUAL, now()) } else { 0 }
    }
}

/// Sleeps, reads a local file, and makes and removes one.
fn use_file(path: &Path) {
    thread::sleep(SLEEP);
    let _ = fs::read(path);
    let made = path.with_extension("made");
    let _ = File::create(&made).and_then(|mut file| file.write_all(b"x"));
    let _ = fs::remove_file(&made);
}

/// Makes the kernel drop a page that was just written. The kernel cannot do that at once, so it waits for a
/// worker on each processor. Then a thread is started.
fn wait_for_processors(path: &Path) {
    let _ = fs::write(path, [7; 4096]);
    if let Ok(file) = File::open(path) {
        let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }
    let thread = thread::Builder::new().spawn(|| ());
    let _ = thread.map(JoinHandle::join);
}

/// Starts a small program and waits for its end.
fn run_program(_: &Path) {
    let mut program = Command::new("true");
    let _ = program.stdin(Stdio::null()).stdout(Stdio::null()).status();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add_waits(control: &Control, waits: &[(Nanos, Nanos)]) {
        control.past.lock().expect("no panic").extend(waits);
    }

    #[test]
    fn waits_count_as_far_as_they_overlap() {
        let baseline = Baseline::default();
        add_waits(&baseline.controls[0], &[(0, 10), (20, 40), (50, 60)]);
        assert_eq!(baseline.waited(30, 55), 15);
        assert_eq!(baseline.waited(61, 99), 0);
    }

    #[test]
    fn controls_that_wait_at_the_same_time_count_once() {
        let baseline = Baseline::default();
        add_waits(&baseline.controls[0], &[(20, 40)]);
        add_waits(&baseline.controls[1], &[(25, 60)]);
        assert_eq!(baseline.waited(0, 100), 35);
    }

    #[test]
    fn each_control_measures_what_it_does() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        for (name, action, _) in CONTROLS {
            fs::write(&path, b"x").expect("a file");
            let control = Control::default();
            let began = now();
            control.measure(|| {
                action(&path);
                thread::sleep(Duration::from_nanos(2 * USUAL));
            });
            assert!(control.waited(began, now()) >= USUAL, "{name}");
        }
    }

    /// Otherwise every wait would be explained on a slow machine.
    #[test]
    fn the_usual_time_of_an_action_is_no_wait() {
        let (control, began) = (Control::default(), now());
        let mut taken = 0;
        for _ in 0..20 {
            let from = now();
            control.measure(|| thread::sleep(Duration::from_nanos(USUAL + 1_000_000)));
            taken += now() - from;
        }
        assert!(control.waited(began, now()) <= taken - 20 * USUAL);
    }
}
