//! Rotary positions: the frequencies of a configuration, and a table that grows with the longest sequence seen.

use crate::error::{Error, Result};
use planaria_array::ops::{Keep, RotaryLayout, RotaryPairing, RotaryTable, concat};
use planaria_array::{Array, DType, Device};
use planaria_tensor::{Tensor, is_recording, ops, steps};
use std::f64::consts::PI;
use std::sync::{Arc, Mutex, PoisonError};

/// How frequencies are changed for sequences longer than those a model was first trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    Default,
    /// All divided by one factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Low frequencies divided, high ones kept, a ramp between.
    Llama3 {
        /// What low frequencies are divided by.
        factor: f64,
        /// Frequencies with fewer turns than this in the original length are low.
        low_freq_factor: f64,
        /// Frequencies with more turns than this are high.
        high_freq_factor: f64,
        /// The original length.
        original: f64,
    },
    /// A ramp between divided and kept frequencies by turns, and scores sharpened.
    Yarn {
        /// What low frequencies are divided by.
        factor: f64,
        /// More turns than this in the original length: kept.
        beta_fast: f64,
        /// Fewer turns than this: divided.
        beta_slow: f64,
        /// The original length.
        original: f64,
        /// What cosines and sines are multiplied by.
        attention: f64,
    },
    /// A factor for each pair, others past the original length.
    Long {
        /// What frequencies are divided by up to the original length.
        short: Vec<f64>,
        /// What they are divided by in longer sequences.
        long: Vec<f64>,
        /// The original length.
        original: usize,
        /// What cosines and sines are multiplied by.
        attention: f64,
    },
}

impl RopeScaling {
    fn scaled(&self, i: usize, dim: usize, theta: f64) -> f64 {
        let frequency = theta.powf(-2.0 * i as f64 / dim as f64);
        match *self {
            RopeScaling::Default => frequency,
            RopeScaling::Long { ref short, .. } => frequency / short.get(i).copied().unwrap_or(f64::NAN),
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original } => {
                let turns = original * frequency / (2.0 * PI);
                let kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / factor)
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original, .. } => {
                // The pair that makes so many turns in the original length.
                let pair =
                    |turns: f64| dim as f64 * (original / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
                let low = pair(beta_fast).floor().max(0.0);
                let high = pair(beta_slow).ceil().min(dim as f64 - 1.0);
                let width = if low == high { 0.001 } else { high - low };
                let divided = ((i as f64 - low) / width).clamp(0.0, 1.0);
                frequency * (1.0 - divided + divided / factor)
            }
        }
    }

    /// What cosines and sines are multiplied by.
    fn attention(&self) -> f64 {
        match *self {
            RopeScaling::Yarn { attention, .. } | RopeScaling::Long { attention, .. } => attention,
            _ => 1.0,
        }
    }
}

/// Where in the sequence the tokens of a call are.
#[derive(Clone, Debug)]
pub enum Positions {
    /// One after the other from this one.
    From(usize),
    /// Integers `[sequence]` or `[batch, sequence]`.
    Ids {
        /// The positions.
        ids: Tensor,
        /// One more than the largest of them.
        end: usize,
    },
    /// One token of each row, which stands there: its key and value go into the cache at that place, and it sees what its row has
    /// before. With a cache only.
    Each(Arc<[usize]>),
    /// On three axes, integers `[3, batch, sequence]`, in models that see; they make rows of them.
    Axes(Array),
    /// Rotations that no single position tells: every token has a row of its own.
    Rows {
        /// Cosines and sines of the rows.
        table: RotaryTable,
        /// Row of each token, `[batch, sequence]`.
        rows: Tensor,
    },
    /// Cosines and sines of all tokens, row after row, which ops of a program have made.
    Flat(RotaryTable),
}

impl Default for Positions {
    fn default() -> Positions {
        Positions::From(0)
    }
}

/// Whether ops are listed for a program of one rank, which is to be right for other sizes too. One with gradients is for the
/// sizes it is captured with, and has the bits of the model backward too.
pub(super) fn for_program(x: &Tensor) -> bool {
    let on_host = !matches!(x.local().device(), Device::Cuda(_));
    steps::is_listing() && !is_recording() && x.layout().is_none() && on_host
}

/// Constants that programs of any length share: all calls name the same memory.
#[derive(Debug, Default)]
struct ForPrograms {
    /// The positions that the table has.
    places: Option<Array>,
    /// Rotations of sequences up to a length, and of longer ones behind them.
    both: Option<RotaryTable>,
}

/// Rotations by position. Clones share one table.
#[derive(Clone, Debug)]
pub struct Rope {
    frequencies: Arc<Vec<f64>>,
    attention: f64,
    table: Arc<Mutex<Option<RotaryTable>>>,
    /// What programs are made with.
    programs: Arc<Mutex<ForPrograms>>,
    /// Elements of a head that are rotated, the first ones.
    rotated: usize,
    /// Past this length, these rotations instead.
    longer: Option<(usize, Box<Rope>)>,
}

impl Rope {
    /// Rotations of heads of `dim` elements.
    pub fn new(dim: usize, theta: f64, scaling: RopeScaling) -> Result<Rope> {
        if let RopeScaling::Long { short, long, original, attention } = &scaling
            && *long != *short
        {
            let past = RopeScaling::Long {
                short: long.clone(),
                long: long.clone(),
                original: *original,
                attention: *attention,
            };
            let longer = Some((*original, Box::new(Rope::new(dim, theta, past)?)));
            let within = RopeScaling::Long {
                short: short.clone(),
                long: short.clone(),
                original: *original,
                attention: *attention,
            };
            return Ok(Rope { longer, ..Rope::new(dim, theta, within)? });
        }
        if dim == 0 || !dim.is_multiple_of(2) || !(theta > 1.0 && theta.is_finite()) {
            let what =
                format!("rotary positions need an even head_dim and rope_theta > 1, got {dim} and {theta}");
            return Err(Error::Sizes { what });
        }
        let frequencies: Vec<f64> = (0..dim / 2).map(|i| scaling.scaled(i, dim, theta)).collect();
        if let Some(bad) = frequencies.iter().find(|f| !f.is_finite()) {
            let what = format!("rope_scaling gives the frequency {bad}");
            return Err(Error::Sizes { what });
        }
        let attention = scaling.attention();
        let frequencies = Arc::new(frequencies);
        let (table, programs) = (Arc::default(), Arc::default());
        Ok(Rope { frequencies, attention, table, programs, rotated: dim, longer: None })
    }

    /// Angles per position, lowest pair first.
    pub fn frequencies(&self) -> &[f64] {
        &self.frequencies
    }

    /// Heads `[batch, sequence, heads, dim]`, each rotated by its position.
    pub fn rotate(&self, x: &Tensor, positions: &Positions) -> planaria_tensor::Result<Tensor> {
        let device = x.local().device();
        if let Positions::Rows { table, rows } = positions {
            let (pairing, layout) = (RotaryPairing::Halves, RotaryLayout::SeqHeads);
            let on = if device == Device::Meta { Device::Cpu } else { device };
            let table = RotaryTable { cos: table.cos.to(on)?, sin: table.sin.to(on)? };
            let rows = if on == Device::Cpu { rows.clone() } else { rows.to(on)? };
            let positions = ops::RotaryPositions::Ids(&rows);
            return ops::rotary(x, &table, &ops::RotaryOptions { pairing, layout, positions });
        }
        if let Positions::Flat(table) = positions {
            let shape = x.shape().to_vec();
            let [batch, length, heads, dim] = shape[..] else {
                return Err(planaria_tensor::Error::Bug("heads have four dims"));
            };
            let flat = x.reshape(&[1, batch * length, heads, dim])?;
            return self.turned(&flat, table, ops::RotaryPositions::From(0))?.reshape(&shape);
        }
        let moved = match (positions, device) {
            (Positions::Ids { ids, end }, Device::Cuda(_)) => {
                Some(Positions::Ids { ids: ids.to(device)?, end: *end })
            }
            _ => None,
        };
        let (end, positions) = match moved.as_ref().unwrap_or(positions) {
            Positions::From(first) => (first + x.shape()[1], ops::RotaryPositions::From(*first)),
            Positions::Ids { ids, end } => (*end, ops::RotaryPositions::Ids(ids)),
            Positions::Each(_) | Positions::Axes(_) | Positions::Rows { .. } | Positions::Flat(_) => {
                let message = "this model has one position for each token, not three".to_string();
                return Err(planaria_tensor::Error::Argument { op: "rotary", message });
            }
        };
        let rope = match &self.longer {
            Some((length, longer)) if self.rows().max(longer.rows()).max(end) > *length && for_program(x) => {
                let (table, rows) = self.either(longer, *length, &positions, end)?;
                return self.turned(x, &table, ops::RotaryPositions::Ids(&rows));
            }
            Some((length, longer)) if end > *length => &**longer,
            _ => self,
        };
        self.turned(x, &rope.table(end, device)?, positions)
    }

    /// Heads rotated by rows of a table; elements past the rotated ones stay as they are.
    fn turned(
        &self,
        x: &Tensor,
        table: &RotaryTable,
        positions: ops::RotaryPositions<'_>,
    ) -> planaria_tensor::Result<Tensor> {
        let (pairing, layout) = (RotaryPairing::Halves, RotaryLayout::SeqHeads);
        let options = ops::RotaryOptions { pairing, layout, positions };
        let rest = x.shape()[3].saturating_sub(self.rotated);
        if rest == 0 {
            return ops::rotary(x, table, &options);
        }
        let turned = ops::rotary(&x.narrow(3, 0, self.rotated)?, table, &options)?;
        ops::concat(&[&turned, &x.narrow(3, self.rotated, rest)?], 3)
    }

    /// Rotations for sequences up to `length` and, behind them in one table, those for longer ones, with the row of each
    /// position. Ops find out which ones apply, so that a program of them is right for any length.
    fn either(
        &self,
        longer: &Rope,
        length: usize,
        positions: &ops::RotaryPositions<'_>,
        end: usize,
    ) -> planaria_tensor::Result<(RotaryTable, Tensor)> {
        let size = longer.table(end.max(self.rows()), Device::Cpu)?.cos.shape()[0];
        let table = self.both(longer, size)?;
        let places = Tensor::new(self.places(size)?);
        let (ids, last) = match *positions {
            ops::RotaryPositions::From(first) => {
                (places.narrow(0, first, end - first)?, places.narrow(0, end - 1, 1)?)
            }
            ops::RotaryPositions::Ids(ids) => (ids.clone(), ids.clone()),
        };
        let past = last.cast(DType::I64)?.ge(&Tensor::scalar(length as i64, DType::I64)?)?;
        let some = past.cast(DType::I64)?.sum(&[], Keep::No)?.gt(&Tensor::scalar(0i64, DType::I64)?)?;
        let rows = ids.cast(DType::I64)?.add(&some.cast(DType::I64)?.mul_scalar(size as i64)?)?;
        Ok((table, rows))
    }

    fn both(&self, longer: &Rope, size: usize) -> planaria_tensor::Result<RotaryTable> {
        let (near, far) = (self.table(size, Device::Cpu)?, longer.table(size, Device::Cpu)?);
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = programs.both.as_ref().filter(|table| table.cos.shape()[0] == 2 * size) {
            return Ok(table.clone());
        }
        let both = |near: &Array, far: &Array| concat(&[&near.narrow(0, 0, size)?, far], 0);
        let table = RotaryTable { cos: both(&near.cos, &far.cos)?, sin: both(&near.sin, &far.sin)? };
        Ok(programs.both.insert(table).clone())
    }

    /// 0, 1, 2 and so on, at least up to `end` and as many as there are rotations: always the same memory until more are
    /// asked for, so that programs take positions of any sequence from one constant.
    pub(super) fn places(&self, end: usize) -> planaria_tensor::Result<Array> {
        let longer = self.longer.as_ref().map_or(0, |(_, longer)| longer.rows());
        let size = self.table(end.max(longer), Device::Cpu)?.cos.shape()[0];
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = programs.places.as_ref().filter(|places| places.numel() >= size) {
            return Ok(places.clone());
        }
        let places = Array::arange(0i64, size as i64, 1i64, DType::I64)?;
        Ok(programs.places.insert(places).clone())
    }

    /// Positions that the table has by now.
    fn rows(&self) -> usize {
        let known = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().map_or(0, |table| table.cos.shape()[0])
    }

    /// A table of at least `end` positions where it is needed. It doubles, so that generating token by token makes few.
    pub(crate) fn table(&self, end: usize, device: Device) -> planaria_tensor::Result<RotaryTable> {
        // What is only planned for reads the host's.
        let device = if device == Device::Meta { Device::Cpu } else { device };
        let mut known = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |table: &&RotaryTable| table.cos.shape()[0] >= end && table.cos.device() == device;
        if let Some(table) = known.as_ref().filter(fits) {
            return Ok(table.clone());
        }
        let size = end.max(64).checked_next_power_of_two().unwrap_or(end);
        let mut table = RotaryTable::from_frequencies(size, &self.frequencies)?;
        if self.attention != 1.0 {
            let factor = Array::scalar(self.attention, table.cos.dtype())?;
            table = RotaryTable { cos: table.cos.mul(&factor)?, sin: table.sin.mul(&factor)? };
        }
        table = RotaryTable { cos: table.cos.to(device)?, sin: table.sin.to(device)? };
        *known = Some(table.clone());
        Ok(table)
    }
}
