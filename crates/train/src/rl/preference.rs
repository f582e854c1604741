//! Losses of preferences: of two responses to a prompt one is better.

use super::policy::token_logprobs;
use crate::error::Result;
use planaria_array::DType;
use planaria_array::ops::Keep;
use planaria_tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The losses by the names that people know them under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PreferenceLoss {
    /// DPO.
    #[default]
    Sigmoid,
    /// DPO for labels of which a known share is wrong.
    Robust,
    /// A margin of 1.
    Hinge,
    /// The squared distance from a margin, per token.
    Ipo,
    /// DPO per token.
    SigmoidNorm,
    /// Per token, without a reference.
    Simpo,
    /// Odds ratio beside the loss of the better response, without a reference.
    Orpo,
    /// DPO that keeps the better response likely.
    Dpop,
    /// Both responses by themselves.
    ApoZero,
    /// Squares of both.
    SppoHard,
    /// Both, and neither too far.
    NcaPair,
}

/// A loss and its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preference {
    /// The loss.
    pub loss: PreferenceLoss,
    /// How much the policy may leave the reference.
    pub beta: f64,
    /// Share of wrong labels.
    pub label_smoothing: f64,
    /// The margin of `simpo`.
    pub gamma: f64,
    /// The weight of what `orpo` and `dpop` add.
    pub lambda: f64,
    /// Without a reference.
    pub reference_free: bool,
    /// What the loss of the better response counts beside.
    pub sft_coef: f64,
}

impl Default for Preference {
    fn default() -> Preference {
        Preference {
            loss: PreferenceLoss::Sigmoid,
            beta: 0.1,
            label_smoothing: 0.0,
            gamma: 0.0,
            lambda: 1.0,
            reference_free: false,
            sft_coef: 0.0,
        }
    }
}

impl Preference {
    /// Whether log-probabilities of a reference are needed.
    pub fn needs_reference(&self) -> bool {
        !self.reference_free && !matches!(self.loss, PreferenceLoss::Simpo | PreferenceLoss::Orpo)
    }
}

/// Losses and rewards of pairs, `[pairs]` each.
#[derive(Clone, Debug)]
pub struct PreferenceTerms {
    /// The loss of each.
    pub losses: Tensor,
    /// What the better response is worth to the policy.
    pub chosen: Tensor,
    /// What the other is.
    pub rejected: Tensor,
}

/// The loss of each pair. Log-probabilities are sums over a response's tokens, `[pairs]`: of the better one and of the other,
/// under the policy and under the reference; and how many tokens those are.
pub fn preference_terms(
    [chosen, rejected]: [&Tensor; 2],
    reference: Option<[&Tensor; 2]>,
    [chosen_tokens, rejected_tokens]: [&Tensor; 2],
    config: &Preference,
) -> Result<PreferenceTerms> {
    let Preference { beta, label_smoothing: smooth, lambda, .. } = *config;
    let reference = reference.filter(|_| config.needs_reference());
    let against = |x: &Tensor, which: usize| reference.map_or(Ok(x.clone()), |both| x.sub(both[which]));
    let (a, b) = (against(chosen, 0)?, against(rejected, 1)?);
    let sum = a.sub(&b)?;
    let (mean_chosen, mean_rejected) = (chosen.div(chosen_tokens)?, rejected.div(rejected_tokens)?);
    let per_token = || a.div(chosen_tokens)?.sub(&b.div(rejected_tokens)?);
    let losses = match config.loss {
        PreferenceLoss::Sigmoid => smoothed(&sum, beta, smooth)?,
        PreferenceLoss::Robust => {
            let wrong = sure(&sum, -beta)?.mul_scalar(smooth)?;
            let right = sure(&sum, beta)?.mul_scalar(-(1.0 - smooth))?;
            right.add(&wrong)?.mul_scalar(1.0 / (1.0 - 2.0 * smooth))?
        }
        PreferenceLoss::Hinge => sum.mul_scalar(-beta)?.add_scalar(1.0)?.relu()?,
        PreferenceLoss::Ipo => square_from(&per_token()?, 1.0 / (2.0 * beta))?,
        PreferenceLoss::SigmoidNorm => smoothed(&per_token()?, beta, smooth)?,
        PreferenceLoss::Simpo => {
            let margin = mean_chosen.sub(&mean_rejected)?.mul_scalar(beta)?.add_scalar(-config.gamma)?;
            smoothed(&margin, 1.0, smooth)?
        }
        PreferenceLoss::Orpo => {
            let odds = odds_ratio(&mean_chosen, &mean_rejected)?;
            mean_chosen.neg()?.sub(&sure(&odds, 1.0)?.mul_scalar(lambda)?)?
        }
        PreferenceLoss::Dpop => sure(&sum, beta)?.neg()?.add(&a.neg()?.relu()?.mul_scalar(lambda)?)?,
        PreferenceLoss::ApoZero => {
            let worth = |x: &Tensor| x.mul_scalar(beta)?.sigmoid();
            worth(&a)?.neg()?.add_scalar(1.0)?.add(&worth(&b)?)?
        }
        PreferenceLoss::SppoHard => {
            square_from(&a, 1.0 / (2.0 * beta))?.add(&square_from(&b, -1.0 / (2.0 * beta))?)?
        }
        PreferenceLoss::NcaPair => {
            let far = sure(&a, -beta)?.add(&sure(&b, -beta)?)?.mul_scalar(0.5)?;
            sure(&a, beta)?.neg()?.sub(&far)?
        }
    };
    let losses = match config.sft_coef {
        0.0 => losses,
        coef => losses.sub(&mean_chosen.mul_scalar(coef)?)?,
    };
    let worth = |x: &Tensor| x.detach().mul_scalar(beta);
    let per_token = matches!(config.loss, PreferenceLoss::Simpo | PreferenceLoss::Orpo);
    let (of_chosen, of_rejected) = if per_token { (&mean_chosen, &mean_rejected) } else { (&a, &b) };
    Ok(PreferenceTerms { losses, chosen: worth(of_chosen)?, rejected: worth(of_rejected)? })
}

/// The logarithm of the ratio of two odds, from mean log-probabilities.
fn odds_ratio(chosen: &Tensor, rejected: &Tensor) -> Result<Tensor> {
    let rest = |x: &Tensor| x.exp()?.neg()?.ln_1p();
    Ok(chosen.sub(rejected)?.sub(&rest(chosen)?.sub(&rest(rejected)?)?)?)
}

fn sure(x: &Tensor, factor: f64) -> planaria_tensor::Result<Tensor> {
    x.mul_scalar(factor)?.log_sigmoid()
}

/// Both log-sigmoids with the share of wrong labels.
fn smoothed(x: &Tensor, factor: f64, wrong: f64) -> planaria_tensor::Result<Tensor> {
    let right = sure(x, factor)?.mul_scalar(-(1.0 - wrong))?;
    if wrong == 0.0 { Ok(right) } else { right.sub(&sure(x, -factor)?.mul_scalar(wrong)?) }
}

fn square_from(x: &Tensor, to: f64) -> planaria_tensor::Result<Tensor> {
    x.add_scalar(-to)?.square()
}

/// Log-probabilities of the completions of rows: scores `[rows, tokens, vocabulary]`, ids and a mask of the completion's tokens
/// `[rows, tokens]`. A token is predicted from the one before. Gives sums and counts, `[rows]`.
pub fn sequence_logprobs(logits: &Tensor, ids: &Tensor, completion: &Tensor) -> Result<(Tensor, Tensor)> {
    let length = ids.shape()[1].saturating_sub(1);
    let (logits, labels) = (logits.narrow(1, 0, length)?, ids.narrow(1, 1, length)?);
    let mask = completion.narrow(1, 1, length)?;
    let (found, _) = token_logprobs(&logits, &labels, 1.0)?;
    let counted = mask.cast(DType::Bool)?.where_(&found, &Tensor::scalar(0.0, found.dtype())?)?;
    Ok((counted.sum(&[-1], Keep::No)?, mask.cast(found.dtype())?.sum(&[-1], Keep::No)?))
}

/// The loss of a reward model on pairs: the better response scores higher, by a margin, and scores stay near 0.
pub fn reward_pair_loss(
    [chosen, rejected]: [&Tensor; 2],
    margin: Option<&Tensor>,
    center_coef: f64,
) -> Result<Tensor> {
    let apart = chosen.sub(rejected)?;
    let apart = margin.map_or(Ok(apart.clone()), |margin| apart.sub(margin))?;
    let loss = apart.log_sigmoid()?.neg()?;
    let centred = chosen.add(rejected)?.square()?.mul_scalar(center_coef)?;
    Ok(loss.add(&centred)?.mean(&[], Keep::No)?)
}
