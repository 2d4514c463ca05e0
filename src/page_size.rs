//! The size of the kernel's pages.

use std::sync::LazyLock;

use nix::unistd::{SysconfVar, sysconf};

/// Bytes of a page of the kernel: 4 KiB on x86-64, up to 64 KiB elsewhere. A multiple of
/// [`PAGE_BYTES`](crate::ids::PAGE_BYTES) on all machines.
pub fn page_bytes() -> u64 {
    static ASKED: LazyLock<u64> = LazyLock::new(|| {
        let asked = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
        asked.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(crate::ids::PAGE_BYTES)
    });
    *ASKED
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{BLOCK_BYTES, PAGE_BYTES};

    #[test]
    fn a_page_of_the_kernel_divides_a_block_and_is_cut_into_our_units() {
        assert!(
            page_bytes().is_multiple_of(PAGE_BYTES) && BLOCK_BYTES.is_multiple_of(page_bytes())
        );
    }
}
