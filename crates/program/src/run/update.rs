//! Ops that write a part of a tensor.

use super::call::{Answer, Call, Found, extents, one, refuse};
use super::shape::walk;
use planaria_array::Array;

pub(super) fn call(c: &Call<'_>) -> Found {
    let (value, first) = match c.name() {
        "set_value" => {
            let shape = extents(&c.ints_attr("shape")?)?;
            let values = c.reals_attr("values")?;
            (Array::from_slice(&values, &shape)?.cast(c.array(0)?.dtype())?, 1)
        }
        "set_value_with_tensor" => (c.array(1)?.cast(c.array(0)?.dtype())?, 2),
        _ => return Ok(None),
    };
    let x = c.array(0)?;
    if x.is_meta() {
        return one(x.clone());
    }
    let (starts, ends, steps) = (c.ints(first)?, c.ints(first + 1)?, c.ints(first + 2)?);
    let out = x.copy()?;
    let part = walk(&out, &c.ints_attr("axes")?, &starts, &ends, &steps)?;
    let decreased = c.ints_attr("decrease_axes")?;
    let part = if decreased.is_empty() { part } else { part.squeeze(&decreased)? };
    let mut part = part;
    for axis in c.ints_attr("none_axes")? {
        part = part.unsqueeze(axis)?;
    }
    part.copy_from(&fitted(&value, &part)?)?;
    one(out)
}

/// The value as the part takes it: leading dims of size 1 that the part lacks do not count.
fn fitted(value: &Array, part: &Array) -> Answer<Array> {
    let more = value.ndim().saturating_sub(part.ndim());
    if value.shape()[..more].iter().any(|size| *size != 1) {
        return refuse(format!("a value of shape {} cannot be written to {}", value.shape(), part.shape()));
    }
    Ok(value.reshape(&value.shape()[more..])?.broadcast_to(part.shape())?)
}
