//! Choosing between values: `where` and `clip`.

use crate::array::Array;
use crate::cpu::map::map3;
use crate::cpu::simd::simd;
use crate::cuda;
use crate::device::Device;
use crate::element::{Bool, Scalar, with_size};
use crate::error::{Error, Result};
use crate::ops::fused::home;
use crate::ops::{Binary, binary};
use crate::view::broadcast_shapes;
use bytemuck::Pod;
use planaria_layout::DType;

simd! {
    fn choose<T: Pod>(condition: &[Bool], x: &[T], y: &[T], out: &mut [T]) {
        for (((o, c), &x), &y) in out.iter_mut().zip(condition).zip(x).zip(y) {
            *o = if c.get() { x } else { y };
        }
    }
}

/// `x` where `condition` is true, else `y`; all three broadcast together.
pub fn where_(condition: &Array, x: &Array, y: &Array) -> Result<Array> {
    let op = "where";
    condition.check_dtype(op, DType::Bool)?;
    y.check_dtype(op, x.dtype())?;
    let shape = broadcast_shapes(op, &broadcast_shapes(op, condition.shape(), x.shape())?, y.shape())?;
    match home(op, &[condition, x, y])? {
        Device::Meta => return Ok(Array::meta_of(shape, x.dtype())),
        Device::Cuda(_) => return cuda::choose(condition, x, y, &shape),
        Device::Cpu => {}
    }
    let (condition, x, y) =
        (condition.broadcast_to(&shape)?, x.broadcast_to(&shape)?, y.broadcast_to(&shape)?);
    let (hc, hx, hy) = (condition.host(op)?, x.host(op)?, y.host(op)?);
    with_size!(x.dtype(), T => Array::build_bytes::<T>(shape, x.dtype(), |out| {
        let (c, x, y) = (condition.operand::<Bool>(&hc), x.operand::<T>(&hx), y.operand::<T>(&hy));
        map3(&c, &x, &y, out, &choose::<T>);
    }))
}

/// Each element limited to `low..=high`; `None` leaves a side open. NaN stays NaN.
pub fn clip(x: &Array, low: Option<Scalar>, high: Option<Scalar>) -> Result<Array> {
    // Above the upper bound after the lower one, so that bounds in the wrong order give the upper one.
    let bound = |b: Scalar| Array::scalar(b, x.dtype());
    match (low, high) {
        (Some(low), high) => {
            let out = binary(Binary::Maximum, x, &bound(low)?)?;
            high.map_or(Ok(()), |high| out.binary_in_place(Binary::Minimum, &bound(high)?))?;
            Ok(out)
        }
        (None, Some(high)) => binary(Binary::Minimum, x, &bound(high)?),
        (None, None) => Err(Error::argument("clip", "give a lower bound, an upper bound or both")),
    }
}
