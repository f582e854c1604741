//! Losses of policy and value, token by token, and what is told of them. What they are divided by is counted over the whole
//! update by the caller.

use crate::error::Result;
use planaria_array::DType;
use planaria_array::ops::Keep;
use planaria_tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Log-ratios stay within plus and minus this before they are taken to the power of e.
const MOST: f64 = 20.0;

/// How far a policy is from its reference at a token: estimated from that token, or over the whole vocabulary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KlKind {
    /// The difference of log-probabilities.
    #[default]
    K1,
    /// Half its square: as a loss it has the gradient of the true distance.
    K2,
    /// Never below 0 and of low variance.
    K3,
    /// Its absolute value.
    Abs,
    /// No estimate: the sum over the vocabulary. Takes the scores of all tokens by both.
    Full,
}

/// The estimate for a difference of log-probabilities; of the whole distance, itself.
pub(super) fn kl_value(kind: KlKind, apart: f64) -> f64 {
    match kind {
        KlKind::K1 | KlKind::Full => apart,
        KlKind::K2 => apart * apart / 2.0,
        KlKind::K3 => (-apart).clamp(-MOST, MOST).exp() - 1.0 + apart,
        KlKind::Abs => apart.abs(),
    }
}

/// The estimate at each token. The whole distance is known by more than these ([`kl_full`]) and stays as it is.
pub fn kl(kind: KlKind, policy: &Tensor, reference: &Tensor) -> Result<Tensor> {
    let apart = policy.sub(reference)?;
    Ok(match kind {
        KlKind::K1 | KlKind::Full => apart,
        KlKind::K2 => apart.square()?.mul_scalar(0.5)?,
        KlKind::K3 => apart.neg()?.clip(Some(-MOST), Some(MOST))?.exp()?.add_scalar(-1.0)?.add(&apart)?,
        KlKind::Abs => apart.abs()?,
    })
}

/// The whole distance at each token, from scores `[.., vocabulary]` of both.
pub fn kl_full(logits: &Tensor, reference: &Tensor) -> Result<Tensor> {
    let (policy, reference) = (logits.log_softmax(-1)?, reference.log_softmax(-1)?);
    Ok(expected(&policy, &policy.sub(&reference)?)?)
}

/// The entropy of log-probabilities `[.., vocabulary]`.
pub(super) fn entropy(all: &Tensor) -> Result<Tensor> {
    Ok(expected(all, all)?.neg()?)
}

/// The mean of values under log-probabilities. What cannot be has no part in it: 0 times infinity is not a number.
fn expected(logprobs: &Tensor, of: &Tensor) -> planaria_tensor::Result<Tensor> {
    let possible = of.masked_fill(&logprobs.detach().is_inf()?, 0.0)?;
    logprobs.exp()?.mul(&possible)?.sum(&[-1], Keep::No)
}

/// Log-probabilities of labels `[rows, tokens]` under scores `[rows, tokens, vocabulary]` over a temperature, and the entropy
/// there. Scores of minus infinity add nothing to it.
pub fn token_logprobs(logits: &Tensor, labels: &Tensor, temperature: f64) -> Result<(Tensor, Tensor)> {
    let scaled = if temperature == 1.0 { logits.clone() } else { logits.mul_scalar(1.0 / temperature)? };
    let all = scaled.log_softmax(-1)?;
    let picked = all.take_along_dim(&labels.unsqueeze(-1)?, -1)?.squeeze(&[-1])?;
    Ok((picked, entropy(&all)?))
}

/// What a ratio of probabilities is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Ratio {
    /// One token.
    #[default]
    Token,
    /// The mean of a response's tokens.
    Sequence,
    /// That value with the gradient of one token.
    SequenceToken,
}

/// What is made smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Surrogate {
    /// The ratio times the advantage, clipped.
    #[default]
    Clip,
    /// The log-probability times the advantage, weighed by the clipped ratio.
    Cispo,
}

/// What the sum over tokens is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Aggregation {
    /// The tokens of the update.
    #[default]
    TokenMean,
    /// Each response by its own tokens, then the responses that have any.
    SeqMeanTokenMean,
    /// The responses that have any.
    SeqMeanTokenSum,
    /// All responses, and the longest that one may be.
    SeqMeanTokenSumNorm,
}

impl Aggregation {
    /// What a token of a response of so many counts.
    pub fn weight(self, tokens: usize, horizon: usize) -> f64 {
        match self {
            Aggregation::TokenMean | Aggregation::SeqMeanTokenSum => 1.0,
            Aggregation::SeqMeanTokenMean => 1.0 / tokens.max(1) as f64,
            Aggregation::SeqMeanTokenSumNorm => 1.0 / horizon.max(1) as f64,
        }
    }

    /// What a response of so many tokens adds to the divisor.
    pub fn count(self, tokens: usize) -> u64 {
        match self {
            Aggregation::TokenMean => tokens as u64,
            Aggregation::SeqMeanTokenMean | Aggregation::SeqMeanTokenSum => u64::from(tokens > 0),
            Aggregation::SeqMeanTokenSumNorm => 1,
        }
    }
}

/// The loss of a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyConfig {
    /// How far a ratio may fall below 1.
    pub clip_low: f64,
    /// How far it may rise above 1.
    pub clip_high: f64,
    /// A token with a negative advantage costs at most this many times it.
    pub dual_clip: Option<f64>,
    /// A ratio counts at most this before it is clipped.
    pub delta: Option<f64>,
    /// What ratios are of.
    pub ratio: Ratio,
    /// What is made smaller.
    pub surrogate: Surrogate,
    /// Most that a token counts for what the sampling engine thought of it.
    pub tis_cap: Option<f64>,
    /// How far from the reference.
    pub kl: KlKind,
    /// What that costs.
    pub kl_coef: f64,
}

impl Default for PolicyConfig {
    fn default() -> PolicyConfig {
        PolicyConfig {
            clip_low: 0.2,
            clip_high: 0.2,
            dual_clip: None,
            delta: None,
            ratio: Ratio::Token,
            surrogate: Surrogate::Clip,
            tis_cap: None,
            kl: KlKind::K3,
            kl_coef: 0.0,
        }
    }
}

/// What is known of the tokens of some responses, `[rows, tokens]` each.
#[derive(Clone, Debug)]
pub struct PolicyInputs {
    /// Log-probabilities of the policy that the update phase began with.
    pub old: Tensor,
    /// Advantages.
    pub advantages: Tensor,
    /// 1 where a token counts.
    pub mask: Tensor,
    /// Log-probabilities of the reference.
    pub reference: Option<Tensor>,
    /// How far from the reference over the whole vocabulary, for [`KlKind::Full`].
    pub distance: Option<Tensor>,
    /// Log-probabilities as the sampling engine had them.
    pub sampled: Option<Tensor>,
}

impl PolicyInputs {
    /// How far from the reference, where that is known.
    fn far(&self, policy: &Tensor, kind: KlKind) -> Result<Option<Tensor>> {
        match kind {
            KlKind::Full => Ok(self.distance.clone()),
            estimate => self.reference.as_ref().map(|theirs| kl(estimate, policy, theirs)).transpose(),
        }
    }
}

/// Losses and figures of tokens, `[rows, tokens]` each; 0 where a token does not count.
#[derive(Clone, Debug)]
pub struct PolicyTerms {
    /// The loss, with the cost of leaving the reference.
    pub loss: Tensor,
    /// How far from the reference.
    pub kl: Option<Tensor>,
    /// 1 where a good token became too likely to count.
    pub clipped_high: Tensor,
    /// 1 where a bad token became too unlikely to count.
    pub clipped_low: Tensor,
    /// How far from the policy that the phase began with, by the first estimate.
    pub moved_k1: Tensor,
    /// By the third.
    pub moved_k3: Tensor,
}

/// The loss of every token from its log-probability under the policy of now.
pub fn policy_terms(policy: &Tensor, given: &PolicyInputs, config: &PolicyConfig) -> Result<PolicyTerms> {
    let PolicyInputs { old, advantages, mask, .. } = given;
    let apart = policy.sub(old)?;
    let log_ratio = match config.ratio {
        Ratio::Token => apart.clone(),
        Ratio::Sequence | Ratio::SequenceToken => {
            let tokens = mask.sum(&[-1], Keep::Yes)?.clip(Some(1.0), None)?;
            let mean = apart.mul(mask)?.sum(&[-1], Keep::Yes)?.div(&tokens)?;
            match config.ratio {
                Ratio::Sequence => mean.broadcast_to(apart.shape())?,
                _ => policy.sub(&policy.detach())?.add(&mean.detach())?,
            }
        }
    };
    let ratio = log_ratio.clip(Some(-MOST), Some(MOST))?.exp()?;
    let (low, high) = (1.0 - config.clip_low, 1.0 + config.clip_high);
    let mut loss = match config.surrogate {
        Surrogate::Cispo => ratio.detach().clip(None, Some(high))?.mul(advantages)?.mul(policy)?.neg()?,
        Surrogate::Clip => {
            let capped = config.delta.map_or(Ok(ratio.clone()), |most| ratio.clip(None, Some(most)))?;
            let free = capped.mul(advantages)?.neg()?;
            let clipped = ratio.clip(Some(low), Some(high))?.mul(advantages)?.neg()?;
            // Where both are the same the gradient is that of the first.
            let worst = free.ge(&clipped)?.where_(&free, &clipped)?;
            match config.dual_clip {
                None => worst,
                Some(most) => {
                    let bound = advantages.mul_scalar(-most)?;
                    let bad = advantages.lt(&Tensor::scalar(0.0, advantages.dtype())?)?;
                    let over = worst.gt(&bound)?.logical_and(&bad)?;
                    over.where_(&bound, &worst)?
                }
            }
        }
    };
    if let (Some(cap), Some(sampled)) = (config.tis_cap, &given.sampled) {
        loss = loss.mul(&old.sub(sampled)?.exp()?.clip(None, Some(cap))?.detach())?;
    }
    let far = given.far(policy, config.kl)?;
    if let Some(far) = far.as_ref().filter(|_| config.kl_coef != 0.0) {
        loss = loss.add(&far.mul_scalar(config.kl_coef)?)?;
    }
    // Values of tokens that do not count may be anything, infinite too.
    let counts = mask.detach().cast(DType::Bool)?;
    let only = |x: &Tensor| -> Result<Tensor> { Ok(counts.where_(x, &Tensor::scalar(0.0, x.dtype())?)?) };
    let number = |flag: Tensor| -> Result<Tensor> { only(&flag.cast(policy.dtype())?) };
    let zero = Tensor::scalar(0.0, advantages.dtype())?;
    let beyond = |edge: f64| Tensor::scalar(edge, ratio.dtype());
    let (ratio, apart) = (ratio.detach(), apart.detach());
    Ok(PolicyTerms {
        loss: only(&loss)?,
        kl: far.as_ref().map(|far| only(&far.detach())).transpose()?,
        clipped_high: number(ratio.gt(&beyond(high)?)?.logical_and(&advantages.gt(&zero)?)?)?,
        clipped_low: number(ratio.lt(&beyond(low)?)?.logical_and(&advantages.lt(&zero)?)?)?,
        moved_k1: only(&apart.neg()?)?,
        moved_k3: only(&apart.exp()?.add_scalar(-1.0)?.sub(&apart)?)?,
    })
}

/// Losses and figures of values, `[rows, tokens]` each; 0 where a token does not count.
#[derive(Clone, Debug)]
pub struct ValueTerms {
    /// Half the squared error, the larger of the two where values are clipped.
    pub loss: Tensor,
    /// 1 where the clipped one counts.
    pub clipped: Tensor,
}

/// The loss of every value against its return; `clip` is how far it may go from what it was.
pub fn value_terms(
    values: &Tensor,
    [old, returns, mask]: [&Tensor; 3],
    clip: Option<f64>,
) -> Result<ValueTerms> {
    let plain = values.sub(returns)?.square()?;
    let zeros = plain.detach().zeros_like()?;
    let (worst, clipped) = match clip {
        None => (plain, zeros.clone()),
        Some(most) => {
            let near = values.sub(old)?.clip(Some(-most), Some(most))?.add(old)?;
            let bounded = near.sub(returns)?.square()?;
            let over = bounded.gt(&plain)?;
            (over.where_(&bounded, &plain)?, over.cast(values.dtype())?)
        }
    };
    let counts = mask.detach().cast(DType::Bool)?;
    let only = |x: &Tensor| counts.where_(x, &zeros);
    Ok(ValueTerms { loss: only(&worst.mul_scalar(0.5)?)?, clipped: only(&clipped.detach())? })
}
