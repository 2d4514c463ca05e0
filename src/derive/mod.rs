//! Samples that are made from samples: which files they are made of, and the bytes of one from those of another.
//!
//! 1. A [`Recipe`] chooses files by their paths ([`Choice`]). Its [`Steps`] say what is made of each image.
//!    A recipe with a [`Command`] has it run by others.
//! 2. [`Steps::memory`] reads the head of a file. It tells how much memory the next steps take.
//! 3. [`Image::decode`] decodes a JPEG or a PNG to pixels. Broken and much too large images are refused.
//! 4. The pixels are resized and cropped ([`Image::resized`], [`Image::cropped`]), and encoded in a [`Format`].
//!
//! All of it computes from bytes to bytes. The same recipe gives the same bytes of the same file, so that a sample may
//! be kept as long as its original and the recipe stay.

mod choice;
mod command;
mod encode;
mod image;

use std::fmt;
use std::hash::Hasher;
use std::path::PathBuf;

use siphasher::sip::SipHasher24;

pub use choice::Choice;
pub use command::{Command, Limits};
pub use encode::Format;
pub use image::Image;
use image::{Head, PIXELS_MAX, resized_bytes};

/// It counts the changes of this room, or of its libraries, that make other bytes of the same file by the same recipe.
const REVISION: u32 = 1;

/// A JPEG needs about so many bits for a pixel.
const BITS_OF_JPEG: u64 = 3;

/// Why nothing can be made of a file, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(pub String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is made of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps {
    /// The pixels that the shorter side has afterwards. `None`: as many as before.
    pub resize: Option<u32>,
    /// The pixels that each side of the square in the middle has which is left. `None`: all is left.
    pub crop: Option<u32>,
    pub format: Format,
}

/// How a sample is made of its original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    Image(Steps),
    Command(Command),
}

/// Which samples are made, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// The name of their directory.
    pub name: String,
    /// Another path at which this directory is found.
    pub at: Option<PathBuf>,
    pub from: Choice,
    pub work: Work,
}

impl Recipe {
    /// A number that differs if the recipe may make other bytes of a file, or gives another name to a sample.
    pub fn key(&self) -> u64 {
        let mut hasher = SipHasher24::new();
        let text = match &self.work {
            Work::Image(Steps { resize, crop, format }) => {
                format!("{REVISION} {resize:?} {crop:?} {format:?}")
            }
            Work::Command(Command { line, suffix, .. }) => format!("{line:?} {suffix:?}"),
        };
        hasher.write(text.as_bytes());
        hasher.finish()
    }

    /// What the name of a sample has after that of its original.
    pub fn suffix(&self) -> &str {
        match &self.work {
            Work::Image(steps) => steps.suffix(),
            Work::Command(command) => &command.suffix,
        }
    }

    /// About how many bytes a sample has, if its original has so many.
    pub fn guess(&self, original: u64) -> u64 {
        match &self.work {
            Work::Image(steps) => steps.guess(original),
            Work::Command(command) => original.clamp(1, command.limits.output),
        }
    }
}

impl Steps {
    fn suffix(&self) -> &'static str {
        match self.format {
            Format::Jpeg { .. } | Format::Png => "",
            Format::Npy => ".npy",
        }
    }

    fn guess(&self, original: u64) -> u64 {
        let Steps { resize, crop, format } = self;
        let side = |side: &u32| u64::from(*side);
        // Most photographs are a third longer than wide.
        let pixels = match (crop, resize) {
            (Some(crop), _) => side(crop) * side(crop),
            (None, Some(resize)) => side(resize) * side(resize) * 4 / 3,
            (None, None) => original.min(PIXELS_MAX) * 8 / BITS_OF_JPEG,
        };
        let pixels = pixels.min(PIXELS_MAX);
        let bytes = match format {
            Format::Jpeg { .. } => pixels * BITS_OF_JPEG / 8,
            Format::Png => pixels * 2,
            Format::Npy => encode::npy_bytes(pixels),
        };
        bytes.max(1)
    }

    /// The most bytes of memory that it takes to make a sample of a file.
    ///
    /// # Errors
    /// If nothing can be made of it.
    pub fn memory(&self, original: &[u8]) -> Result<u64, Fault> {
        let head = Head::read(original)?;
        let after = match self.resize {
            Some(shorter) => resized_bytes(head.width, head.height, shorter)?,
            None => head.pixel_bytes,
        };
        // The encoded sample is hardly larger than its pixels.
        Ok(head.decoding_bytes + 2 * after)
    }

    /// The sample of a decoded original.
    ///
    /// # Errors
    /// If the format cannot hold it.
    pub fn make(&self, image: Image) -> Result<Vec<u8>, Fault> {
        let Steps { resize, crop, format } = self;
        let image = match resize {
            Some(shorter) => image.resized(*shorter)?,
            None => image,
        };
        let image = match crop {
            Some(side) => image.cropped(*side),
            None => image,
        };
        encode::encode(&image, format)
    }
}

#[cfg(test)]
mod tests;
