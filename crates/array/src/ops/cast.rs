//! Conversion between dtypes.

use crate::array::Array;
use crate::convert::convert_bytes;
use crate::cpu::strided::BLOCK;
use crate::element::with_size;
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
        let (from, shape) = (self.dtype(), self.shape().clone());
        with_size!(from, S => with_size!(dtype, D => Array::build_bytes(shape, dtype, |out: &mut [D]| {
            let src = self.operand::<S>(&host);
            let unit = src.block_len().min(4 * BLOCK);
            pool::for_chunks_mut(out, unit, size_of::<S>() + size_of::<D>(), |at, piece| {
                let mut scratch = vec![0; unit.min(piece.len())];
                for (i, block) in piece.chunks_mut(unit).enumerate() {
                    let first = at + i * unit;
                    let values = src.block(first..first + block.len(), &mut scratch);
                    convert_bytes(from, bytemuck::cast_slice(values), dtype, bytemuck::cast_slice_mut(block));
                }
            });
        })))
    }
}
