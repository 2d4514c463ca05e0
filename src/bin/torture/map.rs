//! A mapped file, read so that a failure is an error and no SIGBUS.

use std::io::{self, IoSliceMut};
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};

use nix::libc;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

pub(crate) struct Map {
    address: NonNull<libc::c_void>,
    length: usize,
}

impl Map {
    /// Maps `length` bytes. Not 0.
    pub(crate) fn new(file: RawFd, length: usize) -> io::Result<Self> {
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: the kernel chooses the address, so that nothing of ours is replaced.
        let address = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, file, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Map { address, length })
    }

    /// Reads all bytes. The kernel copies them as from another process, so a page that it cannot get is
    /// EFAULT.
    pub(crate) fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.length];
        let mut read = 0;
        while read < self.length {
            let base = self.address.as_ptr() as usize + read;
            let from = [RemoteIoVec { base, len: self.length - read }];
            let into = &mut [IoSliceMut::new(&mut bytes[read..])];
            match process_vm_readv(Pid::this(), into, &from)? {
                0 => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
                more => read += more,
            }
        }
        Ok(bytes)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: it is the map that was made, and nothing refers to it any more.
        unsafe { libc::munmap(self.address.as_ptr(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_map_beyond_the_end_is_an_error_and_no_signal() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(100_000).expect("a length");
        let map = Map::new(file.as_raw_fd(), 100_000).expect("a map");
        assert_eq!(map.read().expect("bytes"), vec![0; 100_000]);
        file.set_len(1000).expect("a length");
        let error = map.read().expect_err("pages are missing");
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }
}
