//! Commands talk to a running daemon over a Unix socket. Each side sends one line of JSON, and the daemon may
//! add a text.
//!
//! Every mount has a directory of its own below the runtime directory, with a name that is computed from the
//! mount point. It has the socket, the log, and a note about the mount. Only its owner can enter it. Beside
//! these directories are the locks of sources that are being mounted. The mounts of a `belady run` are in a directory of
//! the run, which its own processes see in place of the runtime directory. When a mount ends, what was seen of its loaders
//! is kept in the state directory.

mod kept_profiles;
mod protocol;
mod runtime;
mod server;

pub use kept_profiles::{keep_profile, kept_profile};
pub use protocol::{Reply, Request, Text, ask, ask_for_text, call};
pub use runtime::{
    MountDirectory, MountNote, RunDirectory, SourceLock, all_mounts, create_runtime, has_runtime,
    mount_notes,
};
pub use server::serve;
