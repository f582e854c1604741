//! Embedding lookup, its gradient, and one-hot rows.

use crate::attributes::{Attr, Attributes};
use crate::dispatch::apply1;
use crate::error::{Error, Result};
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::moments::{constant, filled};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::ops::{self, Keep};
use planaria_array::{Array, DType};
use planaria_layout::Reduce;
use planaria_layout::rule::{Cuts, FactorKind, LINEAR, Rule};
use smallvec::smallvec;

/// What an id outside the table means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outside {
    /// A mistake.
    Refused,
    /// A row of zeros.
    Zeros,
}

/// Rows of a table by id.
#[derive(Debug, Clone, Copy)]
pub(super) struct Embedding {
    /// The row that gets no gradient.
    pub(super) padding: Option<usize>,
    pub(super) outside: Outside,
}

/// Ids counted from the start of a window, and 1 where they are inside.
fn within(ids: &Array, start: usize, len: usize) -> Result<(Array, Array)> {
    let ids = ids.cast(DType::I64)?.sub(&constant(ids, start, DType::I64)?)?;
    let zero = constant(&ids, 0i64, DType::I64)?;
    let inside = ids.ge(&zero)?.logical_and(&ids.lt(&constant(&ids, len, DType::I64)?)?)?;
    Ok((ops::where_(&inside, &ids, &zero)?, inside))
}

fn check_range(op: &'static str, ids: &Array, size: usize) -> Result<()> {
    let (_, inside) = within(ids, 0, size)?;
    if inside.is_meta() || inside.all(&[], Keep::No)?.item()?.as_bool() {
        return Ok(());
    }
    Err(Error::Argument { op, message: format!("an id is outside a table of {size} rows") })
}

impl Op for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn attributes(&self) -> Attributes {
        let padding = self.padding.map_or(Attr::List(Vec::new()), |row| Attr::Int(row as i64));
        Attributes::new().with("padding_idx", padding).with("outside", self.outside == Outside::Zeros)
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let (table, ids) = (&inputs[0].shape, &inputs[1].shape);
        let mut rule = Rule::default();
        let row = rule.factor(table[0], FactorKind::Reduce(Reduce::Sum), Cuts::Windows);
        let column = rule.free(table[1]);
        let mut positions: Vec<_> = ids.iter().map(|&n| Some(rule.free(n))).collect();
        rule.input(&[Some(row), Some(column)]);
        rule.input(&positions);
        positions.push(Some(column));
        rule.output(&positions);
        rule.pass(&[0], LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (table, ids) = (inputs[0], inputs[1]);
        let cut = table.ndim() == 2 && local.is_cut(0, &[0]);
        if !cut && self.outside == Outside::Refused {
            return Ok(smallvec![ops::embedding(table, ids)?]);
        }
        if self.outside == Outside::Refused {
            check_range("embedding", ids, local.input_shape(0, table)[0])?;
        }
        let (rows, width) = (table.shape()[0], table.shape()[1]);
        if rows == 0 {
            let shape = [&ids.shape()[..], &[width]].concat();
            return Ok(smallvec![filled(table, &shape, 0.0, table.dtype())?]);
        }
        let (ids, inside) = within(ids, local.input_start(0, 0)?, rows)?;
        let found = ops::embedding(table, &ids)?;
        let zero = constant(table, 0.0, table.dtype())?;
        Ok(smallvec![ops::where_(&inside.unsqueeze(-1)?, &found, &zero)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::inputs(&[1])
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None, None]) };
        let op = EmbeddingGrad { of: *self, rows: at.input_spec(0).shape[0] };
        Ok(smallvec![Some(apply1(op, &[dy, &at.input(1)?])?), None])
    }
}

/// Zeros with rows of `dy` added by id; the row of padding stays zero.
#[derive(Debug, Clone, Copy)]
pub(super) struct EmbeddingGrad {
    pub(super) of: Embedding,
    pub(super) rows: usize,
}

impl Op for EmbeddingGrad {
    fn name(&self) -> &'static str {
        "embedding_grad"
    }

    fn attributes(&self) -> Attributes {
        self.of.attributes().with("rows", self.rows)
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let ids = &inputs[1].shape;
        let mut positions: Vec<_> = ids.iter().map(|&n| Some(rule.reduced(n, Reduce::Sum))).collect();
        let column = Some(rule.free(outputs[0].shape[1]));
        let ids = positions.clone();
        positions.push(column);
        rule.input(&positions);
        rule.input(&ids);
        rule.output(&[None, column]);
        rule.pass(&[0], LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let (dy, ids) = (inputs[0], inputs[1]);
        if self.of.outside == Outside::Refused {
            return Ok(smallvec![ops::embedding_grad(dy, ids, self.rows, self.of.padding)?]);
        }
        // Rows outside go to one more, which is cut off.
        let (ids, inside) = within(ids, 0, self.rows)?;
        let ids = ops::where_(&inside, &ids, &constant(&ids, self.rows, DType::I64)?)?;
        let all = ops::embedding_grad(dy, &ids, self.rows + 1, self.of.padding)?;
        Ok(smallvec![all.narrow(0, 0, self.rows)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::inputs(&[1])
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None, None]) };
        let ids = at.input(1)?;
        let mut found = apply1(self.of, &[dy, &ids])?;
        if let Some(row) = self.of.padding {
            let kept = ids.ne(&Tensor::new(Array::scalar(row, ids.dtype())?))?;
            found = found.mul(&kept.cast(found.dtype())?.unsqueeze(-1)?)?;
        }
        Ok(smallvec![Some(found), None])
    }
}

/// 1 at the place of each id in a new last dim, else 0.
#[derive(Debug, Clone, Copy)]
struct OneHot {
    classes: usize,
    dtype: DType,
}

impl Op for OneHot {
    fn name(&self) -> &'static str {
        "one_hot"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("num_classes", self.classes).with("dtype", self.dtype)
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let mut dims: Vec<_> = inputs[0].shape.iter().map(|&n| Some(rule.free(n))).collect();
        rule.input(&dims);
        dims.push(None);
        rule.output(&dims);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![inputs[0].one_hot(self.classes, self.dtype)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, _: &[Option<Tensor>]) -> Result<Grads> {
        Ok(smallvec![None])
    }
}

/// Rows of `table` (`[vocabulary, width]`) by id: the result has shape `[ids.., width]`. A table cut by rows gives
/// pending sums. The row `padding` gets no gradient.
pub fn embedding(table: &Tensor, ids: &Tensor, padding: Option<usize>) -> Result<Tensor> {
    let refuse = |message| Err(Error::Argument { op: "embedding", message });
    if table.ndim() != 2 {
        return refuse(format!("the table must be [vocabulary, width], got shape {}", table.shape()));
    }
    if let Some(row) = padding.filter(|&row| row >= table.shape()[0]) {
        return refuse(format!("padding row {row} is outside a vocabulary of {}", table.shape()[0]));
    }
    apply1(Embedding { padding, outside: Outside::Refused }, &[table, ids])
}

impl Tensor {
    /// A new last dim of size `classes`, 1 at the position this integer tensor names and 0 elsewhere.
    pub fn one_hot(&self, classes: usize, dtype: DType) -> Result<Tensor> {
        apply1(OneHot { classes, dtype }, &[self])
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    let of = || {
        let padding = at.maybe("padding_idx", |row| usize::try_from(row.int()?).ok())?;
        let outside = if at.truth("outside")? { Outside::Zeros } else { Outside::Refused };
        Some(Embedding { padding, outside })
    };
    match name {
        "embedding" => found(of()?),
        "embedding_grad" => found(EmbeddingGrad { of: of()?, rows: at.size("rows")? }),
        "one_hot" => found(OneHot { classes: at.size("num_classes")?, dtype: at.dtype("dtype")? }),
        _ => None,
    }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let (rows, width) = (draw.size() + 1, draw.size());
    let shape = draw.shape_of(0, 2);
    let outside = draw.pick(&[Outside::Refused, Outside::Zeros]);
    // The row of padding is not an id: its gradient is not the derivative.
    let padding = draw.coin().then_some(rows - 1);
    let mut ids = draw.integers(rows - 1, &shape)?;
    if outside == Outside::Zeros {
        ids = ids.sub(&draw.integers(2, &shape)?)?;
    }
    let of = Embedding { padding, outside };
    Ok(match draw.below(5) {
        0 => Sample::new(OneHot { classes: rows, dtype: DType::F64 }, [draw.integers(rows, &shape)?]),
        1 | 2 => {
            let dy = draw.normal(&[&shape[..], &[width]].concat())?;
            Sample::new(EmbeddingGrad { of, rows }, [dy, ids])
        }
        _ => Sample::new(of, [draw.normal(&[rows, width])?, ids]),
    })
}
