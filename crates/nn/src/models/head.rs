//! The end of a model: scores of the next token, and losses that never have all scores at once.

use crate::error::Result;
use crate::parallel::Lanes;
use planaria_array::ops::{Keep, Reduction};
use planaria_array::{DType, Device};
use planaria_tensor::ops::{
    CrossEntropyOptions, IGNORED, linear_cross_entropy, linear_cross_entropy_counting,
};
use planaria_tensor::{Tensor, no_grad, ops};

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
        self.entropy(labels, label_smoothing, false)
    }

    /// The same with one figure: how many of the labels that count have the highest score of their position. A score that several
    /// words have is the highest for each of them.
    pub fn counting_cross_entropy(&self, labels: &Tensor, label_smoothing: f64) -> Result<Loss> {
        self.entropy(labels, label_smoothing, true)
    }

    fn entropy(&self, labels: &Tensor, label_smoothing: f64, counting: bool) -> Result<Loss> {
        let labels = self.lanes.batch(labels)?;
        let counted = labels.ne(&Tensor::scalar(IGNORED, labels.dtype())?)?.cast(DType::I64)?;
        let count = counted.sum(&[], Keep::No)?.whole()?;
        // A supposed world has no values; every label counts.
        let count = if count.is_meta() { labels.numel() as u64 } else { count.item()?.as_f64() as u64 };
        let device = self.weight.local().device();
        let labels = if device == Device::Meta { labels } else { labels.to(device)? };
        // Capped scores are not linear in the states, so they are all there at once.
        let (sum, right) = match self.cap.is_none() && label_smoothing == 0.0 {
            true if counting => {
                let (sum, right) = linear_cross_entropy_counting(&self.states, &self.weight, &labels)?;
                (sum, Some(right))
            }
            true => (linear_cross_entropy(&self.states, &self.weight, &labels)?, None),
            false => {
                let scores = self.logits()?;
                let options = CrossEntropyOptions {
                    label_smoothing,
                    reduction: Reduction::Sum,
                    ..CrossEntropyOptions::default()
                };
                let right = counting.then(|| highest(&scores, &labels)).transpose()?;
                (ops::cross_entropy(&scores.cast(ops::wide(scores.dtype()))?, &labels, &options)?, right)
            }
        };
        let sum = sum.settled()?;
        let figures = right.map(|right| right.settled()).transpose()?.into_iter().collect();
        Ok(Loss { sum, count, own: None, shown: None, figures })
    }
}

/// How many of the labels that count have the highest score of their position.
fn highest(scores: &Tensor, labels: &Tensor) -> Result<Tensor> {
    Ok(no_grad(|| {
        let scores = scores.detach();
        let counted = labels.ne(&Tensor::scalar(IGNORED, labels.dtype())?)?;
        let place = labels.mul(&counted.cast(labels.dtype())?)?.cast(DType::I64)?;
        let own = scores.gather(-1, &place.unsqueeze(-1)?)?.squeeze(&[-1])?;
        let right = own.ge(&scores.amax(&[-1], Keep::No)?)?.logical_and(&counted)?;
        right.cast(DType::F32)?.sum(&[], Keep::No)
    })?)
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
