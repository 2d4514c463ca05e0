//! Commands that make samples of any kind of file.

use std::time::Duration;

/// What one run of a command may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long it may take.
    pub time: Duration,
    /// The bytes of memory that each of its processes may have, and those of its temporary files.
    pub memory: u64,
    /// The bytes of the sample.
    pub output: u64,
}

/// A command that reads a file from its standard input and writes a sample to its standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// It is given to a shell.
    pub line: String,
    /// What the name of a sample has after that of its original.
    pub suffix: String,
    pub limits: Limits,
}
