//! Feed-forward layers: gated (swiglu and its kin) and plain.

use super::{Linear, Parts};
use crate::error::Result as BuildResult;
use crate::parallel::Lanes;
use crate::param::{Adaptable, Module, Param};
use planaria_array::Array;
use planaria_array::ops::{Gate, Norm, gated_linears, linear_added};
use planaria_tensor::{Error, Result, Tensor, ops};

/// `down(act(gate(x)) * up(x))`.
#[derive(Clone, Debug)]
pub struct GatedMlp {
    into: Products,
    /// Cut by rows.
    pub down: Linear,
    /// The function of the gate.
    pub act: Gate,
}

/// Where gates and what they act on come from.
#[derive(Clone, Debug)]
enum Products {
    /// Two products, cut by columns.
    Apart(Box<[Linear; 2]>),
    /// One, whole on every rank: gates first.
    Fused(Linear),
}

impl GatedMlp {
    /// `gate_proj` and `up_proj`, or `gate_up_proj` in their place, and `down_proj`.
    pub fn new(parts: &Parts, act: Gate) -> BuildResult<GatedMlp> {
        let into = match parts.has("gate_up_proj.weight") {
            true => Products::Fused(parts.linear("gate_up_proj")?),
            false => Products::Apart(Box::new([parts.linear("gate_proj")?, parts.linear("up_proj")?])),
        };
        Ok(GatedMlp { into, down: parts.linear("down_proj")?, act })
    }

    /// Between the lanes: the input is whole in its sequence, the result pending where the rows are cut.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let gated = match &self.into {
            Products::Fused(both) => ops::glu_packed(&both.forward(x)?, self.act)?,
            Products::Apart(apart) => match Linear::joined(&[&apart[0], &apart[1]], x)? {
                Some(both) => ops::glu_packed(&both, self.act)?,
                None => ops::glu(&apart[0].forward(x)?, &apart[1].forward(x)?, self.act)?,
            },
        };
        self.down.forward(&gated)
    }

    /// Adds the layer of `norm(x)` to rows `[rows, width]`, on one rank and without history.
    pub(crate) fn decode(&self, x: &Array, norm: Norm<'_>) -> Result<Array> {
        let Products::Apart(apart) = &self.into else {
            return Err(Error::Bug("fused products do not decode"));
        };
        let (gate, up, down) = (apart[0].weights()?, apart[1].weights()?, self.down.weights()?);
        let inner = gated_linears(x, Some(norm), [gate.layer(), up.layer()], self.act)?;
        Ok(linear_added(&inner, down.layer(), x)?)
    }
}

impl Module for GatedMlp {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        match &self.into {
            Products::Apart(apart) => apart.iter().for_each(|module| module.visit(f)),
            Products::Fused(both) => both.visit(f),
        }
        self.down.visit(f);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        match &mut self.into {
            Products::Apart(apart) => apart.iter_mut().for_each(|module| module.visit_mut(f)),
            Products::Fused(both) => both.visit_mut(f),
        }
        self.down.visit_mut(f);
    }

    fn visit_layers(&mut self, f: &mut dyn FnMut(Adaptable<'_>)) {
        match &mut self.into {
            Products::Apart(apart) => apart.iter_mut().for_each(|module| module.visit_layers(f)),
            Products::Fused(both) => both.visit_layers(f),
        }
        self.down.visit_layers(f);
    }
}

/// `down(gelu(up(x)))`.
#[derive(Clone, Debug)]
pub struct Mlp {
    /// Cut by columns.
    pub up: Linear,
    /// Cut by rows.
    pub down: Linear,
    /// Where activations change hands.
    pub lanes: Lanes,
}

impl Mlp {
    /// From and to a hidden state between blocks.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.lanes.into_columns(x)?;
        self.lanes.out_of_rows(&self.down.forward(&self.up.forward(&x)?.gelu()?)?)
    }
}

impl Module for Mlp {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        [&self.up, &self.down].into_iter().for_each(|module| module.visit(f));
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        [&mut self.up, &mut self.down].into_iter().for_each(|module| module.visit_mut(f));
    }

    fn visit_layers(&mut self, f: &mut dyn FnMut(Adaptable<'_>)) {
        [&mut self.up, &mut self.down].into_iter().for_each(|module| module.visit_layers(f));
    }
}
