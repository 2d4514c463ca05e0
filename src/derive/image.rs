//! The pixels of an image.
//!
//! They are red, green and blue, a byte each, as `Image.open(file).convert("RGB")` of Pillow gives them: transparency
//! is left out, and the orientation that a camera has noted is not applied.

use std::io::Cursor;

use fast_image_resize::images::Image as Plane;
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use image::codecs::png::PngDecoder;
use image::{DynamicImage, ImageDecoder};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::Fault;

/// An image with more pixels is refused: a small file can have very many.
pub(super) const PIXELS_MAX: u64 = 1 << 26;

/// The most bytes that the decoder of PNG takes beside the pixels.
const PNG_BYTES: u64 = 4 << 20;

/// How the first bytes of files begin.
const JPEG: &[u8] = &[0xff, 0xd8, 0xff];
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Bytes of a pixel.
const DEPTH: usize = 3;

/// Pixels row by row, each of three bytes: red, green, blue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub width: u32,
    pub height: u32,
    pub pixels: Vec<u8>,
}

impl Image {
    /// Decodes a JPEG or a PNG.
    ///
    /// # Errors
    /// If the file is neither, is broken, or has too many pixels.
    pub fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        match Kind::of(bytes)? {
            Kind::Jpeg => decode_jpeg(bytes),
            Kind::Png => decode_png(bytes),
        }
    }

    /// The same image with a shorter side of so many pixels. The longer side has as many as torchvision's `Resize`
    /// gives it. The filter is the bilinear one with antialias, as that of Pillow.
    ///
    /// # Errors
    /// If it had too many pixels.
    pub fn resized(self, shorter: u32) -> Result<Self, Fault> {
        let (width, height) = resized_sides(self.width, self.height, shorter);
        if (width, height) == (self.width.into(), self.height.into()) {
            return Ok(self);
        }
        check_pixels(width, height)?;
        let (width, height) = (width as u32, height as u32);
        let failed =
            |error: &dyn std::fmt::Display| Fault(format!("it cannot be resized: {error}"));
        let from = Plane::from_vec_u8(self.width, self.height, self.pixels, PixelType::U8x3);
        let from = from.map_err(|error| failed(&error))?;
        let mut to = Plane::new(width, height, PixelType::U8x3);
        let filter = ResizeAlg::Convolution(FilterType::Bilinear);
        let options = ResizeOptions::new().resize_alg(filter).use_alpha(false);
        Resizer::new().resize(&from, &mut to, &options).map_err(|error| failed(&error))?;
        Ok(Image { width, height, pixels: to.into_vec() })
    }

    /// The square of so many pixels a side in its middle, or all there is of it, where torchvision's `CenterCrop` has
    /// it.
    pub fn cropped(self, side: u32) -> Self {
        let (width, height) = (side.min(self.width), side.min(self.height));
        if (width, height) == (self.width, self.height) {
            return self;
        }
        let (left, top) = (middle(self.width - width), middle(self.height - height));
        let row = self.width as usize * DEPTH;
        let part = left as usize * DEPTH..(left + width) as usize * DEPTH;
        let rows = self.pixels.chunks_exact(row).skip(top as usize).take(height as usize);
        let pixels = rows.flat_map(|row| &row[part.clone()]).copied().collect();
        Image { width, height, pixels }
    }
}

/// The sides after the shorter one was resized to so many pixels.
fn resized_sides(width: u32, height: u32, shorter: u32) -> (u64, u64) {
    let longer =
        |long: u32, short: u32| u64::from(shorter) * u64::from(long) / u64::from(short).max(1);
    match width <= height {
        true => (shorter.into(), longer(height, width)),
        false => (longer(width, height), shorter.into()),
    }
}

/// The bytes of the pixels then.
///
/// # Errors
/// If there are too many.
pub(super) fn resized_bytes(width: u32, height: u32, shorter: u32) -> Result<u64, Fault> {
    let (width, height) = resized_sides(width, height, shorter);
    check_pixels(width, height)
}

/// What a file is.
#[derive(Clone, Copy)]
enum Kind {
    Jpeg,
    Png,
}

impl Kind {
    fn of(bytes: &[u8]) -> Result<Self, Fault> {
        match () {
            () if bytes.starts_with(JPEG) => Ok(Kind::Jpeg),
            () if bytes.starts_with(PNG) => Ok(Kind::Png),
            () => Err(Fault("it is no JPEG and no PNG".into())),
        }
    }
}

/// What the first bytes of an image tell.
pub(super) struct Head {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) pixel_bytes: u64,
    /// The most memory that decoding takes.
    pub(super) decoding_bytes: u64,
}

impl Head {
    /// # Errors
    /// If the file is no image, is broken there, or has too many pixels.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Fault> {
        match Kind::of(bytes)? {
            Kind::Jpeg => {
                let (width, height) = jpeg_decoder(bytes)?.dimensions().unwrap_or_default();
                let pixel_bytes = check_pixels(width as u64, height as u64)?;
                // A progressive image of four colours is decoded to numbers of two bytes first.
                let decoding_bytes = pixel_bytes / DEPTH as u64 * (2 * 4 + DEPTH as u64);
                let (width, height) = (width as u32, height as u32);
                Ok(Head { width, height, pixel_bytes, decoding_bytes })
            }
            Kind::Png => {
                let decoder = png_decoder(bytes)?;
                let (width, height) = decoder.dimensions();
                let pixel_bytes = check_pixels(width.into(), height.into())?;
                let decoding_bytes = decoder.total_bytes().saturating_add(pixel_bytes + PNG_BYTES);
                Ok(Head { width, height, pixel_bytes, decoding_bytes })
            }
        }
    }
}

/// Half of it, as Python's `round` gives it: half a pixel goes to the even neighbour.
fn middle(left: u32) -> u32 {
    match left % 4 {
        3 => left / 2 + 1,
        _ => left / 2,
    }
}

/// The bytes of that many pixels.
fn check_pixels(width: u64, height: u64) -> Result<u64, Fault> {
    let pixels = width * height;
    if width == 0 || height == 0 {
        return Err(Fault("it has no pixels".into()));
    }
    if pixels > PIXELS_MAX {
        return Err(Fault(format!(
            "it has {width} x {height} pixels; more than {PIXELS_MAX} pixels are not decoded"
        )));
    }
    Ok(pixels * DEPTH as u64)
}

fn broken(format: &str, error: &dyn std::fmt::Display) -> Fault {
    let error = error.to_string();
    Fault(format!("the {format} is broken: {}", error.trim_end()))
}

type Jpeg<'a> = JpegDecoder<ZCursor<&'a [u8]>>;

/// The decoder of a JPEG, which knows its sides.
fn jpeg_decoder(bytes: &[u8]) -> Result<Jpeg<'_>, Fault> {
    if !has_end(bytes) {
        return Err(broken("JPEG", &"it ends too early"));
    }
    let side = usize::from(u16::MAX);
    let options = DecoderOptions::default().set_strict_mode(false);
    let options = options.set_max_width(side).set_max_height(side);
    let options = options.jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|error| broken("JPEG", &error))?;
    Ok(decoder)
}

fn decode_jpeg(bytes: &[u8]) -> Result<Image, Fault> {
    let mut decoder = jpeg_decoder(bytes)?;
    let (width, height) = decoder.dimensions().unwrap_or_default();
    let size = check_pixels(width as u64, height as u64)?;
    let pixels = decoder.decode().map_err(|error| broken("JPEG", &error))?;
    if pixels.len() as u64 != size {
        return Err(broken("JPEG", &"its colours are of an unknown kind"));
    }
    Ok(Image { width: width as u32, height: height as u32, pixels })
}

/// Whether the mark of the end follows the pixels. If a file is cut off, it does not. What is missing would be grey.
fn has_end(bytes: &[u8]) -> bool {
    let mut at = 2;
    loop {
        let Some([0xff, mark, high, low]) = bytes.get(at..at + 4) else { return false };
        match mark {
            // More of these may stand before a mark.
            0xff => at += 1,
            // The pixels begin. There the mark of the end is nothing else.
            0xda => return bytes[at..].windows(2).rev().any(|pair| pair == [0xff, 0xd9]),
            _ => at += 2 + usize::from(u16::from_be_bytes([*high, *low])),
        }
    }
}

/// The decoder of a PNG, which knows its sides.
fn png_decoder(bytes: &[u8]) -> Result<PngDecoder<Cursor<&[u8]>>, Fault> {
    let mut limits = image::Limits::no_limits();
    limits.max_alloc = Some(PNG_BYTES);
    PngDecoder::with_limits(Cursor::new(bytes), limits).map_err(|error| broken("PNG", &error))
}

fn decode_png(bytes: &[u8]) -> Result<Image, Fault> {
    let decoder = png_decoder(bytes)?;
    let (width, height) = decoder.dimensions();
    check_pixels(width.into(), height.into())?;
    let decoded = DynamicImage::from_decoder(decoder).map_err(|error| broken("PNG", &error))?;
    Ok(Image { width, height, pixels: decoded.into_rgb8().into_raw() })
}
