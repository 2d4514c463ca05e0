//! The `belady` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    belady::cli::main()
}
