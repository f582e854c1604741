//! Dropout, alone and with the residual addition. Which elements are dropped depends on the key and on their global
//! index, so every layout drops the same ones.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::{Error, Result};
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::random;
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_array::ops;
use planaria_array::random::{Key, Window};
use planaria_layout::rule::{self, LINEAR, Rule};
use smallvec::smallvec;

/// Zeros with probability `p`, the rest divided by `1 - p`; added to a second input when there is one.
#[derive(Debug, Clone, Copy)]
struct Dropout {
    p: f64,
    key: Key,
    adds: bool,
}

impl Dropout {
    fn run(&self, inputs: &[Array], window: &Window) -> Result<Array> {
        Ok(match inputs {
            [x] => ops::dropout(x, self.p, self.key, window)?,
            _ => ops::dropout_add(&inputs[0], &inputs[1], self.p, self.key, window)?,
        })
    }
}

impl Op for Dropout {
    fn name(&self) -> &'static str {
        if self.adds { "fused_dropout_add" } else { "dropout" }
    }

    fn attributes(&self) -> Attributes {
        let key = Attributes::new().with("p", self.p).with("seed", self.key.seed as i64);
        key.with("stream", self.key.stream as i64)
    }

    /// The key changes on every call and says nothing about layouts.
    fn layout_attributes(&self) -> Attributes {
        Attributes::new()
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let shapes: Vec<_> = inputs.iter().map(|spec| &spec.shape).collect();
        let mut rule = rule::elementwise(&shapes, &outputs[0].shape);
        let all: &[usize] = if self.adds { &[0, 1] } else { &[0] };
        rule.pass(all, LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let all = || inputs.iter().map(|&a| a.clone()).collect::<Vec<_>>();
        let Some(piece) = local.output_piece(0)?.filter(|_| !inputs[0].is_meta()) else {
            return Ok(smallvec![self.run(&all(), &Window::whole(inputs[0].shape()))?]);
        };
        let global = local.input_shape(0, inputs[0]);
        let boxes = piece.boxes();
        if let [one] = &boxes[..] {
            return Ok(smallvec![self.run(&all(), &Window::of_region(&global, one)?)?]);
        }
        let out = Array::zeros_on(inputs[0].shape(), inputs[0].dtype(), inputs[0].device())?;
        for region in &boxes {
            let at = piece.locate(region).ok_or(Error::Bug("a piece does not have its own box"))?;
            let parts = inputs.iter().map(|a| Ok(a.region(&at)?)).collect::<Result<Vec<_>>>()?;
            out.region(&at)?.copy_from(&self.run(&parts, &Window::of_region(&global, region)?)?)?;
        }
        Ok(smallvec![out])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok((0..at.inputs()).map(|_| None).collect()) };
        let dropped = || apply1(Dropout { adds: false, ..*self }, &[dy]);
        let mut all: Grads = smallvec![at.needs(0).then(dropped).transpose()?];
        if self.adds {
            all.push(Some(dy.clone()));
        }
        Ok(all)
    }
}

/// Sets each element to 0 with probability `p` and divides the rest by `1 - p`. Takes the next key of
/// [`crate::random`].
pub fn dropout(x: &Tensor, p: f64) -> Result<Tensor> {
    dropout_with(x, p, random::next_key())
}

/// [`dropout`] with a key.
pub fn dropout_with(x: &Tensor, p: f64, key: Key) -> Result<Tensor> {
    apply1(Dropout { p, key, adds: false }, &[x])
}

/// `dropout(x) + residual` in one pass, bit for bit what the two steps give.
pub fn dropout_add(x: &Tensor, residual: &Tensor, p: f64) -> Result<Tensor> {
    dropout_add_with(x, residual, p, random::next_key())
}

/// [`dropout_add`] with a key.
pub fn dropout_add_with(x: &Tensor, residual: &Tensor, p: f64, key: Key) -> Result<Tensor> {
    if x.shape() != residual.shape() {
        let message = format!("input and residual have shapes {} and {}", x.shape(), residual.shape());
        return Err(Error::Argument { op: "dropout_add", message });
    }
    apply1(Dropout { p, key, adds: true }, &[x, residual])
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    let adds = match name {
        "dropout" => false,
        "fused_dropout_add" => true,
        _ => return None,
    };
    let key = Key::new(at.int("seed")? as u64, at.int("stream")? as u64);
    found(Dropout { p: at.real("p")?, key, adds })
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(0, 3);
    let op = Dropout {
        p: draw.pick(&[0.0, 0.3, 0.5, 1.0]),
        key: Key::new(7, draw.below(100) as u64),
        adds: draw.coin(),
    };
    let mut inputs = vec![draw.normal(&shape)?];
    if op.adds {
        inputs.push(draw.normal(&shape)?);
    }
    Ok(Sample::new(op, inputs))
}
