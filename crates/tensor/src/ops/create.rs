//! New tensors with the shape and layout of another, or with values that do not depend on the layout.

use crate::error::{Error, Result};
use crate::random;
use crate::tensor::{Place, Tensor};
use crate::world::World;
use planaria_array::ops::Distribution;
use planaria_array::random::{Key, Window};
use planaria_array::{Array, DType, Scalar};
use planaria_layout::{Layout, Placement};
use std::sync::Arc;

impl Tensor {
    /// One value everywhere, in the layout of this tensor; where it is pending, as a whole value.
    pub fn full_like(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        let place = self.0.place.as_ref().map(settled_place).transpose()?;
        let extents = match &place {
            Some(place) => place.extents()?,
            None => self.shape().dims().into(),
        };
        let array = Array::full_on(&extents, value, self.dtype(), self.0.array.device())?;
        Ok(Tensor::raw(array, place, None, None))
    }

    /// Zeros in the layout of this tensor.
    pub fn zeros_like(&self) -> Result<Tensor> {
        self.full_like(0.0)
    }

    /// Ones in the layout of this tensor.
    pub fn ones_like(&self) -> Result<Tensor> {
        self.full_like(1.0)
    }

    /// One value everywhere.
    pub fn full(layout: &Layout, value: impl Into<Scalar>, dtype: DType, world: &World) -> Result<Tensor> {
        let place = unpending("full", layout, world)?;
        let extents = place.extents()?;
        let array = match world.is_supposed() {
            true => Array::meta(&extents, dtype)?,
            false => Array::full(&extents, value, dtype)?,
        };
        Ok(Tensor::raw(array, Some(place), None, None))
    }

    /// Random values of one draw; every layout gets the same ones.
    pub fn random(
        layout: &Layout,
        distribution: Distribution,
        dtype: DType,
        world: &World,
    ) -> Result<Tensor> {
        Tensor::random_with(layout, distribution, dtype, random::next_key(), world)
    }

    /// Random values of a named sequence; every layout gets the same ones.
    pub fn random_with(
        layout: &Layout,
        distribution: Distribution,
        dtype: DType,
        key: Key,
        world: &World,
    ) -> Result<Tensor> {
        let place = unpending("random", layout, world)?;
        let piece = layout.piece(world.rank())?;
        if world.is_supposed() {
            return Ok(Tensor::raw(Array::meta(&piece.extents(), dtype)?, Some(place), None, None));
        }
        let out = Array::zeros(&piece.extents(), dtype)?;
        for region in piece.boxes() {
            let window = Window::of_region(layout.shape(), &region)?;
            let values = Array::random_in(&window, distribution, dtype, key)?;
            let at = piece.locate(&region).ok_or(Error::Bug("a piece does not have its own box"))?;
            out.region(&at)?.copy_from(&values.reshape(&region.extents())?)?;
        }
        Ok(Tensor::raw(out, Some(place), None, None))
    }
}

fn unpending(what: &'static str, layout: &Layout, world: &World) -> Result<Place> {
    if !layout.partial_axes().is_empty() {
        return Err(Error::Pending { what, layout: Box::new(layout.clone()) });
    }
    Ok(Place { layout: Arc::new(layout.clone()), world: world.clone() })
}

/// The place with pending axes whole.
pub(crate) fn settled_place(place: &Place) -> Result<Place> {
    let axes = place.layout.partial_axes();
    let layout =
        axes.iter().try_fold(place.layout.as_ref().clone(), |l, axis| l.with(axis, Placement::Replicate))?;
    Ok(Place { layout: Arc::new(layout), world: place.world.clone() })
}
