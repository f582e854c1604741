//! Values whose elements the history does not keep, because they can be brought back: fetched, then viewed again.

use super::mode::no_grad;
use super::node::replay;
use crate::error::{Error, Result};
use crate::op::Op;
use crate::tensor::{Place, Tensor};
use planaria_array::{Array, Shape};
use smallvec::SmallVec;
use std::sync::Arc;

/// Brings this rank's piece of a tensor back.
pub type Fetch = Arc<dyn Fn() -> Result<Array> + Send + Sync>;

/// How to get a value back.
#[derive(Clone)]
pub(super) struct Away {
    fetch: Fetch,
    /// Where what is fetched lies.
    place: Option<Place>,
    /// From what is fetched to the value.
    chain: SmallVec<[Arc<dyn Op>; 1]>,
    /// Of this rank's piece of the value.
    shape: Shape,
}

impl Away {
    /// How to get a tensor's elements back, where it or what it is a view of can be fetched.
    pub(super) fn of(tensor: &Tensor) -> Option<Away> {
        let (base, chain) = match &tensor.0.view {
            Some(view) => (&view.base, view.chain.clone()),
            None => (tensor, SmallVec::new()),
        };
        let (fetch, place) = (base.0.fetch.clone()?, base.0.place.clone());
        Some(Away { fetch, place, chain, shape: tensor.0.array.shape().clone() })
    }

    pub(super) fn fetch(&self) -> Result<Array> {
        let base = Tensor::raw((self.fetch)()?, self.place.clone(), None, None);
        let array = no_grad(|| replay(&self.chain, base))?.local().clone();
        match array.shape() == &self.shape {
            true => Ok(array),
            false => Err(Error::Bug("a tensor was fetched in another shape than it was used in")),
        }
    }
}
