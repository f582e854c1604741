//! The factors of one module at work: what they add to a product, to token vectors, to scores, and to experts.

use crate::layers::{Dropout, dropout_key};
use crate::parallel::Lanes;
use crate::param::{Module, Param};
use planaria_array::DType;
use planaria_array::random::Key;
use planaria_tensor::{Keep, Result, Tensor, no_grad, ops};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static BARE: Cell<bool> = const { Cell::new(false) };
}

/// Runs something with every adapter of this thread off: what it computes is of the model under them. Other threads, whose
/// adapters may be the same, do not notice.
pub fn without_adapters<T>(work: impl FnOnce() -> T) -> T {
    /// Puts back what was before, also when the work panics.
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            BARE.set(self.0);
        }
    }
    let _before = Before(BARE.replace(true));
    work()
}

/// Whether an adapter takes part; shared by all its modules.
#[derive(Clone, Debug)]
pub struct Switch(Arc<AtomicBool>);

impl Default for Switch {
    fn default() -> Switch {
        Switch(Arc::new(AtomicBool::new(true)))
    }
}

impl Switch {
    /// Has the adapter take part, or not.
    pub fn set(&self, on: bool) {
        self.0.store(on, Ordering::Relaxed);
    }

    /// Whether it does.
    pub fn is_on(&self) -> bool {
        !BARE.get() && self.0.load(Ordering::Relaxed)
    }
}

/// The factors of one module: `scale · up(down(x))`, with a magnitude where lengths are trained apart.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// `[rank, in]`.
    pub down: Param,
    /// `[out, rank]`.
    pub up: Param,
    /// `[out]`, times the scale.
    pub up_bias: Option<Param>,
    /// Lengths of the rows of the weight, `[out]`.
    pub magnitude: Option<Param>,
    /// Factor on the product.
    pub scale: f64,
    /// Of the inputs of the first factor, in training.
    pub dropout: Dropout,
    /// The weight lies `[in, out]`.
    pub turned: bool,
    /// Whether it takes part.
    pub switch: Switch,
}

impl Adapter {
    /// What it adds to `x · weightᵀ`, which is `y`: pending where that is pending.
    pub(crate) fn added(&self, x: &Tensor, y: &Tensor, weight: &Param) -> Result<Tensor> {
        let dropped = match dropout_key() {
            Some(key) => self.dropout.forward(x, Some(key.fold(self.number())))?,
            None => x.clone(),
        };
        let low = ops::linear(&dropped.cast(self.down.leaf().dtype())?, &self.down.value()?, None)?;
        let bias = self.up_bias.as_ref().map(Param::value).transpose()?;
        let delta = match bias {
            // The bias counts as much as the product.
            Some(bias) => ops::linear(&low, &self.up.value()?, Some(&bias))?.mul_scalar(self.scale)?,
            None => ops::linear(&low.mul_scalar(self.scale)?, &self.up.value()?, None)?,
        };
        let Some(magnitude) = &self.magnitude else { return Ok(delta) };
        let factor = self.factor(magnitude, weight)?;
        let y = match self.dropout.drawn(dropout_key()) {
            // The whole layer sees what is left of its input.
            Some(_) => {
                let plain = ops::linear(x, &oriented(weight, self.turned)?, None)?;
                let seen = ops::linear(&dropped, &oriented(weight, self.turned)?, None)?;
                let seen = seen.cast(factor.dtype())?.mul(&factor)?;
                return seen.sub(&plain.cast(factor.dtype())?)?.add(&delta.mul(&factor)?);
            }
            None => y.cast(factor.dtype())?,
        };
        y.mul(&factor.add_scalar(-1.0)?)?.add(&delta.mul(&factor)?)
    }

    /// Its place among the draws of a block.
    fn number(&self) -> u64 {
        self.down.name().bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    /// The trained lengths of the rows over those they have, which count as constants.
    fn factor(&self, magnitude: &Param, weight: &Param) -> Result<Tensor> {
        magnitude.value()?.div(&self.lengths(weight, 1)?)
    }

    /// The lengths along a dim of the weight with the product of the factors, `[out, in]`; without history.
    pub(crate) fn lengths(&self, weight: &Param, dim: i64) -> Result<Tensor> {
        no_grad(|| {
            let (down, up) = (self.down.value()?, self.up.value()?);
            let product = up.matmul(&down)?.mul_scalar(self.scale)?;
            let sum = oriented(weight, self.turned)?.cast(product.dtype())?.add(&product)?;
            sum.sum_squares(&[dim], Keep::No)?.settled()?.sqrt()
        })
    }

    /// The weight that does what weight and factors do together, but for rounding; without history. Nothing where the second
    /// factor has a bias.
    pub(crate) fn merged(&self, weight: &Param) -> Result<Option<Tensor>> {
        if self.up_bias.is_some() {
            return Ok(None);
        }
        no_grad(|| {
            let (down, up) = (self.down.value()?, self.up.value()?);
            let product = up.matmul(&down)?.mul_scalar(self.scale)?;
            let mut sum = oriented(weight, self.turned)?.cast(product.dtype())?.add(&product)?;
            if let Some(magnitude) = &self.magnitude {
                sum = sum.mul(&self.factor(magnitude, weight)?.unsqueeze(-1)?)?;
            }
            let sum = if self.turned { sum.transpose(0, 1)? } else { sum };
            Ok(Some(sum.cast(weight.leaf().dtype())?))
        })
    }

    /// Widens input and weight of a product by the rank, so that it gives what the factors add to `x · weightᵀ` too.
    pub(crate) fn widened(
        &self,
        pair: (Tensor, Tensor),
        x: &Tensor,
        base: &Param,
    ) -> Result<(Tensor, Tensor)> {
        let ((wide, weight), dtype, down) = (pair, x.dtype(), self.down.value()?);
        let mut low = ops::linear(&x.cast(down.dtype())?, &down, None)?.mul_scalar(self.scale)?;
        let mut up = self.up.value()?;
        if let Some(magnitude) = &self.magnitude {
            // `(f - 1) · W x + f · scale · up(down(x))`: the base is there once already.
            let factor = self.factor(magnitude, base)?;
            let more = oriented(base, self.turned)?.cast(factor.dtype())?;
            let more = more.mul(&factor.add_scalar(-1.0)?.unsqueeze(-1)?)?;
            up = ops::concat(&[&more, &up.mul(&factor.unsqueeze(-1)?)?], 1)?;
            low = ops::concat(&[&x.cast(low.dtype())?, &low], -1)?;
        }
        let weight = ops::concat(&[&weight, &up.cast(weight.dtype())?], 1)?;
        Ok((ops::concat(&[&wide, &low.cast(dtype)?], -1)?, weight))
    }

    /// What it adds to vectors of a table of token vectors: `found` are the rows of the first factor for the tokens, and
    /// `vectors` those of the table.
    pub(crate) fn added_to_rows(&self, found: &Tensor, vectors: &Tensor, table: &Param) -> Result<Tensor> {
        let delta = ops::linear(&found.mul_scalar(self.scale)?, &self.up.value()?, None)?;
        let Some(magnitude) = &self.magnitude else { return Ok(delta) };
        let lengths = no_grad(|| {
            let (down, up) = (self.down.value()?, self.up.value()?);
            let product = down.transpose(0, 1)?.matmul(&up.transpose(0, 1)?)?.mul_scalar(self.scale)?;
            let sum = table.value()?.cast(product.dtype())?.add(&product)?;
            sum.sum_squares(&[0], Keep::No)?.settled()?.sqrt()
        })?;
        let factor = magnitude.value()?.div(&lengths)?;
        let vectors = vectors.cast(factor.dtype())?;
        vectors.mul(&factor.add_scalar(-1.0)?)?.add(&delta.mul(&factor)?)
    }

    /// The factors of this rank's experts, one expert after the other.
    pub(crate) fn of_experts(&self, lanes: &Lanes) -> Result<ExpertFactors> {
        let each = |param: &Param| split_experts(&lanes.own_added(&param.value()?)?);
        let bias = self.up_bias.as_ref().map(&each).transpose()?;
        let factors = match &self.magnitude {
            None => None,
            Some(magnitude) => Some(each(magnitude)?),
        };
        Ok(ExpertFactors {
            down: each(&self.down)?,
            up: each(&self.up)?,
            up_bias: bias,
            magnitude: factors,
            scale: self.scale,
            dropout: self.dropout.drawn(dropout_key().map(|key| key.fold(self.number()))),
        })
    }
}

/// Every expert's part; one that sums none of them where a rank has none, so that all ranks record the same.
pub(crate) fn split_experts(own: &Tensor) -> Result<Vec<Tensor>> {
    if own.shape()[0] == 0 { Ok(vec![own.sum(&[0], Keep::No)?]) } else { own.unbind(0) }
}

/// A weight as `[out, in]`.
pub(crate) fn oriented(weight: &Param, turned: bool) -> Result<Tensor> {
    let value = weight.value()?;
    if turned { value.transpose(0, 1) } else { Ok(value) }
}

/// The factors of a rank's experts.
#[derive(Debug)]
pub(crate) struct ExpertFactors {
    down: Vec<Tensor>,
    up: Vec<Tensor>,
    up_bias: Option<Vec<Tensor>>,
    magnitude: Option<Vec<Tensor>>,
    scale: f64,
    dropout: Option<(f64, Key)>,
}

impl ExpertFactors {
    /// What they add to `x · weightᵀ` of one expert.
    pub(crate) fn added(&self, expert: usize, x: &Tensor, y: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let (down, up) = (&self.down[expert], &self.up[expert]);
        let x = match self.dropout {
            Some((p, key)) => ops::dropout_with(x, p, key.fold(expert as u64))?,
            None => x.clone(),
        };
        let low = ops::linear(&x.cast(down.dtype())?, down, None)?.mul_scalar(self.scale)?;
        let delta = match &self.up_bias {
            Some(bias) => ops::linear(&low, up, Some(&bias[expert].mul_scalar(self.scale)?))?,
            None => ops::linear(&low, up, None)?,
        };
        let Some(magnitude) = &self.magnitude else { return Ok(delta) };
        let lengths = no_grad(|| {
            let product = up.matmul(down)?.mul_scalar(self.scale)?;
            weight.cast(DType::F32)?.add(&product)?.sum_squares(&[1], Keep::No)?.sqrt()
        })?;
        let factor = magnitude[expert].div(&lengths)?;
        let y = y.cast(factor.dtype())?;
        y.mul(&factor.add_scalar(-1.0)?)?.add(&delta.mul(&factor)?)
    }
}

impl Module for Adapter {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        f(&self.down);
        f(&self.up);
        self.up_bias.visit(f);
        self.magnitude.visit(f);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        f(&mut self.down);
        f(&mut self.up);
        self.up_bias.visit_mut(f);
        self.magnitude.visit_mut(f);
    }
}

/// New vectors of a few tokens, in place of those of the table.
#[derive(Clone, Debug)]
pub struct TokenRows {
    /// `[tokens, width]`.
    pub rows: Param,
    /// Which tokens.
    pub ids: Vec<usize>,
    /// Whether they take part.
    pub switch: Switch,
}

impl Module for TokenRows {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        f(&self.rows);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        f(&mut self.rows);
    }
}
