//! Runs a command on bytes. The command can change no file, and reaches no network and no other process.
//!
//! 1. [`Sandbox::open`] starts a *runner*: this program again, with a hidden verb ([`VERB`]). So the daemon, which has many
//!    threads and much memory, never forks.
//! 2. The runner enters namespaces of its own (`runner`), and tries out whether a command can be run in them.
//! 3. It receives an input by a socket, and runs the command in a process that is confined further (`confined`). The
//!    input is a file in memory, and so are the output and what the command says.
//! 4. When the command has ended, or its time is over, the runner answers with the output, or with the reason why there is
//!    none. Then it is free for the next input.
//! 5. The runner ends with its socket. The kernel ends what the runner has started.
//!
//! Several inputs at once have a runner each.

mod confined;
mod runner;

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command as Program, Stdio};
use std::time::{Duration, Instant};

pub use runner::serve;

use crate::derive::{Command, Limits};
use crate::sync::Mutex;

/// The hidden verb that runs a runner.
pub const VERB: &str = "run-commands";

/// How much longer than the command its runner may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a runner may take to begin.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// How long a runner waits for an input.
const IDLE_FOR: Duration = Duration::from_secs(10);

/// The memory that a command may have which is only to show whether it can be confined, in bytes.
const TRIAL_BYTES: u64 = 256 << 20;

/// The most bytes of a reason.
const REASON_BYTES: u64 = 4096;

/// The first byte of a runner's answer. After it comes the output, or the reason why there is none: a fault of the command,
/// or one of the machine.
const DONE: u8 = 0;
const FAILED: u8 = 1;
const UNABLE: u8 = 2;

/// A command, and the runners that wait for the next input.
pub struct Sandbox {
    command: Command,
    /// Since when each of them has waited.
    idle: Mutex<Vec<(Instant, Runner)>>,
}

/// A process that runs the command on one input after the other.
struct Runner {
    process: Child,
    socket: UnixStream,
}

/// Why there is no output, in words.
#[derive(Debug)]
pub enum Failure {
    /// The command failed.
    Command(String),
    /// The machine could not run it this time.
    Machine(String),
    /// The runner has ended, or none could be started.
    Ended(String),
    /// The runner does not answer, or wrongly.
    Broken(String),
}

impl Sandbox {
    /// Tries out whether a command can be confined here.
    ///
    /// # Errors
    /// Why it cannot, in words.
    pub fn try_out() -> Result<(), String> {
        let limits = Limits { time: START_PATIENCE, memory: TRIAL_BYTES, output: TRIAL_BYTES };
        let command = Command { line: ":".to_owned(), suffix: String::new(), limits };
        Sandbox::open(&command).map(|_| ())
    }

    /// Makes a place to run the command in, and tries it out.
    ///
    /// # Errors
    /// Why it cannot be confined here, in words.
    pub fn open(command: &Command) -> Result<Self, String> {
        let idle = Mutex::new(vec![(Instant::now(), Runner::start(command)?)]);
        Ok(Sandbox { command: command.clone(), idle })
    }

    /// What the command writes when it reads `input`. Blocks.
    ///
    /// # Errors
    /// Why there is nothing.
    pub fn run(&self, input: &[u8]) -> Result<Vec<u8>, Failure> {
        let idle = self.idle.lock().pop().map(|(_, runner)| runner);
        let was_idle = idle.is_some();
        match self.run_on(idle, input) {
            // Perhaps somebody has ended it since its last input.
            Err(Failure::Ended(_)) if was_idle => self.run_on(None, input),
            other => other,
        }
    }

    fn run_on(&self, idle: Option<Runner>, input: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut runner = match idle {
            Some(runner) => runner,
            None => Runner::start(&self.command).map_err(Failure::Ended)?,
        };
        let answer = runner.run(input, &self.command.limits);
        if matches!(answer, Ok(_) | Err(Failure::Command(_) | Failure::Machine(_))) {
            self.idle.lock().push((Instant::now(), runner));
        }
        answer
    }

    /// Ends the runners that have had nothing to do for a while.
    pub fn end_idle(&self) {
        let is_over = |(since, _): &mut (Instant, Runner)| since.elapsed() > IDLE_FOR;
        let over: Vec<_> = self.idle.lock().extract_if(.., is_over).collect();
        drop(over);
    }
}

impl Runner {
    fn start(command: &Command) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("a process cannot be started: {error}");
        let (socket, theirs) = UnixStream::pair().map_err(failed)?;
        let Limits { time, memory, output } = command.limits;
        let mut program = Program::new("/proc/self/exe");
        program.arg0("belady").arg(VERB).arg("--").arg(&command.line);
        program.args([time.as_millis().to_string(), memory.to_string(), output.to_string()]);
        program.current_dir("/").stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
        let mut runner = Runner { process: program.spawn().map_err(failed)?, socket };
        // If the runner ends, nobody else has the other end of the socket.
        drop(program);
        runner.read_answer(START_PATIENCE, 0).map_err(Failure::reason)?;
        Ok(runner)
    }

    fn run(&mut self, input: &[u8], limits: &Limits) -> Result<Vec<u8>, Failure> {
        self.socket.set_write_timeout(Some(PATIENCE)).map_err(ended)?;
        self.socket.write_all(&(input.len() as u64).to_le_bytes()).map_err(ended)?;
        self.socket.write_all(input).map_err(ended)?;
        self.read_answer(limits.time + PATIENCE, limits.output)
    }

    /// Waits for an answer of at most so many bytes.
    fn read_answer(&mut self, patience: Duration, most: u64) -> Result<Vec<u8>, Failure> {
        self.socket.set_read_timeout(Some(patience)).map_err(ended)?;
        let mut head = [0; 9];
        self.socket.read_exact(&mut head).map_err(ended)?;
        let [kind, length @ ..] = head;
        let length = u64::from_le_bytes(length);
        if length > if kind == DONE { most } else { REASON_BYTES } {
            return Err(Failure::Broken("the command's runner gave a wrong answer".to_owned()));
        }
        let mut bytes = vec![0; length as usize];
        self.socket.read_exact(&mut bytes).map_err(ended)?;
        let reason = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match kind {
            DONE => Ok(bytes),
            FAILED => Err(Failure::Command(reason(&bytes))),
            _ => Err(Failure::Machine(reason(&bytes))),
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Failure {
    /// The reason, for people.
    pub fn reason(self) -> String {
        match self {
            Failure::Command(reason)
            | Failure::Machine(reason)
            | Failure::Ended(reason)
            | Failure::Broken(reason) => reason,
        }
    }
}

fn ended(error: std::io::Error) -> Failure {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            Failure::Broken("the command's runner does not answer".to_owned())
        }
        _ => Failure::Ended(format!("the command's runner has ended: {error}")),
    }
}
