//! The rights of this process in its user namespace: the right to mount, and the groups that it can tell apart. A user
//! namespace of its own gives it rights there.

use std::fs;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};
use rustix::thread::{
    CapabilitySet, capabilities, configure_capability_in_ambient_set, set_capabilities,
};

/// A line of the map of a namespace that has all ids.
const ALL_IDS: [&str; 3] = ["0", "0", "4294967295"];

/// Whether this process may mount by itself.
pub fn may_mount() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Lets a program mount that this process starts next. To be called in the child.
///
/// # Errors
/// If this process may not mount.
pub fn let_next_program_mount() -> std::io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable |= CapabilitySet::SYS_ADMIN;
    set_capabilities(None, sets)?;
    configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)?;
    Ok(())
}

/// Enters a user namespace, and `others` that belong to it, in which this process has all rights. Its own user and group
/// have the same ids there, and all others look like those of nobody. To be called while there is one thread.
///
/// # Errors
/// `ENOSPC` if the machine allows no user namespaces, and others if this process may not enter one.
pub fn enter_user_namespace(others: CloneFlags) -> Result<(), Errno> {
    let (user, group) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | others)?;
    // Without this, nobody without rights may set a map of groups.
    write("setgroups", "deny")?;
    write("uid_map", &format!("{user} {user} 1"))?;
    write("gid_map", &format!("{group} {group} 1"))
}

fn write(file: &str, text: &str) -> Result<(), Errno> {
    let written = fs::write(format!("/proc/self/{file}"), text);
    written.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
}

/// Whether all groups have a number here. Otherwise the groups of most files look like the one of nobody, and whoever is
/// let in by one of them cannot be told from others.
pub fn knows_all_groups() -> bool {
    fs::read_to_string("/proc/self/gid_map").map_or(true, |map| maps_all(&map))
}

fn maps_all(map: &str) -> bool {
    map.split_whitespace().eq(ALL_IDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_all_ids_or_some() {
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(!maps_all("      1234       1234          1\n"));
        assert!(!maps_all("0 0 4294967295\n1 1 1\n") && !maps_all(""));
    }
}
