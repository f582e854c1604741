//! Where the rows of the embeddings of every input come from in the vocabulary of the result.

use super::vocabulary::Merging;
use crate::architecture::Weight;
use crate::error::{Error, Result};
use crate::plan::Models;
use crate::recipe::{Recipe, Reference, RowSource, Token};
use crate::values::{Values, cast, round};
use planaria_layout::{DType, Shape};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// A row of an input, by the number of the model it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Row {
    Zero,
    At(usize, usize),
    Mean(Vec<(usize, usize)>),
    /// The mean of all rows before it that belong to tokens.
    Padding,
}

/// How all inputs of a merge are laid out for its vocabulary.
#[derive(Clone, Debug)]
pub(crate) struct Relaying {
    /// The models that rows come from.
    models: Vec<Reference>,
    /// Rows of each of them.
    rows: Vec<Arc<Vec<Row>>>,
    /// Rows that belong to tokens.
    tokens: usize,
}

impl Relaying {
    pub(crate) fn new(recipe: &Recipe, merging: &Merging) -> Relaying {
        let inputs = recipe.models();
        let models: Vec<Reference> = merging.models.iter().map(|(reference, _)| reference.clone()).collect();
        let number = |reference: &Reference| models.iter().position(|other| other == reference);
        let section = recipe.tokenizer.as_ref();
        let tokens = merging.result.ids.values().max().map_or(0, |id| id + 1);
        let by_id: BTreeMap<usize, &str> =
            merging.result.ids.iter().map(|(token, id)| (*id, token.as_str())).collect();
        let row_of = |model: usize, token: &str| Some((model, *merging.models[model].1.ids.get(token)?));
        let holders: Vec<usize> = inputs.iter().filter_map(|reference| number(reference)).collect();
        let base = recipe.base.as_ref().and_then(number);
        let default = |token: &str| -> Row {
            let having: Vec<(usize, usize)> =
                holders.iter().filter_map(|&model| row_of(model, token)).collect();
            let of_base = base.and_then(|base| row_of(base, token));
            match (&having[..], of_base) {
                ([], _) => Row::Zero,
                ([(model, row)], _) => Row::At(*model, *row),
                (_, Some((model, row))) => Row::At(model, row),
                _ => Row::Mean(having),
            }
        };
        let set = |given: &Token| -> Option<Row> {
            Some(match given.source.as_ref()? {
                RowSource::Zero => Row::Zero,
                RowSource::Model(model) => row_of(number(model)?, &given.text).map(|(m, r)| Row::At(m, r))?,
                RowSource::Token(model, token) => {
                    row_of(number(model)?, token).map(|(m, r)| Row::At(m, r))?
                }
                RowSource::Id(model, row) => Row::At(number(model)?, *row),
            })
        };
        let given =
            |token: &str| section.and_then(|section| section.tokens.iter().find(|given| given.text == token));
        let multiple = section.and_then(|section| section.multiple).unwrap_or(1);
        let total = tokens.div_ceil(multiple) * multiple;
        let rows = (0..models.len()).map(|model| {
            let row = |id: usize| {
                let Some(token) = by_id.get(&id) else {
                    return if id < tokens { Row::Zero } else { Row::Padding };
                };
                let special = given(token).and_then(|given| Some((set(given)?, given.force)));
                match (row_of(model, token), special) {
                    (_, Some((row, true))) => row,
                    (Some((model, row)), _) => Row::At(model, row),
                    (None, Some((row, false))) => row,
                    (None, None) => default(token),
                }
            };
            Arc::new((0..total).map(row).collect::<Vec<Row>>())
        });
        Relaying { rows: rows.collect(), models, tokens }
    }

    /// Rows of the result.
    pub(crate) fn total(&self) -> usize {
        self.rows.first().map_or(0, |rows| rows.len())
    }

    /// A weight of some inputs, laid out for the vocabulary of the result, in one element type where that is given.
    pub(crate) fn relay(
        &self,
        weight: &Weight,
        (owners, values): (&[&Reference], &[Arc<dyn Values>]),
        models: &Models,
        dtype: Option<DType>,
    ) -> Result<Vec<Arc<dyn Values>>> {
        let typed = |values: Arc<dyn Values>| match dtype {
            Some(dtype) if values.dtype().is_float() => cast(values, dtype),
            _ => values,
        };
        let mut sources: Vec<Option<Arc<dyn Values>>> = Vec::new();
        for reference in &self.models {
            let own = owners.iter().position(|owner| *owner == reference).map(|at| values[at].clone());
            let model = models.get(reference);
            let found = |name: &str| model.and_then(|model| model.tensors.get(name)).cloned();
            let source = own.or_else(|| found(&weight.name)).or_else(|| found(weight.tied.as_deref()?));
            sources.push(source.map(typed));
        }
        let sources = Arc::new(sources);
        let mut relaid: Vec<Arc<dyn Values>> = Vec::new();
        for (owner, values) in owners.iter().zip(values) {
            let number = self.models.iter().position(|other| other == *owner);
            let number = number.ok_or_else(|| Error::model(owner, "its vocabulary is not known"))?;
            let mut shape = values.shape().to_vec();
            let width = shape[1..].iter().product();
            shape[0] = self.total();
            let laid = Relaid {
                name: weight.name.clone(),
                sources: sources.clone(),
                rows: self.rows[number].clone(),
                tokens: self.tokens,
                shape: Shape::new(&shape)?,
                dtype: typed(values.clone()).dtype(),
                width,
                padding: OnceLock::new(),
            };
            laid.check(owner)?;
            relaid.push(Arc::new(laid));
        }
        Ok(relaid)
    }
}

/// A matrix made of rows of others.
#[derive(Debug)]
struct Relaid {
    name: String,
    sources: Arc<Vec<Option<Arc<dyn Values>>>>,
    rows: Arc<Vec<Row>>,
    tokens: usize,
    shape: Shape,
    dtype: DType,
    width: usize,
    padding: OnceLock<Vec<f64>>,
}

impl Relaid {
    /// Every row that is used must be there.
    fn check(&self, owner: &Reference) -> Result<()> {
        let there = |(source, row): &(usize, usize)| {
            let source = self.sources[*source].as_ref();
            source.is_some_and(|values| *row < values.shape()[0] && values.shape()[1..] == self.shape[1..])
        };
        let fits = |row: &Row| match row {
            Row::At(source, row) => there(&(*source, *row)),
            Row::Mean(rows) => rows.iter().all(there),
            Row::Zero | Row::Padding => true,
        };
        match self.rows.iter().all(fits) {
            true => Ok(()),
            false => {
                let what = format!("a row that {owner} needs is missing or has another width");
                Err(Error::tensor(&self.name, what))
            }
        }
    }

    fn stored(&self, source: usize, row: usize, from: usize, out: &mut [f64]) -> Result<()> {
        match &self.sources[source] {
            Some(values) => values.read(row * self.width + from, out),
            None => Err(Error::tensor(&self.name, "a row of a model without this tensor is asked for")),
        }
    }

    /// Elements of one row.
    fn row(&self, row: usize, from: usize, out: &mut [f64]) -> Result<()> {
        match &self.rows[row] {
            Row::Zero => out.fill(0.0),
            Row::At(source, row) => self.stored(*source, *row, from, out)?,
            Row::Mean(rows) => {
                out.fill(0.0);
                let mut one = vec![0.0; out.len()];
                for (source, row) in rows {
                    self.stored(*source, *row, from, &mut one)?;
                    out.iter_mut().zip(&one).for_each(|(out, x)| *out += x);
                }
                out.iter_mut().for_each(|out| *out /= rows.len() as f64);
            }
            Row::Padding => out.copy_from_slice(&self.padding()?[from..from + out.len()]),
        }
        round(out, self.dtype);
        Ok(())
    }

    /// The mean of the rows of all tokens.
    fn padding(&self) -> Result<&[f64]> {
        if let Some(ready) = self.padding.get() {
            return Ok(ready);
        }
        let mut sum = vec![0.0; self.width];
        let mut one = vec![0.0; self.width];
        for row in 0..self.tokens {
            self.row(row, 0, &mut one)?;
            sum.iter_mut().zip(&one).for_each(|(sum, x)| *sum += x);
        }
        sum.iter_mut().for_each(|sum| *sum /= self.tokens.max(1) as f64);
        Ok(self.padding.get_or_init(|| sum))
    }

    /// How many rows from `row` on lie one after the other in one source.
    fn run(&self, row: usize, most: usize) -> Option<(usize, usize, usize)> {
        let Row::At(source, start) = self.rows[row] else { return None };
        let following = self.rows[row..].iter().take(most).enumerate();
        let len = following.take_while(|(at, next)| **next == Row::At(source, start + at)).count();
        Some((source, start, len))
    }
}

impl Values for Relaid {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<()> {
        let mut done = 0;
        while done < out.len() {
            let (row, from) = ((first + done) / self.width, (first + done) % self.width);
            let whole = (out.len() - done) / self.width;
            if let (0, true, Some((source, start, len))) = (from, whole > 1, self.run(row, whole)) {
                let part = &mut out[done..done + len * self.width];
                self.stored(source, start, 0, part)?;
                round(part, self.dtype);
                done += len * self.width;
                continue;
            }
            let take = (self.width - from).min(out.len() - done);
            self.row(row, from, &mut out[done..done + take])?;
            done += take;
        }
        Ok(())
    }
}
