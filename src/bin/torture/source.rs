//! The source: the files of the plan, and slowpfs over them.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::clock::now;
use crate::ground::Ground;
use crate::mounts::sever;
use crate::plan::{self, Plan, Trouble};
use crate::process;
use crate::shadow::{Body, File, Promise, Shadow};
use crate::target::Target;

/// How long slowpfs may take to answer a command or to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// Writes the files of a plan. Returns their shadow.
pub(crate) fn plant(plan: &Plan, root: &Path, promise: Promise) -> io::Result<Shadow> {
    for digit in 0..plan::DIRECTORIES {
        fs::create_dir_all(root.join(format!("d{digit}")))?;
    }
    let mut files = Vec::new();
    for (number, size) in plan.sizes.iter().enumerate() {
        let body = Body { content: 1, size: *size };
        let file = File::new(number as u16, Plan::name(number as u64), body, now());
        fs::write(root.join(&file.name), file.bytes(body))?;
        files.push(file);
    }
    Ok(Shadow { files, promise })
}

/// A running slowpfs.
#[derive(Debug)]
pub(crate) struct Slow {
    child: Child,
    point: PathBuf,
    socket: PathBuf,
}

impl Slow {
    /// Mounts the files at `slow`.
    pub(crate) fn start(ground: &Ground, options: &[&str]) -> io::Result<Self> {
        let (point, socket) = (ground.path("slow"), ground.path("slow.socket"));
        let mut child = Command::new(&ground.slowpfs)
            .args([&ground.path("source"), &point])
            // Names are not cached: a name cached here would outlive the promise.
            .args(["--ttl", "0", "--control"])
            .arg(&socket)
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if !line.contains("is mounted at") {
            process::end(&mut child, PATIENCE);
            return Err(io::Error::other(format!("slowpfs does not serve: {line}")));
        }
        Ok(Slow { child, point, socket })
    }

    fn tell(&self, line: &str) -> io::Result<()> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        writeln!(stream, "{line}")?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        match answer.trim_end() {
            "ok" => Ok(()),
            other => Err(io::Error::other(format!("slowpfs answers {line:?} with {other:?}"))),
        }
    }

    /// Begins a trouble.
    pub(crate) fn begin(&self, trouble: Trouble, target: Target) -> io::Result<()> {
        let pattern = target.pattern();
        match trouble {
            Trouble::SourceEio => self.tell(&format!("fault eio {pattern}")),
            Trouble::SourceEstale => self.tell(&format!("fault estale {pattern}")),
            Trouble::SourceNamesEio => {
                self.tell(&format!("fault eio {pattern} ops=lookup,getattr"))
            }
            Trouble::SourceHangData => self.tell(&format!("fault hang {pattern}")),
            Trouble::SourceHangNames => {
                self.tell(&format!("fault hang {pattern} ops=lookup,getattr"))
            }
            Trouble::SourceHangLists => self.tell("fault hang * ops=opendir,readdir"),
            Trouble::SourceShort => self.tell(&format!("fault short {pattern}")),
            Trouble::SourceSlow => self.tell("fault slow 30"),
            _ => Ok(()),
        }
    }

    /// Ends all troubles.
    pub(crate) fn clear(&self) -> io::Result<()> {
        self.tell("fault clear")
    }

    /// Kills slowpfs and removes its mount.
    pub(crate) fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        sever(&self.point);
        process::end(&mut self.child, PATIENCE);
        let _ = fs::remove_file(&self.socket);
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.end();
    }
}
