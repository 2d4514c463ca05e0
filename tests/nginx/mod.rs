//! A real nginx, which `scripts/test` installs. It serves the files of a directory.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use tempfile::TempDir;

/// Where it is in the directory of the build.
const PROGRAM: &str = "nginx/usr/sbin/nginx";

/// A time that only a broken server takes to start.
const LIMIT: Duration = Duration::from_secs(60);

/// A server on a port of its own. It ends when it is dropped.
pub(crate) struct Nginx {
    pub(crate) child: Child,
    port: u16,
    /// What it serves.
    top: PathBuf,
    /// Where it writes.
    _scratch: TempDir,
}

impl Nginx {
    /// Serves what is below a directory.
    pub(crate) fn serve(top: &Path) -> Self {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < LIMIT, "nginx does not start");
            // Another program may take the port meanwhile. Then the server ends.
            let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let scratch = TempDir::new().unwrap();
            let settings = settings(top, scratch.path(), free.port());
            fs::write(scratch.path().join("nginx.conf"), settings).unwrap();
            let child = Command::new(program())
                .arg("-e")
                .arg(scratch.path().join("error.log"))
                .arg("-p")
                .arg(scratch.path())
                .arg("-c")
                .arg(scratch.path().join("nginx.conf"))
                .stdout(Stdio::null())
                .spawn()
                .expect("nginx is missing: scripts/test installs it");
            let port = free.port();
            let mut nginx = Nginx { child, port, top: top.to_owned(), _scratch: scratch };
            let mut has_ended = false;
            while !has_ended && TcpStream::connect(free).is_err() {
                assert!(began.elapsed() < LIMIT, "nginx does not answer");
                thread::sleep(Duration::from_millis(10));
                has_ended = nginx.child.try_wait().unwrap().is_some();
            }
            if !has_ended {
                return nginx;
            }
        }
    }

    /// The URL of a file below the directory.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    /// Writes a file below the directory, as if it had last been changed at `time`, in seconds since 1970.
    pub(crate) fn put(&self, path: impl AsRef<Path>, bytes: &[u8], time: u64) {
        let path = self.top.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(time)).unwrap();
    }

    /// The line of a manifest for a file below the directory: its path, its size, and the ETag that nginx gives it.
    pub(crate) fn line(&self, path: impl AsRef<Path>) -> String {
        let found = fs::metadata(self.top.join(&path)).unwrap();
        let (path, size, time) = (path.as_ref().display(), found.len(), found.mtime());
        format!("{path}\t{size}\t{time:x}-{size:x}")
    }
}

/// The directory of the build is that of the tests' programs, `target/debug/deps`, two further up.
fn program() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.ancestors().nth(3).unwrap().join(PROGRAM)
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The settings of a server that is one process, and that writes into a directory of its own only.
fn settings(top: &Path, scratch: &Path, port: u16) -> String {
    let (top, scratch) = (top.display(), scratch.display());
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary: String =
        kinds.iter().map(|kind| format!("{kind}_temp_path {scratch}/{kind};\n")).collect();
    format!(
        "daemon off;\n\
         master_process off;\n\
         pid {scratch}/nginx.pid;\n\
         error_log {scratch}/error.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n\
         {temporary}\
         access_log off;\n\
         keepalive_requests 1000000;\n\
         server {{ listen 127.0.0.1:{port}; root {top}; }}\n\
         }}\n"
    )
}
