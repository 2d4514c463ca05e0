//! The source: the files of the plan, and slowpfs over them.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::clock::now;
use crate::history::{Body, File, History, Staleness};
use crate::mounts::force_unmount;
use crate::plan::{self, Fault, Plan};
use crate::process::kill_and_wait;
use crate::target::Target;
use crate::workspace::Workspace;

/// How long slowpfs may take to answer a command or to end.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Writes the files of a plan. Returns their history.
pub(crate) fn write_files(plan: &Plan, root: &Path, staleness: Staleness) -> io::Result<History> {
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
    Ok(History { files, staleness })
}

/// A running slowpfs.
#[derive(Debug)]
pub(crate) struct Slowpfs {
    child: Child,
    point: PathBuf,
    socket: PathBuf,
}

impl Slowpfs {
    /// Mounts the files at `slow`.
    pub(crate) fn start(workspace: &Workspace, options: &[&str]) -> io::Result<Self> {
        let (point, socket) = (workspace.path("slow"), workspace.path("slow.socket"));
        let mut child = Command::new(&workspace.slowpfs)
            .args([&workspace.path("source"), &point])
            // Names are not cached: a name cached here would be served longer than the mount's settings permit.
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
            kill_and_wait(&mut child, TIMEOUT);
            return Err(io::Error::other(format!("slowpfs does not serve: {line}")));
        }
        Ok(Slowpfs { child, point, socket })
    }

    fn send(&self, line: &str) -> io::Result<()> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        writeln!(stream, "{line}")?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        match answer.trim_end() {
            "ok" => Ok(()),
            other => Err(io::Error::other(format!("slowpfs answers {line:?} with {other:?}"))),
        }
    }

    /// Begins a fault.
    pub(crate) fn begin(&self, fault: Fault, target: Target) -> io::Result<()> {
        let pattern = target.pattern();
        match fault {
            Fault::SourceEio => self.send(&format!("fault eio {pattern}")),
            Fault::SourceEstale => self.send(&format!("fault estale {pattern}")),
            Fault::SourceNamesEio => self.send(&format!("fault eio {pattern} ops=lookup,getattr")),
            Fault::SourceHangData => self.send(&format!("fault hang {pattern}")),
            Fault::SourceHangNames => {
                self.send(&format!("fault hang {pattern} ops=lookup,getattr"))
            }
            Fault::SourceHangLists => self.send("fault hang * ops=opendir,readdir"),
            Fault::SourceShort => self.send(&format!("fault short {pattern}")),
            Fault::SourceSlow => self.send("fault slow 30"),
            _ => Ok(()),
        }
    }

    /// Ends all faults.
    pub(crate) fn clear(&self) -> io::Result<()> {
        self.send("fault clear")
    }

    /// Kills slowpfs and removes its mount.
    pub(crate) fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        force_unmount(&self.point);
        kill_and_wait(&mut self.child, TIMEOUT);
        let _ = fs::remove_file(&self.socket);
    }
}

impl Drop for Slowpfs {
    fn drop(&mut self) {
        self.end();
    }
}
