//! Conversion between dtypes.

use crate::array::Array;
use crate::convert::convert_bytes;
use crate::cpu::map::{Bound, map1};
use crate::cuda;
use crate::device::Device;
use crate::element::with_size;
use crate::error::Result;
use planaria_layout::DType;

impl Array {
    /// The same values in another dtype, rounded, wrapped or saturated as `torch.Tensor.to` does.
    /// Returns a view of this array when the dtype is already right.
    pub fn cast(&self, dtype: DType) -> Result<Array> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        match self.device() {
            Device::Meta => return Ok(Array::meta_of(self.shape().clone(), dtype)),
            Device::Cuda(_) => return cuda::cast(self, dtype),
            Device::Cpu => {}
        }
        let host = self.host("cast")?;
        // Only element sizes matter to the walk; the conversion itself is chosen per block.
        with_size!(self.dtype(), S => with_size!(dtype, D => Array::build_bytes(self.shape().clone(), dtype, |out: &mut [D]| {
            let src = self.operand::<S>(&host);
            map1(Bound::Memory, &src, out, &|x, o| {
                convert_bytes(self.dtype(), bytemuck::cast_slice(x), dtype, bytemuck::cast_slice_mut(o));
            });
        })))
    }
}
