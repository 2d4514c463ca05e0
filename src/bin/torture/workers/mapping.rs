//! Reads files by maps, in separate processes.
//!
//! A thread that waits for a page of a map may keep the memory of its process locked. Then no other thread of
//! that process gets memory. So each reader of maps has its own process.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::libc;
use rand::RngExt;
use rand::rngs::ChaCha8Rng;

use super::reading::judge_map;
use super::victims::end_with_parent;
use crate::history::{End, Pieces};
use crate::map::Map;
use crate::process::kill_and_wait;
use crate::scenario::Scenario;
use crate::target::Subject;

/// A process that reads maps.
struct Mapper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Reads random files by maps.
pub(super) fn run(scenario: &Scenario, random: &mut ChaCha8Rng) {
    let mut mapper = match Mapper::start() {
        Ok(mapper) => mapper,
        Err(error) => return scenario.report_own_error("a process that maps", &error),
    };
    while scenario.wait_while_paused() {
        let file = &scenario.history.files[random.random_range(0..scenario.history.files.len())];
        let path = scenario.at_point(random.random_range(0..scenario.points.len()), &file.name);
        let operation = scenario.watch.begin("map", Subject::File(file.name.clone()));
        let began = operation.began;
        let read = mapper.read(&path);
        drop(operation);
        judge_map(scenario, file, began, read);
        scenario.sleep(Duration::from_millis(random.random_range(0..5)));
    }
}

impl Mapper {
    fn start() -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("mapper").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => {
                Ok(Mapper { child, input, output: BufReader::new(output) })
            }
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn read(&mut self, path: &Path) -> io::Result<Pieces> {
        self.input.write_all(&[path.as_os_str().as_bytes(), b"\n"].concat())?;
        let mut number = || {
            let mut bytes = [0; 4];
            self.output.read_exact(&mut bytes).map(|()| u32::from_le_bytes(bytes))
        };
        let (errno, length) = (number()?, number()?);
        if errno != 0 {
            return Err(io::Error::from_raw_os_error(errno.cast_signed()));
        }
        let mut bytes = vec![0; length as usize];
        self.output.read_exact(&mut bytes)?;
        Ok(pieces_of_map(bytes))
    }
}

/// The bytes of a map: all bytes of the file, and so its end.
fn pieces_of_map(bytes: Vec<u8>) -> Pieces {
    let ends = vec![End { at: bytes.len() as u64, is_exact: true }];
    let pieces = if bytes.is_empty() { Vec::new() } else { vec![(0, bytes)] };
    Pieces { pieces, ends }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        kill_and_wait(&mut self.child, Duration::from_secs(1));
    }
}

/// Runs a mapper process. It maps each file whose path is on a line of standard input, and answers with an
/// errno, a length and the bytes.
pub(crate) fn map_for_ever() -> io::Result<()> {
    end_with_parent();
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let (errno, bytes) = match map(Path::new(&line?)) {
            Ok(bytes) => (0, bytes),
            Err(error) => (error.raw_os_error().unwrap_or(libc::EINVAL), Vec::new()),
        };
        let length = u32::try_from(bytes.len()).unwrap_or(0);
        out.write_all(&errno.to_le_bytes())?;
        out.write_all(&length.to_le_bytes())?;
        out.write_all(&bytes)?;
        out.flush()?;
    }
    Ok(())
}

/// Reads all of a file by a map.
fn map(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len() as usize;
    if length == 0 {
        return Ok(Vec::new());
    }
    Map::new(file.as_raw_fd(), length)?.read()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{self, Body, Staleness};

    #[test]
    fn a_map_that_is_shorter_than_the_file_is_wrong() {
        let body = Body { content: 1, size: 1000 };
        let file = history::File::new(3, "d/0003".into(), body, 0);
        let permitted = file.permitted(&Staleness::new(None, 0), 1, 2);
        let whole = file.bytes(body);
        assert!(file.check(&permitted, &pieces_of_map(whole.clone())).is_ok());
        assert!(file.check(&permitted, &pieces_of_map(whole[..500].to_vec())).is_err());
        assert!(file.check(&permitted, &pieces_of_map(Vec::new())).is_err());
    }
}
