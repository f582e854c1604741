//! Rotary position embedding. A cut sequence knows its positions.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::{Error, Result};
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_array::ops::{self, RotaryLayout, RotaryPairing, RotaryTable};
use planaria_layout::rule::{Cuts, FactorKind, LINEAR, Rule};
use smallvec::smallvec;

/// Each pair rotated by its position's angle, or back. Inputs: `x`, cosines, sines, and ids when they are given.
#[derive(Debug, Clone, Copy)]
struct Rotary {
    pairing: RotaryPairing,
    layout: RotaryLayout,
    /// The first position, where there are no ids.
    first: usize,
    inverse: bool,
}

impl Rotary {
    fn sequence_dim(&self, ndim: usize) -> usize {
        if self.layout == RotaryLayout::SeqHeads { ndim - 3 } else { ndim - 2 }
    }
}

impl Op for Rotary {
    fn name(&self) -> &'static str {
        "rotary"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new()
            .with("interleaved", self.pairing == RotaryPairing::Interleaved)
            .with("heads_first", self.layout == RotaryLayout::HeadsSeq)
            .with("first", self.first)
            .with("inverse", self.inverse)
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let shape = &inputs[0].shape;
        let (ndim, sequence) = (shape.ndim(), self.sequence_dim(shape.ndim()));
        let mut rule = Rule::default();
        let mut dims: Vec<_> = Vec::with_capacity(ndim);
        for (d, &n) in shape[..ndim - 1].iter().enumerate() {
            let cuts = if d == sequence { Cuts::Windows } else { Cuts::Any };
            dims.push(Some(rule.factor(n, FactorKind::Free, cuts)));
        }
        dims.push(None);
        rule.input(&dims);
        rule.input(&[None, None]);
        rule.input(&[None, None]);
        if let Some(ids) = inputs.get(3) {
            let mut own = if ids.shape.ndim() == 1 { Vec::new() } else { dims[..ndim - 3].to_vec() };
            own.push(dims[sequence]);
            rule.input(&own);
        }
        rule.output(&dims);
        rule.pass(&[0], LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let x = inputs[0];
        let table = RotaryTable { cos: inputs[1].clone(), sin: inputs[2].clone() };
        let positions = match inputs.get(3) {
            Some(ids) => ops::RotaryPositions::Ids(ids),
            None if x.ndim() < 3 => ops::RotaryPositions::From(self.first),
            None => {
                ops::RotaryPositions::From(self.first + local.input_start(0, self.sequence_dim(x.ndim()))?)
            }
        };
        let options = ops::RotaryOptions { pairing: self.pairing, layout: self.layout, positions };
        Ok(smallvec![match self.inverse {
            false => ops::rotary(x, &table, &options)?,
            true => ops::rotary_grad(x, &table, &options)?,
        }])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::inputs(&[1, 2, 3])
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let mut all: Grads = (0..at.inputs()).map(|_| None).collect();
        if let Some(dy) = &grads[0] {
            let others = (1..at.inputs()).map(|i| at.input(i)).collect::<Result<Vec<_>>>()?;
            let inputs: Vec<&Tensor> = std::iter::once(dy).chain(&others).collect();
            all[0] = Some(apply1(Rotary { inverse: !self.inverse, ..*self }, &inputs)?);
        }
        Ok(all)
    }
}

/// The position of each sequence element.
#[derive(Clone, Copy, Debug)]
pub enum RotaryPositions<'a> {
    /// Counted up from this one.
    From(usize),
    /// Given as integers of shape `[sequence]` or `[.., sequence]`, with the leading dims of `x`.
    Ids(&'a Tensor),
}

/// How [`rotary`] reads its input.
#[derive(Clone, Copy, Debug)]
pub struct RotaryOptions<'a> {
    /// Which elements are rotated together.
    pub pairing: RotaryPairing,
    /// Where sequence and heads are.
    pub layout: RotaryLayout,
    /// Where in the sequence each element is.
    pub positions: RotaryPositions<'a>,
}

/// Rotates the first elements of each row of `x`, as many as the table has, by its position's angles; the rest is
/// copied. The table gets no gradient.
pub fn rotary(x: &Tensor, table: &RotaryTable, options: &RotaryOptions<'_>) -> Result<Tensor> {
    if x.ndim() < 3 {
        let message = format!("x must have at least 3 dims, got shape {}", x.shape());
        return Err(Error::Argument { op: "rotary", message });
    }
    let (first, ids) = match options.positions {
        RotaryPositions::From(first) => (first, None),
        RotaryPositions::Ids(ids) => (0, Some(ids)),
    };
    let op = Rotary { pairing: options.pairing, layout: options.layout, first, inverse: false };
    let meta = x.local().is_meta();
    let fixed = |a: &Array| Tensor::new(if meta { a.to_meta() } else { a.clone() });
    let (cos, sin) = (fixed(&table.cos), fixed(&table.sin));
    let mut inputs = vec![x, &cos, &sin];
    inputs.extend(ids);
    apply1(op, &inputs)
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    if name != "rotary" {
        return None;
    }
    let pairing = if at.truth("interleaved")? { RotaryPairing::Interleaved } else { RotaryPairing::Halves };
    let layout = if at.truth("heads_first")? { RotaryLayout::HeadsSeq } else { RotaryLayout::SeqHeads };
    found(Rotary { pairing, layout, first: at.size("first")?, inverse: at.truth("inverse")? })
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let mut shape = draw.shape_of(3, 4);
    let ndim = shape.len();
    let pairs = 1 + draw.below(3);
    shape[ndim - 1] = 2 * pairs + draw.below(2);
    let op = Rotary {
        pairing: draw.pick(&[RotaryPairing::Halves, RotaryPairing::Interleaved]),
        layout: draw.pick(&[RotaryLayout::SeqHeads, RotaryLayout::HeadsSeq]),
        first: draw.below(3),
        inverse: draw.coin(),
    };
    let sequence = shape[op.sequence_dim(ndim)];
    let table = RotaryTable::new(sequence + 3, 2 * pairs, 100.0)?;
    let mut inputs = vec![draw.normal(&shape)?, table.cos, table.sin];
    match draw.below(3) {
        0 => inputs.push(draw.integers(sequence + 3, &[sequence])?),
        1 => inputs.push(draw.integers(sequence + 3, &[&shape[..ndim - 3], &[sequence]].concat())?),
        _ => {}
    }
    Ok(Sample::new(op, inputs))
}
