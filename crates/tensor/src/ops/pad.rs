//! Padding in all modes, and the op that takes it back.

use crate::attributes::{Attr, Attributes};
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::ops::{PadMode, pad_grad};
use planaria_array::{Array, Scalar, Shape};
use planaria_layout::rule::{self, LINEAR, Rule};
use planaria_layout::{Dims, Reduce};
use smallvec::smallvec;

/// Positions added before and after dims, or cut off.
#[derive(Debug, Clone)]
struct Pad {
    /// Of each dim.
    margins: Vec<(i64, i64)>,
    mode: PadMode,
}

impl Pad {
    fn padded(&self) -> Dims {
        (0..self.margins.len()).filter(|&d| self.margins[d] != (0, 0)).collect()
    }

    fn is_linear(&self) -> bool {
        !matches!(self.mode, PadMode::Constant(value) if value.as_f64() != 0.0)
    }

    /// The same padding with zeros in place of a constant.
    fn linear(&self) -> Pad {
        let mode =
            if let PadMode::Constant(_) = self.mode { PadMode::Constant(Scalar::Int(0)) } else { self.mode };
        Pad { margins: self.margins.clone(), mode }
    }

    fn described(&self) -> Attributes {
        let ends: Vec<i64> = self.margins.iter().flat_map(|&(before, after)| [before, after]).collect();
        let (name, value) = match self.mode {
            PadMode::Constant(value) => ("constant", value.as_f64()),
            PadMode::Reflect => ("reflect", 0.0),
            PadMode::Replicate => ("replicate", 0.0),
            PadMode::Circular => ("circular", 0.0),
        };
        Attributes::new()
            .with("paddings", ends.as_slice())
            .with("mode", name)
            .with("value", Attr::Float(value))
    }
}

impl Op for Pad {
    fn name(&self) -> &'static str {
        "pad"
    }

    fn attributes(&self) -> Attributes {
        self.described()
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = rule::along(&[&inputs[0].shape], &[&outputs[0].shape], &self.padded());
        if !matches!(self.mode, PadMode::Constant(_)) {
            rule.pass(&[0], &Reduce::EVERY);
        } else if self.is_linear() {
            rule.pass(&[0], LINEAR);
        }
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![inputs[0].pad(&self.margins, self.mode)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let back = Unpad { pad: self.linear(), shape: at.input_spec(0).shape.clone() };
        Ok(smallvec![grads[0].as_ref().map(|dy| apply1(back, &[dy])).transpose()?])
    }
}

/// Each element added to the position that a padding copied it from.
#[derive(Debug, Clone)]
struct Unpad {
    pad: Pad,
    shape: Shape,
}

impl Op for Unpad {
    fn name(&self) -> &'static str {
        "pad_grad"
    }

    fn attributes(&self) -> Attributes {
        self.pad.described().with("shape", self.shape.dims())
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = rule::along(&[&inputs[0].shape], &[&outputs[0].shape], &self.pad.padded());
        rule.pass(&[0], LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let shape = Shape::new(&local.extents(0, &self.shape)?)?;
        Ok(smallvec![pad_grad(inputs[0], &shape, &self.pad.margins, self.pad.mode)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        Ok(smallvec![grads[0].as_ref().map(|dy| apply1(self.pad.clone(), &[dy])).transpose()?])
    }
}

impl Tensor {
    /// Adds `margins[i] = (before, after)` positions to each of the last `margins.len()` dims, in dim order.
    /// Negative margins cut positions off.
    pub fn pad(&self, margins: &[(i64, i64)], mode: PadMode) -> Result<Tensor> {
        self.to_meta()?.pad(margins, mode)?;
        let mut all = vec![(0, 0); self.ndim() - margins.len()];
        all.extend_from_slice(margins);
        apply1(Pad { margins: all, mode }, &[self])
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    if name != "pad" && name != "pad_grad" {
        return None;
    }
    let ends = at.ints("paddings")?;
    let margins = ends.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    let mode = match at.text("mode")? {
        "constant" => PadMode::Constant(Scalar::Float(at.real("value")?)),
        "reflect" => PadMode::Reflect,
        "replicate" => PadMode::Replicate,
        "circular" => PadMode::Circular,
        _ => return None,
    };
    let pad = Pad { margins, mode };
    if name == "pad" {
        return found(pad);
    }
    found(Unpad { pad, shape: Shape::new(&at.sizes("shape")?).ok()? })
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape: Vec<usize> = draw.shape_of(1, 3).iter().map(|&n| n + 1).collect();
    let modes = [
        PadMode::Constant(Scalar::Float(0.0)),
        PadMode::Constant(Scalar::Float(1.5)),
        PadMode::Reflect,
        PadMode::Replicate,
        PadMode::Circular,
    ];
    let mode = draw.pick(&modes);
    let mut margin = || draw.below(3) as i64 - 1;
    let margins: Vec<(i64, i64)> =
        shape.iter().map(|&n| if n % 2 == 0 { (margin(), margin()) } else { (0, 0) }).collect();
    let x = draw.normal(&shape)?;
    let op = Pad { margins, mode };
    if draw.coin() {
        return Ok(Sample::new(op, [x]));
    }
    let op = op.linear();
    let grad = draw.normal(x.pad(&op.margins, op.mode)?.shape())?;
    Ok(Sample::new(Unpad { pad: op, shape: x.shape().clone() }, [grad]))
}
