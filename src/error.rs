//! The error that people see: what went wrong, and what to do about it.
//!
//! It ends a command, refuses a configuration or an order, or stands in `status`. Readers of the mount get an
//! errno instead. Its [`ErrorKind`] also decides the exit code.

use std::fmt;

/// What failed. The kind decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The command line is wrong.
    Usage,
    /// A configuration file or setting is wrong.
    Config,
    /// An access order is wrong.
    Order,
    /// The source directory is missing or cannot be read.
    Source,
    /// The cache directory cannot be used.
    Cache,
    /// The disk of the cache directory fails or has no room.
    Disk,
    /// The mount could not be made or removed.
    Mount,
    /// Something took longer than it may.
    Timeout,
    /// The mount point or the cache directory is in use.
    Busy,
    /// A fault of belady itself.
    Internal,
}

impl ErrorKind {
    /// The process exit code of a command that ends with this kind of error.
    pub fn exit_code(self) -> u8 {
        match self {
            ErrorKind::Internal => 1,
            ErrorKind::Usage => 2,
            ErrorKind::Config | ErrorKind::Order => 3,
            ErrorKind::Source => 4,
            ErrorKind::Cache | ErrorKind::Disk => 5,
            ErrorKind::Mount => 6,
            ErrorKind::Timeout => 7,
            ErrorKind::Busy => 8,
        }
    }

    /// The kind with this exit code. Of two with the same code it is the one that a daemon has.
    pub fn of_exit_code(code: u8) -> Self {
        let kinds = [
            ErrorKind::Usage,
            ErrorKind::Order,
            ErrorKind::Source,
            ErrorKind::Cache,
            ErrorKind::Mount,
            ErrorKind::Timeout,
            ErrorKind::Busy,
        ];
        kinds.into_iter().find(|kind| kind.exit_code() == code).unwrap_or(ErrorKind::Internal)
    }
}

/// An error for people: one line says what is wrong, and a hint says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
}

impl Error {
    /// An error with a message: a lower-case clause without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), hint: None }
    }

    /// The same error with a hint: a line that says what to do.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same error with this hint, if it has none.
    pub fn or_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint.get_or_insert_with(|| hint.into());
        self
    }

    /// The same error seen from its caller: `context: message`.
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What to do about it.
    pub fn advice(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The message without the hint.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// The result of an operation whose error a person sees.
pub type Result<T> = std::result::Result<T, Error>;
