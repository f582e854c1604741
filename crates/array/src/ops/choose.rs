//! Which token comes next in rows of generation, and where the rows stand: decided on the device, or told by the host.

use super::fused::{check_shape, home, real_dtype};
use crate::array::Array;
use crate::cuda;
use crate::device::Device;
use crate::element::Bool;
use crate::error::{Error, Result};
use planaria_layout::{DType, Shape};

/// Where rows of generation stand, all on one device: `[rows]` of I64, but for `ended` (bools), `made` (`[rows, room]`) and
/// `stops` (tokens that end any row).
#[derive(Clone, Debug)]
pub struct Rows {
    /// Tokens of the prompt.
    pub lengths: Array,
    /// Most tokens to make; at most the room.
    pub limits: Array,
    /// Where the last token stands.
    pub positions: Array,
    /// The last token.
    pub next: Array,
    /// The tokens made, in order.
    pub made: Array,
    /// Which rows take no more tokens.
    pub ended: Array,
    /// Tokens that end a row.
    pub stops: Array,
}

/// A row that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BegunRow {
    /// Its number.
    pub row: usize,
    /// Tokens of its prompt.
    pub length: usize,
    /// Most tokens to make.
    pub limit: usize,
    /// The last token of its prompt.
    pub last: i64,
}

impl Rows {
    /// Rows behind prompts of these lengths, with room for as many tokens as the limits say.
    pub fn new(lengths: &[usize], limits: &[usize], stops: &[i64], device: Device) -> Result<Rows> {
        let numbers = |values: &[usize], less: i64| {
            let values: Vec<i64> = values.iter().map(|&n| n as i64 - less).collect();
            Array::from_slice(&values, &[values.len()])?.to(device)
        };
        let ended: Vec<Bool> = limits.iter().map(|&limit| Bool::new(limit == 0)).collect();
        let room = limits.iter().copied().max().unwrap_or(0).max(1);
        Ok(Rows {
            lengths: numbers(lengths, 0)?,
            limits: numbers(limits, 0)?,
            positions: numbers(lengths, 1)?,
            next: Array::zeros_on(&[lengths.len()], DType::I64, device)?,
            made: Array::zeros_on(&[lengths.len(), room], DType::I64, device)?,
            ended: Array::from_slice(&ended, &[ended.len()])?.to(device)?,
            stops: Array::from_slice(stops, &[stops.len()])?.to(device)?,
        })
    }

    fn check(&self, op: &'static str, scores: &Array) -> Result<()> {
        let [rows, size] = scores.shape()[..] else {
            let what = format!("scores must be [rows, tokens], got shape {}", scores.shape());
            return Err(Error::argument(op, what));
        };
        if size == 0 {
            return Err(Error::argument(op, "there is no token to choose"));
        }
        let shape = Shape::new(&[rows])?;
        let numbers = [&self.lengths, &self.limits, &self.positions, &self.next];
        for x in numbers {
            x.check_dtype(op, DType::I64)?;
            check_shape(op, x, &shape, "there is one value a row")?;
        }
        self.ended.check_dtype(op, DType::Bool)?;
        check_shape(op, &self.ended, &shape, "there is one value a row")?;
        self.made.check_dtype(op, DType::I64)?;
        self.stops.check_dtype(op, DType::I64)?;
        let others = [&self.made, &self.ended, &self.stops];
        let flat = numbers.iter().chain(&others).all(|x| x.is_contiguous());
        if self.made.ndim() != 2 || self.made.shape()[0] != rows || !flat {
            let what = format!("{rows} rows of scores, but tokens go into {}", self.made.shape());
            return Err(Error::argument(op, what));
        }
        home(op, &[&numbers[..], &others, &[scores]].concat()).map(|_| ())
    }

    /// Begins rows anew; the others go on. The last token of each prompt is the one that a step takes next.
    pub fn begin(&self, begun: &[BegunRow]) -> Result<()> {
        let device = self.next.device();
        let numbers = [&self.lengths, &self.limits, &self.positions, &self.next];
        let mut values = numbers.iter().map(|x| x.to_vec::<i64>()).collect::<Result<Vec<_>>>()?;
        let mut ended = self.ended.to_vec::<Bool>()?;
        for &BegunRow { row, length, limit, last } in begun {
            if row >= ended.len() || limit > self.made.shape()[1] {
                let (rows, room) = (ended.len(), self.made.shape()[1]);
                let what = format!("row {row} of {limit} tokens in {rows} rows with room for {room}");
                return Err(Error::argument("begin", what));
            }
            let (length, limit) = (length as i64, limit as i64);
            for (values, value) in values.iter_mut().zip([length, limit, length - 1, last]) {
                values[row] = value;
            }
            ended[row] = Bool::new(limit == 0);
        }
        for (to, values) in numbers.into_iter().zip(&values) {
            to.copy_from(&Array::from_slice(values, to.shape())?.to(device)?)?;
        }
        self.ended.copy_from(&Array::from_slice(&ended, self.ended.shape())?.to(device)?)
    }

    /// Gives each row that has not ended its next token, as the host has chosen it.
    pub fn take(&self, tokens: &[i64]) -> Result<()> {
        let device = self.next.device();
        let (lengths, limits) = (self.lengths.to_vec::<i64>()?, self.limits.to_vec::<i64>()?);
        let (mut positions, mut next) = (self.positions.to_vec::<i64>()?, self.next.to_vec::<i64>()?);
        let (mut ended, stops) = (self.ended.to_vec::<Bool>()?, self.stops.to_vec::<i64>()?);
        if tokens.len() != ended.len() {
            let what = format!("{} tokens for {} rows", tokens.len(), ended.len());
            return Err(Error::argument("take", what));
        }
        for (row, &token) in tokens.iter().enumerate() {
            if ended[row].get() {
                continue;
            }
            let number = positions[row] + 1 - lengths[row];
            (positions[row], next[row]) = (positions[row] + 1, token);
            ended[row] = Bool::new(number + 1 >= limits[row] || stops.contains(&token));
            let place = self.made.narrow(0, row, 1)?.narrow(1, number.max(0) as usize, 1)?;
            place.copy_from(&Array::from_slice(&[token], &[1, 1])?.to(device)?)?;
        }
        let put =
            |to: &Array, values: &[i64]| to.copy_from(&Array::from_slice(values, to.shape())?.to(device)?);
        put(&self.positions, &positions)?;
        put(&self.next, &next)?;
        self.ended.copy_from(&Array::from_slice(&ended, self.ended.shape())?.to(device)?)
    }

    /// The tokens of each row so far, and whether it takes no more. Waits for the device.
    pub fn read(&self) -> Result<Vec<(Vec<i64>, bool)>> {
        let (made, ended) = (self.made.to_vec::<i64>()?, self.ended.to_vec::<Bool>()?);
        let (lengths, positions) = (self.lengths.to_vec::<i64>()?, self.positions.to_vec::<i64>()?);
        let row = |(row, ended): (usize, Bool)| {
            let count = (positions[row] + 1 - lengths[row]).max(0) as usize;
            let first = row * self.made.shape()[1];
            (made[first..first + count].to_vec(), ended.get())
        };
        Ok(ended.into_iter().enumerate().map(row).collect())
    }
}

/// Gives each row that has not ended the token of its highest score (`[rows, tokens]`), of equals the first.
pub fn take_best(scores: &Array, rows: &Rows) -> Result<()> {
    let op = "take_best";
    rows.check(op, scores)?;
    real_dtype(op, scores.dtype())?;
    if let Device::Cuda(_) = scores.device() {
        return cuda::take_best(op, &scores.contiguous()?, rows);
    }
    let values = scores.cast(DType::F64)?.to_vec::<f64>()?;
    let best = |row: &[f64]| {
        let better = |best: usize, i: usize| if row[i] > row[best] || row[best].is_nan() { i } else { best };
        (1..row.len()).fold(0, better) as i64
    };
    let tokens: Vec<i64> = values.chunks(scores.shape()[1]).map(best).collect();
    rows.take(&tokens)
}
