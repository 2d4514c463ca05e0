//! The lasting directory of belady's notes: the user's, or the system's for root.

use std::path::PathBuf;

use nix::unistd::geteuid;

/// `$XDG_STATE_HOME/belady`, else `/var/lib/belady` for root and `~/.local/state/belady` for other users. `None` if there is
/// no home.
pub fn state_directory() -> Option<PathBuf> {
    let absolute = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let state = absolute("XDG_STATE_HOME").or_else(|| {
        let root = || geteuid().is_root().then(|| PathBuf::from("/var/lib"));
        root().or_else(|| Some(absolute("HOME")?.join(".local/state")))
    })?;
    Some(state.join("belady"))
}
