//! Values of cases whose lines have a function, its arguments and its answer: tensors, numbers, tolerances.

use anyhow::{Context, Result, bail, ensure};
use planaria_array::{Array, DType};
use planaria_tensor::Tensor;
use serde::Deserialize;
use serde_json::Value;

/// `|got - want| <= abs + rel * |want|`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Tolerance {
    abs: f64,
    rel: f64,
}

impl Tolerance {
    /// The tolerance of an object, under a name.
    pub(crate) fn of(value: &Value, name: &str) -> Result<Tolerance> {
        Ok(serde_json::from_value(field(value, name)?.clone())?)
    }

    pub(crate) fn same(&self, what: &str, got: f64, want: f64) -> Result<()> {
        let near = (got - want).abs() <= self.abs + self.rel * want.abs();
        ensure!(near || got == want || (got.is_nan() && want.is_nan()), "{what} is {got}, expected {want}");
        Ok(())
    }

    pub(crate) fn same_all(&self, what: &str, got: &[f64], want: &[f64]) -> Result<()> {
        ensure!(got.len() == want.len(), "{what} has {} elements, expected {}", got.len(), want.len());
        for (at, (&got, &want)) in got.iter().zip(want).enumerate() {
            self.same(&format!("{what}[{at}]"), got, want)?;
        }
        Ok(())
    }
}

/// One line.
#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) id: String,
    #[serde(rename = "fn")]
    pub(crate) function: String,
    #[serde(rename = "in")]
    pub(crate) given: Value,
    pub(crate) out: Value,
    #[serde(default)]
    pub(crate) tol: Tolerance,
}

impl Case {
    /// A tensor that was given.
    pub(crate) fn tensor(&self, name: &str) -> Result<Numbers> {
        numbers(field(&self.given, name)?).with_context(|| name.to_string())
    }

    pub(crate) fn number(&self, name: &str) -> Result<f64> {
        number(field(&self.given, name)?)
    }

    /// A number that may be absent.
    pub(crate) fn maybe(&self, name: &str) -> Result<Option<f64>> {
        maybe(&self.given, name)
    }

    pub(crate) fn text(&self, name: &str) -> Result<&str> {
        text(&self.given, name)
    }

    /// Our answer under a name, a tensor.
    pub(crate) fn is(&self, name: &str, got: &[f64]) -> Result<()> {
        self.tol.same_all(name, got, &numbers(field(&self.out, name)?)?.data)
    }

    /// Our answer under a name, a number.
    pub(crate) fn is_number(&self, name: &str, got: f64) -> Result<()> {
        self.tol.same(name, got, number(field(&self.out, name)?)?)
    }
}

/// A tensor, or a list that stands for one of one dim.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<f64>,
}

impl Numbers {
    /// As f64, which the functions then compute in.
    pub(crate) fn array(&self) -> Result<Array> {
        Ok(Array::from_slice(&self.data, &self.shape)?)
    }

    pub(crate) fn leaf(&self) -> Result<Tensor> {
        Ok(Tensor::new(self.array()?).requires_grad())
    }

    pub(crate) fn plain(&self) -> Result<Tensor> {
        Ok(Tensor::new(self.array()?))
    }

    /// Rows along the first dim.
    pub(crate) fn rows(&self) -> Vec<Vec<f64>> {
        let width: usize = self.shape[1..].iter().product();
        self.data.chunks(width.max(1)).map(<[f64]>::to_vec).collect()
    }

    pub(crate) fn integers(&self) -> Vec<i64> {
        self.data.iter().map(|&value| value as i64).collect()
    }

    pub(crate) fn flags(&self) -> Vec<bool> {
        self.data.iter().map(|&value| value != 0.0).collect()
    }
}

/// All elements, in f64.
pub(crate) fn elements(array: &Array) -> Result<Vec<f64>> {
    Ok(array.cast(DType::F64)?.contiguous()?.to_vec::<f64>()?)
}

/// The gradient that backward left; zeros where none came.
pub(crate) fn gradient(leaf: &Tensor) -> Result<Vec<f64>> {
    match leaf.grad() {
        Some(grad) => elements(grad.local()),
        None => Ok(vec![0.0; leaf.numel()]),
    }
}

pub(crate) fn field<'a>(object: &'a Value, name: &str) -> Result<&'a Value> {
    object.get(name).with_context(|| format!("there is no `{name}`"))
}

pub(crate) fn text<'a>(object: &'a Value, name: &str) -> Result<&'a str> {
    field(object, name)?.as_str().with_context(|| format!("`{name}` is not text"))
}

pub(crate) fn list<'a>(object: &'a Value, name: &str) -> Result<&'a [Value]> {
    Ok(field(object, name)?.as_array().with_context(|| format!("`{name}` is not a list"))?)
}

/// A number; those that JSON has not are texts.
pub(crate) fn number(value: &Value) -> Result<f64> {
    match value {
        Value::Number(number) => number.as_f64().context("a number without a value"),
        Value::String(text) => text.parse().with_context(|| format!("'{text}' is not a number")),
        Value::Bool(flag) => Ok(f64::from(u8::from(*flag))),
        other => bail!("{other} is not a number"),
    }
}

/// A number under a name; none where it is missing or null.
pub(crate) fn maybe(object: &Value, name: &str) -> Result<Option<f64>> {
    object.get(name).filter(|value| !value.is_null()).map(number).transpose()
}

/// A size under a name.
pub(crate) fn size(object: &Value, name: &str) -> Result<usize> {
    Ok(number(field(object, name)?)? as usize)
}

/// A list of sizes.
pub(crate) fn sizes(value: &Value) -> Result<Vec<usize>> {
    let list = value.as_array().context("not a list of sizes")?;
    list.iter().map(|value| Ok(number(value)? as usize)).collect()
}

pub(crate) fn numbers(value: &Value) -> Result<Numbers> {
    let (shape, data) = match value {
        Value::Array(list) => (vec![list.len()], list),
        Value::Object(_) => {
            let data = field(value, "data")?.as_array().context("`data` is not a list")?;
            (sizes(field(value, "shape")?)?, data)
        }
        other => return Ok(Numbers { shape: Vec::new(), data: vec![number(other)?] }),
    };
    Ok(Numbers { shape, data: data.iter().map(number).collect::<Result<_>>()? })
}
