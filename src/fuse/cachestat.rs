//! Counts the pages of a file in the page cache: cachestat(2), Linux 6.5.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc;

/// The number of the system call, the same on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

#[repr(C)]
#[derive(Default)]
struct Counts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Counts the pages of a byte range that are in the page cache.
///
/// # Errors
/// `ENOSYS` on kernels without the call.
pub(super) fn cached_pages(file: BorrowedFd<'_>, offset: u64, length: u64) -> Result<u64, Errno> {
    let range = Range { offset, length };
    let mut counts = Counts::default();
    // SAFETY: both structures have the kernel's layout and outlive the call, which writes only to the
    // second. The descriptor is open.
    let result = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut counts, 0)
    };
    Errno::result(result).map(|_| counts.cached)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn written_pages_are_counted() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 10_000]).unwrap();
        match cached_pages(file.as_fd(), 0, 10_000) {
            Ok(pages) => assert_eq!(pages, 10_000_u64.div_ceil(crate::page_size::page_bytes())),
            Err(errno) => assert_eq!(errno, Errno::ENOSYS, "before Linux 6.5"),
        }
    }
}
