//! Kind `indexing-tensor`: the same cases through `Tensor`, gradients of first and second order from its history.

use super::{
    BACKWARDS, Case, DROPPED, Dense, ErrorClass, MASKED_OUT, ValueSpec, Verdict, device, extents, int, iota,
    parse_array, parse_index, refuses_loss, same, sees_behind_masks, walks_backwards, weights,
};
use anyhow::{Context, Result, bail, ensure};
use planaria_array::{Array, DType, Device};
use planaria_tensor::ops::Put;
use planaria_tensor::{Error, GradOptions, Index, Keep, Tensor, grad};
use serde_json::Value;

/// A case's tensors: leaves, and the base that the operation works on.
struct Tensors {
    base: Tensor,
    value: Option<Tensor>,
    /// A copy of the base, because leaves cannot be written to.
    work: Tensor,
}

impl Tensors {
    fn new(case: &Case, dtype: DType) -> Result<Tensors> {
        let leaf = |array: Array| {
            let tensor = Tensor::new(array);
            if dtype == DType::F64 { tensor.requires_grad() } else { tensor }
        };
        let base = leaf(iota(&case.base_shape, dtype, |i| i + 1, 3)?);
        let value = match &case.value {
            Some(ValueSpec { shape: Some(shape), .. }) => Some(leaf(iota(shape, dtype, |i| -i - 1, 2)?)),
            _ => None,
        };
        let work = if dtype == DType::F64 { base.copy()? } else { base.clone() };
        Ok(Tensors { base, value, work })
    }
}

pub(super) fn check_case(case: &Case) -> Result<Verdict> {
    let dtype: DType = case.dtype.parse()?;
    let tensors = Tensors::new(case, dtype)?;
    // What a device refuses, it refuses when its result is looked at.
    let outcome = case.run(&tensors).and_then(|out| Ok(out.local().to(Device::Cpu).map(|_| out)?));
    let result = match (&case.error, outcome) {
        (Some(class), Err(error)) => return check_error(case, class, &error),
        (Some(_), Ok(_)) if walks_backwards(case) => return Ok(Verdict::PassedAlone(BACKWARDS)),
        (Some(class), Ok(out)) => bail!("expected {class} ({}), got {out:?}", case.msg),
        (None, Err(Error::Array(error))) if refuses_loss(case, &error) => {
            return Ok(Verdict::PassedAlone(DROPPED));
        }
        (None, Err(Error::Array(error))) if sees_behind_masks(case, &error) => {
            return Ok(Verdict::PassedAlone(MASKED_OUT));
        }
        (None, out) => out?,
    };
    same(result.local(), case.result.as_ref().context("neither result nor error")?).context("result")?;
    if let Some(is_view) = case.is_view {
        let shares = result.local().shares_storage(tensors.work.local());
        ensure!(shares == is_view, "is_view should be {is_view}");
    }
    if dtype == DType::F64 {
        case.check_history(&tensors, &result)?;
    }
    Ok(Verdict::Passed)
}

fn check_error(case: &Case, class: &str, error: &Error) -> Result<Verdict> {
    let Error::Array(inner) = error else { bail!("expected {class} ({}), got {error}", case.msg) };
    let ours = match inner.class() {
        ErrorClass::Index => "IndexError",
        ErrorClass::Value => "ValueError",
        ErrorClass::Runtime => "RuntimeError",
    };
    ensure!(ours == class, "expected {class} ({}), got {ours} ({error})", case.msg);
    Ok(Verdict::Passed)
}

fn prepared(base: &Tensor, prep: &[Vec<Value>]) -> Result<Tensor> {
    prep.iter().try_fold(base.clone(), |x, step| match (step[0].as_str(), &step[1..]) {
        (Some("transpose"), [a, b]) => Ok(x.transpose(int(a)?, int(b)?)?),
        (Some("slice"), [dim, start, stop, by]) => {
            Ok(x.slice(int(dim)?, start.as_i64(), stop.as_i64(), by.as_i64().unwrap_or(1))?)
        }
        (Some("expand"), [to]) => Ok(x.broadcast_to(&extents(to)?)?),
        (Some("reshape"), [to]) => Ok(x.reshape(&extents(to)?)?),
        _ => bail!("unknown view step {step:?}"),
    })
}

fn other(op: &'static str, message: impl ToString) -> Error {
    Error::Argument { op, message: message.to_string() }
}

impl Case {
    fn tensor_expression(&self) -> planaria_tensor::Result<Vec<Index>> {
        let one = |i| parse_index(i).map(|entry| entry.map(Tensor::new)).map_err(|e| other("case", e));
        self.index.iter().map(one).collect()
    }

    fn tensors(&self) -> planaria_tensor::Result<Vec<Option<Tensor>>> {
        let tensor = |i| parse_array(i).map(Tensor::new).map_err(|e| other("case", e));
        self.index.iter().map(|i| if i.is_null() { Ok(None) } else { tensor(i).map(Some) }).collect()
    }

    fn tensor(&self) -> planaria_tensor::Result<Tensor> {
        self.tensors()?.swap_remove(0).ok_or_else(|| other("case", "no index tensor"))
    }

    /// The operation on views of the base.
    fn run(&self, tensors: &Tensors) -> planaria_tensor::Result<Tensor> {
        let x = prepared(&tensors.work, &self.prep).map_err(|e| other("prep", e))?;
        let number = self.value.as_ref().and_then(|v| v.scalar).unwrap_or(0);
        let value = || tensors.value.as_ref().ok_or_else(|| other("case", "the case has no value"));
        let (dim, has_value) = (self.along(), tensors.value.is_some());
        let put = if self.accumulate { Put::Accumulate } else { Put::Replace };
        match (self.op.as_str(), has_value) {
            ("getitem", _) => x.get(&self.tensor_expression()?),
            ("setitem", true) => x.set(&self.tensor_expression()?, value()?).map(|()| tensors.work.clone()),
            ("setitem", false) => {
                x.set_scalar(&self.tensor_expression()?, number).map(|()| tensors.work.clone())
            }
            ("index_put", _) => x.index_put(&self.tensors()?, value()?, put),
            ("masked_fill", true) => x.masked_fill_with(&self.tensor()?, value()?),
            ("masked_fill", false) => x.masked_fill(&self.tensor()?, number),
            ("masked_select", _) => x.masked_select(&self.tensor()?),
            ("masked_scatter", _) => x.masked_scatter(&self.tensor()?, value()?),
            ("index_select", _) => x.index_select(dim, &self.tensor()?),
            ("index_add", _) => x.index_add(dim, &self.tensor()?, value()?),
            ("index_fill", false) => x.index_fill(dim, &self.tensor()?, number),
            ("index_fill", true) => x.index_fill_with(dim, &self.tensor()?, value()?),
            ("gather", _) => x.gather(dim, &self.tensor()?),
            ("scatter", true) => x.scatter(dim, &self.tensor()?, value()?),
            ("scatter", false) => x.scatter_scalar(dim, &self.tensor()?, number),
            ("scatter_add", _) => x.scatter_add(dim, &self.tensor()?, value()?),
            ("take_along_dim", _) => x.take_along_dim(&self.tensor()?, dim),
            (op, _) => Err(other("case", format!("unknown operation {op}"))),
        }
    }

    /// First and second gradients, where the case has them.
    fn check_history(&self, tensors: &Tensors, result: &Tensor) -> Result<()> {
        let leaves: Vec<&Tensor> =
            [Some(&tensors.base), tensors.value.as_ref()].into_iter().flatten().collect();
        let w = Tensor::new(weights(result.shape(), |i| (i * 7) % 11 - 5)?);
        let differentiable = GradOptions { keep_history: true, differentiable: true };
        if self.gx.is_some() || self.gv.is_some() {
            let keep = GradOptions { keep_history: true, differentiable: false };
            let first = gradients(result, &w, &leaves, keep)?;
            agree(&self.gx, first.first(), "gradient of the base")?;
            agree(&self.gv, first.get(1), "gradient of the value")?;
        }
        if self.gxx.is_none() && self.gxv.is_none() {
            return Ok(());
        }
        let cubed = result.mul(&result.square()?)?;
        let slope = gradients(&cubed, &w, &leaves[..1], differentiable)?.swap_remove(0);
        let u = Tensor::new(weights(slope.shape(), |i| (i * 5) % 7 - 3)?);
        let loss = slope.mul(&u)?.sum(&[], Keep::No)?;
        let one = Tensor::new(Array::scalar(1.0, DType::F64)?.to(device())?);
        let second = gradients(&loss, &one, &leaves, GradOptions::default())?;
        agree(&self.gxx, second.first(), "second gradient of the base")?;
        agree(&self.gxv, second.get(1), "second gradient of the value")
    }
}

/// Gradients of `sum(weights * output)`; zeros where an input does not take part.
fn gradients(
    output: &Tensor,
    weights: &Tensor,
    inputs: &[&Tensor],
    options: GradOptions,
) -> Result<Vec<Tensor>> {
    if !output.has_history() {
        return inputs.iter().map(|x| Ok(x.zeros_like()?)).collect();
    }
    let found = grad(&[output], &[Some(weights)], inputs, options)?;
    found.into_iter().zip(inputs).map(|(g, x)| g.map_or_else(|| Ok(x.zeros_like()?), Ok)).collect()
}

fn agree(want: &Option<Dense>, ours: Option<&Tensor>, what: &str) -> Result<()> {
    match (want, ours) {
        (Some(want), Some(ours)) => same(ours.local(), want).with_context(|| what.to_string()),
        (Some(_), None) => bail!("{what} is missing"),
        (None, _) => Ok(()),
    }
}
