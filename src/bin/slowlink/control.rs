//! Commands to a running link, over a unix socket.
//!
//! A client sends commands, one a line, and gets a line for each: the counts it asked for, `ok`, or a line
//! that begins with `error`. Each client has its own thread, so one that is silent holds up no other.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use crate::link::Link;

/// The most bytes of a line.
const LINE_BYTES_MAX: u64 = 4096;

/// Answers the clients that connect at `path`.
pub(crate) fn listen(path: &Path, link: Arc<Link>) -> io::Result<()> {
    let listener = bind(path)?;
    let accept = move || {
        for stream in listener.incoming().flatten() {
            let link = link.clone();
            // If no thread can be started, the client sees its connection close.
            let _ = thread::Builder::new().name("control".into()).spawn(move || {
                // A client that has gone away needs no answer.
                let _ = converse(&link, &stream);
            });
        }
    };
    thread::Builder::new().name("control".into()).spawn(accept).map(drop)
}

/// Makes the socket. One that nobody listens at is of a link that was killed, and is replaced.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if UnixStream::connect(path).is_ok() {
                return Err(error);
            }
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        other => other,
    }
}

/// Answers each line of a client.
fn converse(link: &Link, mut stream: &UnixStream) -> io::Result<()> {
    let mut lines = BufReader::new(stream);
    let mut line = Vec::new();
    while lines.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? > 0 {
        let answer = match command(link, String::from_utf8_lossy(&line).trim()) {
            Ok(answer) => format!("{answer}\n"),
            Err(error) => format!("error: {error}\n"),
        };
        stream.write_all(answer.as_bytes())?;
        line.clear();
    }
    Ok(())
}

/// Executes a command.
fn command(link: &Link, name: &str) -> Result<String, String> {
    match name {
        "stall" => link.stall(),
        "cut" => link.cut(),
        "go" => link.resume(),
        "count" => return Ok(link.count()),
        _ => return Err(format!("unknown command {name:?}")),
    }
    Ok("ok".to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;

    use super::*;
    use crate::link::Shape;

    fn link() -> Arc<Link> {
        let shape = Shape { delay: 0, jitter: 0, rate: None, window: 1, seed: 0 };
        Arc::new(Link::new(shape, Vec::new()))
    }

    #[test]
    fn each_line_is_answered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        listen(&path, link()).unwrap();
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(b"stall\n count \nhurry\n\xff\n\ngo").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answers = String::new();
        client.read_to_string(&mut answers).unwrap();
        let answers: Vec<&str> = answers.lines().collect();
        assert_eq!(answers[..2], ["ok", "connections 0 bytes-down 0 bytes-up 0"]);
        assert!(answers[2..5].iter().all(|answer| answer.starts_with("error: ")), "{answers:?}");
        assert_eq!(answers[5..], ["ok"]);
    }

    #[test]
    fn a_socket_is_replaced_only_if_nobody_listens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        listen(&path, link()).unwrap();
        assert_eq!(listen(&path, link()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
