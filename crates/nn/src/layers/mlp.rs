//! Feed-forward layers: gated (swiglu and its kin) and plain.

use super::{Linear, Parts};
use crate::error::Result as BuildResult;
use crate::parallel::Lanes;
use crate::param::{Module, Param};
use planaria_array::ops::Gate;
use planaria_tensor::{Result, Tensor, ops};

/// `down(act(gate(x)) * up(x))`.
#[derive(Clone, Debug)]
pub struct GatedMlp {
    /// Cut by columns.
    pub gate: Linear,
    /// Cut by columns.
    pub up: Linear,
    /// Cut by rows.
    pub down: Linear,
    /// The function of the gate.
    pub act: Gate,
}

impl GatedMlp {
    /// `gate_proj`, `up_proj` and `down_proj`.
    pub fn new(parts: &Parts, act: Gate) -> BuildResult<GatedMlp> {
        let (gate, up) = (parts.linear("gate_proj")?, parts.linear("up_proj")?);
        Ok(GatedMlp { gate, up, down: parts.linear("down_proj")?, act })
    }

    /// Between the lanes: the input is whole in its sequence, the result pending where the rows are cut.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&ops::glu(&self.gate.forward(x)?, &self.up.forward(x)?, self.act)?)
    }
}

impl Module for GatedMlp {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        [&self.gate, &self.up, &self.down].into_iter().for_each(|module| module.visit(f));
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        [&mut self.gate, &mut self.up, &mut self.down].into_iter().for_each(|module| module.visit_mut(f));
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
}
