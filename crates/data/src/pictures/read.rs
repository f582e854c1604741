//! Pictures from files: PNG, JPEG and WebP, upright, as 8-bit red, green and blue.

use super::{Picture, Refusal};
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageReader, Limits};
use std::io::Cursor;

/// What becomes of transparency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alpha {
    /// Forgotten: colours stay as they are.
    #[default]
    Drop,
    /// Laid on white.
    White,
}

/// Bytes of memory that one picture may need: 100 million pixels in colour.
const MEMORY: u64 = 1 << 29;
/// A side is no longer than this.
const SIDE: u32 = 1 << 16;

impl Picture {
    /// Decodes a file. Sixteen-bit channels are scaled to eight, grey and palettes become colours, and the orientation that a
    /// camera noted is applied.
    pub fn decode(bytes: &[u8], alpha: Alpha) -> Result<Picture, Refusal> {
        let (decoder, orientation) = opened(bytes)?;
        let mut decoded = DynamicImage::from_decoder(decoder).map_err(|error| broken(&error))?;
        decoded.apply_orientation(orientation);
        let (width, height) = (decoded.width() as usize, decoded.height() as usize);
        let rgb = match alpha {
            Alpha::White if decoded.color().has_alpha() => on_white(&decoded),
            _ => decoded.into_rgb8().into_raw(),
        };
        Ok(Picture { height, width, rgb })
    }

    /// Height and width as the first bytes of a file tell them, upright.
    pub fn measure(bytes: &[u8]) -> Result<(usize, usize), Refusal> {
        use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
        let (decoder, orientation) = opened(bytes)?;
        let (width, height) = decoder.dimensions();
        let (width, height) = (width as usize, height as usize);
        Ok(match orientation {
            Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH => (width, height),
            _ => (height, width),
        })
    }
}

fn broken(error: &dyn std::fmt::Display) -> Refusal {
    Refusal::Broken { reason: error.to_string() }
}

/// A decoder within limits, and how the picture is to be turned.
fn opened(bytes: &[u8]) -> Result<(impl ImageDecoder + '_, Orientation), Refusal> {
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE);
    limits.max_image_height = Some(SIDE);
    limits.max_alloc = Some(MEMORY);
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let mut reader = reader.map_err(|error| broken(&error))?;
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|error| broken(&error))?;
    let orientation = decoder.orientation().map_err(|error| broken(&error))?;
    Ok((decoder, orientation))
}

fn on_white(decoded: &DynamicImage) -> Vec<u8> {
    let pixels = decoded.to_rgba8();
    let mix = |colour: u8, alpha: u32| {
        // Pillow's way to divide by 255.
        let sum = u32::from(colour) * alpha + 255 * (255 - alpha) + 128;
        ((sum + (sum >> 8)) >> 8) as u8
    };
    let mixed = |pixel: &image::Rgba<u8>| {
        let [r, g, b, alpha] = pixel.0;
        [r, g, b].map(|colour| mix(colour, u32::from(alpha)))
    };
    pixels.pixels().flat_map(mixed).collect()
}
