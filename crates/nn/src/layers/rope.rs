//! Rotary positions: the frequencies of a configuration, and a table that grows with the longest sequence seen.

use crate::error::{Error, Result};
use planaria_array::ops::{RotaryLayout, RotaryPairing, RotaryTable};
use planaria_tensor::{Tensor, ops};
use std::f64::consts::PI;
use std::sync::{Arc, Mutex, PoisonError};

/// How frequencies are changed for sequences longer than those a model was first trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
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
}

impl RopeScaling {
    fn scaled(&self, i: usize, dim: usize, theta: f64) -> f64 {
        let frequency = theta.powf(-2.0 * i as f64 / dim as f64);
        match *self {
            RopeScaling::Default => frequency,
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
        if let RopeScaling::Yarn { attention, .. } = *self { attention } else { 1.0 }
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
}

impl Default for Positions {
    fn default() -> Positions {
        Positions::From(0)
    }
}

/// Rotations by position. Clones share one table.
#[derive(Clone, Debug)]
pub struct Rope {
    frequencies: Arc<Vec<f64>>,
    attention: f64,
    table: Arc<Mutex<Option<(usize, RotaryTable)>>>,
}

impl Rope {
    /// Rotations of heads of `dim` elements.
    pub fn new(dim: usize, theta: f64, scaling: RopeScaling) -> Result<Rope> {
        if dim == 0 || !dim.is_multiple_of(2) || !(theta > 1.0 && theta.is_finite()) {
            let what =
                format!("rotary positions need an even head_dim and rope_theta > 1, got {dim} and {theta}");
            return Err(Error::Sizes { what });
        }
        let frequencies: Vec<f64> = (0..dim / 2).map(|i| scaling.scaled(i, dim, theta)).collect();
        if let Some(bad) = frequencies.iter().find(|f| !f.is_finite()) {
            let what = format!("rope scaling {scaling:?} gives the frequency {bad}");
            return Err(Error::Sizes { what });
        }
        let attention = scaling.attention();
        Ok(Rope { frequencies: Arc::new(frequencies), attention, table: Arc::default() })
    }

    /// Angles per position, lowest pair first.
    pub fn frequencies(&self) -> &[f64] {
        &self.frequencies
    }

    /// Heads `[batch, sequence, heads, dim]`, each rotated by its position.
    pub fn rotate(&self, x: &Tensor, positions: &Positions) -> planaria_tensor::Result<Tensor> {
        let (end, positions) = match positions {
            Positions::From(first) => (first + x.shape()[1], ops::RotaryPositions::From(*first)),
            Positions::Ids { ids, end } => (*end, ops::RotaryPositions::Ids(ids)),
        };
        let (pairing, layout) = (RotaryPairing::Halves, RotaryLayout::SeqHeads);
        ops::rotary(x, &self.table(end)?, &ops::RotaryOptions { pairing, layout, positions })
    }

    /// A table of at least `end` positions. It doubles, so that generating token by token makes few.
    fn table(&self, end: usize) -> planaria_tensor::Result<RotaryTable> {
        let mut known = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, table)) = known.as_ref().filter(|(size, _)| *size >= end) {
            return Ok(table.clone());
        }
        let size = end.max(64).checked_next_power_of_two().unwrap_or(end);
        let mut table = RotaryTable::from_frequencies(size, &self.frequencies)?;
        if self.attention != 1.0 {
            let factor = planaria_array::Array::scalar(self.attention, table.cos.dtype())?;
            table = RotaryTable { cos: table.cos.mul(&factor)?, sin: table.sin.mul(&factor)? };
        }
        *known = Some((size, table.clone()));
        Ok(table)
    }
}
