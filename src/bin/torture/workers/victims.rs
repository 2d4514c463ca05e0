//! Kills reading processes. Each must be gone at once, whatever it waits for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::process::kill_and_wait;
use crate::scenario::Scenario;
use crate::target::Subject;

/// Starts readers and kills them, one after the other.
pub(super) fn run(scenario: &Scenario, random: &mut ChaCha8Rng) {
    let Ok(own) = std::env::current_exe() else { return };
    while scenario.wait_while_paused() {
        let point = &scenario.points[random.random_range(0..scenario.points.len())];
        let seed = random.random_range(0..u64::MAX);
        let mut command = Command::new(&own);
        command.arg("victim").arg(point).arg(seed.to_string()).stdin(Stdio::null());
        let Ok(mut child) = command.spawn() else { continue };
        scenario.sleep(Duration::from_millis(random.random_range(50..1000)));
        let subject = Subject::Local("the reader");
        let operation = scenario.watch.begin("end of a killed reader", subject);
        let timeout = Duration::from_millis(200);
        while !kill_and_wait(&mut child, timeout) && !scenario.watch.has_hung() {}
        drop(operation);
    }
}

/// Makes this process end with the thread that started it.
pub(super) fn end_with_parent() {
    // If that fails, the parent's cleanup ends it.
    let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
}

/// Runs a reader that will be killed. It reads files below a directory in random order, and judges nothing.
pub(crate) fn read_for_ever(root: &Path, seed: u64) -> ! {
    end_with_parent();
    let random = &mut ChaCha8Rng::seed_from_u64(seed);
    loop {
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            let inside = fs::read_dir(entry.path()).into_iter().flatten().flatten();
            files.extend(inside.map(|entry| entry.path()));
        }
        for _ in 0..files.len() {
            let _ = fs::read(&files[random.random_range(0..files.len())]);
        }
        thread::sleep(Duration::from_millis(5));
    }
}
