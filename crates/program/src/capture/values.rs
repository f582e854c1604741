//! Which value of the program a tensor stands for: by the tensor itself, or by the memory that it shows.

use crate::error::{Error, Result};
use crate::program::ValueId;
use planaria_array::{DType, Shape};
use planaria_tensor::Tensor;
use std::collections::HashMap;

/// Tensors that were met, with how often their bytes had been written to and the values they stood for.
#[derive(Default)]
pub(super) struct Values {
    known: HashMap<(DType, Shape), Vec<Known>>,
}

struct Known {
    tensor: Tensor,
    version: u64,
    id: ValueId,
}

fn bucket(tensor: &Tensor) -> (DType, Shape) {
    (tensor.dtype(), tensor.local().shape().clone())
}

/// Whether two tensors show the same elements of one memory.
fn same_elements(a: &Tensor, b: &Tensor) -> bool {
    let (x, y) = (a.local(), b.local());
    x.shares_storage(y)
        && x.strides() == y.strides()
        && x.offset() == y.offset()
        && a.layout() == b.layout()
        && x.numel() > 0
}

impl Values {
    /// A tensor stands for a value from now on; its bytes had been written to so often.
    pub(super) fn define(&mut self, tensor: &Tensor, version: u64, id: ValueId) {
        self.known.entry(bucket(tensor)).or_default().push(Known { tensor: tensor.clone(), version, id });
    }

    /// The value that a tensor stands for now, whatever happened to its bytes later.
    pub(super) fn latest(&self, tensor: &Tensor) -> Option<ValueId> {
        let list = self.known.get(&bucket(tensor))?;
        list.iter().rev().find(|known| known.tensor.is(tensor)).map(|known| known.id)
    }

    /// The value of a tensor whose bytes were of that version; none for one that was never met.
    pub(super) fn find(&self, place: &str, tensor: &Tensor, version: u64) -> Result<Option<ValueId>> {
        let Some(list) = self.known.get(&bucket(tensor)) else { return Ok(None) };
        let itself = list.iter().rev().find(|known| known.tensor.is(tensor));
        let Some(known) =
            itself.or_else(|| list.iter().rev().find(|known| same_elements(&known.tensor, tensor)))
        else {
            return Ok(None);
        };
        if known.version != version && !tensor.local().is_meta() {
            let what = "its elements were written to without an op, or through another view; write with the methods of \
                        the tensor itself"
                .to_string();
            return Err(Error::Capture { place: place.to_string(), what });
        }
        Ok(Some(known.id))
    }
}
