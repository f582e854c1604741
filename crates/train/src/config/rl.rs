//! The section `[rl]`: how responses are made, what they are worth, and how the policy learns from that.

use super::require;
use crate::error::Result;
use crate::rl::{
    Aggregation, Compared, KlKind, PolicyConfig, Ratio, Reward, Scale, Surrogate, TokenSampling,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// How responses are made, what they are worth, and how the policy learns from that; with `train.objective = "grpo"` or `"ppo"`. A
/// step is one update from `train.global_batch` prompts, and a micro-batch has `train.micro_batch` of them with all their responses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RlSection {
    /// Responses to each prompt: 8 when absent, 1 with `ppo`. `grpo` compares them with each other and needs at least 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_per_prompt: Option<usize>,
    /// Prompts of a rollout, a multiple of `train.global_batch`, which is what it has when absent: so many updates share its prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts_per_rollout: Option<usize>,
    /// How often a rollout is gone through: 1 when absent, 4 with `ppo`. Every update of every pass is a step of the optimizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<usize>,
    /// Where responses come from.
    pub responses: ResponsesFrom,
    /// Most tokens of a response.
    pub max_new_tokens: usize,
    /// A response does not end before it has so many.
    pub min_new_tokens: usize,
    /// Scores are divided by it, when tokens are drawn and when they are judged.
    pub temperature: f64,
    /// Only so many of the likeliest tokens are drawn; 0 for all.
    pub top_k: usize,
    /// Only the likeliest tokens that together have this probability.
    pub top_p: f64,
    /// Only tokens with this share of the likeliest one's probability.
    pub min_p: f64,
    /// Above 1, tokens that are there already become less likely.
    pub repetition_penalty: f64,
    /// Responses under way at once on a rank: one that ends makes room for the next. All of them when absent, at most 256; what is
    /// drawn is the same for any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<usize>,
    /// Only prompts whose responses differ in worth are learned from: others are replaced by further prompts, up to so many times
    /// the prompts of a rollout. What is left over goes into the next rollout. All are learned from when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_gen_batches: Option<usize>,
    /// What responses are worth: each source's number times its weight, added up.
    pub reward: Vec<Reward>,
    /// What responses are compared with: `group`, `leave_one_out` (RLOO), `reinforce` (REINFORCE++). Not with `ppo`.
    pub advantage: Compared,
    /// What the advantages of a group are divided by.
    pub scale: Scale,
    /// Added to that.
    pub eps: f64,
    /// How far a ratio may fall below 1.
    pub clip_low: f64,
    /// How far it may rise above 1: 0.28 when absent, 0.2 with `ppo`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_high: Option<f64>,
    /// A token with a negative advantage costs at most this many times it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dual_clip: Option<f64>,
    /// A ratio counts at most this before it is clipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delta: Option<f64>,
    /// A token counts by how likely the policy finds it over how likely it was when it was drawn, at most this much (truncated importance
    /// sampling); as it is when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tis_cap: Option<f64>,
    /// What ratios are of: `token`, `sequence` (GSPO), `sequence-token`.
    pub ratio: Ratio,
    /// What is made smaller: `clip`, `cispo`.
    pub surrogate: Surrogate,
    /// What the mean entropy of tokens earns.
    pub entropy_coef: f64,
    /// Whether responses without an end are not learned from.
    pub mask_truncated: bool,
    /// What a response without an end loses.
    pub missing_eos_penalty: f64,
    /// Tokens before `max_new_tokens` over which a response loses evenly more; 0 for nothing.
    pub overlong_buffer: usize,
    /// What it has lost at the end of that.
    pub overlong_factor: f64,
    /// Rewards stay within plus and minus this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score_clip: Option<f64>,
    /// Whether rewards are taken by the mean and deviation of all that the run has seen so far.
    pub normalize_rewards: bool,
    /// What the sum over tokens is divided by.
    pub aggregation: Aggregation,
    /// What leaving the reference costs; 0 needs no reference.
    pub kl_coef: f64,
    /// How that is estimated: `k1`, `k2`, `k3`, `abs` from the tokens that were drawn, or `full` over the whole vocabulary, for
    /// which the reference goes through every micro-batch again.
    pub kl: KlKind,
    /// A folder with the weights of the reference; those that the run starts from when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<PathBuf>,
}

impl Default for RlSection {
    fn default() -> RlSection {
        RlSection {
            samples_per_prompt: None,
            prompts_per_rollout: None,
            epochs: None,
            responses: ResponsesFrom::Policy,
            max_new_tokens: 256,
            min_new_tokens: 0,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            rows: None,
            max_gen_batches: None,
            reward: Vec::new(),
            advantage: Compared::Group,
            scale: Scale::Group,
            eps: 1e-4,
            clip_low: 0.2,
            clip_high: None,
            dual_clip: None,
            delta: None,
            tis_cap: None,
            ratio: Ratio::Token,
            surrogate: Surrogate::Clip,
            entropy_coef: 0.0,
            mask_truncated: false,
            missing_eos_penalty: 0.0,
            overlong_buffer: 0,
            overlong_factor: 1.0,
            score_clip: None,
            normalize_rewards: false,
            aggregation: Aggregation::TokenMean,
            kl_coef: 0.0,
            kl: KlKind::K3,
            reference: None,
        }
    }
}

impl RlSection {
    /// How tokens are drawn.
    pub fn sampling(&self) -> TokenSampling {
        TokenSampling {
            temperature: self.temperature,
            top_k: Some(self.top_k).filter(|&k| k > 0),
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            min_new_tokens: self.min_new_tokens,
            greedy: false,
        }
    }

    /// The loss of the policy, but for what depends on the objective.
    pub fn policy(&self) -> PolicyConfig {
        let RlSection { clip_low, kl, kl_coef, dual_clip, delta, ratio, surrogate, tis_cap, .. } = *self;
        let clip_high = PolicyConfig::default().clip_high;
        PolicyConfig { clip_low, clip_high, dual_clip, delta, ratio, surrogate, tis_cap, kl, kl_coef }
    }

    /// Refuses values out of their range; `group` is the number of responses to a prompt, of which there must be `least`.
    pub(crate) fn check(&self, group: usize, least: usize) -> Result<()> {
        let compared = if least > 1 { ", which are compared with each other" } else { "" };
        let expected = format!("at least {least}{compared}");
        require("rl.samples_per_prompt", group >= least, group, &expected)?;
        require("rl.max_new_tokens", self.max_new_tokens > 0, self.max_new_tokens, "at least 1")?;
        require("rl.reward", !self.reward.is_empty(), "[]", "at least one `[[rl.reward]]`")?;
        for (key, value) in [
            ("rl.epochs", self.epochs),
            ("rl.prompts_per_rollout", self.prompts_per_rollout),
            ("rl.rows", self.rows),
            ("rl.max_gen_batches", self.max_gen_batches),
        ] {
            require(key, value != Some(0), 0, "at least 1")?;
        }
        let comparable = self.max_gen_batches.is_none() || group > 1;
        let several = "at least 2 with `rl.max_gen_batches`, which looks for responses that differ";
        require("rl.samples_per_prompt", comparable, group, several)?;
        let finite = |x: f64| x.is_finite() && x >= 0.0;
        for (key, value) in [
            ("rl.eps", self.eps),
            ("rl.clip_low", self.clip_low),
            ("rl.clip_high", self.clip_high.unwrap_or(0.0)),
            ("rl.kl_coef", self.kl_coef),
            ("rl.entropy_coef", self.entropy_coef),
            ("rl.missing_eos_penalty", self.missing_eos_penalty),
            ("rl.overlong_factor", self.overlong_factor),
            ("rl.score_clip", self.score_clip.unwrap_or(0.0)),
        ] {
            require(key, finite(value), value, "a finite number, at least 0")?;
        }
        for (key, value) in [("rl.dual_clip", self.dual_clip), ("rl.delta", self.delta)] {
            let value = value.unwrap_or(2.0);
            require(key, value.is_finite() && value > 1.0, value, "a finite number above 1")?;
        }
        let cap = self.tis_cap.unwrap_or(1.0);
        require("rl.tis_cap", cap.is_finite() && cap > 0.0, cap, "a finite number above 0")?;
        let (buffer, most) = (self.overlong_buffer, self.max_new_tokens);
        require("rl.overlong_buffer", buffer <= most, buffer, "at most `rl.max_new_tokens`")?;
        self.reward.iter().try_for_each(Reward::check)?;
        self.sampling().check("rl.")
    }
}

/// Where responses come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResponsesFrom {
    /// The policy makes them before they are learned from.
    #[default]
    Policy,
    /// The rows have them, as `responses`: one list of token ids for each. They were stored, or made elsewhere.
    Rows,
}
