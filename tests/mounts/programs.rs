//! Processes and readers that do not outlive their test.
//!
//! Goal: a hanging process is ended, and only by its own number. Method: every process that a test starts has
//! a [`Watchdog`], which kills it when its time is up. A reader in a thread is set free by the end of its
//! filesystem.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fixture::{LIMIT, mount_table};

/// How long a process of a test may run.
const LIFE: Duration = Duration::from_secs(600);

/// Kills a process when its time is up, unless it is dropped before.
pub(crate) struct Watchdog(#[expect(dead_code, reason = "its end is the signal")] mpsc::Sender<()>);

impl Watchdog {
    pub(crate) fn over(pid: i32) -> Self {
        let (dropped, waiting) = mpsc::channel();
        thread::spawn(move || {
            if waiting.recv_timeout(LIFE) == Err(mpsc::RecvTimeoutError::Timeout) {
                let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                // A command that waits for the daemon has no limit of its own.
                if name == "belady\n" {
                    eprintln!("{}", does_not_end(pid));
                }
                eprintln!("process {pid} has run for {LIFE:?}: killed");
                signal(pid, Signal::SIGKILL);
            }
        });
        Watchdog(dropped)
    }
}

/// Sends a signal. The process may be gone.
pub(crate) fn signal(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}

/// Whether a process runs. A process that waits to be reaped does not.
pub(crate) fn runs(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

/// Waits for the end of a daemon. If it does not end, the panic describes it.
#[track_caller]
pub(crate) fn wait_for_end(pid: i32) {
    let start = Instant::now();
    while runs(pid) {
        assert!(start.elapsed() < LIMIT, "{}", does_not_end(pid));
        thread::sleep(Duration::from_millis(5));
    }
}

/// Says that a daemon does not end, and why: each thread with its state, its place in the kernel and its
/// signals, and the mounts. The test script recognises these words as a failure that a second try does not
/// mend.
fn does_not_end(pid: i32) -> String {
    format!("THE DAEMON {pid} DOES NOT END\n{}", describe(pid))
}

/// Describes the threads of a process.
fn describe(pid: i32) -> String {
    let mut said = String::new();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for task in tasks {
        let read = |file| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let status = read("status");
        let keys = ["Name:", "State:", "SigPnd:", "ShdPnd:", "SigBlk:", "SigCgt:"];
        let lines = status.lines().filter(|line| keys.iter().any(|key| line.starts_with(key)));
        let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
        said += &format!("{} in {}\n{}", words.join(" "), read("wchan"), read("stack"));
    }
    said + &mount_table()
}

/// A program that reads, such as a loader.
pub(crate) struct Program {
    child: Child,
    stdout: BufReader<ChildStdout>,
    _watchdog: Watchdog,
}

impl Program {
    /// Debian's Python, which has torch, with a script and its arguments.
    pub(crate) fn python(script: &str, args: &[&str]) -> Self {
        let mut command = Command::new("/usr/bin/python3");
        Self::start(command.arg("-c").arg(script).args(args))
    }

    pub(crate) fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let _watchdog = Watchdog::over(child.id() as i32);
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Program { child, stdout, _watchdog }
    }

    /// Writes a line to its input.
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Reads a line of its output.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits until it ends. Returns its exit code; `None` if a signal ended it.
    pub(crate) fn code(mut self) -> Option<i32> {
        drop(self.child.stdin.take());
        self.child.wait().unwrap().code()
    }

    /// Waits until it ends with success. Returns the rest of its output.
    #[track_caller]
    pub(crate) fn finish(mut self) -> String {
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the program ended with {status}: {text}");
        text
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a reader that may hang in a thread, and returns its result. Its filesystem must end.
pub(crate) struct Reader<T>(thread::JoinHandle<T>);

impl<T: Send + 'static> Reader<T> {
    pub(crate) fn start(read: impl FnOnce() -> T + Send + 'static) -> Self {
        Reader(thread::spawn(read))
    }

    pub(crate) fn is_reading(&self) -> bool {
        !self.0.is_finished()
    }

    #[track_caller]
    pub(crate) fn result(self) -> T {
        let start = Instant::now();
        while self.is_reading() {
            assert!(start.elapsed() < LIMIT, "the reader hangs");
            thread::sleep(Duration::from_millis(5));
        }
        self.0.join().unwrap()
    }
}
