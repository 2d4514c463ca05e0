//! Identifies filesystem images: files with a whole dataset in each.
//!
//! The maker of an image chooses its inode numbers and times, which are often the same in each version. The
//! filesystem's own number is that of the device to which the image is attached. Only the file that holds
//! the image tells two images apart.

use std::fs;
use std::hash::Hasher;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::stat::stat;
use nix::sys::statfs::fstatfs;
use siphasher::sip::SipHasher24;

use super::posix::fingerprint;

/// Their magic numbers: squashfs, erofs, iso9660, cramfs.
const IMAGES: [u32; 4] = [0x7371_7368, 0xe0f5_e1e2, 0x9660, 0x28cd_3d45];

/// A new value after each start of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

pub(super) fn is_image(directory: &impl AsFd) -> bool {
    fstatfs(directory).is_ok_and(|found| IMAGES.contains(&(found.filesystem_type().0 as u32)))
}

/// Whether a path is in an image: a filesystem whose inode numbers and times do not tell its version.
pub fn is_in_image(path: &Path) -> bool {
    fs::File::open(path).is_ok_and(|opened| is_image(&opened))
}

/// The kernel's directory about a block device.
pub(super) fn device(number: libc::dev_t) -> PathBuf {
    let (major, minor) = (libc::major(number), libc::minor(number));
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

/// The version of the file behind the device. If that cannot be seen, the device as it is attached this
/// time.
pub(super) fn identity(device: &Path) -> u64 {
    let mut hasher = SipHasher24::new();
    let backing = fs::read_to_string(device.join("loop/backing_file"));
    match backing.map(|path| stat(path.trim_end_matches('\n'))) {
        Ok(Ok(file)) => hasher.write(fingerprint(&file).lasting()),
        _ => {
            for file in [device.join("diskseq"), BOOT_ID.into()] {
                hasher.write(&fs::read(file).unwrap_or_default());
            }
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rebuilt_image_is_another_one() {
        let directory = tempfile::tempdir().unwrap();
        let (device, image) = (directory.path().join("7:0"), directory.path().join("image"));
        fs::create_dir_all(device.join("loop")).unwrap();
        fs::write(device.join("diskseq"), "1\n").unwrap();
        let unseen = identity(&device);
        fs::write(&image, "one").unwrap();
        fs::write(device.join("loop/backing_file"), format!("{}\n", image.display())).unwrap();
        let seen = identity(&device);
        assert_eq!(seen, identity(&device));
        fs::remove_file(&image).unwrap();
        fs::write(directory.path().join("other"), "").unwrap();
        fs::write(&image, "two").unwrap();
        assert!(![seen, unseen].contains(&identity(&device)));
        fs::remove_file(&image).unwrap();
        fs::write(device.join("diskseq"), "2\n").unwrap();
        assert!(![seen, unseen].contains(&identity(&device)));
        assert!(!is_image(&fs::File::open(directory.path()).unwrap()));
    }
}
