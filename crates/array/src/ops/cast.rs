//! Conversion between dtypes.

use crate::array::Array;
use crate::convert::convert;
use crate::cpu::strided::BLOCK;
use crate::element::with_dtype;
use crate::error::Result;
use crate::pool;
use planaria_layout::DType;

impl Array {
    /// The same values in another dtype, rounded, wrapped or saturated as `torch.Tensor.to` does.
    /// Returns a view of this array when the dtype is already right.
    pub fn cast(&self, dtype: DType) -> Result<Array> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        if self.is_meta() {
            return Ok(Array::meta_of(self.shape().clone(), dtype));
        }
        let host = self.host("cast")?;
        with_dtype!(self.dtype(), S => with_dtype!(dtype, D => Array::build(self.shape().clone(), |out: &mut [D]| {
            let src = self.operand::<S>(&host);
            let unit = src.block_len().min(4 * BLOCK);
            pool::for_chunks_mut(out, unit, size_of::<S>() + size_of::<D>(), |at, piece| {
                let mut scratch = vec![S::default(); unit.min(piece.len())];
                for (i, block) in piece.chunks_mut(unit).enumerate() {
                    let first = at + i * unit;
                    convert(src.block(first..first + block.len(), &mut scratch), block);
                }
            });
        })))
    }
}
