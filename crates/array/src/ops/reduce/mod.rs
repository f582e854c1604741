//! Reductions over any set of dims.
//!
//! An empty list of dims means all of them. Integers and bools sum to i64; floats keep their dtype and are summed
//! in f32 or wider, in a fixed order that does not depend on the number of threads.

mod extreme;
mod grad;
mod grad_on_device;
mod norm;

pub(crate) use grad::scatter_along;
pub use grad::{
    amax_grad, amin_grad, expand_reduced, logsumexp_grad, max_grad, mean_grad, min_grad, norm_grad,
    prod_grad, std_grad, sum_grad, var_grad,
};

use crate::array::{Array, Host};
use crate::convert::Number;
use crate::cpu::real::{Float, Real, with_float};
use crate::cpu::reduce::folds::{Bits, Count, End, Found, IntProduct, IntSum, Plain, Product, Square, Sum};
use crate::cpu::reduce::{Plan, reduce};
use crate::cuda::{self, Fold};
use crate::device::Device;
use crate::dispatch::{with_real, with_size};
use crate::element::{Bool, Element, Scalar};
use crate::error::{Error, Result};
use crate::ops::fused::real_dtype;
use crate::view::{inverse, resolve_dims};
use bytemuck::Pod;
use planaria_layout::{DType, Dims, Shape};
use smallvec::SmallVec;
use std::marker::PhantomData;

/// Whether reduced dims stay in the result, with size 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Keep {
    /// Reduced dims disappear.
    #[default]
    No,
    /// Reduced dims stay with size 1, so that the result broadcasts against the input.
    Yes,
}

/// A checked set of dims of one array, and the shape left when they are reduced.
pub(crate) struct Over {
    op: &'static str,
    reduced: SmallVec<[bool; 6]>,
    /// The result's shape.
    pub(crate) shape: Shape,
    /// The result's shape with reduced dims as 1, and without them.
    pub(crate) kept: Shape,
    dropped: Shape,
    /// Elements folded into one.
    pub(crate) count: usize,
}

/// A reduction of a view's storage into results; a `dyn` so that what is around it is compiled once per pair of types.
type Kernel<'a, T, A> = &'a mut dyn FnMut(&[T], &Plan, &mut [A]);

impl Over {
    pub(crate) fn new(op: &'static str, from: &Shape, dims: &[i64], keep: Keep) -> Result<Over> {
        let named = resolve_dims(op, dims, from.ndim())?;
        let reduced: SmallVec<[bool; 6]> =
            (0..from.ndim()).map(|d| dims.is_empty() || named.contains(&d)).collect();
        let mut kept = Dims::from_slice(from);
        let (mut dropped, mut count) = (Dims::new(), 1);
        for (d, &gone) in reduced.iter().enumerate() {
            if gone {
                kept[d] = 1;
                count *= from[d];
            } else {
                dropped.push(from[d]);
            }
        }
        let (kept, dropped) = (Shape::from_dims(kept)?, Shape::from_dims(dropped)?);
        let shape = if keep == Keep::Yes { kept.clone() } else { dropped.clone() };
        Ok(Over { op, reduced, shape, kept, dropped, count })
    }

    /// Refuses to reduce an empty dim, for operations without a value for no elements.
    pub(crate) fn check_not_empty(&self, from: &Shape) -> Result<()> {
        match (0..from.ndim()).find(|&d| self.reduced[d] && from[d] == 0) {
            Some(dim) => Err(Error::EmptyReduction { op: self.op, dim, shape: from.clone() }),
            None => Ok(()),
        }
    }

    /// A view of `x`, or a copy where it must be, and how to walk it.
    fn plan(&self, x: &Array, fits: &dyn Fn(&Plan) -> bool) -> Result<(Array, Plan)> {
        let plan = |x: &Array| Plan::new(x.offset(), x.shape(), x.strides(), &self.reduced);
        let direct = plan(x);
        let (fitting, walkable) = (fits(&direct), direct.walkable());
        if fitting && walkable {
            return Ok((x.clone(), direct));
        }
        let copy = if fitting { copy_in_memory_order(x)? } else { x.copy()? };
        let plan = plan(&copy);
        Ok((copy, plan))
    }

    /// Runs a kernel that writes every result; `empty` is the result where there is nothing to fold.
    pub(crate) fn run<T: Pod, A: Element>(
        &self,
        x: &Array,
        empty: A,
        kernel: Kernel<'_, T, A>,
    ) -> Result<Array> {
        self.run_if(x, empty, &|_| true, kernel)
    }

    /// Like [`Over::run`] for kernels that need more of the plan than that it can be walked.
    fn run_if<T: Pod, A: Element>(
        &self,
        x: &Array,
        empty: A,
        fits: &dyn Fn(&Plan) -> bool,
        kernel: Kernel<'_, T, A>,
    ) -> Result<Array> {
        if x.is_meta() {
            return Ok(Array::meta_of(self.shape.clone(), A::DTYPE));
        }
        if x.numel() == 0 {
            return Array::build(self.shape.clone(), |out: &mut [A]| out.fill(empty));
        }
        let (x, plan) = self.plan(x, fits)?;
        let host: Host = x.host(self.op)?;
        let fill = |out: &mut [A]| kernel(host.slice::<T>(), &plan, out);
        self.in_order(Array::build(shape_in_memory(&x, &plan)?, fill)?, &plan)
    }

    /// Results lie in the order of the input's memory; this brings them to the order of its dims.
    fn in_order(&self, out: Array, plan: &Plan) -> Result<Array> {
        out.permute(&inverse(&plan.kept))?.reshape(&self.shape)
    }

    /// The folds of a device's array, in the shape of the result and the fold's dtype; `empty` where there is
    /// nothing to fold.
    pub(super) fn on_cuda(&self, x: &Array, fold: Fold, empty: impl Into<Scalar>) -> Result<Array> {
        if x.numel() == 0 {
            return Array::full_on(&self.shape, empty, fold.dtype(x.dtype()), x.device());
        }
        cuda::reduce(self.op, x, &self.reduced, fold)?.reshape(&self.shape)
    }

    /// Where the extremes of a device's array stand: the first place among equals, the first NaN if there is any.
    pub(super) fn position_on_cuda(&self, x: &Array, end: End) -> Result<Array> {
        if matches!(x.dtype(), DType::F8E4M3 | DType::F8E5M2) {
            return Err(Error::DType { op: self.op, found: x.dtype(), expected: "any but 8-bit floats" });
        }
        if x.numel() == 0 {
            return Array::zeros_on(&self.shape, DType::I64, x.device());
        }
        let fold = if matches!(end, End::Largest) { Fold::Largest } else { Fold::Smallest };
        let extremes = cuda::reduce(self.op, x, &self.reduced, fold)?;
        cuda::first_equal(self.op, x, &self.reduced, &extremes)?.reshape(&self.shape)
    }

    fn int_sum<T: Number>(&self, x: &Array) -> Result<Array> {
        self.run(x, 0, &mut |data: &[T], plan, out| reduce(&IntSum(PhantomData), data, plan, &[], out))
    }

    /// `dy` seen with the reduced dims as 1; it may come with or without them.
    pub(crate) fn restore(&self, dy: &Array) -> Result<Array> {
        if dy.shape() != &self.kept && dy.shape() != &self.dropped {
            let reason = "a gradient has the shape of the reduced result";
            let (op, lhs, rhs) = (self.op, dy.shape().clone(), self.kept.clone());
            return Err(Error::ShapeMismatch { op, lhs, rhs, reason });
        }
        dy.reshape(&self.kept)
    }
}

/// A copy without gaps whose dims lie in memory as they did: their order decides that of additions.
fn copy_in_memory_order(x: &Array) -> Result<Array> {
    let mut order: SmallVec<[usize; 6]> = (0..x.ndim()).collect();
    order.sort_by_key(|&d| std::cmp::Reverse(x.strides()[d].unsigned_abs()));
    let moved: SmallVec<[i64; 6]> = order.iter().map(|&d| d as i64).collect();
    x.permute(&moved)?.copy()?.permute(&inverse(&order))
}

fn shape_in_memory(x: &Array, plan: &Plan) -> Result<Shape> {
    Ok(Shape::from_dims(plan.kept.iter().map(|&d| x.shape()[d]).collect())?)
}

/// Divides sums by their count.
fn divide<R: Real>(sums: &mut [R], by: f64) {
    for x in sums {
        *x = R::of(x.f64() / by);
    }
}

impl Array {
    /// The same values in one of the few dtypes that kernels outside the hot path are compiled for: f32 or f64,
    /// u8 (for bool as well), i32, i64 or u64. A view where the dtype is one of these already.
    pub(crate) fn widened(&self) -> Result<Array> {
        match self.dtype() {
            DType::F16 | DType::BF16 => self.cast(DType::F32),
            DType::I8 | DType::I16 | DType::U16 => self.cast(DType::I32),
            DType::U32 => self.cast(DType::I64),
            _ => Ok(self.clone()),
        }
    }

    /// Sum. Integers and bools give i64, wrapping; of nothing it is 0.
    pub fn sum(&self, dims: &[i64], keep: Keep) -> Result<Array> {
        let over = Over::new("sum", self.shape(), dims, keep)?;
        if let Device::Cuda(_) = self.device() {
            let sum = over.on_cuda(check_wide("sum", self)?, Fold::Sum, 0)?;
            return if self.dtype().is_float() { sum.cast(self.dtype()) } else { Ok(sum) };
        }
        if self.dtype().is_float() {
            return with_float!("sum", self.dtype(), T => over.run(self, Real::ZERO, &mut |data: &[T], plan, out| {
                reduce(&Sum::<T, <T as Float>::Real, _>::of(Plain), data, plan, &[], out);
            }))?
            .cast(self.dtype());
        }
        match self.widened()?.dtype() {
            DType::U8 | DType::Bool => over.int_sum::<u8>(self),
            DType::I32 => over.int_sum::<i32>(&self.widened()?),
            _ => over.int_sum::<i64>(&self.cast(DType::I64)?),
        }
    }

    /// Arithmetic mean of floats; of nothing it is NaN.
    pub fn mean(&self, dims: &[i64], keep: Keep) -> Result<Array> {
        let over = Over::new("mean", self.shape(), dims, keep)?;
        if let Device::Cuda(_) = self.device() {
            let wide = real_dtype("mean", self.dtype())?;
            let sum = over.on_cuda(self, Fold::Sum, f64::NAN)?.cast(DType::F64)?;
            return sum.div(&Array::scalar(over.count as f64, DType::F64)?)?.cast(wide)?.cast(self.dtype());
        }
        with_float!("mean", self.dtype(), T => over.run(self, Real::of(f64::NAN), &mut |data: &[T], plan, out| {
            reduce(&Sum::<T, <T as Float>::Real, _>::of(Plain), data, plan, &[], out);
            divide(out, over.count as f64);
        }))?
        .cast(self.dtype())
    }

    /// Product. Integers and bools give i64, wrapping; of nothing it is 1.
    pub fn prod(&self, dims: &[i64], keep: Keep) -> Result<Array> {
        let over = Over::new("prod", self.shape(), dims, keep)?;
        if let Device::Cuda(_) = self.device() {
            let product = over.on_cuda(check_wide("prod", self)?, Fold::Product, 1)?;
            return if self.dtype().is_float() { product.cast(self.dtype()) } else { Ok(product) };
        }
        if self.dtype().is_float() {
            let x = self.widened()?;
            return with_real!("prod", x.dtype(), T => over.run(&x, T::ONE, &mut |data, plan, out| {
                reduce(&Product::<T>(PhantomData), data, plan, &[], out);
            }))?
            .cast(self.dtype());
        }
        over.run(&self.cast(DType::I64)?, 1, &mut |data, plan, out| reduce(&IntProduct, data, plan, &[], out))
    }

    /// Sum of squares of floats.
    pub fn sum_squares(&self, dims: &[i64], keep: Keep) -> Result<Array> {
        let over = Over::new("sum_squares", self.shape(), dims, keep)?;
        real_dtype("sum_squares", self.dtype())?;
        if let Device::Cuda(_) = self.device() {
            return over.on_cuda(self, Fold::Squares, 0)?.cast(self.dtype());
        }
        let x = self.widened()?;
        with_real!("sum_squares", x.dtype(), T => over.run(&x, T::ZERO, &mut |data, plan, out| {
            reduce(&Sum::<T, T, _>::of(Square), data, plan, &[], out);
        }))?
        .cast(self.dtype())
    }

    /// True where any element is not zero (NaN is not); false of nothing.
    pub fn any(&self, dims: &[i64], keep: Keep) -> Result<Array> {
        self.found("any", false, dims, keep)
    }

    /// True where no element is zero; true of nothing.
    pub fn all(&self, dims: &[i64], keep: Keep) -> Result<Array> {
        self.found("all", true, dims, keep)
    }

    /// Whether any element is not zero, or, if `all`, whether none is zero.
    fn found(&self, op: &'static str, all: bool, dims: &[i64], keep: Keep) -> Result<Array> {
        let over = Over::new(op, self.shape(), dims, keep)?;
        if let Device::Cuda(_) = self.device() {
            let fold = if all { Fold::All } else { Fold::Any };
            return over.on_cuda(self, fold, i64::from(all))?.cast(DType::Bool);
        }
        with_size!(self.dtype(), B => over.run(self, Bool::new(all), &mut |data, plan, out| {
            let fold = Found { mask: B::mask(self.dtype().is_float()), zero: all };
            reduce(&fold, data, plan, &[], out);
            out.iter_mut().for_each(|x| *x = Bool::new(x.get() != all));
        }))
    }

    /// How many elements are not zero, as i64.
    pub fn count_nonzero(&self, dims: &[i64], keep: Keep) -> Result<Array> {
        let over = Over::new("count_nonzero", self.shape(), dims, keep)?;
        if let Device::Cuda(_) = self.device() {
            return over.on_cuda(self, Fold::Count, 0);
        }
        with_size!(self.dtype(), B => over.run(self, 0i64, &mut |data, plan, out| {
            reduce(&Count(B::mask(self.dtype().is_float())), data, plan, &[], out);
        }))
    }
}

/// Refuses floats that sums are not defined for.
fn check_wide<'a>(op: &'static str, x: &'a Array) -> Result<&'a Array> {
    if x.dtype().is_float() {
        real_dtype(op, x.dtype())?;
    }
    Ok(x)
}

/// The values of a small array in the given type.
fn wide_values<R: Real + Number>(op: &'static str, x: &Array) -> Result<Vec<R>> {
    Ok(x.cast(R::DTYPE)?.values::<R>(op)?.to_vec())
}
