//! How commands talk to a running daemon: one line of JSON each way over a Unix socket,
//! the daemon's followed by a text where one was asked for.
//!
//! Every mount has a directory of its own under the runtime directory, named after its mount
//! point, with the socket, the log and a note of what is mounted. Only its owner can enter. Beside them
//! are the locks of sources that are being mounted.

mod protocol;
mod runtime;
mod server;

pub use protocol::{Reply, Request, Text, ask, ask_for_text, call};
pub use runtime::{MountDirectory, Running, Turn, has_runtime, running, runtime};
pub use server::serve;
