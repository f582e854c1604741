//! Arrays over mapped files: a whole tensor of a local checkpoint without a copy.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use planaria::array::{Access, Array, Foreign};
use planaria::ckpt::Error;
use planaria::ckpt::formats::MappedTensor;

/// Below this many bytes a copy costs less than a mapping of its own that stays.
const LEAST: usize = 256 << 10;

/// The tensor as an array; what is written to it stays in this process.
pub(crate) fn array_over(tensor: MappedTensor) -> Result<Array, Error> {
    let MappedTensor { dtype, shape, mut memory, range } = tensor;
    if range.len() < LEAST && !memory.is_part() {
        return Ok(Array::from_bytes(&memory.bytes()[range], &shape, dtype)?);
    }
    let bytes = range.len();
    let start = NonNull::from(&mut memory.bytes_mut()[range]).cast::<u8>();
    // SAFETY: the mapping stays where it is for as long as the owner keeps it, readable and writable, and nobody else has
    // it; the tensor says that its first byte is aligned for its elements.
    let memory = unsafe { Foreign::new(start, bytes, Box::new(memory)) };
    let mut strides = vec![1isize; shape.ndim()];
    for dim in (1..shape.ndim()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim] as isize;
    }
    Ok(Array::from_foreign(memory, dtype, (&shape, &strides, 0), Access::Write)?)
}
