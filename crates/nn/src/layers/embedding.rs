//! The table of token vectors.

use crate::param::{Module, Param};
use planaria_tensor::{Result, Tensor, ops};

/// Rows by token id.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// `[vocabulary, width]`.
    pub weight: Param,
}

impl Embedding {
    /// `[..]` ids to `[.., width]`. A table cut by rows gives pending sums.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        ops::embedding(&self.weight.value()?, ids, None)
    }
}

impl Module for Embedding {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        f(&self.weight);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        f(&mut self.weight);
    }
}
