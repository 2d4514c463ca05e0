//! The bytes of a file of pixels.

use image::ImageEncoder;
use image::codecs::png::PngEncoder;
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

use super::{Fault, Image};

/// The form of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A JPEG of this quality, 1 to 100, with the tables and the halved colours of libjpeg.
    Jpeg {
        quality: u8,
    },
    Png,
    /// An array of NumPy: `uint8` of the shape (height, width, 3).
    Npy,
}

/// Bytes of the head of an array of NumPy, with what aligns its values.
const NPY_HEAD: usize = 128;
const NPY_MAGIC: &[u8] = b"\x93NUMPY\x01\x00";

/// # Errors
/// If the format cannot hold the image.
pub(super) fn encode(image: &Image, format: &Format) -> Result<Vec<u8>, Fault> {
    match format {
        Format::Jpeg { quality } => jpeg(image, *quality),
        Format::Png => png(image),
        Format::Npy => Ok(npy(image)),
    }
}

/// Bytes of an array of that many pixels.
pub(super) fn npy_bytes(pixels: u64) -> u64 {
    NPY_HEAD as u64 + pixels * 3
}

fn jpeg(image: &Image, quality: u8) -> Result<Vec<u8>, Fault> {
    let side = |side: u32| {
        u16::try_from(side).map_err(|_| Fault(format!("no JPEG has a side of {side} pixels")))
    };
    let (width, height) = (side(image.width)?, side(image.height)?);
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, quality);
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    let encoded = encoder.encode(&image.pixels, width, height, ColorType::Rgb);
    encoded.map_err(|error| Fault(format!("it cannot be encoded as a JPEG: {error}")))?;
    Ok(bytes)
}

fn png(image: &Image) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    let colours = image::ExtendedColorType::Rgb8;
    PngEncoder::new(&mut bytes)
        .write_image(&image.pixels, image.width, image.height, colours)
        .map_err(|error| Fault(format!("it cannot be encoded as a PNG: {error}")))?;
    Ok(bytes)
}

fn npy(image: &Image) -> Vec<u8> {
    let Image { width, height, pixels } = image;
    let shape =
        format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({height}, {width}, 3), }}");
    // The length of the rest of the head has two bytes, and a line ends it.
    let rest = NPY_HEAD - NPY_MAGIC.len() - 2;
    let mut bytes = Vec::with_capacity(NPY_HEAD + pixels.len());
    bytes.extend_from_slice(NPY_MAGIC);
    bytes.extend_from_slice(&(rest as u16).to_le_bytes());
    bytes.extend_from_slice(format!("{shape:<0$}\n", rest - 1).as_bytes());
    bytes.extend_from_slice(pixels);
    bytes
}
