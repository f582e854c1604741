//! First and second gradients of a case. Every operation is linear in the base and the value: with A and B for
//! the two maps, d/dbase of sum(w * result) is Aᵀw, and the second-order answers are Aᵀ and Bᵀ of
//! 6 · w · result · (A u).

use super::{Case, Dense, device, numbers, prepared, same, view_step, weights};
use anyhow::{Context, Result, bail, ensure};
use planaria_array::{Array, DType, ops};

impl Case {
    pub(super) fn check_gradients(&self, result: &Array, value: Option<&Array>) -> Result<()> {
        let w = weights(result.shape(), |i| (i * 7) % 11 - 5)?;
        let value_shape = value.map(|v| v.shape().to_vec());
        self.check(&self.gx, || self.pull_base(&w), "gradient of the base")?;
        self.check(&self.gv, || self.pull_value(&w, value_shape.as_deref()), "gradient of the value")?;
        if self.grad_error.is_some() {
            self.check_by_definition(result, &w, value_shape.as_deref())?;
        }
        if self.gxx.is_none() && self.gxv.is_none() {
            return Ok(());
        }
        let u = weights(&self.base_shape, |i| (i * 5) % 7 - 3)?;
        let zero = value.map(|v| Array::zeros_on(v.shape(), DType::F64, device())).transpose()?;
        let au = self.forward(&u, zero.as_ref(), Some(0))?;
        let (r, wv, au) = (numbers(result)?, numbers(&w)?, numbers(&au)?);
        let s: Vec<f64> = r.iter().zip(&wv).zip(&au).map(|((r, w), a)| 6.0 * w * r * a).collect();
        let s = Array::from_slice(&s, result.shape())?.to(device())?;
        self.check(&self.gxx, || self.pull_base(&s), "second gradient of the base")?;
        self.check(&self.gxv, || self.pull_value(&s, value_shape.as_deref()), "second gradient of the value")
    }

    fn check(&self, want: &Option<Dense>, ours: impl FnOnce() -> Result<Array>, what: &str) -> Result<()> {
        match want {
            Some(want) => {
                same(&ours().with_context(|| what.to_string())?, want).with_context(|| what.to_string())
            }
            None => Ok(()),
        }
    }

    /// Aᵀ dy, through the operation and then through the view.
    fn pull_base(&self, dy: &Array) -> Result<Array> {
        if self.op == "setitem" {
            let base = dy.copy()?;
            let view = prepared(&base, &self.prep)?;
            view.copy_from(&ops::set_grad(&view, &self.expression())?)?;
            return Ok(base);
        }
        let dx = self.pull_view(dy)?;
        ensure!(dx.shape()[..] == self.shape[..], "gradient of the view has shape {}", dx.shape());
        self.pull_prep(dx)
    }

    fn pull_view(&self, dy: &Array) -> Result<Array> {
        let (shape, dim) = (&self.shape, self.along());
        Ok(match self.op.as_str() {
            "getitem" => ops::get_grad(dy, &self.expression(), shape)?,
            "index_put" => ops::index_put_grad(dy, &self.arrays(), self.put())?,
            "masked_fill" | "masked_scatter" => ops::masked_fill_grad(dy, &self.array(), shape)?,
            "masked_select" => ops::masked_select_grad(dy, &self.array(), shape)?,
            "index_select" => ops::index_select_grad(dy, dim, &self.array(), shape)?,
            "index_fill" => ops::index_fill_grad(dy, dim, &self.array())?,
            "index_add" | "scatter_add" => dy.clone(),
            "gather" => ops::gather_grad(dy, dim, &self.array(), shape)?,
            "scatter" => ops::scatter_grad(dy, dim, &self.array())?,
            "take_along_dim" => ops::take_along_dim_grad(dy, &self.array(), dim, shape)?,
            op => bail!("no gradient for {op}"),
        })
    }

    /// Bᵀ dy.
    fn pull_value(&self, dy: &Array, shape: Option<&[usize]>) -> Result<Array> {
        let shape = shape.context("a gradient without a value")?;
        let dim = self.along();
        Ok(match self.op.as_str() {
            "setitem" => ops::set_value_grad(&prepared(dy, &self.prep)?, &self.expression(), shape)?,
            "index_put" => ops::index_put_value_grad(dy, &self.arrays(), shape)?,
            "masked_fill" => ops::masked_fill_value_grad(dy, &self.array())?,
            "masked_scatter" => ops::masked_scatter_source_grad(dy, &self.array(), shape)?,
            "index_add" => ops::index_add_source_grad(dy, dim, &self.array(), shape)?,
            "index_fill" => ops::index_fill_value_grad(dy, dim, &self.array())?,
            "scatter" | "scatter_add" => ops::scatter_source_grad(dy, dim, &self.array(), shape)?,
            op => bail!("no value gradient for {op}"),
        })
    }

    /// The gradient of the view pulled back through the view ops.
    fn pull_prep(&self, mut dx: Array) -> Result<Array> {
        let mut shapes = vec![Array::meta(&self.base_shape, DType::F64)?];
        for step in &self.prep {
            let next = view_step(&shapes[shapes.len() - 1], step)?;
            shapes.push(next);
        }
        for (step, before) in self.prep.iter().zip(&shapes).rev() {
            dx = match step[0].as_str() {
                Some("expand") => ops::sum_to(&dx, before.shape())?,
                Some("reshape") => dx.reshape(before.shape())?,
                _ => {
                    let zeros = Array::zeros_on(before.shape(), DType::F64, device())?;
                    view_step(&zeros, step)?.copy_from(&dx)?;
                    zeros
                }
            };
        }
        Ok(dx)
    }

    /// Gradients against their definition: entry j is the change of sum(w * result) with input j.
    fn check_by_definition(&self, result: &Array, w: &Array, value_shape: Option<&[usize]>) -> Result<()> {
        let zeros = |shape: &[usize]| Array::zeros_on(shape, DType::F64, device());
        let dot = |out: &Array| -> Result<f64> {
            Ok(numbers(out)?.iter().zip(numbers(w)?).map(|(a, b)| a * b).sum())
        };
        ensure!(w.shape() == result.shape());
        let one = |shape: &[usize], j: usize| -> Result<Array> {
            let numel = shape.iter().product::<usize>();
            let values: Vec<f64> = (0..numel).map(|i| f64::from(u8::from(i == j))).collect();
            Ok(Array::from_slice(&values, shape)?.to(device())?)
        };
        let shape = value_shape.context("a gradient without a value")?;
        let (gx, gv) = (self.pull_base(w)?, self.pull_value(w, value_shape)?);
        ensure!(gx.shape()[..] == self.base_shape[..] && gv.shape()[..] == *shape, "gradient shapes");
        for (j, &g) in numbers(&gx)?.iter().enumerate() {
            let out = self.forward(&one(&self.base_shape, j)?, Some(&zeros(shape)?), None)?;
            ensure!(dot(&out)? == g, "gradient {j} of the base is {g}, expected {}", dot(&out)?);
        }
        for (j, &g) in numbers(&gv)?.iter().enumerate() {
            let out = self.forward(&zeros(&self.base_shape)?, Some(&one(shape, j)?), None)?;
            ensure!(dot(&out)? == g, "gradient {j} of the value is {g}, expected {}", dot(&out)?);
        }
        Ok(())
    }
}
