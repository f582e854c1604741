//! Frozen weights in 8 or 4 bits: codes of a fixed table and one scale for every 64 elements of a row.

use crate::error::{Error, Result};
use planaria_array::{Array, DType, Device, ops};
use planaria_layout::Shape;
use rayon::prelude::*;
use std::ops::Range;

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

/// What is known of a weight in few bits without its elements.
#[derive(Clone, Debug)]
pub struct Form {
    width: Width,
    shape: Shape,
    /// Elements of the first block of every row: a piece may begin inside a block of the whole weight.
    first: usize,
    dtype: DType,
    /// The values that each byte of codes stands for, a row for each of the 256, where the codes are.
    table: Array,
}

/// A weight in few bits: its codes and its scales are arrays, so that they are cut, moved and computed with as all others are.
#[derive(Clone, Debug)]
pub struct Narrow {
    form: Form,
    /// Bytes, one row; in each byte of 4-bit codes the first is the lower one.
    codes: Array,
    /// The largest magnitude of each block, row after row.
    scales: Array,
}

/// Elements that a device widens at once: what it computes beside the result is bounded by this.
const STEP: usize = 1 << 22;

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
fn blocks(columns: usize, first: usize) -> impl Iterator<Item = Range<usize>> {
    let start = std::iter::once(0).chain((first.min(columns)..columns).step_by(BLOCK));
    start
        .map(move |at| if at == 0 { 0..first.min(columns) } else { at..(at + BLOCK).min(columns) })
        .filter(|range| !range.is_empty())
}

/// Codes and scales of one row, a code a byte.
fn coded(row: &[f32], first: usize, width: Width) -> (Vec<u8>, Vec<f32>) {
    let (mut codes, mut scales) = (Vec::with_capacity(row.len()), Vec::new());
    for range in blocks(row.len(), first) {
        let block = &row[range];
        let largest = block.iter().fold(0f32, |most, value| most.max(value.abs()));
        let inverse = if largest > 0.0 { 1.0 / largest } else { 0.0 };
        scales.push(largest);
        codes.extend(block.iter().map(|value| match width {
            Width::Int8 => (value * inverse * 127.0).round() as i8 as u8,
            Width::Nf4 => nf4_code(value * inverse),
        }));
    }
    (codes, scales)
}

impl Width {
    /// Elements in a byte of codes.
    fn in_byte(self) -> usize {
        match self {
            Width::Int8 => 1,
            Width::Nf4 => 2,
        }
    }

    /// The value of element `place` of a byte of codes, before its scale.
    fn unit(self, byte: u8, place: usize) -> f32 {
        match self {
            Width::Int8 => f32::from(byte as i8) / 127.0,
            Width::Nf4 => NF4[usize::from(byte >> (4 * place) & 15)],
        }
    }

    /// [`Width::unit`] of every byte.
    fn table(self, device: Device) -> Result<Array> {
        let each = self.in_byte();
        let units = (0..=u8::MAX).flat_map(|byte| (0..each).map(move |place| self.unit(byte, place)));
        Ok(Array::from_slice(&units.collect::<Vec<f32>>(), &[256, each])?.to(device)?)
    }
}

impl Form {
    fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1).max(1)
    }

    /// The weight of this form that has these codes and scales.
    pub fn join(&self, codes: Array, scales: Array) -> Narrow {
        Narrow { form: self.clone(), codes, scales }
    }
}

impl Narrow {
    /// Rounds a weight whose rows begin at column `origin` of the whole one: blocks are those of the whole weight, so that ranks
    /// that cut it between blocks have the same values as one that has it all. Codes and scales lie where the weight does.
    pub fn new(weight: &Array, origin: usize, width: Width) -> Result<Narrow> {
        let device = weight.device();
        let table = width.table(device)?;
        let first = BLOCK - origin % BLOCK;
        let form = Form { width, shape: weight.shape().clone(), first, dtype: weight.dtype(), table };
        let values = weight.to(Device::Cpu)?.contiguous()?.cast(DType::F32)?.to_vec::<f32>()?;
        if let Some(bad) = values.iter().find(|value| !value.is_finite()) {
            return Err(Error::Adapter {
                what: format!("a weight has the value {bad}, which few bits cannot hold"),
            });
        }
        let rows = values.par_chunks(form.columns()).map(|row| coded(row, first, width));
        let rows: Vec<(Vec<u8>, Vec<f32>)> = rows.collect();
        let (codes, scales): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let (mut codes, scales) = (codes.concat(), scales.concat());
        if width == Width::Nf4 {
            codes = codes.chunks(2).map(|pair| pair[0] | pair.get(1).copied().unwrap_or(0) << 4).collect();
        }
        let codes = Array::from_slice(&codes, &[codes.len()])?.to(device)?;
        Ok(form.join(codes, Array::from_slice(&scales, &[scales.len()])?.to(device)?))
    }

    /// What is known of it without its elements.
    pub fn form(&self) -> &Form {
        &self.form
    }

    /// Its codes, bytes in one row.
    pub fn codes(&self) -> &Array {
        &self.codes
    }

    /// Its scales, f32 in one row.
    pub fn scales(&self) -> &Array {
        &self.scales
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> usize {
        self.codes.numel() + 4 * self.scales.numel()
    }

    /// The weight as it is computed with, where its codes lie.
    pub fn values(&self) -> Result<Array> {
        match self.codes.device() {
            Device::Cpu => self.on_host(),
            _ => self.on_device(),
        }
    }

    fn on_host(&self) -> Result<Array> {
        let Form { width, ref shape, first, dtype, .. } = self.form;
        let (columns, packed) = (self.form.columns(), width.in_byte());
        let each = blocks(columns, first).count();
        let (codes, scales) = (self.codes.contiguous()?.bytes()?, self.scales.to_vec::<f32>()?);
        let mut values = vec![0f32; shape.numel()];
        values.par_chunks_mut(columns).enumerate().for_each(|(row, out)| {
            for (number, range) in blocks(columns, first).enumerate() {
                let scale = scales[row * each + number];
                let start = row * columns + range.start;
                for (place, value) in out[range].iter_mut().enumerate() {
                    let at = start + place;
                    *value = scale * width.unit(codes[at / packed], at % packed);
                }
            }
        });
        Ok(Array::from_slice(&values, shape)?.cast(dtype)?)
    }

    /// The same bits from operations that every device has, some rows at a time.
    fn on_device(&self) -> Result<Array> {
        let (columns, numel) = (self.form.columns(), self.form.shape.numel());
        let rows = numel / columns;
        let out = Array::empty_on(&[rows, columns], self.form.dtype, self.codes.device())?;
        let step = (STEP / columns).max(1);
        for from in (0..rows).step_by(step) {
            let to = (from + step).min(rows);
            self.widen(from..to, &out.narrow(0, from, to - from)?)?;
        }
        Ok(out.reshape(&self.form.shape)?)
    }

    /// Fills `out` with some rows: bytes are looked up in the table, then blocks of one length multiplied by their scales.
    fn widen(&self, rows: Range<usize>, out: &Array) -> Result<()> {
        let (columns, packed) = (self.form.columns(), self.form.width.in_byte());
        let (from, numel) = (rows.start * columns, rows.len() * columns);
        let (low, high) = (from / packed, (from + numel).div_ceil(packed));
        let units = ops::embedding(&self.form.table, &self.codes.narrow(0, low, high - low)?)?;
        let units = units.reshape(&[units.numel()])?.narrow(0, from - low * packed, numel)?;
        let units = units.reshape(&[rows.len(), columns])?;
        let each = blocks(columns, self.form.first).count();
        let scales = self.scales.narrow(0, rows.start * each, rows.len() * each)?;
        let scales = scales.reshape(&[rows.len(), each, 1])?;
        for Run { block, count, column, length } in runs(columns, self.form.first) {
            let boxed = units.narrow(1, column, count * length)?.reshape(&[rows.len(), count, length])?;
            let values = boxed.mul(&scales.narrow(1, block, count)?)?.cast(self.form.dtype)?;
            let place = out.narrow(1, column, count * length)?;
            place.copy_from(&values.reshape(&[rows.len(), count * length])?)?;
        }
        Ok(())
    }
}

/// Blocks of a row that follow each other and have one length.
struct Run {
    block: usize,
    count: usize,
    column: usize,
    length: usize,
}

/// The runs of a row: of three at most, since only its first and its last block may be shorter than the others.
fn runs(columns: usize, first: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (block, range) in blocks(columns, first).enumerate() {
        match runs.last_mut().filter(|run| run.length == range.len()) {
            Some(run) => run.count += 1,
            None => runs.push(Run { block, count: 1, column: range.start, length: range.len() }),
        }
    }
    runs
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
    fn operations_of_devices_give_the_bits_of_the_host() {
        for (shape, origin) in
            [(&[5, 192][..], 0), (&[3, 150], 40), (&[2, 3, 7], 60), (&[7], 3), (&[0, 64], 0)]
        {
            for width in [Width::Int8, Width::Nf4] {
                for dtype in [DType::F32, DType::BF16] {
                    let weight = random(shape).cast(dtype).unwrap();
                    let narrow = Narrow::new(&weight, origin, width).unwrap();
                    let bytes = |array: Array| array.bytes().unwrap().to_vec();
                    let (host, device) = (narrow.on_host().unwrap(), narrow.on_device().unwrap());
                    assert_eq!(host.shape(), device.shape());
                    assert_eq!(bytes(host), bytes(device), "{shape:?} from {origin} in {width:?}");
                }
            }
        }
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
