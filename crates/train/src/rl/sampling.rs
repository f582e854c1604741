//! How the next token of a response is drawn, in the order that Hugging Face has, from a given random number.

use crate::error::{Error, Result};
use std::collections::BTreeSet;

/// How tokens are drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenSampling {
    /// Scores are divided by it.
    pub temperature: f64,
    /// Only scores as good as the one in this place; ties with it stay.
    pub top_k: Option<usize>,
    /// Only the likeliest tokens that together have this probability.
    pub top_p: f64,
    /// Only tokens with this share of the likeliest one's probability.
    pub min_p: f64,
    /// Above 1, tokens that are there already become less likely.
    pub repetition_penalty: f64,
    /// A response does not end before it has so many tokens.
    pub min_new_tokens: usize,
    /// The likeliest token, of equals the first, instead of a draw.
    pub greedy: bool,
}

impl Default for TokenSampling {
    fn default() -> TokenSampling {
        TokenSampling {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            min_new_tokens: 0,
            greedy: false,
        }
    }
}

/// The scores of the next token, after everything that changes them.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenScores {
    /// Minus infinity for tokens that are not drawn.
    pub processed: Vec<f64>,
    /// What each is drawn with.
    pub probabilities: Vec<f64>,
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

impl TokenSampling {
    /// Refuses values without a meaning; `key` stands before their names.
    pub fn check(&self, key: &str) -> Result<()> {
        let positive = |x: f64| x.is_finite() && x > 0.0;
        let share = |x: f64| (0.0..=1.0).contains(&x);
        for (name, value, holds, expected) in [
            ("temperature", self.temperature, positive(self.temperature), "a finite number above 0"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                positive(self.repetition_penalty),
                "a finite number above 0",
            ),
            ("top_p", self.top_p, share(self.top_p) && self.top_p > 0.0, "above 0, at most 1"),
            ("min_p", self.min_p, share(self.min_p), "from 0 to 1"),
        ] {
            if !holds {
                let key = format!("{key}{name}");
                return Err(Error::Value { key, found: value.to_string(), expected: expected.into() });
            }
        }
        Ok(())
    }

    /// Whether a draw is from the probabilities of the policy as they are.
    pub fn is_plain(&self) -> bool {
        let TokenSampling { top_k, top_p, min_p, repetition_penalty, min_new_tokens, greedy, .. } = *self;
        let unfiltered = top_k.is_none_or(|k| k == 0) && top_p >= 1.0 && min_p == 0.0;
        unfiltered && repetition_penalty == 1.0 && min_new_tokens == 0 && !greedy
    }

    /// What the scores of the next token become: penalty, least length, temperature, then the filters in their order.
    pub fn scores(&self, logits: &[f64], before: &[i64], made: usize, ends: &[i64]) -> TokenScores {
        let mut scores = logits.to_vec();
        if self.repetition_penalty != 1.0 {
            let seen: BTreeSet<i64> = before.iter().copied().collect();
            for score in seen.iter().filter_map(|&id| usize::try_from(id).ok()).collect::<Vec<_>>() {
                if let Some(score) = scores.get_mut(score) {
                    *score = if *score > 0.0 {
                        *score / self.repetition_penalty
                    } else {
                        *score * self.repetition_penalty
                    };
                }
            }
        }
        if made < self.min_new_tokens {
            let ends = ends.iter().filter_map(|&id| usize::try_from(id).ok());
            ends.for_each(|id| scores[id] = f64::NEG_INFINITY);
        }
        scores.iter_mut().for_each(|score| *score /= self.temperature);
        self.keep_best(&mut scores);
        self.keep_likely(&mut scores);
        if self.min_p > 0.0 {
            let likely = softmax(&scores);
            let least = likely.iter().copied().fold(0.0, f64::max) * self.min_p;
            hide(&mut scores, |at| likely[at] < least);
        }
        TokenScores { probabilities: softmax(&scores), processed: scores }
    }

    fn keep_best(&self, scores: &mut [f64]) {
        let Some(k) = self.top_k.filter(|&k| k > 0 && k < scores.len()) else { return };
        let mut ranked = scores.to_vec();
        let (_, least, _) = ranked.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
        let least = *least;
        let old = scores.to_vec();
        hide(scores, |at| old[at] < least);
    }

    fn keep_likely(&self, scores: &mut [f64]) {
        if self.top_p >= 1.0 {
            return;
        }
        let likely = softmax(scores);
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| likely[a].total_cmp(&likely[b]));
        let mut sum = 0.0;
        // The likeliest always stays.
        for &at in &order[..order.len().saturating_sub(1)] {
            sum += likely[at];
            if sum <= 1.0 - self.top_p {
                scores[at] = f64::NEG_INFINITY;
            }
        }
    }

    /// The token for a random number in [0, 1): the first whose summed probability is above it.
    pub fn draw(&self, scores: &TokenScores, uniform: f64) -> usize {
        let best = || {
            let better = |best: usize, at: usize| {
                if scores.processed[at] > scores.processed[best] { at } else { best }
            };
            (0..scores.processed.len()).fold(0, better)
        };
        if self.greedy {
            return best();
        }
        pick(scores.probabilities.iter().copied(), uniform).unwrap_or_else(best)
    }

    /// Log-probabilities of the policy: the temperature counts, filters and penalties do not.
    pub fn policy(&self, logits: &[f64]) -> Vec<f64> {
        let scaled: Vec<f64> = logits.iter().map(|logit| logit / self.temperature).collect();
        let most = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = scaled.iter().map(|score| (score - most).exp()).sum::<f64>().ln() + most;
        scaled.into_iter().map(|score| score - sum).collect()
    }
}

/// The first token whose summed probability is above a random number in [0, 1); the last that has any where rounding leaves the sum
/// below it.
pub(crate) fn pick(probabilities: impl Iterator<Item = f64>, uniform: f64) -> Option<usize> {
    let (mut sum, mut last) = (0.0, None);
    for (at, probability) in probabilities.enumerate() {
        sum += probability;
        if sum > uniform {
            return Some(at);
        }
        last = if probability > 0.0 { Some(at) } else { last };
    }
    last
}

fn hide(scores: &mut [f64], is_out: impl Fn(usize) -> bool) {
    scores
        .iter_mut()
        .enumerate()
        .filter(|(at, _)| is_out(*at))
        .for_each(|(_, score)| *score = f64::NEG_INFINITY);
}
