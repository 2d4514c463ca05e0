//! The same samples as plain files.

use std::fs::{self, File};
use std::io::{Read, Result, Write};
use std::path::PathBuf;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::{Cli, noise, sample};

fn path(cli: &Cli, number: u64) -> PathBuf {
    cli.directory.join(format!("{:04}", number / 1000)).join(format!("{number:07}"))
}

pub(super) fn write(cli: &Cli) -> Result<()> {
    let noise = noise(cli);
    for number in 0..cli.samples {
        let path = path(cli, number);
        if number % 1000 == 0
            && let Some(folder) = path.parent()
        {
            fs::create_dir_all(folder)?;
        }
        File::create(path)?.write_all(sample(cli, &noise, number))?;
    }
    nix::unistd::syncfs(&File::open(&cli.directory)?)?;
    Ok(())
}

pub(super) fn read(cli: &Cli, number: u64) -> Result<Vec<u8>> {
    let mut file = File::open(path(cli, number))?;
    let mut bytes = vec![0; cli.bytes];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Drops the pages of the files from the page cache.
pub(super) fn drop_pages(cli: &Cli) -> Result<()> {
    for number in 0..cli.samples {
        let file = File::open(path(cli, number))?;
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    }
    Ok(())
}
