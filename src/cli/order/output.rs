//! Writes order files.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::path::{Path, PathBuf};

use crate::cli::terminal::Escaping;
use crate::cli::whole_file::replace;
use crate::error::{Error, ErrorKind, Result};

#[derive(Clone, Debug, clap::Args)]
pub(in crate::cli) struct Target {
    /// Write the order file here instead of printing it
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Target {
    /// The file; `None` for stdout.
    pub(super) fn file(&self) -> Option<&Path> {
        self.output.as_deref()
    }

    pub(super) fn cannot_write(&self, error: &io::Error) -> Error {
        let at = self.file().unwrap_or(Path::new("stdout"));
        Error::new(ErrorKind::Order, format!("cannot write {}: {error}", at.display()))
    }

    /// Calls `write` with the target. A file is replaced only when it is whole.
    pub(super) fn fill<T>(&self, write: impl FnOnce(&mut dyn Write) -> Result<T>) -> Result<T> {
        let Some(path) = &self.output else {
            let stdout = Stdout(io::stdout().lock());
            // A terminal shows it to a person. Anything else is read by another program.
            let out: Box<dyn Write> = match io::stdout().is_terminal() {
                true => Box::new(Escaping(stdout)),
                false => Box::new(stdout),
            };
            let mut out = BufWriter::new(out);
            let value = write(&mut out)?;
            out.flush().map_err(|error| self.cannot_write(&error))?;
            return Ok(value);
        };
        replace(path, |error| self.cannot_write(&error), write)
    }
}

/// Standard output. It is no error if its reader has gone away.
struct Stdout(StdoutLock<'static>);

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(bytes.len()),
            written => written,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().or_else(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Ok(()),
            _ => Err(error),
        })
    }
}
