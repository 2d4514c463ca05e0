//! A mount namespace that only this process and its children see.
//!
//! With `CAP_SYS_ADMIN` a namespace of mounts is enough. Without it, the process also enters a user namespace, which gives
//! it this capability there. It maps its own user and group to themselves, so that programs see the same ids as before.
//! All other ids look like those of nobody. Mounts of the outside go on to appear inside, and not the other way round.
//!
//! A site may forbid all that, and it may let a process enter a user namespace and then refuse mounts there. So a child
//! tries it first.

use std::fs::File;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use crate::privileges::{enter_user_namespace, may_mount};

/// What was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    Mounts,
    /// Also a user namespace: the right to mount is not kept by programs that this process starts.
    UsersAndMounts,
}

/// Enters a mount namespace of its own. To be called while there is one thread.
///
/// # Errors
/// Why that cannot be done, in words. Then this process is where it was.
pub fn enter() -> Result<Entered, String> {
    try_out()?;
    enter_now().map_err(in_words)
}

/// Whether this process could enter one and mount there. To be called while there is one thread.
///
/// # Errors
/// Why not, in words.
pub fn try_out() -> Result<(), String> {
    // This process has to open it itself: fusermount3 has no rights in a user namespace.
    let device = File::options().read(true).write(true).open("/dev/fuse");
    device.map_err(|error| format!("/dev/fuse: {error}"))?;
    try_in_child().map_err(in_words)
}

fn in_words(errno: Errno) -> String {
    match errno {
        Errno::ENOSPC => "this machine allows no user namespaces".to_owned(),
        errno => format!("a mount namespace is not permitted: {}", errno.desc()),
    }
}

/// Whether a child of this process could enter one.
fn try_in_child() -> Result<(), Errno> {
    // SAFETY: the child makes system calls and ends. The process has one thread, so no lock is held.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let code = enter_now().map_or_else(|errno| errno as i32, |_| 0);
            // SAFETY: it ends the child, and runs nothing of the parent's.
            unsafe { nix::libc::_exit(code) }
        }
        ForkResult::Parent { child } => match waitpid(child, None)? {
            WaitStatus::Exited(_, 0) => Ok(()),
            WaitStatus::Exited(_, code) => Err(Errno::from_raw(code)),
            _ => Err(Errno::EPERM),
        },
    }
}

fn enter_now() -> Result<Entered, Errno> {
    let entered = if may_mount() {
        unshare(CloneFlags::CLONE_NEWNS)?;
        Entered::Mounts
    } else {
        enter_user_namespace(CloneFlags::CLONE_NEWNS)?;
        Entered::UsersAndMounts
    };
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
    Ok(entered)
}
