//! How the next token is chosen, and what a `generation_config.json` says about it.

use crate::error::{Error, Result};
use planaria_array::ops::Distribution;
use planaria_array::random::Key;
use planaria_array::{Array, DType};
use serde_json::{Map, Value};
use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap};

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Most tokens to make.
    pub tokens: usize,
    /// 0 takes the most likely token; higher is more random.
    pub temperature: f64,
    /// Only this many of the likeliest tokens; 0 for all.
    pub top_k: usize,
    /// Only the likeliest tokens whose probabilities reach this sum.
    pub top_p: f64,
    /// Above 1, tokens that are there already become less likely.
    pub repetition_penalty: f64,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { tokens: 200, temperature: 0.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0, seed: 0 }
    }
}

impl Sampling {
    /// What a `generation_config.json` says. As in transformers the most likely token is taken unless it says `do_sample`,
    /// and where it does and says no more, the temperature is 1 and `top_k` 50.
    pub fn from_config(config: &Map<String, Value>) -> Sampling {
        let own = Sampling::default();
        let number = |key: &str| {
            config.get(key).and_then(Value::as_f64).filter(|number| number.is_finite() && *number >= 0.0)
        };
        let size = |key: &str| config.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        let (temperature, top_k) = match config.get("do_sample").and_then(Value::as_bool) {
            Some(true) => (number("temperature").unwrap_or(1.0), size("top_k").unwrap_or(50)),
            _ => (0.0, size("top_k").unwrap_or(own.top_k)),
        };
        Sampling {
            tokens: size("max_new_tokens").unwrap_or(own.tokens),
            temperature,
            top_k,
            top_p: number("top_p").filter(|share| *share <= 1.0).unwrap_or(own.top_p),
            repetition_penalty: number("repetition_penalty").filter(|p| *p > 0.0).unwrap_or(1.0),
            seed: own.seed,
        }
    }

    /// Whether the most likely token is taken as it is: nothing but the largest score need be known.
    pub(super) fn takes_the_best(&self) -> bool {
        self.temperature <= 0.0 && self.repetition_penalty == 1.0
    }

    /// The token in place `number` after the prompt, from the scores of all; `before` are the tokens so far.
    pub(super) fn choose(&self, scores: &[f32], before: &[u32], number: usize) -> Result<u32> {
        let scores = self.penalised(scores, before);
        let mut likely: BinaryHeap<Candidate> =
            scores.iter().enumerate().map(|(token, &score)| Candidate { score, token }).collect();
        let best = likely.peek().map(|best| best.token);
        let best = best.ok_or_else(|| Error::Bug { what: "a model without tokens".into() })?;
        if self.temperature <= 0.0 {
            return Ok(best as u32);
        }
        let weight = |token: usize| (f64::from(scores[token] - scores[best]) / self.temperature).exp();
        let most = if self.top_k > 0 { self.top_k } else { scores.len() };
        let mut order: Vec<usize> = Vec::new();
        let mut total = match self.top_k {
            0 => (0..scores.len()).map(weight).sum::<f64>(),
            most => {
                order.extend(std::iter::from_fn(|| likely.pop()).take(most).map(|next| next.token));
                order.iter().map(|&token| weight(token)).sum()
            }
        };
        // The likeliest first, sorted no further than anyone looks.
        let mut at = |place: usize| {
            while order.len() <= place && order.len() < most {
                order.push(likely.pop()?.token);
            }
            order.get(place).copied()
        };
        let mut count = most;
        if self.top_p < 1.0 {
            let (mut kept, mut shares) = (0.0, 0.0);
            for place in 0.. {
                let Some(token) = at(place) else { break };
                count = place + 1;
                kept += weight(token);
                shares += weight(token) / total;
                if shares >= self.top_p {
                    break;
                }
            }
            total = kept;
        }
        let key = Key::new(self.seed, number as u64);
        let uniform = Distribution::Uniform { low: 0.0, high: 1.0 };
        let mut draw = Array::random(&[1], uniform, DType::F64, key)?.to_vec::<f64>()?[0] * total;
        let mut last = best;
        for place in 0..count {
            let Some(token) = at(place) else { break };
            last = token;
            draw -= weight(token);
            if draw < 0.0 {
                break;
            }
        }
        Ok(last as u32)
    }

    fn penalised(&self, scores: &[f32], before: &[u32]) -> Vec<f32> {
        let mut scores = scores.to_vec();
        if self.repetition_penalty != 1.0 {
            let penalty = self.repetition_penalty as f32;
            let seen: BTreeSet<u32> = before.iter().copied().collect();
            for token in seen {
                if let Some(score) = scores.get_mut(token as usize) {
                    *score = if *score > 0.0 { *score / penalty } else { *score * penalty };
                }
            }
        }
        scores
    }
}

/// A token by its score: a higher one is greater, of equals the one that comes first.
struct Candidate {
    score: f32,
    token: usize,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Candidate) -> Ordering {
        self.score.total_cmp(&other.score).then(other.token.cmp(&self.token))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Candidate) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// The tokens that end a text, where anything names them. As in transformers: the generation's own, else those of the model.
pub(crate) fn named_ends(generation: &Map<String, Value>, model: &Map<String, Value>) -> Vec<u32> {
    let lists = [generation, model].map(|config| ids(config, "eos_token_id"));
    lists.into_iter().find(|list| !list.is_empty()).unwrap_or_default()
}

/// The ids under a key: one, or a list.
fn ids(config: &Map<String, Value>, key: &str) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match config.get(key) {
        Some(Value::Array(list)) => list.iter().filter_map(id).collect(),
        Some(one) => id(one).into_iter().collect(),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(value: Value) -> Sampling {
        Sampling::from_config(value.as_object().unwrap())
    }

    #[test]
    fn a_generation_config_decides_what_it_names() {
        let silent = of(json!({ "eos_token_id": 3, "temperature": 0.7 }));
        assert_eq!((silent, silent.temperature), (Sampling::default(), 0.0), "greedy, as transformers is");
        assert_eq!(of(json!({ "do_sample": false, "temperature": 0.7 })).temperature, 0.0);
        let drawn = of(json!({ "do_sample": true, "top_p": 0.8, "repetition_penalty": 1.05 }));
        assert_eq!((drawn.temperature, drawn.top_k, drawn.top_p), (1.0, 50, 0.8), "{drawn:?}");
        assert_eq!(drawn.repetition_penalty, 1.05);
        let odd = of(json!({ "temperature": -1, "top_k": "many", "top_p": 2, "max_new_tokens": 7 }));
        assert_eq!(odd, Sampling { tokens: 7, ..Sampling::default() });
    }

    #[test]
    fn ids_stand_alone_or_in_a_list() {
        let config = json!({ "eos_token_id": [5, 7], "bos_token_id": 1, "pad_token_id": null });
        let config = config.as_object().unwrap();
        let found = ["eos_token_id", "bos_token_id", "pad_token_id", "other"].map(|key| ids(config, key));
        assert_eq!(found, [vec![5, 7], vec![1], vec![], vec![]]);
    }

    #[test]
    fn a_penalty_is_on_tokens_that_are_there_already() {
        let greedy = Sampling { temperature: 0.0, repetition_penalty: 2.0, ..Sampling::default() };
        assert_eq!(greedy.choose(&[3.0, 2.0, -1.0], &[0, 0], 0).unwrap(), 1);
        assert_eq!(greedy.choose(&[-3.0, -2.0, -5.0], &[1], 0).unwrap(), 0);
        let plain = Sampling { repetition_penalty: 1.0, ..greedy };
        assert_eq!(plain.choose(&[3.0, 2.0, -1.0], &[0], 0).unwrap(), 0);
    }

    /// Sorts everything, then draws.
    fn sorted(sampling: &Sampling, scores: &[f32], number: usize) -> u32 {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
        let best = order[0];
        order.truncate(if sampling.top_k > 0 { sampling.top_k } else { usize::MAX });
        let weight = |token: usize| (f64::from(scores[token] - scores[best]) / sampling.temperature).exp();
        let total: f64 = order.iter().map(|&t| weight(t)).sum();
        let mut kept = 0.0;
        let enough = order.iter().position(|&t| {
            kept += weight(t) / total;
            kept >= sampling.top_p
        });
        order.truncate(enough.map_or(order.len(), |last| last + 1));
        let total: f64 = order.iter().map(|&t| weight(t)).sum();
        let uniform = Distribution::Uniform { low: 0.0, high: 1.0 };
        let key = Key::new(sampling.seed, number as u64);
        let draw = Array::random(&[1], uniform, DType::F64, key).unwrap().to_vec::<f64>().unwrap()[0];
        let mut left = draw * total;
        let hit = order.iter().find(|&&token| {
            left -= weight(token);
            left < 0.0
        });
        *hit.or(order.last()).unwrap() as u32
    }

    #[test]
    fn a_draw_is_the_one_from_all_tokens_in_order() {
        let scores: Vec<f32> = (0..500).map(|i| ((i * 7919 % 331) as f32 / 25.0).sin() * 4.0).collect();
        for (top_k, top_p) in [(0, 1.0), (20, 1.0), (0, 0.7), (50, 0.9), (1000, 0.999), (1, 0.1)] {
            let sampling = Sampling { temperature: 0.8, top_k, top_p, seed: 5, ..Sampling::default() };
            for number in 0..60 {
                let found = sampling.choose(&scores, &[], number).unwrap();
                assert_eq!(found, sorted(&sampling, &scores, number), "{sampling:?} {number}");
            }
        }
    }

    #[test]
    fn filters_leave_the_likeliest() {
        let one = Sampling { temperature: 5.0, top_k: 1, ..Sampling::default() };
        let sum = Sampling { temperature: 1.0, top_k: 0, top_p: 0.5, ..Sampling::default() };
        for number in 0..20 {
            assert_eq!(one.choose(&[0.0, 1.0, 0.5], &[], number).unwrap(), 1);
            assert_eq!(sum.choose(&[0.0, 3.0, 0.5], &[], number).unwrap(), 1);
        }
    }
}
