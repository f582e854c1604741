//! Gated linear units: swiglu and its relatives, from two tensors or from one that holds both halves.

use crate::attributes::Attributes;
use crate::dispatch::{apply, apply1};
use crate::error::{Error, Result};
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::compose;
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_array::ops::{self, Gate};
use planaria_layout::rule::{self, LINEAR, Rule};
use smallvec::smallvec;

/// `act(gate) * up`; packed, the two are halves of the last dim of one input.
#[derive(Debug, Clone, Copy)]
struct Glu {
    gate: Gate,
    packed: bool,
}

impl Glu {
    /// The same with simple ops.
    fn plain(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (gate, up) = match inputs {
            [x] => {
                let (dim, half) = (x.ndim() - 1, x.shape()[x.ndim() - 1] / 2);
                (x.narrow(dim as i64, 0, half)?, x.narrow(dim as i64, half, half)?)
            }
            _ => (inputs[0].clone(), inputs[1].clone()),
        };
        let act = match self.gate {
            Gate::Silu => gate.silu()?,
            Gate::Gelu => gate.gelu()?,
            Gate::GeluTanh => gate.gelu_tanh()?,
        };
        Ok(vec![act.mul(&up)?])
    }
}

impl Op for Glu {
    fn name(&self) -> &'static str {
        match self.gate {
            Gate::Silu => "swiglu",
            Gate::Gelu => "geglu",
            Gate::GeluTanh => "geglu_tanh",
        }
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("packed", self.packed)
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        if self.packed {
            let last = inputs[0].shape.ndim() - 1;
            return Ok(rule::along(&[&inputs[0].shape], &[&outputs[0].shape], &[last]));
        }
        let mut rule = rule::elementwise(&[&inputs[0].shape, &inputs[1].shape], &outputs[0].shape);
        rule.pass(&[1], LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![match inputs {
            [x] => ops::glu_packed(x, self.gate)?,
            _ => ops::glu(inputs[0], inputs[1], self.gate)?,
        }])
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn saves(&self, _: &Places) -> Saves {
        compose::saves_inputs(if self.packed { 1 } else { 2 })
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = grads[0].as_ref().filter(|_| !at.is_differentiable()) else {
            return compose::gradient(at, grads, |inputs| self.plain(inputs));
        };
        let inputs = (0..at.inputs()).map(|i| at.input(i)).collect::<Result<Vec<_>>>()?;
        let all: Vec<&Tensor> = std::iter::once(dy).chain(&inputs).collect();
        Ok(apply(GluGrad(*self), &all)?.into_iter().map(Some).collect())
    }
}

/// The fused gradients, from that of the result and the inputs.
#[derive(Debug, Clone, Copy)]
struct GluGrad(Glu);

impl Op for GluGrad {
    fn name(&self) -> &'static str {
        match self.0.gate {
            Gate::Silu => "swiglu_grad",
            Gate::Gelu => "geglu_grad",
            Gate::GeluTanh => "geglu_tanh_grad",
        }
    }

    fn attributes(&self) -> Attributes {
        self.0.attributes()
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let shapes: Vec<_> = inputs.iter().map(|spec| &spec.shape).collect();
        let results: Vec<_> = outputs.iter().map(|spec| &spec.shape).collect();
        let last = if self.0.packed { vec![inputs[0].shape.ndim() - 1] } else { Vec::new() };
        let mut rule = rule::along(&shapes, &results, &last);
        rule.pass(&[0], LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(match inputs {
            [dy, x] => smallvec![ops::glu_packed_grad(dy, x, self.0.gate)?],
            _ => {
                let found = ops::glu_grad(inputs[0], inputs[1], inputs[2], self.0.gate)?;
                smallvec![found.gate, found.up]
            }
        })
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, _: &[Option<Tensor>]) -> Result<Grads> {
        Err(super::fused_only(self.name()))
    }
}

/// `act(gate) * up` for tensors of one shape.
pub fn glu(gate: &Tensor, up: &Tensor, act: Gate) -> Result<Tensor> {
    if gate.shape() != up.shape() {
        let message = format!("gate and factor have shapes {} and {}", gate.shape(), up.shape());
        return Err(Error::Argument { op: "glu", message });
    }
    apply1(Glu { gate: act, packed: false }, &[gate, up])
}

/// `act(x[.., ..n]) * x[.., n..]` with `n` half the last dim, which is made whole.
pub fn glu_packed(x: &Tensor, act: Gate) -> Result<Tensor> {
    ops::glu_packed(&Array::meta(x.shape(), x.dtype())?, act)?;
    apply1(Glu { gate: act, packed: true }, &[x])
}

/// `silu(gate) * up`.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    glu(gate, up, Gate::Silu)
}

/// `silu(x[.., ..n]) * x[.., n..]` with `n` half the last dim, which is made whole.
pub fn swiglu_packed(x: &Tensor) -> Result<Tensor> {
    glu_packed(x, Gate::Silu)
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    let (gate, grad) = match name {
        "swiglu" => (Gate::Silu, false),
        "geglu" => (Gate::Gelu, false),
        "geglu_tanh" => (Gate::GeluTanh, false),
        "swiglu_grad" => (Gate::Silu, true),
        "geglu_grad" => (Gate::Gelu, true),
        "geglu_tanh_grad" => (Gate::GeluTanh, true),
        _ => return None,
    };
    let of = Glu { gate, packed: at.truth("packed")? };
    if grad { found(GluGrad(of)) } else { found(of) }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let mut shape = draw.shape_of(1, 3);
    let gate = draw.pick(&[Gate::Silu, Gate::Gelu, Gate::GeluTanh]);
    if draw.coin() {
        return Ok(Sample::new(Glu { gate, packed: false }, [draw.normal(&shape)?, draw.normal(&shape)?]));
    }
    let last = shape.len() - 1;
    shape[last] *= 2;
    Ok(Sample::new(Glu { gate, packed: true }, [draw.normal(&shape)?]))
}
