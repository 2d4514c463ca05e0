//! The `belady` command.

fn main() {}
