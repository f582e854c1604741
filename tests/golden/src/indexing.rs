//! Kind `indexing`: index expressions and indexed operations against torch.
//!
//! A case passes when the result, its shape, whether it is a view, the family of the error, and first and second
//! gradients all agree. Where torch itself fails in backward, gradients are checked by their definition.
//! `PLANARIA_DEVICE=cuda:0` runs them on a device.

mod forward;
mod gradient;
mod tensor;

use crate::cases::{Outcome, Verdict, each_case};
use anyhow::{Context, Result, bail, ensure};
use planaria_array::{Array, DType, Device, Error, ErrorClass, Index};
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;
use std::sync::OnceLock;

/// Extents and row-major elements.
type Dense = (Vec<usize>, Vec<Value>);

/// One line of the file.
#[derive(Deserialize)]
struct Case {
    id: u64,
    op: String,
    shape: Vec<usize>,
    base_shape: Vec<usize>,
    prep: Vec<Vec<Value>>,
    dtype: String,
    index: Vec<Value>,
    dim: Option<i64>,
    #[serde(default)]
    accumulate: bool,
    value: Option<ValueSpec>,
    result: Option<Dense>,
    is_view: Option<bool>,
    error: Option<String>,
    #[serde(default)]
    msg: String,
    #[serde(default)]
    numpy: String,
    gx: Option<Dense>,
    gv: Option<Dense>,
    gxx: Option<Dense>,
    gxv: Option<Dense>,
    grad_error: Option<String>,
}

/// The written value.
#[derive(Deserialize)]
struct ValueSpec {
    shape: Option<Vec<usize>>,
    scalar: Option<i64>,
}

/// Where arrays are.
fn device() -> Device {
    static NAMED: OnceLock<Device> = OnceLock::new();
    let named = || std::env::var("PLANARIA_DEVICE").unwrap_or_else(|_| "cpu".into());
    *NAMED.get_or_init(|| named().parse().unwrap_or_else(|error| panic!("PLANARIA_DEVICE: {error}")))
}

pub(crate) fn run(path: &Path) -> Result<Outcome> {
    each_case(path, |case| verdict(case, check_case))
}

/// The same cases through `Tensor`, with its history for the gradients.
pub(crate) fn run_tensor(path: &Path) -> Result<Outcome> {
    each_case(path, |case| verdict(case, tensor::check_case))
}

fn verdict(case: &Value, check: fn(&Case) -> Result<Verdict>) -> Verdict {
    let checked = Case::deserialize(case).context("reading the case").and_then(|case| {
        check(&case).with_context(|| format!("case {} ({} on {:?})", case.id, case.op, case.shape))
    });
    checked.unwrap_or_else(|error| Verdict::Failed(format!("{error:#}")))
}

/// Why no result stands beside ours: the oracle is torch.
const BACKWARDS: &str = "torch refuses negative steps, which NumPy and we take";

/// Why torch's result does not stand for ours.
const DROPPED: &str = "torch drops what is added to an empty dim, we refuse it";

/// Why torch's result does not stand for ours.
const MASKED_OUT: &str = "torch looks at no position where a mask keeps nothing, we check them all";

/// True where we refuse a position that a mask which keeps nothing hides from torch.
fn sees_behind_masks(case: &Case, error: &Error) -> bool {
    let keeps_nothing = |entry: &Value| match entry.get("b").and_then(|mask| mask.get(1)?.as_array()) {
        Some(kept) => !kept.is_empty() && kept.iter().all(|kept| *kept == 0),
        None => *entry == false,
    };
    let hidden = case.index.iter().any(keeps_nothing);
    hidden && case.error.is_none() && matches!(error, Error::IndexOutOfRange { .. })
}

/// True where we refuse values that torch drops.
fn refuses_loss(case: &Case, error: &Error) -> bool {
    case.op == "index_add" && case.error.is_none() && matches!(error, Error::EmptyDim { .. })
}

/// True where torch refuses what NumPy takes: a slice that walks backwards.
fn walks_backwards(case: &Case) -> bool {
    case.msg == "step must be greater than zero" && case.numpy == "only"
}

fn check_case(case: &Case) -> Result<Verdict> {
    let dtype: DType = case.dtype.parse()?;
    let base = iota(&case.base_shape, dtype, |i| i + 1, 3)?;
    let x = prepared(&base, &case.prep)?;
    ensure!(x.shape()[..] == case.shape[..], "view has shape {}", x.shape());
    let value = match &case.value {
        Some(ValueSpec { shape: Some(shape), .. }) => Some(iota(shape, dtype, |i| -i - 1, 2)?),
        _ => None,
    };
    let outcome = case.forward(&base, value.as_ref(), case.value.as_ref().and_then(|v| v.scalar));
    // What a device refuses, it refuses when its result is looked at.
    let outcome = outcome.and_then(|out| out.to(Device::Cpu).map(|_| out));
    let result = match (&case.error, outcome) {
        (Some(class), Err(error)) => return check_error(case, class, &error),
        (Some(_), Ok(_)) if walks_backwards(case) => return Ok(Verdict::PassedAlone(BACKWARDS)),
        (Some(class), Ok(out)) => bail!("expected {class} ({}), got shape {}", case.msg, out.shape()),
        (None, Err(error)) if refuses_loss(case, &error) => return Ok(Verdict::PassedAlone(DROPPED)),
        (None, Err(error)) if sees_behind_masks(case, &error) => return Ok(Verdict::PassedAlone(MASKED_OUT)),
        (None, out) => out?,
    };
    let expected = case.result.as_ref().context("neither result nor error")?;
    same(&result, expected).context("result")?;
    if let Some(is_view) = case.is_view {
        ensure!(result.shares_storage(&base) == is_view, "is_view should be {is_view}");
    }
    case.check_gradients(&result, value.as_ref())?;
    Ok(Verdict::Passed)
}

fn check_error(case: &Case, class: &str, error: &Error) -> Result<Verdict> {
    let ours = match error.class() {
        ErrorClass::Index => "IndexError",
        ErrorClass::Value => "ValueError",
        ErrorClass::Runtime => "RuntimeError",
    };
    ensure!(ours == class, "expected {class} ({}), got {ours} ({error})", case.msg);
    let told = error.to_string();
    if let Some(rest) = case.msg.strip_prefix("index ")
        && case.msg.contains("is out of bounds for dimension")
    {
        let index = rest.split(' ').next().unwrap_or_default();
        let size = rest.rsplit(' ').next().unwrap_or_default();
        for number in [index, size].iter().filter(|n| n.parse::<i64>().is_ok()) {
            ensure!(told.contains(*number), "'{told}' does not mention {number} as in '{}'", case.msg);
        }
    }
    Ok(Verdict::Passed)
}

/// An array whose element number i is `value(i)`; truth values say whether that is a multiple of `modulus`.
fn iota(shape: &[usize], dtype: DType, value: impl Fn(i64) -> i64, modulus: i64) -> Result<Array> {
    let numel = shape.iter().product::<usize>() as i64;
    let wanted = (0..numel).map(value);
    let values: Vec<i64> = match dtype {
        DType::Bool => wanted.map(|v| i64::from(v.rem_euclid(modulus) == 0)).collect(),
        _ => wanted.collect(),
    };
    Ok(Array::from_slice(&values, shape)?.cast(dtype)?.copy()?.to(device())?)
}

fn int(value: &Value) -> Result<i64> {
    value.as_i64().with_context(|| format!("{value} is not an integer"))
}

fn ints(value: &Value) -> Result<Vec<i64>> {
    value.as_array().context("not a list")?.iter().map(int).collect()
}

fn extents(value: &Value) -> Result<Vec<usize>> {
    ints(value)?.into_iter().map(|d| Ok(usize::try_from(d)?)).collect()
}

/// The view ops of a case applied in order.
fn prepared(base: &Array, prep: &[Vec<Value>]) -> Result<Array> {
    prep.iter().try_fold(base.clone(), |x, step| view_step(&x, step))
}

fn view_step(x: &Array, step: &[Value]) -> Result<Array> {
    match (step[0].as_str(), &step[1..]) {
        (Some("transpose"), [a, b]) => Ok(x.transpose(int(a)?, int(b)?)?),
        (Some("slice"), [dim, start, stop, by]) => {
            Ok(x.slice(int(dim)?, start.as_i64(), stop.as_i64(), by.as_i64().unwrap_or(1))?)
        }
        (Some("expand"), [to]) => Ok(x.broadcast_to(&extents(to)?)?),
        (Some("reshape"), [to]) => Ok(x.reshape(&extents(to)?)?),
        _ => bail!("unknown view step {step:?}"),
    }
}

/// An array of an index expression: `[shape, data]`.
fn index_array(value: &Value, dtype: DType) -> Result<Array> {
    let shape = extents(&value[0])?;
    let data = ints(&value[1])?;
    Ok(Array::from_slice(&data, &shape)?.cast(dtype)?.to(device())?)
}

fn parse_index(value: &Value) -> Result<Index> {
    Ok(match value {
        Value::Null => Index::NewAxis,
        Value::Bool(keep) => Index::Bool(*keep),
        Value::Number(_) => Index::Int(int(value)?),
        Value::String(dots) if dots == "..." => Index::Ellipsis,
        Value::Object(_) => match value.get("s").and_then(Value::as_array) {
            Some(slice) => Index::slice(slice[0].as_i64(), slice[1].as_i64(), slice[2].as_i64()),
            None => parse_array(value)?.into(),
        },
        _ => bail!("unknown index {value}"),
    })
}

fn parse_array(value: &Value) -> Result<Array> {
    for (name, dtype) in [("b", DType::Bool), ("i", DType::I64), ("i32", DType::I32)] {
        if let Some(array) = value.get(name) {
            return index_array(array, dtype);
        }
    }
    bail!("unknown index array {value}")
}

/// Elements in row-major order.
fn numbers(x: &Array) -> Result<Vec<f64>> {
    Ok(x.to(Device::Cpu)?.cast(DType::F64)?.to_vec::<f64>()?)
}

/// What sums are weighted with.
fn weights(shape: &[usize], of: impl Fn(i64) -> i64) -> Result<Array> {
    let numel = shape.iter().product::<usize>() as i64;
    let values: Vec<f64> = (0..numel).map(|i| of(i) as f64).collect();
    Ok(Array::from_slice(&values, shape)?.to(device())?)
}

/// Exact comparison; every number of the file is exact in f64.
fn same(ours: &Array, (shape, data): &Dense) -> Result<()> {
    ensure!(ours.shape()[..] == shape[..], "shape {}, expected {shape:?}", ours.shape());
    let got = numbers(ours)?;
    let want: Vec<f64> = data
        .iter()
        .map(|v| v.as_f64().or(v.as_bool().map(|b| f64::from(u8::from(b)))).with_context(|| format!("{v}")))
        .collect::<Result<_>>()?;
    ensure!(got == want, "got {got:?}, expected {want:?}");
    Ok(())
}
