//! Random arrays, views and arguments, some of them absurd.

use planaria_array::ops::Keep;
use planaria_array::{Array, DType, Index, Result};

/// A seeded generator whose copies give the same numbers.
#[derive(Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// Mostly a small integer, sometimes one that overflows careless arithmetic.
    pub(crate) fn int(&mut self) -> i64 {
        match self.below(40) {
            0 => i64::MIN,
            1 => i64::MAX,
            2 => 1 << 40,
            _ => self.below(12) as i64 - 5,
        }
    }

    pub(crate) fn bound(&mut self) -> Option<i64> {
        self.chance(70).then(|| self.int())
    }

    /// A dim, in range more often than not.
    pub(crate) fn dim(&mut self) -> i64 {
        match self.below(40) {
            0 => i64::MIN,
            1 => i64::MAX,
            _ => self.below(6) as i64 - 3,
        }
    }

    pub(crate) fn dims(&mut self) -> Vec<i64> {
        (0..self.below(4)).map(|_| self.dim()).collect()
    }

    /// A small extent, or one that no shape can hold.
    pub(crate) fn extent(&mut self) -> usize {
        match self.below(30) {
            0 => usize::MAX,
            1 => usize::MAX / 2 + 1,
            _ => self.below(5),
        }
    }

    pub(crate) fn extents(&mut self) -> Vec<usize> {
        (0..self.below(5)).map(|_| self.extent()).collect()
    }

    pub(crate) fn keep(&mut self) -> Keep {
        self.pick(&[Keep::No, Keep::Yes])
    }

    pub(crate) fn shape(&mut self) -> Vec<usize> {
        (0..self.below(5)).map(|_| self.pick(&[0, 1, 1, 2, 2, 3, 4, 5])).collect()
    }

    /// Small whole numbers, so that sums in any order are equal; a few floats are not finite.
    pub(crate) fn array(&mut self, shape: &[usize], dtype: DType) -> Array {
        let odd = dtype.is_float() && self.chance(15);
        let values: Vec<f64> = (0..shape.iter().product())
            .map(|_| match self.below(30) {
                0 if odd => f64::NAN,
                1 if odd => f64::INFINITY,
                2 if odd => -0.0,
                v => (v % 9) as f64 - 4.0,
            })
            .collect();
        Array::from_slice(&values, shape).and_then(|a| a.cast(dtype)).expect("a small array")
    }

    pub(crate) fn dtype(&mut self) -> DType {
        if self.chance(50) { self.pick(&[DType::F32, DType::I64]) } else { self.pick(&DType::ALL) }
    }

    /// The array seen through a few steps that share its storage.
    pub(crate) fn view(&mut self, x: Array) -> Array {
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

    pub(crate) fn index(&mut self, args: &Args) -> Vec<Index> {
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
pub(crate) struct Args {
    /// Any array.
    pub x: Array,
    /// One of the same shape and dtype.
    pub twin: Array,
    /// One of the same dtype and, now and then, a shape that broadcasts.
    pub y: Array,
    /// Truth values, often in the shape of x.
    pub mask: Array,
    /// Integers, often in the shape of x, mostly in the range of its dims.
    pub index: Array,
}

impl Args {
    pub(crate) fn random(r: &mut Rng) -> Args {
        let (shape, dtype) = (r.shape(), r.dtype());
        let x = r.array(&shape, dtype);
        let x = r.view(x);
        let twin = r.array(x.shape(), dtype);
        let twin = if r.chance(50) { twin.transpose(0, -1).and_then(|t| t.copy()) } else { twin.copy() };
        let twin = twin.and_then(|t| if t.shape() == x.shape() { Ok(t) } else { t.transpose(0, -1) });
        let other = match r.below(3) {
            0 => x.shape().to_vec(),
            1 => x.shape().iter().map(|&n| if r.chance(50) { 1 } else { n }).collect(),
            _ => r.shape(),
        };
        let y_dtype = if r.chance(90) { dtype } else { r.dtype() };
        let y = r.array(&other, y_dtype);
        let of_x = |r: &mut Rng| if r.chance(60) { x.shape().to_vec() } else { r.shape() };
        let (mask_shape, index_shape) = (of_x(r), of_x(r));
        let mask = r.array(&mask_shape, DType::Bool);
        let reach = if r.chance(80) { x.shape().iter().copied().min().unwrap_or(1).max(1) } else { 9 };
        let count: usize = index_shape.iter().product();
        let index: Vec<i64> = (0..count).map(|_| r.below(reach) as i64 - i64::from(r.chance(3))).collect();
        let index = Array::from_slice(&index, &index_shape).expect("a small array");
        let index = if r.chance(20) { index.cast(DType::I32).expect("a cast") } else { index };
        Args { twin: twin.expect("a small array"), y: r.view(y), mask: r.view(mask), index: r.view(index), x }
    }

    /// The same values without strides.
    pub(crate) fn contiguous(&self) -> Args {
        let copy = |a: &Array| a.copy().expect("a small copy");
        Args {
            x: copy(&self.x),
            twin: copy(&self.twin),
            y: copy(&self.y),
            mask: copy(&self.mask),
            index: copy(&self.index),
        }
    }

    pub(crate) fn describe(&self) -> String {
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
