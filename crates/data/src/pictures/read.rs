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
    let needed = decoder.total_bytes();
    if needed > MEMORY {
        return Err(broken(&format!("it says that it has {needed} bytes of pixels, more than {MEMORY}")));
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use image::codecs::jpeg::JpegEncoder;
    use image::{ImageFormat, RgbImage};

    /// A picture whose colours change slowly, which a lossy format keeps nearly as it is.
    fn drawn() -> RgbImage {
        RgbImage::from_fn(40, 24, |x, y| image::Rgb([(x * 6) as u8, (y * 10) as u8, 90]))
    }

    fn encoded(format: ImageFormat) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        match format {
            ImageFormat::Jpeg => {
                drawn().write_with_encoder(JpegEncoder::new_with_quality(&mut bytes, 95)).unwrap();
            }
            other => drawn().write_to(&mut bytes, other).unwrap(),
        }
        bytes.into_inner()
    }

    /// A piece of a PNG file.
    fn chunk(name: &[u8; 4], content: &[u8]) -> Vec<u8> {
        let body = [&name[..], content].concat();
        let step = |sum: u32, byte: &u8| {
            let mixed = sum ^ u32::from(*byte);
            (0..8).fold(mixed, |sum, _| if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 })
        };
        let crc = !body.iter().fold(u32::MAX, step);
        [&(content.len() as u32).to_be_bytes()[..], &body, &crc.to_be_bytes()].concat()
    }

    /// So many million zeros, packed: a block of a million that refers to nothing but zeros before it, again and again.
    fn zeros(millions: usize) -> Vec<u8> {
        use std::io::Write;
        let size = 1 << 20;
        let mut packer = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
        packer.write_all(&vec![0; size]).unwrap();
        packer.flush().unwrap();
        let block = packer.get_ref().clone();
        let mut out = vec![0x78, 0xda];
        (0..millions).for_each(|_| out.extend_from_slice(&block));
        // An empty last block, and the sum of zeros.
        out.extend([0x03, 0x00]);
        out.extend((((millions * size % 65521) as u32) << 16 | 1).to_be_bytes());
        out
    }

    #[test]
    fn every_format_gives_the_picture_upright() {
        for (format, most) in [(ImageFormat::Png, 0), (ImageFormat::WebP, 0), (ImageFormat::Jpeg, 6)] {
            let bytes = encoded(format);
            let read = Picture::decode(&bytes, Alpha::Drop).unwrap();
            assert_eq!((read.height, read.width, Picture::measure(&bytes).unwrap()), (24, 40, (24, 40)));
            let apart = read.rgb.iter().zip(drawn().as_raw()).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(apart <= Some(most), "{format:?} is {apart:?} apart");
            // Half of it is no picture, whichever way it breaks off.
            let half = Picture::decode(&bytes[..bytes.len() / 2], Alpha::Drop);
            assert!(half.is_err() || format == ImageFormat::Jpeg, "{format:?}");
            for cut in 0..bytes.len().min(64) {
                assert!(Picture::decode(&bytes[..cut], Alpha::Drop).is_err(), "{format:?} of {cut} bytes");
            }
        }
        let mut jpeg = encoded(ImageFormat::Jpeg);
        // What a camera that lay on its side notes: to be turned by a quarter.
        let exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
        let head = [&[0xff, 0xe1][..], &(exif.len() as u16 + 2).to_be_bytes(), exif].concat();
        jpeg.splice(2..2, head);
        let read = Picture::decode(&jpeg, Alpha::Drop).unwrap();
        assert_eq!((read.height, read.width, Picture::measure(&jpeg).unwrap()), (40, 24, (40, 24)));
    }

    #[test]
    fn sizes_that_are_not_true_are_refused() {
        // Height and width as a WebP and a JPEG say them.
        let webp = encoded(ImageFormat::WebP);
        let at = webp.windows(5).position(|bytes| bytes.starts_with(b"VP8L")).unwrap() + 9;
        let mut wide = webp.clone();
        wide[at..at + 4].copy_from_slice(&[0xff, 0xff, 0xff, 0x0f]);
        assert!(Picture::decode(&wide, Alpha::Drop).is_err());
        let jpeg = encoded(ImageFormat::Jpeg);
        let at = jpeg.windows(2).position(|bytes| bytes == [0xff, 0xc0]).unwrap() + 5;
        let mut tall = jpeg.clone();
        tall[at..at + 4].copy_from_slice(&[0xff, 0xff, 0xff, 0xff]);
        assert!(Picture::decode(&tall, Alpha::Drop).is_err());
        assert!(Picture::measure(&tall).is_err());
    }

    #[test]
    fn packed_notes_in_a_png_cost_no_more_than_a_picture_may() {
        let png = encoded(ImageFormat::Png);
        let packed = zeros(600);
        assert!(packed.len() < 1 << 20);
        for (name, head) in
            [(b"zTXt", &b"Comment\0\0"[..]), (b"iCCP", b"profile\0\0"), (b"iTXt", b"Comment\0\x01\0\0\0")]
        {
            let note = chunk(name, &[head, &packed[..]].concat());
            // Behind the header, which has 33 bytes.
            let bomb = [&png[..33], &note, &png[33..]].concat();
            match Picture::decode(&bomb, Alpha::Drop) {
                Ok(read) => assert_eq!(read.rgb, *drawn().as_raw(), "{name:?}"),
                Err(Refusal::Broken { reason }) => assert!(!reason.is_empty()),
                Err(other) => panic!("{name:?}: {other}"),
            }
        }
    }
}
