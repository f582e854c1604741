//! Reductions whose parts combine like the whole: products, extremes, any, all, counts and sums of squares.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::compose;
use crate::ops::dims::{keep_shape, normal_dims};
use crate::ops::moments::filled;
use crate::ops::named::{Found, found, keep};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::ops::Keep;
use planaria_array::{Array, DType, Scalar};
use planaria_layout::rule::{self, Rule};
use planaria_layout::{Dims, Reduce};
use smallvec::smallvec;

/// What is made of the elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReductionKind {
    Prod,
    Max,
    Min,
    Any,
    All,
    CountNonzero,
    SumSquares,
}

/// Elements along dims made into one.
#[derive(Debug, Clone)]
pub(crate) struct Fold {
    kind: ReductionKind,
    dims: Dims,
    keep: Keep,
}

impl Fold {
    fn reduce(&self) -> Reduce {
        match self.kind {
            ReductionKind::Prod => Reduce::Prod,
            ReductionKind::Max => Reduce::Max,
            ReductionKind::Min => Reduce::Min,
            ReductionKind::Any => Reduce::Any,
            ReductionKind::All => Reduce::All,
            ReductionKind::CountNonzero | ReductionKind::SumSquares => Reduce::Sum,
        }
    }
}

impl Op for Fold {
    fn name(&self) -> &'static str {
        match self.kind {
            ReductionKind::Prod => "prod",
            ReductionKind::Max => "amax",
            ReductionKind::Min => "amin",
            ReductionKind::Any => "any",
            ReductionKind::All => "all",
            ReductionKind::CountNonzero => "count_nonzero",
            ReductionKind::SumSquares => "sum_squares",
        }
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("axis", self.dims.as_slice()).with("keepdim", self.keep == Keep::Yes)
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = rule::reduction(&inputs[0].shape, &self.dims, &outputs[0].shape, self.reduce());
        match self.kind {
            ReductionKind::Prod => rule.pass(&[0], &[Reduce::Prod]),
            ReductionKind::Max => rule.pass(&[0], &[Reduce::Max]),
            ReductionKind::Min => rule.pass(&[0], &[Reduce::Min]),
            ReductionKind::Any => rule.pass(&[0], &[Reduce::Any]),
            ReductionKind::All => rule.pass(&[0], &[Reduce::All]),
            ReductionKind::CountNonzero | ReductionKind::SumSquares => {}
        }
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (x, dims) = (inputs[0], signed(&self.dims));
        if matches!(self.kind, ReductionKind::Max | ReductionKind::Min) {
            let nothing_here = x.numel() == 0 && local.is_cut(0, &self.dims);
            if nothing_here {
                let edge =
                    if self.kind == ReductionKind::Max { lowest(x.dtype()) } else { highest(x.dtype()) };
                return Ok(smallvec![filled(x, &reduced_shape(x, &self.dims, self.keep), edge, x.dtype())?]);
            }
        }
        Ok(smallvec![match self.kind {
            ReductionKind::Prod => x.prod(&dims, self.keep)?,
            ReductionKind::Max => x.amax(&dims, self.keep)?,
            ReductionKind::Min => x.amin(&dims, self.keep)?,
            ReductionKind::Any => x.any(&dims, self.keep)?,
            ReductionKind::All => x.all(&dims, self.keep)?,
            ReductionKind::CountNonzero => x.count_nonzero(&dims, self.keep)?,
            ReductionKind::SumSquares => x.sum_squares(&dims, self.keep)?,
        }])
    }

    fn saves(&self, _: &Places) -> Saves {
        match self.kind {
            ReductionKind::Any | ReductionKind::All | ReductionKind::CountNonzero => Saves::nothing(),
            ReductionKind::Max | ReductionKind::Min => Saves::inputs(&[0]).and_outputs(&[0]),
            ReductionKind::Prod | ReductionKind::SumSquares => Saves::inputs(&[0]),
        }
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None]) };
        let kept = keep_shape(&at.input_spec(0).shape, &self.dims);
        let dx = match self.kind {
            ReductionKind::Any | ReductionKind::All | ReductionKind::CountNonzero => {
                return Ok(smallvec![None]);
            }
            ReductionKind::Prod => {
                let shape = &at.output_spec(0).shape;
                let product = |x: &[Tensor]| Ok(vec![tree_product(&x[0], &self.dims)?.reshape(shape)?]);
                return compose::gradient(at, grads, product);
            }
            ReductionKind::SumSquares => dy.reshape(&kept)?.mul(&at.input(0)?)?.mul_scalar(2.0)?,
            ReductionKind::Max | ReductionKind::Min => share(&at.input(0)?, &at.output(0)?, dy, &self.dims)?,
        };
        Ok(smallvec![Some(dx)])
    }
}

/// Each of the elements that equal the result gets the same share of its gradient.
pub(crate) fn share(x: &Tensor, y: &Tensor, dy: &Tensor, dims: &[usize]) -> Result<Tensor> {
    let kept = keep_shape(x.shape(), dims);
    let chosen = x.eq(&y.detach().reshape(&kept)?)?.cast(dy.dtype())?;
    let count = chosen.sum(&signed(dims), Keep::Yes)?;
    // Where nothing is equal, as with NaN, nothing is shared out.
    chosen.mul(&dy.reshape(&kept)?.div(&count.clip(Some(1.0), None)?)?)
}

/// The product over dims by halves, so that its gradients hold where elements are 0.
fn tree_product(x: &Tensor, dims: &[usize]) -> Result<Tensor> {
    let others = (0..x.ndim()).filter(|d| !dims.contains(d));
    let order: Vec<i64> = dims.iter().copied().chain(others).map(|d| d as i64).collect();
    let moved = x.permute(&order)?;
    let (mut count, rest) =
        (dims.iter().map(|&d| x.shape()[d]).product::<usize>(), &moved.shape()[dims.len()..]);
    let mut y = moved.reshape(&[&[count], rest].concat())?;
    if count == 0 {
        return y.sum(&[0], Keep::No)?.add_scalar(1.0);
    }
    while count > 1 {
        let half = count / 2;
        let pairs = y.narrow(0, 0, half)?.mul(&y.narrow(0, half, half)?)?;
        y = if count % 2 == 0 { pairs } else { append(&pairs, &y.narrow(0, count - 1, 1)?)? };
        count -= half;
    }
    y.squeeze(&[0])
}

/// One more element of dim 0.
fn append(x: &Tensor, last: &Tensor) -> Result<Tensor> {
    x.surrounded(0, 0, 1)?.add(&last.surrounded(0, x.shape()[0], 0)?)
}

pub(crate) fn signed(dims: &[usize]) -> Vec<i64> {
    dims.iter().map(|&d| d as i64).collect()
}

/// The shape that reducing local dims gives.
pub(crate) fn reduced_shape(x: &Array, dims: &[usize], keep: Keep) -> Dims {
    let kept = x.shape().iter().enumerate();
    kept.filter(|(d, _)| keep == Keep::Yes || !dims.contains(d))
        .map(|(d, &n)| if dims.contains(&d) { 1 } else { n })
        .collect()
}

/// The value that no other is below.
pub(crate) fn lowest(dtype: DType) -> Scalar {
    match dtype {
        DType::I8 => i64::from(i8::MIN).into(),
        DType::I16 => i64::from(i16::MIN).into(),
        DType::I32 => i64::from(i32::MIN).into(),
        DType::I64 => i64::MIN.into(),
        DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::U64 => 0i64.into(),
        DType::F8E4M3 => (-448.0).into(),
        _ => f64::NEG_INFINITY.into(),
    }
}

/// The value that no other is above.
pub(crate) fn highest(dtype: DType) -> Scalar {
    match dtype {
        DType::Bool => true.into(),
        DType::I8 => i64::from(i8::MAX).into(),
        DType::I16 => i64::from(i16::MAX).into(),
        DType::I32 => i64::from(i32::MAX).into(),
        DType::I64 => i64::MAX.into(),
        DType::U8 => i64::from(u8::MAX).into(),
        DType::U16 => i64::from(u16::MAX).into(),
        DType::U32 => i64::from(u32::MAX).into(),
        DType::U64 => Scalar::Int(u64::MAX.into()),
        DType::F8E4M3 => 448.0.into(),
        _ => f64::INFINITY.into(),
    }
}

/// Over the given dims, or over all of them when none are given.
impl Tensor {
    fn fold(&self, kind: ReductionKind, dims: &[i64], keep: Keep) -> Result<Tensor> {
        let dims = normal_dims("reduction", self.ndim(), dims)?;
        apply1(Fold { kind, dims, keep }, &[self])
    }

    /// The product over dims.
    pub fn prod(&self, dims: &[i64], keep: Keep) -> Result<Tensor> {
        self.fold(ReductionKind::Prod, dims, keep)
    }

    /// The largest element over dims. Equal ones share the gradient.
    pub fn amax(&self, dims: &[i64], keep: Keep) -> Result<Tensor> {
        self.fold(ReductionKind::Max, dims, keep)
    }

    /// The smallest element over dims. Equal ones share the gradient.
    pub fn amin(&self, dims: &[i64], keep: Keep) -> Result<Tensor> {
        self.fold(ReductionKind::Min, dims, keep)
    }

    /// True where any element over dims is not zero.
    pub fn any(&self, dims: &[i64], keep: Keep) -> Result<Tensor> {
        self.fold(ReductionKind::Any, dims, keep)
    }

    /// True where no element over dims is zero.
    pub fn all(&self, dims: &[i64], keep: Keep) -> Result<Tensor> {
        self.fold(ReductionKind::All, dims, keep)
    }

    /// How many elements over dims are not zero.
    pub fn count_nonzero(&self, dims: &[i64], keep: Keep) -> Result<Tensor> {
        self.fold(ReductionKind::CountNonzero, dims, keep)
    }

    /// The sum of squares over dims.
    pub fn sum_squares(&self, dims: &[i64], keep: Keep) -> Result<Tensor> {
        self.fold(ReductionKind::SumSquares, dims, keep)
    }

    /// The sum over dims of what is not NaN.
    pub fn nansum(&self, dims: &[i64], keep: Keep) -> Result<Tensor> {
        // Contributions that cancel out may be NaN each; what they make up is what counts.
        let x = self.settled()?;
        x.masked_fill(&x.is_nan()?, 0.0)?.sum(dims, keep)
    }
}

/// Some dims of a shape, at least one.
pub(crate) fn some_dims(draw: &mut Draw, ndim: usize) -> Dims {
    let dims: Dims = (0..ndim).filter(|_| draw.coin()).collect();
    if dims.is_empty() { (0..ndim).collect() } else { dims }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    let kind = match name {
        "prod" => ReductionKind::Prod,
        "amax" => ReductionKind::Max,
        "amin" => ReductionKind::Min,
        "any" => ReductionKind::Any,
        "all" => ReductionKind::All,
        "count_nonzero" => ReductionKind::CountNonzero,
        "sum_squares" => ReductionKind::SumSquares,
        _ => return None,
    };
    found(Fold { kind, dims: at.sizes("axis")?, keep: keep(at)? })
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(1, 3);
    let dims = some_dims(draw, shape.len());
    let keep = draw.pick(&[Keep::Yes, Keep::No]);
    let kind = draw.pick(&[
        ReductionKind::Prod,
        ReductionKind::Max,
        ReductionKind::Min,
        ReductionKind::Any,
        ReductionKind::All,
        ReductionKind::CountNonzero,
        ReductionKind::SumSquares,
    ]);
    let x = match kind {
        ReductionKind::Prod if draw.coin() => {
            // Zeros, where a gradient by division would fail.
            let x = draw.between(0.5, 1.5, &shape)?;
            let zeros = draw.integers(6, &shape)?.cast(DType::Bool)?.cast(DType::F64)?;
            x.mul(&zeros)?
        }
        ReductionKind::Prod => draw.between(0.5, 1.5, &shape)?,
        ReductionKind::Max | ReductionKind::Min => draw.distinct(&shape)?,
        ReductionKind::Any | ReductionKind::All | ReductionKind::CountNonzero => draw.mask(&shape)?,
        ReductionKind::SumSquares => draw.normal(&shape)?,
    };
    Ok(Sample::new(Fold { kind, dims, keep }, [x]))
}
