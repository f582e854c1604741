//! The section `[rl]`: how responses are made, what they are worth, and how the policy learns from that.

use super::require;
use crate::error::Result;
use crate::rl::{Aggregation, KlKind, PolicyConfig, Reward, Scale, TokenSampling};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// How responses are made, what they are worth, and how the policy learns from that; with `train.objective = "grpo"`. A step takes
/// `train.global_batch` prompts, and a micro-batch has `train.micro_batch` of them with all their responses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RlSection {
    /// Responses to each prompt, at least 2: they are compared with each other.
    pub samples_per_prompt: usize,
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
    /// Responses made side by side.
    pub rows: usize,
    /// What responses are worth: each source's number times its weight, added up.
    pub reward: Vec<Reward>,
    /// What the advantages of a group are divided by.
    pub scale: Scale,
    /// Added to that.
    pub eps: f64,
    /// How far a ratio may fall below 1.
    pub clip_low: f64,
    /// How far it may rise above 1.
    pub clip_high: f64,
    /// What the sum over tokens is divided by.
    pub aggregation: Aggregation,
    /// What leaving the reference costs; 0 needs no reference.
    pub kl_coef: f64,
    /// How that is estimated.
    pub kl: KlKind,
    /// A folder with the weights of the reference; those that the run starts from when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<PathBuf>,
}

impl Default for RlSection {
    fn default() -> RlSection {
        RlSection {
            samples_per_prompt: 8,
            max_new_tokens: 256,
            min_new_tokens: 0,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            rows: 32,
            reward: Vec::new(),
            scale: Scale::Group,
            eps: 1e-4,
            clip_low: 0.2,
            clip_high: 0.28,
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

    /// The loss of the policy.
    pub fn policy(&self) -> PolicyConfig {
        let RlSection { clip_low, clip_high, kl, kl_coef, .. } = *self;
        PolicyConfig { clip_low, clip_high, kl, kl_coef, ..PolicyConfig::default() }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let group = self.samples_per_prompt;
        require(
            "rl.samples_per_prompt",
            group >= 2,
            group,
            "at least 2, which are compared with each other",
        )?;
        require("rl.max_new_tokens", self.max_new_tokens > 0, self.max_new_tokens, "at least 1")?;
        require("rl.rows", self.rows > 0, self.rows, "at least 1")?;
        require("rl.reward", !self.reward.is_empty(), "[]", "at least one `[[rl.reward]]`")?;
        let share = |x: f64| x.is_finite() && x >= 0.0;
        for (key, value) in [
            ("rl.eps", self.eps),
            ("rl.clip_low", self.clip_low),
            ("rl.clip_high", self.clip_high),
            ("rl.kl_coef", self.kl_coef),
        ] {
            require(key, share(value), value, "a finite number, at least 0")?;
        }
        self.reward.iter().try_for_each(Reward::check)?;
        self.sampling().check("rl.")
    }
}
