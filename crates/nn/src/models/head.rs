//! The end of a model: scores of the next token, and losses that never have all scores at once.

use crate::error::Result;
use crate::parallel::Lanes;
use planaria_array::ops::{Keep, Reduction};
use planaria_array::{DType, Device};
use planaria_tensor::ops::{CrossEntropyOptions, IGNORED, linear_cross_entropy};
use planaria_tensor::{Tensor, ops};

/// What scores and losses are made of.
#[derive(Clone, Debug)]
pub struct Head {
    /// The last hidden states after their norm, `[batch, sequence, width]`, whole in their sequence.
    pub states: Tensor,
    /// `[vocabulary, width]`; `tp` may cut the vocabulary.
    pub weight: Tensor,
    /// The crossings of the model.
    pub lanes: Lanes,
    /// Scores stay within plus and minus this, by a hyperbolic tangent.
    pub cap: Option<f64>,
}

/// The last hidden states of a model without what comes after them.
#[derive(Clone, Debug)]
pub struct States {
    /// After their norm, `[batch, sequence, width]`, whole in their sequence.
    pub states: Tensor,
    /// The crossings of the model.
    pub lanes: Lanes,
}

impl Head {
    /// Scores `[batch, sequence, vocabulary]`.
    pub fn logits(&self) -> Result<Tensor> {
        let scores = ops::linear(&self.states, &self.weight, None)?;
        Ok(match self.cap {
            Some(cap) => scores.mul_scalar(1.0 / cap)?.tanh()?.mul_scalar(cap)?,
            None => scores,
        })
    }

    /// Sum of the losses against labels `[batch, sequence]`; -100 counts nothing. Labels of the host are counted there, so that
    /// nobody waits for a device. Collective.
    pub fn cross_entropy(&self, labels: &Tensor) -> Result<Loss> {
        self.smoothed_cross_entropy(labels, 0.0)
    }

    /// The same where a share of every label is spread evenly over the vocabulary. Then all scores are there at once.
    pub fn smoothed_cross_entropy(&self, labels: &Tensor, label_smoothing: f64) -> Result<Loss> {
        let labels = self.lanes.batch(labels)?;
        let counted = labels.ne(&Tensor::scalar(IGNORED, labels.dtype())?)?.cast(DType::I64)?;
        let count = counted.sum(&[], Keep::No)?.whole()?;
        // A supposed world has no values; every label counts.
        let count = if count.is_meta() { labels.numel() as u64 } else { count.item()?.as_f64() as u64 };
        let device = self.weight.local().device();
        let labels = if device == Device::Meta { labels } else { labels.to(device)? };
        // Capped scores are not linear in the states, so they are all there at once.
        let sum = match self.cap.is_none() && label_smoothing == 0.0 {
            true => linear_cross_entropy(&self.states, &self.weight, &labels)?,
            false => {
                let scores = self.logits()?;
                let options = CrossEntropyOptions {
                    label_smoothing,
                    reduction: Reduction::Sum,
                    ..CrossEntropyOptions::default()
                };
                ops::cross_entropy(&scores.cast(ops::wide(scores.dtype()))?, &labels, &options)?
            }
        };
        let sum = sum.settled()?;
        Ok(Loss { sum, count, own: None, shown: None, figures: Vec::new() })
    }
}

/// The loss of one micro-batch.
#[derive(Clone, Debug)]
pub struct Loss {
    /// Sum of the losses of all labels.
    pub sum: Tensor,
    /// How many labels count.
    pub count: u64,
    /// What the model adds of its own, times its coefficient; a mean, not a sum.
    pub own: Option<Tensor>,
    /// The sum to tell, where backward starts from a stand-in that only has the same gradient.
    pub shown: Option<Tensor>,
    /// Sums of what else is told of it, each of one element.
    pub figures: Vec<Tensor>,
}

impl Loss {
    /// What backward starts from: divided by the count it is the mean loss, with the model's own added.
    pub fn total(&self) -> Result<Tensor> {
        Ok(match &self.own {
            Some(own) => self.sum.add(&own.mul_scalar(self.count as f64)?)?,
            None => self.sum.clone(),
        })
    }
}
