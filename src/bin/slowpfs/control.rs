//! Accepts commands to a running filesystem, over a unix socket.
//!
//! A client connects, sends one line and gets one line back: the data it asked for, `ok`, or a line that
//! begins with `error`. Each connection has its own thread, so a client that sends nothing holds up no other
//! client.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::engine::Engine;
use crate::fault::{Fault, Rule};
use crate::model::Preset;
use crate::stats::Op;

/// How long a client may take to send its line.
const PATIENCE: Duration = Duration::from_secs(600);

/// A listening socket. Its file is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Control {
    /// Listens at `path`. A socket without a listener is replaced.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if UnixStream::connect(path).is_ok() {
                    return Err(error);
                }
                fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            other => other?,
        };
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Answers clients, each in its own thread.
    pub(crate) fn serve(&self, engine: Arc<Engine>) -> io::Result<()> {
        let listener = self.listener.try_clone()?;
        let accept = move || {
            for stream in listener.incoming().flatten() {
                let engine = engine.clone();
                // If no thread can be started, the client sees its connection close.
                let _ = thread::Builder::new().name("control".into()).spawn(move || {
                    // A client that has gone away needs no answer.
                    let _ = converse(&engine, &stream);
                });
            }
        };
        thread::Builder::new().name("control".into()).spawn(accept).map(drop)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn converse(engine: &Engine, mut stream: &UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(64 << 10)).read_line(&mut line)?;
    let answer = match command(engine, &line) {
        Ok(answer) => answer,
        Err(error) => format!("error: {error}\n"),
    };
    stream.write_all(answer.as_bytes())
}

/// Sends one command to the filesystem that listens at `socket`, and returns its answer.
pub(crate) fn ask(socket: &Path, line: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(line.as_bytes())?;
    stream.write_all(b"\n")?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Executes a line.
fn command(engine: &Engine, line: &str) -> Result<String, String> {
    let (verb, rest) = split(line);
    match (verb, rest) {
        ("stats", "") => return Ok(engine.stats.json()),
        ("reset", "") => engine.stats.reset(),
        ("preset", name) => {
            let preset = Preset::named(name).ok_or(format!("there is no preset {name:?}"))?;
            engine.with_model(|model| model.set_params(preset.params()));
        }
        ("fault", rest) => fault(engine, rest)?,
        _ => return Err(format!("unknown command {:?}", line.trim())),
    }
    Ok("ok\n".to_owned())
}

/// Applies `eio|estale|hang|short|shrunk PATTERN [ops=OP,OP...]`, `slow FACTOR` or `clear`.
fn fault(engine: &Engine, rest: &str) -> Result<(), String> {
    match split(rest) {
        ("clear", "") => {
            engine.with_model(|model| model.set_slowdown(1.0));
            engine.replies.release_hung(engine.faults.clear());
        }
        ("slow", factor) => match factor.parse::<f64>() {
            Ok(factor) if factor > 0.0 && factor <= 1e6 => {
                engine.with_model(|model| model.set_slowdown(factor));
            }
            _ => return Err(format!("{factor:?} is not a factor")),
        },
        (kind, rest) => {
            let fault = Fault::named(kind).ok_or(format!("unknown fault {kind:?}"))?;
            engine.faults.add(rule(fault, rest)?);
        }
    }
    Ok(())
}

/// Parses `PATTERN [ops=OP,OP...]`. The pattern may contain spaces.
fn rule(fault: Fault, text: &str) -> Result<Rule, String> {
    let (pattern, ops) = match text.rsplit_once("ops=") {
        Some((pattern, names)) if pattern.is_empty() || pattern.ends_with(' ') => {
            let op = |name| Op::named(name).ok_or(format!("unknown operation {name:?}"));
            (pattern.trim(), names.split(',').map(op).collect::<Result<_, _>>()?)
        }
        _ => (text, fault.default_ops().to_vec()),
    };
    if pattern.is_empty() {
        return Err("a pattern is needed".to_owned());
    }
    Ok(Rule { fault, pattern: pattern.as_bytes().to_vec(), ops })
}

/// The first word, and the rest without the space around it.
fn split(line: &str) -> (&str, &str) {
    let line = line.trim();
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    (word, rest.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;

    fn engine() -> Engine {
        Engine::new(Model::new(Preset::Idle.params(), 0), None)
    }

    #[test]
    fn commands_are_understood_or_refused() {
        let engine = engine();
        for good in ["stats", " reset ", "preset wan", "fault eio a b*", "fault slow 2.5"] {
            assert!(command(&engine, good).is_ok(), "{good}");
        }
        for bad in ["", "preset fast", "fault", "fault eio", "fault slow -1", "fault eio * ops=x"] {
            assert!(command(&engine, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn faults_hit_the_named_operations_until_cleared() {
        let engine = engine();
        let hit = |op, path| engine.faults.find(op, Path::new(path)).map(|(fault, _)| fault);
        command(&engine, "fault estale my dir/* ops=lookup,getattr").expect("a good command");
        assert_eq!(hit(Op::Lookup, "my dir/x"), Some(Fault::Estale));
        assert_eq!(hit(Op::Read, "my dir/x"), None);
        command(&engine, "fault clear").expect("a good command");
        assert_eq!(hit(Op::Lookup, "my dir/x"), None);
    }
}
