//! Looking at values: statistics of tensors, and the difference of two checkpoints.

mod compare;
mod stats;

pub use compare::{Bound, Difference, Verdict, compare};
pub use stats::{Stats, stats};

use crate::error::{Error, Result};
use planaria_array::Array;
use planaria_layout::DType;

/// Elements looked at together.
const CHUNK: usize = 256 << 10;

/// The values of some bytes, as f64. Integers beyond 2^53 are rounded.
fn values(bytes: &[u8], dtype: DType) -> Result<Vec<f64>> {
    let numel = bytes.len() / dtype.size();
    let wide = Array::from_bytes(bytes, &[numel], dtype).and_then(|array| array.cast(DType::F64));
    let wide = wide.and_then(|array| array.to_vec::<f64>());
    wide.map_err(|error| Error::Malformed { file: "values".to_string(), what: error.to_string() })
}
