//! Optimiser steps and gradient norms over lists of tensors whose layouts may differ.

use crate::error::{Error, Result};
use crate::tensor::{Place, Tensor};
use planaria_array::ops::{self, AdamW, AdamWArrays, Sgd, SgdArrays};
use planaria_array::{Array, DType, Shape};
use planaria_layout::{Layout, Mesh, Placement, Reduce};
use std::sync::Arc;

/// One parameter of AdamW and its state, all of one shape. The update runs in the layout of the first moment.
#[derive(Clone, Copy, Debug)]
pub struct AdamWTensors<'a> {
    /// The parameter, updated in place.
    pub param: &'a Tensor,
    /// Its gradient, in any layout; pending sums are finished on the way.
    pub grad: &'a Tensor,
    /// First moment, updated in place.
    pub exp_avg: &'a Tensor,
    /// Second moment, updated in place, in the layout of the first.
    pub exp_avg_sq: &'a Tensor,
    /// Running maximum of the second moment, for the AMSGrad variant; in the layout of the first moment.
    pub max_exp_avg_sq: Option<&'a Tensor>,
    /// f32 values of a bf16 or f16 parameter, in the layout of the first moment.
    pub master: Option<&'a Tensor>,
}

/// One parameter of SGD and its state, all of one shape. The update runs in the layout of the velocity (or of the
/// master values, or of the parameter, where there is none).
#[derive(Clone, Copy, Debug)]
pub struct SgdTensors<'a> {
    /// The parameter, updated in place.
    pub param: &'a Tensor,
    /// Its gradient, in any layout; pending sums are finished on the way.
    pub grad: &'a Tensor,
    /// Velocity, updated in place; may be absent without momentum.
    pub velocity: Option<&'a Tensor>,
    /// f32 values of a bf16 or f16 parameter, in the layout of the velocity.
    pub master: Option<&'a Tensor>,
}

/// What is updated where: the state's place, and this rank's pieces of parameter and gradient there.
struct Update<'a> {
    param: &'a Tensor,
    home: Option<&'a Place>,
    /// The parameter's own storage where the layouts agree, else a copy.
    piece: Array,
    grad: Array,
}

impl<'a> Update<'a> {
    fn new(
        op: &'static str,
        param: &'a Tensor,
        grad: &Tensor,
        states: &[Option<&'a Tensor>],
    ) -> Result<Update<'a>> {
        let home = states.iter().flatten().next().copied().unwrap_or(param);
        for tensor in states.iter().flatten().copied().chain([grad, param]) {
            if tensor.shape() != param.shape() {
                let message =
                    format!("a state of shape {} for a parameter of {}", tensor.shape(), param.shape());
                return Err(Error::Argument { op, message });
            }
        }
        for tensor in states.iter().flatten().copied().chain([param]) {
            if let Some(layout) = tensor.layout().filter(|l| !l.partial_axes().is_empty()) {
                return Err(Error::Pending { what: op, layout: Box::new(layout.clone()) });
            }
        }
        if let Some(other) = states.iter().flatten().find(|t| t.layout() != home.layout()) {
            let message = format!("states lie differently, {other:?} and {home:?}");
            return Err(Error::Argument { op, message });
        }
        let place = home.0.place.as_ref();
        let piece = match param.layout() == home.layout() {
            true => param.local().clone(),
            false => brought(param, place)?.copy()?,
        };
        Ok(Update { param, home: place, piece, grad: brought(grad, place)? })
    }

    /// The parameter gets its new values, wherever they are needed.
    fn finish(self) -> Result<()> {
        let Some(home) = self.home.filter(|home| self.param.layout() != Some(&home.layout)) else {
            return Ok(());
        };
        if self.piece.is_meta() {
            return Ok(());
        }
        let updated = Tensor::from_piece(self.piece, &home.layout, &home.world)?;
        let back = match self.param.layout() {
            Some(layout) => updated.reshard(layout)?.local().clone(),
            None => updated.whole()?,
        };
        Ok(self.param.local().copy_from(&back)?)
    }
}

/// This rank's piece of a value at another place.
fn brought(tensor: &Tensor, place: Option<&Place>) -> Result<Array> {
    let tensor = tensor.detach();
    match (tensor.layout(), place) {
        (_, None) => tensor.whole(),
        (Some(_), Some(place)) => Ok(tensor.reshard(&place.layout)?.local().clone()),
        (None, Some(place)) => {
            let whole = Layout::replicated(place.layout.mesh(), tensor.shape());
            let there = tensor.on(&Place { layout: Arc::new(whole), world: place.world.clone() })?;
            Ok(there.reshard(&place.layout)?.local().clone())
        }
    }
}

/// Step number `step` (from 1) of AdamW for every parameter in the list. Collective.
///
/// Gradients are brought to the layout of the moments (for moments cut over ranks that is a reduce-scatter of pending
/// sums), each rank updates its piece, and the parameter is brought back to its own layout.
pub fn adamw_step(options: &AdamW, step: u64, list: &[AdamWTensors<'_>]) -> Result<()> {
    for tensors in list {
        let states =
            [Some(tensors.exp_avg), Some(tensors.exp_avg_sq), tensors.max_exp_avg_sq, tensors.master];
        let update = Update::new("adamw", tensors.param, tensors.grad, &states)?;
        let arrays = AdamWArrays {
            param: &update.piece,
            grad: &update.grad,
            exp_avg: tensors.exp_avg.local(),
            exp_avg_sq: tensors.exp_avg_sq.local(),
            max_exp_avg_sq: tensors.max_exp_avg_sq.map(Tensor::local),
            master: tensors.master.map(Tensor::local),
        };
        options.step(step, &[arrays])?;
        update.finish()?;
    }
    Ok(())
}

/// Step number `step` (from 1) of SGD for every parameter in the list, as [`adamw_step`] does it. Collective.
pub fn sgd_step(options: &Sgd, step: u64, list: &[SgdTensors<'_>]) -> Result<()> {
    for tensors in list {
        let update = Update::new("sgd", tensors.param, tensors.grad, &[tensors.velocity, tensors.master])?;
        let arrays = SgdArrays {
            param: &update.piece,
            grad: &update.grad,
            velocity: tensors.velocity.map(Tensor::local),
            master: tensors.master.map(Tensor::local),
        };
        options.step(step, &[arrays])?;
        update.finish()?;
    }
    Ok(())
}

/// One number per rank, combined over the ranks of each mesh that the list lies on.
fn combined(list: &[&Tensor], own: impl Fn(&Tensor) -> Result<f64>, op: Reduce) -> Result<Vec<f64>> {
    let mut meshes: Vec<(Option<&Place>, f64)> = Vec::new();
    let neutral = if op == Reduce::Sum { 0.0 } else { f64::INFINITY };
    let join = |a: f64, b: f64| if op == Reduce::Sum { a + b } else { a.min(b) };
    for tensor in list {
        let (place, value) = (tensor.0.place.as_ref(), own(tensor)?);
        let mesh = |p: Option<&Place>| p.map(|p| p.layout.mesh().clone());
        match meshes.iter_mut().find(|(known, _)| mesh(*known) == mesh(place)) {
            Some((_, sum)) => *sum = join(*sum, value),
            None => meshes.push((place, join(neutral, value))),
        }
    }
    let over = |(place, value): (Option<&Place>, f64)| match place {
        None => Ok(value),
        Some(place) => {
            let mesh: &Mesh = place.layout.mesh();
            let pending = vec![Placement::Partial(op); mesh.naxes()];
            let layout = Layout::new(mesh, &Shape::new(&[])?, &pending)?;
            let part = Tensor::from_piece(Array::scalar(value, DType::F64)?, &layout, &place.world)?;
            Ok(part.whole()?.item()?.as_f64())
        }
    };
    meshes.into_iter().map(over).collect()
}

/// Sum of the squares of all elements of all tensors, each element counted once, the same on every rank. Collective
/// over the meshes of the list.
pub fn squared_norm(list: &[&Tensor]) -> Result<f64> {
    let settled = list.iter().map(|t| t.detach().settled()).collect::<Result<Vec<_>>>()?;
    let own = |tensor: &Tensor| {
        let counts = tensor.0.place.as_ref().is_none_or(|place| {
            let copies = place.layout.replicated_axes();
            let coords = place.layout.mesh().coords(place.world.rank());
            coords.is_some_and(|coords| copies.iter().all(|axis| coords[axis] == 0))
        });
        Ok(if counts { ops::squared_norm(&[tensor.local().clone()])? } else { 0.0 })
    };
    Ok(combined(&settled.iter().collect::<Vec<_>>(), own, Reduce::Sum)?.iter().sum())
}

/// Scales the gradients in place so that their norm together is at most `max_norm`, and gives the norm before.
/// Collective over the meshes of the list.
pub fn clip_by_global_norm(list: &[&Tensor], max_norm: f64) -> Result<f64> {
    linear_only("clip_by_global_norm", list)?;
    let norm = squared_norm(list)?.sqrt();
    let locals: Vec<Array> = list.iter().map(|t| t.local().clone()).collect();
    ops::scale_in_place(&locals, ops::clip_coefficient(norm, max_norm))?;
    Ok(norm)
}

/// Multiplies every gradient by `inverse_scale` in place and says whether all were finite before, the same on every
/// rank. Collective over the meshes of the list.
pub fn check_finite_and_unscale(list: &[&Tensor], inverse_scale: f64) -> Result<bool> {
    linear_only("check_finite_and_unscale", list)?;
    let own = |tensor: &Tensor| {
        let finite = ops::check_finite_and_unscale(&[tensor.local().clone()], inverse_scale)?;
        Ok(f64::from(u8::from(finite)))
    };
    Ok(combined(list, own, Reduce::Min)?.iter().all(|&v| v > 0.0))
}

/// Contributions can be scaled one by one only where they are added.
fn linear_only(op: &'static str, list: &[&Tensor]) -> Result<()> {
    for layout in list.iter().filter_map(|t| t.layout()) {
        let linear = |axis| matches!(layout.reduce(axis), None | Some(Reduce::Sum | Reduce::Avg));
        if !(0..layout.mesh().naxes()).all(linear) {
            return Err(Error::Pending { what: op, layout: Box::new(layout.clone()) });
        }
    }
    Ok(())
}
