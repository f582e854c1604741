//! Between a global value and what one rank has of it, for code in which ranks do different things.

use crate::attributes::Attributes;
use crate::error::{Error, Result};
use crate::grad::{self, Backward};
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::tensor::{Place, Tensor};
use crate::world::World;
use planaria_array::Array;
use planaria_layout::rule::Rule;
use planaria_layout::{Layout, Placement};
use smallvec::smallvec;
use std::sync::Arc;

impl Tensor {
    /// This rank's piece as a value without a mesh. `grads` says what the ranks' gradients of their pieces are to
    /// the gradient of the whole: cut like the pieces, and `P(sum)` on axes whose ranks have the same piece and go on
    /// with it in different ways.
    pub fn to_piece(&self, grads: &[Placement]) -> Result<Tensor> {
        let Some(place) = &self.0.place else { return Ok(self.clone()) };
        if !place.layout.partial_axes().is_empty() {
            return Err(Error::Pending { what: "to_piece", layout: Box::new(place.layout.as_ref().clone()) });
        }
        let layout = Arc::new(Layout::new(place.layout.mesh(), place.layout.shape(), grads)?);
        let grads = Place { layout, world: place.world.clone() };
        if grads.extents()? != place.extents()? {
            let message = format!("gradients in `{}` for pieces of `{}`", grads.layout, place.layout);
            return Err(Error::Argument { op: "to_piece", message });
        }
        recorded(self, ToPiece { grads }, self.0.array.clone(), None)
    }

    /// The value that the ranks' pieces make up: what a value without a mesh becomes again.
    pub fn as_piece(&self, layout: &Layout, world: &World) -> Result<Tensor> {
        let place = Place { layout: Arc::new(layout.clone()), world: world.clone() };
        if self.0.place.is_some() {
            let message = format!("{self:?} lies on a mesh already");
            return Err(Error::Argument { op: "as_piece", message });
        }
        Tensor::from_piece(self.0.array.clone(), layout, world)?;
        recorded(self, AsPiece { place: place.clone() }, self.0.array.clone(), Some(place))
    }
}

fn recorded(input: &Tensor, op: impl Op, array: Array, place: Option<Place>) -> Result<Tensor> {
    grad::made(Arc::new(op), input, (array, place))
}

/// The piece; gradients of pieces are a gradient of the whole.
#[derive(Debug, Clone)]
struct ToPiece {
    grads: Place,
}

impl Op for ToPiece {
    fn name(&self) -> &'static str {
        "to_piece"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new()
    }

    fn rule(&self, _: &[Spec], _: &[Spec]) -> Result<Rule> {
        Err(Error::Bug("to_piece has no rule"))
    }

    fn forward(&self, _: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Err(Error::Bug("to_piece has no local kernel"))
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let back = |dy: &Tensor| dy.as_piece(&self.grads.layout, &self.grads.world);
        Ok(smallvec![grads[0].as_ref().map(back).transpose()?])
    }
}

/// The whole; its gradient is brought to where the pieces are.
#[derive(Debug, Clone)]
struct AsPiece {
    place: Place,
}

impl Op for AsPiece {
    fn name(&self) -> &'static str {
        "as_piece"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new()
    }

    fn rule(&self, _: &[Spec], _: &[Spec]) -> Result<Rule> {
        Err(Error::Bug("as_piece has no rule"))
    }

    fn forward(&self, _: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Err(Error::Bug("as_piece has no local kernel"))
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    /// A contribution to a sum has the gradient of the sum.
    fn vjp(&self, _: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None]) };
        let settle =
            |p: &Placement| if matches!(p, Placement::Partial(_)) { Placement::Replicate } else { *p };
        let settled: Vec<Placement> = self.place.layout.placements().iter().map(settle).collect();
        Ok(smallvec![Some(dy.placed(&settled)?.to_piece(self.place.layout.placements())?)])
    }
}
