//! The kernel's settings for FUSE: what a mount warns of, and how its threads keep out of a deadlock
//! ([`Deadlock`]).

use std::fs;

use rustix::process::{configure_io_flusher_behavior, is_io_flusher};

use crate::config::{Mode, Settings};
use crate::doctor::{Deadlock, System, hazards};

pub(super) fn examine() -> System {
    let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
    let seconds = |path: &str| read(path)?.parse::<u64>().ok();
    let timeout = |name| seconds(&format!("/proc/sys/fs/fuse/{name}")).unwrap_or(0);
    System {
        release: read("/proc/sys/kernel/osrelease").unwrap_or_default(),
        build: read("/proc/sys/kernel/version").unwrap_or_default(),
        can_be_io_flusher: can_be_io_flusher(),
        drops_names: seconds("/sys/module/fuse/parameters/inval_wq"),
        timeouts: ["default_request_timeout", "max_request_timeout"].map(timeout),
    }
}

/// Whether this thread may become an IO flusher, whose allocations of memory never wait for filesystems.
fn can_be_io_flusher() -> bool {
    let Ok(is_flusher) = is_io_flusher() else { return false };
    is_flusher
        || configure_io_flusher_behavior(true).is_ok()
            && configure_io_flusher_behavior(false).is_ok()
}

/// Keeps this thread, and those that it starts, out of the deadlock if the kernel may have it. Returns the
/// warnings of a mount with these settings, a line each.
pub(super) fn guard(settings: &Settings) -> Vec<String> {
    let system = examine();
    let opens = !matches!(settings.mount.mode, Mode::Auto | Mode::Push);
    let is_needed = !opens && system.deadlock() != Deadlock::Absent;
    let is_flusher = is_needed && configure_io_flusher_behavior(true).is_ok();
    let warnings = hazards(&system, opens, is_flusher);
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    warnings
}
