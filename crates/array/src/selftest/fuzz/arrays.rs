//! Random arrays, views and arguments, some of them absurd.

use crate::array::Array;
use crate::device::Device;
use crate::error::Result;
use crate::index::Index;
use crate::ops::Keep;
use planaria_layout::DType;

/// A seeded generator whose copies give the same numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The numbers of one seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// Mostly a small integer, sometimes one that overflows careless arithmetic.
    pub(super) fn int(&mut self) -> i64 {
        match self.below(40) {
            0 => i64::MIN,
            1 => i64::MAX,
            2 => 1 << 40,
            _ => self.below(12) as i64 - 5,
        }
    }

    pub(super) fn bound(&mut self) -> Option<i64> {
        self.chance(70).then(|| self.int())
    }

    /// A dim, in range more often than not.
    pub(super) fn dim(&mut self) -> i64 {
        match self.below(40) {
            0 => i64::MIN,
            1 => i64::MAX,
            _ => self.below(6) as i64 - 3,
        }
    }

    pub(super) fn dims(&mut self) -> Vec<i64> {
        (0..self.below(4)).map(|_| self.dim()).collect()
    }

    /// A small extent, or one that no shape can hold.
    pub(super) fn extent(&mut self) -> usize {
        match self.below(30) {
            0 => usize::MAX,
            1 => usize::MAX / 2 + 1,
            _ => self.below(5),
        }
    }

    pub(super) fn extents(&mut self) -> Vec<usize> {
        (0..self.below(5)).map(|_| self.extent()).collect()
    }

    pub(super) fn keep(&mut self) -> Keep {
        self.pick(&[Keep::No, Keep::Yes])
    }

    pub(super) fn shape(&mut self) -> Vec<usize> {
        (0..self.below(5)).map(|_| self.pick(&[0, 1, 1, 2, 2, 3, 4, 5])).collect()
    }

    /// Small whole numbers, so that sums in any order are equal; a few floats are not finite.
    fn array(&mut self, shape: &[usize], dtype: DType, device: Device) -> Result<Array> {
        let odd = dtype.is_float() && self.chance(15);
        let values: Vec<f64> = (0..shape.iter().product())
            .map(|_| match self.below(30) {
                0 if odd => f64::NAN,
                1 if odd => f64::INFINITY,
                2 if odd => -0.0,
                v => (v % 9) as f64 - 4.0,
            })
            .collect();
        Array::from_slice(&values, shape)?.cast(dtype)?.to(device)
    }

    pub(super) fn dtype(&mut self) -> DType {
        if self.chance(50) { self.pick(&[DType::F32, DType::I64]) } else { self.pick(&DType::ALL) }
    }

    /// The array seen through a few steps that share its storage.
    pub(super) fn view(&mut self, x: Array) -> Array {
        (0..self.below(3)).fold(x, |x, _| self.step(&x).unwrap_or(x))
    }

    fn step(&mut self, x: &Array) -> Result<Array> {
        match self.below(7) {
            0 => x.transpose(self.dim(), self.dim()),
            1 => {
                let step = self.pick(&[1, 1, 2, 3, -1, -1, -2]);
                x.slice(self.dim(), self.bound(), self.bound(), step)
            }
            2 => x.unsqueeze(self.dim()),
            3 => x.select(self.dim(), self.int()),
            4 => x.squeeze(&[]),
            5 if x.numel() < 200 => {
                let shape: Vec<usize> = x.shape().iter().map(|&n| if n == 1 { 3 } else { n }).collect();
                x.broadcast_to(&shape)
            }
            _ => x.flatten(self.dim(), self.dim()),
        }
    }

    pub(super) fn index(&mut self, args: &Args) -> Vec<Index> {
        (0..self.below(4))
            .map(|_| match self.below(8) {
                0 | 1 => Index::Int(self.below(6) as i64 - 3),
                2 | 3 => Index::Slice {
                    start: self.bound(),
                    stop: self.bound(),
                    step: self.chance(30).then(|| self.int()),
                },
                4 => self.pick(&[Index::NewAxis, Index::Ellipsis, Index::Bool(true), Index::Bool(false)]),
                5 => Index::Mask(args.mask.clone()),
                _ => Index::Take(args.index.clone()),
            })
            .collect()
    }
}

/// What an operation may use.
#[derive(Clone, Debug)]
pub struct Args {
    /// Any array.
    pub(super) x: Array,
    /// One of the same shape and dtype.
    pub(super) twin: Array,
    /// One of the same dtype and, now and then, a shape that broadcasts.
    pub(super) y: Array,
    /// Truth values, often in the shape of x.
    pub(super) mask: Array,
    /// Integers, often in the shape of x, mostly in the range of its dims.
    pub(super) index: Array,
}

impl Args {
    /// What follows from the numbers of `r`, the same on every device, strides included.
    pub fn random(r: &mut Rng, device: Device) -> Result<Args> {
        let (shape, dtype) = (r.shape(), r.dtype());
        let x = r.array(&shape, dtype, device)?;
        let x = r.view(x);
        let twin = r.array(x.shape(), dtype, device)?;
        let twin = if r.chance(50) { twin.transpose(0, -1)?.copy()? } else { twin.copy()? };
        let twin = if twin.shape() == x.shape() { twin } else { twin.transpose(0, -1)? };
        let other = match r.below(3) {
            0 => x.shape().to_vec(),
            1 => x.shape().iter().map(|&n| if r.chance(50) { 1 } else { n }).collect(),
            _ => r.shape(),
        };
        let y_dtype = if r.chance(90) { dtype } else { r.dtype() };
        let y = r.array(&other, y_dtype, device)?;
        let of_x = |r: &mut Rng| if r.chance(60) { x.shape().to_vec() } else { r.shape() };
        let (mask_shape, index_shape) = (of_x(r), of_x(r));
        let mask = r.array(&mask_shape, DType::Bool, device)?;
        let reach = if r.chance(80) { x.shape().iter().copied().min().unwrap_or(1).max(1) } else { 9 };
        let count: usize = index_shape.iter().product();
        let index: Vec<i64> = (0..count).map(|_| r.below(reach) as i64 - i64::from(r.chance(3))).collect();
        let index = Array::from_slice(&index, &index_shape)?.to(device)?;
        let index = if r.chance(20) { index.cast(DType::I32)? } else { index };
        Ok(Args { twin, y: r.view(y), mask: r.view(mask), index: r.view(index), x })
    }

    /// The same values without strides.
    pub fn contiguous(&self) -> Result<Args> {
        let Args { x, twin, y, mask, index } = self;
        Ok(Args { x: x.copy()?, twin: twin.copy()?, y: y.copy()?, mask: mask.copy()?, index: index.copy()? })
    }

    /// Dtypes, shapes and strides, in words.
    pub fn describe(&self) -> String {
        let one =
            |name: &str, a: &Array| format!("{name} {}{} strides {:?}", a.dtype(), a.shape(), a.strides());
        let all = [
            ("x", &self.x),
            ("twin", &self.twin),
            ("y", &self.y),
            ("mask", &self.mask),
            ("index", &self.index),
        ];
        all.map(|(name, a)| one(name, a)).join("; ")
    }
}
