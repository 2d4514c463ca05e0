//! Where the bytes of a sample are.

use std::io::Result;

use crate::disk::journal::Pinned;
use crate::rehearsal::RemoteSample;

#[derive(Clone, Debug)]
pub enum SampleBytes {
    /// On this node's cache disk.
    Pinned(Pinned),
    /// At another node of the cluster.
    Remote(RemoteSample),
}

impl SampleBytes {
    /// How many they are.
    pub fn length(&self) -> u32 {
        match self {
            SampleBytes::Pinned(pinned) => pinned.length(),
            SampleBytes::Remote(remote) => remote.length(),
        }
    }

    /// Their place on this node's cache disk.
    pub fn pinned(&self) -> Option<&Pinned> {
        match self {
            SampleBytes::Pinned(pinned) => Some(pinned),
            SampleBytes::Remote(_) => None,
        }
    }

    /// Whether reading them waits for another node.
    pub fn are_remote(&self) -> bool {
        self.pinned().is_none()
    }

    /// Whether they can be read.
    pub fn is_written(&self) -> bool {
        match self {
            SampleBytes::Pinned(pinned) => pinned.is_written(),
            SampleBytes::Remote(_) => true,
        }
    }

    /// Reads them if they are in memory and undamaged. Never waits.
    pub fn read_now(&self) -> Option<Vec<u8>> {
        match self {
            SampleBytes::Pinned(pinned) => pinned.read_now(),
            SampleBytes::Remote(remote) => remote.read_now(),
        }
    }

    /// Reads them. Blocks.
    ///
    /// # Errors
    /// As [`Pinned::read`], and `NotFound` if neither the other node nor the source has them.
    pub fn read(&self) -> Result<Vec<u8>> {
        match self {
            SampleBytes::Pinned(pinned) => pinned.read(),
            SampleBytes::Remote(remote) => remote.read(),
        }
    }

    /// Brings them into memory for a reader that comes soon. Blocks.
    ///
    /// # Errors
    /// Those of the disk or of the other node.
    pub fn warm(&self) -> Result<()> {
        match self {
            SampleBytes::Pinned(pinned) => pinned.warm(),
            SampleBytes::Remote(remote) => remote.read_ahead(),
        }
    }
}
