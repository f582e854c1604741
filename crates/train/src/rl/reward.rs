//! Rewards: several sources put together, penalties, what a token gets, and how rewards and coefficients follow what was seen.

use super::policy::{KlKind, kl_value};
use serde::{Deserialize, Serialize};

/// The weighted sum of what sources gave; nothing where none gave a number.
pub fn combine_rewards(given: &[Option<f64>], weights: &[f64]) -> Option<f64> {
    let numbers = given.iter().zip(weights).filter_map(|(reward, weight)| Some(reward.as_ref()? * weight));
    let all: Vec<f64> = numbers.collect();
    (!all.is_empty()).then(|| all.iter().sum())
}

/// What a response loses for coming near the longest: nothing up to a buffer before it, then evenly more.
pub fn overlong_penalty(length: usize, most: usize, buffer: usize, factor: f64) -> f64 {
    let over = length as f64 - (most as f64 - buffer as f64);
    (-over / buffer as f64 * factor).min(0.0)
}

/// How the reward of a response becomes that of its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ShapeOptions {
    /// How far the policy is from the reference.
    pub kl: KlKind,
    /// What that costs.
    pub kl_coef: f64,
    /// Rewards stay within plus and minus this.
    pub clip: Option<f64>,
    /// What a response without an end loses.
    pub missing_eos_penalty: Option<f64>,
}

/// Rewards of the tokens of one response.
#[derive(Clone, Debug, PartialEq)]
pub struct Shaped {
    /// 0 where the mask is not set.
    pub rewards: Vec<f64>,
    /// The token that has the score; none in a response without tokens.
    pub scored: Option<usize>,
    /// How far the policy is from the reference at each token that counts.
    pub kl: Vec<f64>,
}

/// The score at the last token that counts, and what every token costs.
pub fn shape_rewards(
    [policy, reference]: [&[f64]; 2],
    mask: &[bool],
    (score, ended): (f64, bool),
    options: &ShapeOptions,
) -> Shaped {
    let mut score = score;
    if !ended {
        score -= options.missing_eos_penalty.unwrap_or(0.0);
    }
    if let Some(most) = options.clip {
        score = score.clamp(-most, most);
    }
    let mut rewards = vec![0.0; mask.len()];
    let mut all = Vec::new();
    for at in (0..mask.len()).filter(|&at| mask[at]) {
        let apart = kl_value(options.kl, policy[at] - reference[at]);
        rewards[at] = -options.kl_coef * apart;
        all.push(apart);
    }
    let scored = mask.iter().rposition(|valid| *valid);
    if let Some(at) = scored {
        rewards[at] += score;
    }
    Shaped { rewards, scored, kl: all }
}

/// A coefficient that follows how far the policy has gone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdaptiveKl {
    /// The coefficient of now.
    pub coef: f64,
    /// How far it should go.
    pub target: f64,
    /// Samples after which a steady error has doubled or halved it, roughly.
    pub horizon: f64,
}

impl AdaptiveKl {
    /// After a rollout of so many samples, which was this far from the reference.
    pub fn update(&mut self, observed: f64, samples: f64) {
        let error = (observed / self.target - 1.0).clamp(-0.2, 0.2);
        self.coef *= 1.0 + error * samples / self.horizon;
    }
}

/// Mean and population variance of everything seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunningMoments {
    /// How many.
    pub count: f64,
    /// Their mean.
    pub mean: f64,
    /// Their variance.
    pub var: f64,
}

impl RunningMoments {
    /// Takes more in.
    pub fn add(&mut self, values: &[f64]) {
        let count = values.len() as f64;
        if count == 0.0 {
            return;
        }
        let mean = values.iter().sum::<f64>() / count;
        let var = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        let (total, apart) = (self.count + count, mean - self.mean);
        let squares = self.var * self.count + var * count + apart * apart * self.count * count / total;
        *self =
            RunningMoments { count: total, mean: self.mean + apart * count / total, var: squares / total };
    }

    /// A value by what was seen.
    pub fn normalize(&self, value: f64, eps: f64) -> f64 {
        (value - self.mean) / (self.var.sqrt() + eps)
    }
}
