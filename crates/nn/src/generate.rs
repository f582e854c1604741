//! Text from a model: token after token, with the keys and values of what came before kept.

use crate::error::{Error, Result};
use crate::models::{Cache, Network, Run};
use planaria_array::random::{Key, Window, uniform_f64};
use planaria_array::{Array, DType};
use planaria_tensor::{Tensor, no_grad};
use std::collections::BTreeMap;

/// How the next token is chosen from the scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// The best one; of equals the first.
    Greedy,
    /// Drawn by probability. Filters apply in this order.
    Sample {
        /// Scores are divided by it.
        temperature: f64,
        /// Only scores as good as the one in this place.
        top_k: Option<usize>,
        /// Only the most likely ones that together have this probability.
        top_p: Option<f64>,
        /// Names the random numbers: a draw follows from it, the row and the number of the token.
        key: Key,
    },
}

/// What to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Most tokens after the prompt.
    pub max_new: usize,
    /// A row ends with any of these.
    pub stop: Vec<i64>,
    /// How tokens are chosen.
    pub choice: Choice,
}

impl Options {
    fn check(&self) -> Result<()> {
        let refuse = |message: String| Err(Error::Argument { what: "generate", message });
        if let Choice::Sample { temperature, top_k, top_p, .. } = self.choice {
            if !(temperature > 0.0 && temperature.is_finite()) {
                return refuse(format!(
                    "temperature must be above 0, got {temperature}; choose greedily instead"
                ));
            }
            if top_k == Some(0) {
                return refuse("top_k must be at least 1, got 0".into());
            }
            if let Some(p) = top_p.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
                return refuse(format!("top_p must be above 0 and at most 1, got {p}"));
            }
        }
        Ok(())
    }
}

/// Rows under way. Each call of [`Generator::next_tokens`] gives one token per row.
#[derive(Debug)]
pub struct Generator<'a> {
    model: &'a dyn Network,
    options: Options,
    cache: Cache,
    /// What the model has not seen yet, `[rows, new]`.
    next: Array,
    /// Numbers of the rows, which draws are keyed by.
    numbers: Vec<usize>,
    /// Rows that have ended.
    ended: Vec<bool>,
    made: usize,
}

impl<'a> Generator<'a> {
    /// Begins with prompts of one length. All ranks of the model call it with the same.
    pub fn new(model: &'a dyn Network, prompts: &[Vec<i64>], options: &Options) -> Result<Generator<'a>> {
        options.check()?;
        let refuse = |message: String| Err(Error::Argument { what: "generate", message });
        let Some(length) = prompts.first().map(Vec::len).filter(|&length| length > 0) else {
            return refuse("there is no prompt, or it has no token".to_string());
        };
        if let Some(other) = prompts.iter().find(|prompt| prompt.len() != length) {
            let lengths = (length, other.len());
            return refuse(format!(
                "prompts of {lengths:?} tokens; `generate` takes those of one length at a time"
            ));
        }
        if !(model.stage().embed && model.stage().head) {
            return refuse(format!("the stage of layers {:?} is not a whole model", model.stage().layers));
        }
        let cache = model.cache(length.saturating_add(options.max_new));
        let next = Array::from_slice(&prompts.concat(), &[prompts.len(), length])?;
        let (numbers, ended) = ((0..prompts.len()).collect(), vec![false; prompts.len()]);
        Ok(Generator { model, options: options.clone(), cache, next, numbers, ended, made: 0 })
    }

    /// The next token of each row; none of rows that have ended. `None` when all have. Collective.
    pub fn next_tokens(&mut self) -> Result<Option<Vec<Option<i64>>>> {
        if self.made == self.options.max_new || self.ended.iter().all(|&ended| ended) {
            return Ok(None);
        }
        let scores = no_grad(|| self.scores())?;
        let mut tokens = Vec::with_capacity(self.ended.len());
        for (&row, scores) in self.numbers.iter().zip(scores.chunks((scores.len() / self.ended.len()).max(1)))
        {
            tokens.push(choose(scores, &self.options.choice, row, self.made)?);
        }
        self.next = Array::from_slice(&tokens, &[tokens.len(), 1])?;
        self.made += 1;
        let shown = |(ended, token): (&mut bool, i64)| {
            let shown = (!*ended).then_some(token);
            *ended |= self.options.stop.contains(&token);
            shown
        };
        Ok(Some(self.ended.iter_mut().zip(tokens).map(shown).collect()))
    }

    /// Scores of the token after the last, row after row.
    fn scores(&self) -> Result<Vec<f32>> {
        let run = Run { cache: Some(&self.cache), ..Run::default() };
        let hidden = self.model.forward(Tensor::new(self.next.clone()).into(), &run)?.hidden;
        let last = hidden.narrow(1, hidden.shape()[1] - 1, 1)?;
        Ok(self.model.logits(&last)?.whole()?.cast(DType::F32)?.to_vec::<f32>()?)
    }
}

/// New tokens for each prompt, with the one that ended it. Prompts may have any lengths; those of one length run
/// together. What a row gets does not depend on the others. Collective.
pub fn generate(model: &dyn Network, prompts: &[Vec<i64>], options: &Options) -> Result<Vec<Vec<i64>>> {
    let mut by_length: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (row, prompt) in prompts.iter().enumerate() {
        by_length.entry(prompt.len()).or_default().push(row);
    }
    let mut rows = vec![Vec::new(); prompts.len()];
    for numbers in by_length.into_values() {
        let together: Vec<Vec<i64>> = numbers.iter().map(|&row| prompts[row].clone()).collect();
        let mut generator = Generator { numbers, ..Generator::new(model, &together, options)? };
        while let Some(tokens) = generator.next_tokens()? {
            generator.numbers.iter().zip(tokens).for_each(|(&row, token)| rows[row].extend(token));
        }
    }
    Ok(rows)
}

/// The token chosen from one row of scores.
fn choose(scores: &[f32], choice: &Choice, row: usize, made: usize) -> Result<i64> {
    let (temperature, top_k, top_p, key) = match *choice {
        Choice::Greedy => return Ok(best(scores)),
        Choice::Sample { temperature, top_k, top_p, key } => (temperature, top_k, top_p, key),
    };
    let largest = scores.iter().fold(f32::NEG_INFINITY, |m, &s| m.max(s));
    let weight = |s: f32| (f64::from(s - largest) / temperature).exp();
    let mut kept: Vec<(usize, f64)> = scores.iter().map(|&s| weight(s)).enumerate().collect();
    // Likely ones first; of equals the lower token, so that the order is one.
    kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if let Some(least) = top_k.and_then(|k| kept.get(k - 1)).map(|&(_, weight)| weight) {
        kept.retain(|&(_, weight)| weight >= least);
    }
    if let Some(p) = top_p {
        let wanted = p * kept.iter().map(|(_, weight)| weight).sum::<f64>();
        let mut before = 0.0;
        kept.retain(|&(_, weight)| {
            let keep = before < wanted;
            before += weight;
            keep
        });
    }
    let mut drawn = [0.0];
    uniform_f64(&mut drawn, key.fold(made as u64), &Window::flat(row as u64, 1))?;
    let mut left = drawn[0] * kept.iter().map(|(_, weight)| weight).sum::<f64>();
    let hit = kept.iter().find(|(_, weight)| {
        left -= weight;
        left < 0.0
    });
    Ok(hit.or(kept.first()).map_or(0, |&(token, _)| token as i64))
}

fn best(scores: &[f32]) -> i64 {
    let better = |best: usize, i: usize| if scores[i] > scores[best] { i } else { best };
    (0..scores.len()).fold(0, better) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCORES: [f32; 5] = [0.0, 2.0, 1.0, 2.0, -3.0];

    fn counts(temperature: f64, top_k: Option<usize>, top_p: Option<f64>) -> [usize; 5] {
        let mut counts = [0; 5];
        let choice = Choice::Sample { temperature, top_k, top_p, key: Key::new(3, 0) };
        for made in 0..2000 {
            counts[choose(&SCORES, &choice, 1, made).unwrap() as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_first_of_the_best() {
        assert_eq!(choose(&SCORES, &Choice::Greedy, 0, 0).unwrap(), 1);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let found = counts(0.5, None, None);
        let weights: Vec<f64> = SCORES.iter().map(|&s| (f64::from(s) / 0.5).exp()).collect();
        let total: f64 = weights.iter().sum();
        for (count, weight) in found.into_iter().zip(weights) {
            let p = weight / total;
            let deviation = (2000.0 * p * (1.0 - p)).sqrt();
            assert!((count as f64 - 2000.0 * p).abs() <= 5.0 * deviation + 1.0, "{found:?}");
        }
    }

    #[test]
    fn filters_leave_what_they_should() {
        let alive = |counts: [usize; 5]| counts.map(|count| count > 0);
        // Ties with the k-th stay.
        assert_eq!(alive(counts(1.0, Some(1), None)), [false, true, false, true, false]);
        assert_eq!(alive(counts(1.0, Some(3), None)), [false, true, true, true, false]);
        // The two best have 0.74 together, the three best 0.88.
        assert_eq!(alive(counts(1.0, None, Some(0.3))), [false, true, false, false, false]);
        assert_eq!(alive(counts(1.0, None, Some(0.7))), [false, true, false, true, false]);
        assert_eq!(alive(counts(1.0, None, Some(0.8))), [false, true, true, true, false]);
    }
}
