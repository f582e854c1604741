//! Cross-entropy of a linear layer's result, a few rows at a time: the scores of all rows are never there at once.
//!
//! The gradients of a sum of losses are known as soon as the scores are, so forward computes them with the scores at
//! hand, and backward only multiplies. That spares the scores' memory and their second computation.

use crate::attributes::Attributes;
use crate::dispatch::apply;
use crate::error::{Error, Result};
use crate::grad::{Backward, is_recording};
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::ops::{
    self, Binary, CrossEntropyOptions, Keep, Reduction, Unary, cross_entropy, cross_entropy_into_grad,
};
use planaria_array::{Array, DType, Device};
use planaria_layout::rule::{Cuts, FactorKind, Rule};
use planaria_layout::{Placement, Reduce};
use smallvec::smallvec;

/// The label of rows that count nothing.
pub const IGNORED: i64 = -100;

/// Bytes of scores that may be there at once on a rank.
const SCORES: usize = 32 << 20;

/// Fewer rows than this at once make products slow.
const LEAST_ROWS: usize = 256;

/// Rows at once on a device: its products want more, and it has the memory.
const DEVICE_ROWS: usize = 4096;

/// Sum of the losses of `hidden · weightᵀ` (`[batch, sequence, width]` and `[vocabulary, width]`) against labels
/// `[batch, sequence]`; those that are [`IGNORED`] count nothing. The vocabulary may be cut. Collective.
pub fn linear_cross_entropy(hidden: &Tensor, weight: &Tensor, labels: &Tensor) -> Result<Tensor> {
    linear_cross_entropy_by(rows_of(weight)?, hidden, weight, labels)
}

/// How many rows of scores are there at once.
fn rows_of(weight: &Tensor) -> Result<usize> {
    Ok(match weight.local().device() {
        Device::Cuda(_) => DEVICE_ROWS,
        _ => rows_at_once(largest_window(weight)?, wide(weight.dtype()).size()),
    })
}

/// The same with how many labels have the highest score of their row. Collective.
pub fn linear_cross_entropy_counting(
    hidden: &Tensor,
    weight: &Tensor,
    labels: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let mut found = made(rows_of(weight)?, hidden, weight, labels, true)?.into_iter();
    match (found.next(), found.next_back()) {
        (Some(sum), Some(right)) => Ok((sum, right.detach())),
        _ => Err(Error::Bug("a loss has a sum and a count")),
    }
}

/// How many rows of scores are there at once on a rank with a window of the vocabulary, in elements of `size` bytes.
pub fn rows_at_once(window: usize, size: usize) -> usize {
    (SCORES / window.max(1).saturating_mul(size)).max(LEAST_ROWS)
}

/// The most of the vocabulary that any rank has: ranks that cut it must take the same chunks.
fn largest_window(weight: &Tensor) -> Result<usize> {
    let Some(layout) = weight.layout() else { return Ok(weight.shape().first().copied().unwrap_or(1)) };
    // Cuts give the first rank of a mesh at least as much as any other.
    let first = layout.mesh().ranks().next().ok_or(Error::Bug("a mesh has ranks"))?;
    Ok(layout.piece(first)?.extents().first().copied().unwrap_or(1))
}

/// The same with the scores of at most `rows` positions at once, the same number on ranks that cut the vocabulary.
pub fn linear_cross_entropy_by(
    rows: usize,
    hidden: &Tensor,
    weight: &Tensor,
    labels: &Tensor,
) -> Result<Tensor> {
    made(rows, hidden, weight, labels, false)?.into_iter().next().ok_or(Error::Bug("a loss has a sum"))
}

/// The sum, its gradients, and how many are right.
fn made(rows: usize, hidden: &Tensor, weight: &Tensor, labels: &Tensor, right: bool) -> Result<Vec<Tensor>> {
    let refuse = |message: String| Err(Error::Argument { op: "linear_cross_entropy", message });
    let ([batch, length, width], [_, inner]) = (&hidden.shape()[..], &weight.shape()[..]) else {
        let shapes = (hidden.shape(), weight.shape());
        return refuse(format!("expected [batch, sequence, width] and [vocabulary, width], got {shapes:?}"));
    };
    if width != inner || labels.shape()[..] != [*batch, *length] {
        let (h, w, l) = (hidden.shape(), weight.shape(), labels.shape());
        return refuse(format!("hidden states {h}, weight {w} and labels {l} do not fit each other"));
    }
    let wanted = |t: &Tensor| is_recording() && t.has_history();
    let op = LinearCrossEntropy { rows: rows.max(1), hidden: wanted(hidden), weight: wanted(weight), right };
    Ok(apply(op, &[hidden, weight, labels])?.into_iter().collect())
}

/// What scores are computed in: narrow ones are widened, so that losses and probabilities are not rounded.
pub fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// The sum of losses and, where they are wanted, its gradients by the hidden states and by the weight, and how many labels have
/// the highest score.
#[derive(Debug, Clone, Copy)]
struct LinearCrossEntropy {
    rows: usize,
    hidden: bool,
    weight: bool,
    right: bool,
}

/// What a few rows give.
struct Rows {
    loss: Array,
    /// How many labels have the highest score; those of other windows count there.
    right: Option<Array>,
    /// Gradient of the scores.
    grad: Option<Array>,
}

const OPTIONS: CrossEntropyOptions<'static> = CrossEntropyOptions {
    dim: -1,
    weight: None,
    ignore_index: Some(IGNORED),
    label_smoothing: 0.0,
    reduction: Reduction::None,
};

impl LinearCrossEntropy {
    /// Scores of a rank that has the whole vocabulary.
    fn alone(&self, scores: Array, labels: &Array) -> Result<Rows> {
        let right = match self.right {
            true => {
                // Labels that cannot be are told by the loss.
                let scalar = |value: usize| Array::scalar(value, DType::I64);
                let here = labels.ge(&scalar(0)?)?.logical_and(&labels.lt(&scalar(scores.shape()[1])?)?)?;
                let place = ops::where_(&here, labels, &scalar(0)?)?;
                Some(highest(&scores, &scores.amax(&[1], Keep::No)?, &place, &here)?)
            }
            false => None,
        };
        if self.hidden || self.weight {
            let (loss, grad) = cross_entropy_into_grad(scores, labels, IGNORED)?;
            return Ok(Rows { loss, right, grad: Some(grad) });
        }
        let scores = scores.cast(wide(scores.dtype()))?;
        Ok(Rows { loss: cross_entropy(&scores, labels, &OPTIONS)?.loss, right, grad: None })
    }

    /// Scores of a window of the vocabulary. A row's loss is given by the rank that has its label.
    fn together(&self, scores: &Array, labels: &Array, local: &Local<'_>) -> Result<Rows> {
        let [rows, window] = scores.shape()[..] else { return Err(Error::Bug("scores are a matrix")) };
        let (start, dtype) = (local.input_start(1, 0)?, scores.dtype());
        let scalar = |value: usize| Array::scalar(value, DType::I64);
        let place = labels.sub(&scalar(start)?)?;
        let here = place.ge(&scalar(0)?)?.logical_and(&place.lt(&scalar(window)?)?)?;
        let place = ops::where_(&here, &place, &scalar(0)?)?;

        // The logsumexp of all windows from those of each.
        let (own, of_window) = match window {
            0 => {
                let none = Array::full_on(&[rows], f64::NEG_INFINITY, dtype, scores.device())?;
                (Array::zeros_on(&[rows], dtype, scores.device())?, none)
            }
            _ => {
                let done = cross_entropy(scores, &place, &OPTIONS)?;
                (done.loss, done.lse)
            }
        };
        let right = match self.right {
            true => {
                let none = || Array::full_on(&[rows], f64::NEG_INFINITY, dtype, scores.device());
                let own = if window == 0 { none()? } else { scores.amax(&[1], Keep::No)? };
                let most = local.reduce_over(1, &[0], &own, Reduce::Max)?;
                Some(if window == 0 { zero_of(scores)? } else { highest(scores, &most, &place, &here)? })
            }
            false => None,
        };
        let largest = local.reduce_over(1, &[0], &of_window, Reduce::Max)?;
        let share = of_window.sub(&largest)?.exp()?;
        let lse = local.reduce_over(1, &[0], &share, Reduce::Sum)?.ln()?.add(&largest)?;
        let zero = Array::scalar(0.0, dtype)?;
        let loss = ops::where_(&here, &own.add(&lse)?.sub(&ops::where_(&here, &of_window, &zero)?)?, &zero)?;
        if !(self.hidden || self.weight) || window == 0 {
            let grad = (self.hidden || self.weight).then(|| scores.clone());
            return Ok(Rows { loss, right, grad });
        }
        let grad = scores.sub(&lse.unsqueeze(1)?)?;
        grad.unary_in_place(Unary::Exp)?;
        let counted = labels.ne(&Array::scalar(IGNORED, DType::I64)?)?.cast(dtype)?;
        grad.binary_in_place(Binary::Mul, &counted.unsqueeze(1)?)?;
        grad.scatter_add_assign(1, &place.unsqueeze(1)?, &here.cast(dtype)?.neg()?.unsqueeze(1)?)?;
        Ok(Rows { loss, right, grad: Some(grad) })
    }

    fn run(&self, hidden: &Array, weight: &Array, labels: &Array, local: &Local<'_>) -> Result<Arrays> {
        let (narrow, dtype) = (weight.dtype(), wide(weight.dtype()));
        let all = hidden.reshape(&[labels.numel(), weight.shape()[1]])?;
        let ids = labels.cast(DType::I64)?.reshape(&[labels.numel()])?;
        let cut = local.is_cut(1, &[0]);
        if cut {
            check_labels(&ids, local.input_shape(1, weight)[0])?;
        }
        let zeros = |shape: &[usize], dtype| Array::zeros_on(shape, dtype, weight.device());
        let (mut sum, mut all_right) = (zeros(&[], dtype)?, zeros(&[], dtype)?);
        let hidden_grad = self.hidden.then(|| zeros(all.shape(), narrow)).transpose()?;
        let weight_grad = self.weight.then(|| zeros(weight.shape(), dtype)).transpose()?;
        for start in (0..labels.numel()).step_by(self.rows) {
            let count = self.rows.min(labels.numel() - start);
            let (x, y) = (all.narrow(0, start, count)?, ids.narrow(0, start, count)?);
            let scores = ops::linear(&x, weight, None)?;
            let Rows { loss, right, grad } = match cut {
                true => self.together(&scores.cast(dtype)?, &y, local)?,
                false => self.alone(scores, &y)?,
            };
            sum = sum.add(&loss.sum(&[], Keep::No)?)?;
            if let Some(right) = right {
                all_right = all_right.add(&right)?;
            }
            let Some(grad) = grad else { continue };
            let grad = grad.cast(narrow)?;
            if let Some(out) = &hidden_grad {
                out.narrow(0, start, count)?.copy_from(&ops::matmul(&grad, weight)?)?;
            }
            if let Some(out) = &weight_grad {
                ops::add_matmul(out, &grad.transpose(0, 1)?, &x)?;
            }
        }
        let mut found: Arrays = smallvec![sum];
        found.extend(hidden_grad.map(|grad| grad.reshape(hidden.shape())).transpose()?);
        found.extend(weight_grad.map(|grad| grad.cast(narrow)).transpose()?);
        found.extend(self.right.then_some(all_right));
        Ok(found)
    }

    /// Which output holds the gradient of the hidden states, and which that of the weight.
    fn outputs(&self) -> [Option<usize>; 2] {
        [self.hidden.then_some(1), self.weight.then_some(1 + usize::from(self.hidden))]
    }
}

/// How many of the rows that count have the score at their place as their highest.
fn highest(scores: &Array, most: &Array, place: &Array, counted: &Array) -> Result<Array> {
    let own = scores.gather(1, &place.unsqueeze(1)?)?.squeeze(&[1])?;
    let right = own.ge(most)?.logical_and(counted)?;
    Ok(right.cast(wide(scores.dtype()))?.sum(&[], Keep::No)?)
}

fn zero_of(scores: &Array) -> Result<Array> {
    Ok(Array::zeros_on(&[], wide(scores.dtype()), scores.device())?)
}

fn check_labels(labels: &Array, vocabulary: usize) -> Result<()> {
    let scalar = |value: i64| Array::scalar(value, DType::I64);
    let bound = i64::try_from(vocabulary).unwrap_or(i64::MAX);
    let inside = labels.ge(&scalar(0)?)?.logical_and(&labels.lt(&scalar(bound)?)?)?;
    let fine = inside.logical_or(&labels.eq(&scalar(IGNORED)?)?)?;
    if fine.numel() == 0 || fine.all(&[], Keep::No)?.item()?.as_bool() {
        return Ok(());
    }
    let message = format!("a label is neither below {vocabulary} nor {IGNORED}");
    Err(Error::Argument { op: "linear_cross_entropy", message })
}

impl Op for LinearCrossEntropy {
    fn name(&self) -> &'static str {
        "linear_cross_entropy"
    }

    fn attributes(&self) -> Attributes {
        let given = Attributes::new().with("hidden", self.hidden).with("weight", self.weight);
        let given = given.with("rows", self.rows);
        if self.right { given.with("right", true) } else { given }
    }

    /// Positions and words of the vocabulary are independent; what lacks them is a sum of contributions.
    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let (hidden, weight) = (&inputs[0].shape, &inputs[1].shape);
        let mut rule = Rule::default();
        let batch = Some(rule.reduced(hidden[0], Reduce::Sum));
        let position = Some(rule.reduced(hidden[1], Reduce::Sum));
        let word = Some(rule.factor(weight[0], FactorKind::Reduce(Reduce::Sum), Cuts::Windows));
        rule.input(&[batch, position, None]);
        rule.input(&[word, None]);
        rule.input(&[batch, position]);
        // The largest logsumexp of a window, and the sum of shares, of every row; the highest score where it is asked for.
        let rows: Vec<_> = [batch, position].into_iter().flatten().collect();
        let words: Vec<_> = word.into_iter().collect();
        rule.exchange(&words, &rows, (2 + usize::from(self.right)) * wide(inputs[1].dtype).size());
        rule.output(&[]);
        if self.hidden {
            rule.output(&[batch, position, None]);
        }
        if self.weight {
            rule.output(&[word, None]);
        }
        if self.right {
            rule.output(&[]);
        }
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (hidden, weight, labels) = (inputs[0], inputs[1], inputs[2]);
        if !hidden.is_meta() {
            return self.run(hidden, weight, labels, local);
        }
        let mut shapes: Arrays = smallvec![Array::meta(&[], wide(weight.dtype()))?];
        shapes.extend(self.hidden.then(|| hidden.to_meta()));
        shapes.extend(self.weight.then(|| weight.to_meta()));
        if self.right {
            shapes.push(Array::meta(&[], wide(weight.dtype()))?);
        }
        Ok(shapes)
    }

    fn saves(&self, _: &Places) -> Saves {
        let all: Vec<usize> = self.outputs().into_iter().flatten().collect();
        Saves::outputs(&all)
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        if at.is_differentiable() {
            let reason = "its gradient is computed in forward; use `linear` and `cross_entropy` instead";
            return Err(Error::NotDifferentiable { op: self.name(), reason });
        }
        let Some(dy) = &grads[0] else { return Ok(smallvec![None, None, None]) };
        let times = |output: usize| {
            let grad = at.output(output)?.detach(); // its history would keep the graph alive
            if is_one(dy)? { Ok(grad) } else { grad.mul(&dy.cast(grad.dtype())?) }
        };
        let [hidden, weight] = self.outputs();
        Ok(smallvec![hidden.map(times).transpose()?, weight.map(times).transpose()?, None])
    }
}

/// True where backward starts at the sum itself: the gradients are then as they are. All ranks know the same.
fn is_one(dy: &Tensor) -> Result<bool> {
    let pending = |layout: &planaria_layout::Layout| {
        layout.placements().iter().any(|p| matches!(p, Placement::Partial(_)))
    };
    // A device would have to finish first; multiplying costs it less.
    let known = dy.local().device() == Device::Cpu && !dy.layout().is_some_and(pending);
    Ok(known && dy.local().item()?.as_f64() == 1.0)
}

/// Random calls for tests: some labels ignored, scores in chunks.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let [batch, length, width, words] = [(); 4].map(|()| draw.size());
    let labels = draw.integers(words + 1, &[batch, length])?;
    let labels = labels.masked_fill(&labels.eq(&Array::scalar(words, DType::I64)?)?, IGNORED)?;
    let (hidden, weight) = (draw.normal(&[batch, length, width])?, draw.normal(&[words, width])?);
    let rows = 1 + draw.below(5);
    let call = move |inputs: &[&Tensor]| {
        Ok(smallvec![linear_cross_entropy_by(rows, inputs[0], inputs[1], inputs[2])?])
    };
    let name = format!("linear_cross_entropy by {rows} rows");
    let mut sample = Sample::of_call(name, call, [hidden, weight, labels]);
    sample.differentiable_once = true;
    Ok(sample)
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    if name != "linear_cross_entropy" {
        return None;
    }
    let (hidden, weight) = (at.truth("hidden")?, at.truth("weight")?);
    // What was written down before labels were counted says nothing of it.
    let right = at.truth("right").unwrap_or(false);
    found(LinearCrossEntropy { rows: at.size("rows")?.max(1), hidden, weight, right })
}
