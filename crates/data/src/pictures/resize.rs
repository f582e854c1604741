//! The size that a picture is brought to, and resampling with the bits of Pillow on 8-bit channels.

use super::Refusal;

/// A picture of 8-bit red, green and blue, row after row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// `height * width * 3` values.
    pub rgb: Vec<u8>,
}

/// Sides further apart than this are refused.
const MAX_RATIO: usize = 200;

/// Height and width that are multiples of `factor`, with a number of pixels between two limits and nearly the same ratio.
pub fn fitting_size(
    (height, width): (usize, usize),
    factor: usize,
    (least, most): (usize, usize),
) -> Result<(usize, usize), Refusal> {
    let (short, long) = (height.min(width), height.max(width));
    if short == 0 || long > MAX_RATIO * short {
        return Err(Refusal::Ratio { height, width, most: MAX_RATIO });
    }
    let (h, w, f) = (height as f64, width as f64, factor as f64);
    let near = |side: f64| (side / f).round_ties_even() as usize * factor;
    let (near_h, near_w) = (near(h), near(w));
    if near_h * near_w > most {
        let shrink = (h * w / most as f64).sqrt();
        let below = |side: f64| ((side / shrink / f).floor() as usize * factor).max(factor);
        return Ok((below(h), below(w)));
    }
    if near_h * near_w < least {
        let grow = (least as f64 / (h * w)).sqrt();
        let above = |side: f64| (side * grow / f).ceil() as usize * factor;
        return Ok((above(h), above(w)));
    }
    Ok((near_h, near_w))
}

/// Bits behind the point of a quantised weight.
const PRECISION: u32 = 22;

/// What one output is made of: the first input, and the weight of each from there on.
struct Taps {
    first: usize,
    weights: Vec<i64>,
}

impl Picture {
    /// Bicubic with antialiasing: columns first, then rows, each rounded to 8 bits, as Pillow before version 13 does.
    #[must_use]
    pub fn resized(&self, height: usize, width: usize) -> Picture {
        let wide = if width == self.width { self.clone() } else { self.columns(width) };
        if height == self.height { wide } else { wide.rows(height) }
    }

    fn columns(&self, width: usize) -> Picture {
        let taps = taps(self.width, width);
        let mut rgb = Vec::with_capacity(self.height * width * 3);
        for row in self.rgb.chunks_exact(self.width * 3) {
            for Taps { first, weights } in &taps {
                for channel in 0..3 {
                    let inputs = row[first * 3 + channel..].iter().step_by(3);
                    rgb.push(mixed(inputs, weights));
                }
            }
        }
        Picture { height: self.height, width, rgb }
    }

    fn rows(&self, height: usize) -> Picture {
        let stride = self.width * 3;
        let mut rgb = Vec::with_capacity(height * stride);
        for Taps { first, weights } in taps(self.height, height) {
            for at in 0..stride {
                let inputs = self.rgb[first * stride + at..].iter().step_by(stride);
                rgb.push(mixed(inputs, &weights));
            }
        }
        Picture { height, width: self.width, rgb }
    }
}

fn mixed<'a>(inputs: impl Iterator<Item = &'a u8>, weights: &[i64]) -> u8 {
    let sum: i64 = inputs.zip(weights).map(|(&pixel, weight)| i64::from(pixel) * weight).sum();
    (((1 << (PRECISION - 1)) + sum) >> PRECISION).clamp(0, 255) as u8
}

fn taps(from: usize, to: usize) -> Vec<Taps> {
    let scale = from as f64 / to as f64;
    let stretch = scale.max(1.0);
    let support = 2.0 * stretch;
    let tap = |output: usize| {
        let centre = (output as f64 + 0.5) * scale;
        let first = (centre - support + 0.5).max(0.0) as usize;
        let end = ((centre + support + 0.5) as usize).min(from);
        let raw: Vec<f64> =
            (first..end).map(|i| cubic((i as f64 - centre + 0.5) * (1.0 / stretch))).collect();
        let total: f64 = raw.iter().sum();
        let quantised = |w: &f64| (w / total * f64::from(1u32 << PRECISION)).round() as i64;
        Taps { first, weights: raw.iter().map(quantised).collect() }
    };
    (0..to).map(tap).collect()
}

/// Keys' cubic with a = -1/2.
fn cubic(t: f64) -> f64 {
    const A: f64 = -0.5;
    let t = t.abs();
    if t < 1.0 {
        ((A + 2.0) * t - (A + 3.0)) * t * t + 1.0
    } else if t < 2.0 {
        (((t - 5.0) * t + 8.0) * t - 4.0) * A
    } else {
        0.0
    }
}
