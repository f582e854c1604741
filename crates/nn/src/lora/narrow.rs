//! Frozen weights in 8 or 4 bits: codes of a fixed table and one scale for every 64 elements of a row.

use crate::error::{Error, Result};
use planaria_array::{Array, DType};
use planaria_layout::Shape;
use rayon::prelude::*;

/// Elements of a row that share a scale.
pub const BLOCK: usize = 64;

/// The 16 values of NF4: quantiles of a normal distribution, with 0, -1 and 1 among them.
pub const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// How narrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 8 bits: whole numbers from -127 to 127.
    Int8,
    /// 4 bits: the values of [`NF4`].
    Nf4,
}

impl Width {
    /// Bytes of so many elements in rows of this length, scales included.
    pub fn bytes(self, numel: usize, columns: usize) -> usize {
        let blocks = numel / columns.max(1) * columns.div_ceil(BLOCK);
        let codes = match self {
            Width::Int8 => numel,
            Width::Nf4 => numel.div_ceil(2),
        };
        codes + 4 * blocks
    }
}

/// A weight in few bits.
#[derive(Clone, Debug)]
pub struct Narrow {
    width: Width,
    codes: Vec<u8>,
    scales: Vec<f32>,
    shape: Shape,
    /// Elements of the first block of every row: a piece may begin inside a block of the whole weight.
    first: usize,
    dtype: DType,
}

/// The code of the nearest value of the table; of two equally near ones the lower.
fn nf4_code(value: f32) -> u8 {
    let above = NF4.partition_point(|known| *known < value);
    match above {
        0 => 0,
        16 => 15,
        at if value - NF4[at - 1] <= NF4[at] - value => (at - 1) as u8,
        at => at as u8,
    }
}

/// Ranges of the blocks of a row.
fn blocks(columns: usize, first: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let start = std::iter::once(0).chain((first.min(columns)..columns).step_by(BLOCK));
    start
        .map(move |at| if at == 0 { 0..first.min(columns) } else { at..(at + BLOCK).min(columns) })
        .filter(|range| !range.is_empty())
}

impl Narrow {
    /// Rounds a weight whose rows begin at column `origin` of the whole one: blocks are those of the whole weight, so that ranks
    /// that cut it between blocks have the same values as one that has it all.
    pub fn new(weight: &Array, origin: usize, width: Width) -> Result<Narrow> {
        let columns = weight.shape().last().copied().unwrap_or(1).max(1);
        let values = weight.contiguous()?.cast(DType::F32)?.to_vec::<f32>()?;
        if let Some(bad) = values.iter().find(|value| !value.is_finite()) {
            return Err(Error::Adapter {
                what: format!("a weight has the value {bad}, which few bits cannot hold"),
            });
        }
        let first = BLOCK - origin % BLOCK;
        let (mut codes, mut scales) = (Vec::with_capacity(values.len()), Vec::new());
        for row in values.chunks(columns) {
            for range in blocks(columns, first) {
                let block = &row[range];
                let largest = block.iter().fold(0f32, |most, value| most.max(value.abs()));
                let inverse = if largest > 0.0 { 1.0 / largest } else { 0.0 };
                scales.push(largest);
                codes.extend(block.iter().map(|value| match width {
                    Width::Int8 => (value * inverse * 127.0).round() as i8 as u8,
                    Width::Nf4 => nf4_code(value * inverse),
                }));
            }
        }
        if width == Width::Nf4 {
            codes = codes.chunks(2).map(|pair| pair[0] | pair.get(1).copied().unwrap_or(0) << 4).collect();
        }
        Ok(Narrow { width, codes, scales, shape: weight.shape().clone(), first, dtype: weight.dtype() })
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> usize {
        self.codes.len() + 4 * self.scales.len()
    }

    /// The weight as it is computed with.
    pub fn values(&self) -> Result<Array> {
        let columns = self.shape.last().copied().unwrap_or(1).max(1);
        let each = blocks(columns, self.first).count();
        let mut values = vec![0f32; self.shape.numel()];
        values.par_chunks_mut(columns).enumerate().for_each(|(row, out)| {
            for (number, range) in blocks(columns, self.first).enumerate() {
                let scale = self.scales[row * each + number];
                let start = row * columns + range.start;
                for (place, value) in out[range].iter_mut().enumerate() {
                    *value = scale * self.unit(start + place);
                }
            }
        });
        Ok(Array::from_slice(&values, &self.shape)?.cast(self.dtype)?)
    }

    /// The value of a code, before its scale.
    fn unit(&self, at: usize) -> f32 {
        match self.width {
            Width::Int8 => f32::from(self.codes[at] as i8) / 127.0,
            Width::Nf4 => NF4[usize::from(self.codes[at / 2] >> (4 * (at % 2)) & 15)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_array::random::{Key, Window};

    fn random(shape: &[usize]) -> Array {
        let normal = planaria_array::ops::Distribution::Normal(planaria_array::random::Normal::STANDARD);
        let window = Window::whole(&Shape::new(shape).unwrap());
        Array::random_on(&window, normal, DType::F32, Key::new(3, 4), planaria_array::Device::Cpu).unwrap()
    }

    #[test]
    fn values_of_the_table_times_a_scale_come_back_exactly() {
        let values: Vec<f32> = (0..128).map(|i| 2.5 * NF4[i * 7 % 16]).collect();
        let weight = Array::from_slice(&values, &[2, 64]).unwrap();
        let narrow = Narrow::new(&weight, 0, Width::Nf4).unwrap();
        assert_eq!(narrow.values().unwrap().to_vec::<f32>().unwrap(), values);
        assert_eq!(narrow.bytes(), Width::Nf4.bytes(128, 64));
        assert_eq!(narrow.bytes(), 64 + 2 * 4);
    }

    #[test]
    fn every_element_is_the_nearest_of_its_block() {
        let weight = random(&[9, 150]);
        let values = weight.to_vec::<f32>().unwrap();
        for (width, bound) in [(Width::Int8, 0.5 / 127.0 + 1e-6), (Width::Nf4, 0.152)] {
            let back = Narrow::new(&weight, 0, width).unwrap().values().unwrap().to_vec::<f32>().unwrap();
            for (row, (a, b)) in values.chunks(150).zip(back.chunks(150)).enumerate() {
                for (a, b) in a.chunks(BLOCK).zip(b.chunks(BLOCK)) {
                    let largest = a.iter().fold(0f32, |most, x| most.max(x.abs()));
                    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() <= bound * largest), "row {row}");
                }
            }
        }
    }

    #[test]
    fn a_piece_that_is_cut_anywhere_has_blocks_of_the_whole() {
        let weight = random(&[4, 192]);
        let whole = Narrow::new(&weight, 0, Width::Nf4).unwrap().values().unwrap();
        let right =
            Narrow::new(&weight.narrow(1, 64, 128).unwrap(), 64, Width::Nf4).unwrap().values().unwrap();
        let expected = whole.narrow(1, 64, 128).unwrap().contiguous().unwrap();
        assert_eq!(right.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
        // Inside a block only the largest element may be another; sizes fit all the same.
        let inside = Narrow::new(&weight.narrow(1, 100, 92).unwrap(), 100, Width::Int8).unwrap();
        assert_eq!(inside.values().unwrap().shape()[..], [4, 92]);
        assert!(Narrow::new(&Array::full(&[2, 2], f64::NAN, DType::F32).unwrap(), 0, Width::Nf4).is_err());
    }
}
