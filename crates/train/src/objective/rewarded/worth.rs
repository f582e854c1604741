//! Advantages of responses from what they are worth, and the figures of a rollout.

use super::record::Record;
use super::{Algorithm, Rewarded, TINY};
use crate::rl::{
    Compared, KlKind, ShapeOptions, gae, group_advantages, leave_one_out, reinforce_returns, shape_rewards,
    whiten,
};
use std::collections::BTreeMap;

impl Rewarded {
    /// Advantages of responses over their siblings; the share of groups without any.
    pub(super) fn compare(&self, records: &mut [Record], worth: &[f64]) -> f64 {
        let worth: Vec<Option<f64>> =
            worth.iter().map(|&worth| Some(worth).filter(|worth| !worth.is_nan())).collect();
        let groups: Vec<i64> = (0..records.len()).map(|at| (at / self.group) as i64).collect();
        let found = group_advantages(&worth, &groups, self.section.scale, self.section.eps);
        let lists = match self.section.advantage {
            Compared::Group => each_token(records, &found.values),
            Compared::LeaveOneOut => {
                let scored: Vec<usize> = (0..worth.len()).filter(|&at| worth[at].is_some()).collect();
                let rewards: Vec<f64> = scored.iter().filter_map(|&at| worth[at]).collect();
                let groups: Vec<i64> = scored.iter().map(|&at| groups[at]).collect();
                let mut values = vec![0.0; worth.len()];
                scored.iter().zip(leave_one_out(&rewards, &groups)).for_each(|(&at, x)| values[at] = x);
                each_token(records, &values)
            }
            Compared::Reinforce => {
                let after = |(record, worth): (&Record, &Option<f64>)| {
                    let mut rewards = vec![0.0; if worth.is_some() { record.response.len() } else { 0 }];
                    rewards.iter_mut().last().zip(*worth).into_iter().for_each(|(last, worth)| *last = worth);
                    reinforce_returns(&rewards, &vec![true; rewards.len()], 1.0)
                };
                let lists = whitened(records.iter().zip(&worth).map(after).collect(), false).into_iter();
                let filled = lists.zip(&*records).map(|(list, record)| match list.is_empty() {
                    true => vec![0.0; record.response.len()],
                    false => list,
                });
                filled.collect()
            }
        };
        for (record, list) in records.iter_mut().zip(lists) {
            record.advantages = list.into_iter().map(|x| x as f32).collect();
        }
        let degenerate = found.degenerate.iter().filter(|&&degenerate| degenerate).count();
        degenerate as f64 / found.degenerate.len().max(1) as f64
    }

    /// Advantages and returns of tokens by what the critic expected.
    pub(super) fn estimate(&self, records: &mut [Record], worth: &[f64], kl_coef: f64) {
        let ppo = &self.ppo;
        let wide = |list: &[f32]| list.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let options = ShapeOptions { kl: ppo.kl, kl_coef, ..ShapeOptions::default() };
        let mut rewards = Vec::new();
        for (record, worth) in records.iter().zip(worth).filter(|(record, _)| record.is_scored()) {
            let mask = vec![true; record.response.len()];
            let nothing = vec![0.0; mask.len()];
            let thought = &record.thought;
            let both = match (ppo.kl, thought.reference.is_empty()) {
                // That is the distance already.
                (KlKind::Full, _) if !thought.distance.is_empty() => [wide(&thought.distance), nothing],
                (KlKind::Full, _) | (_, true) => [nothing.clone(), nothing],
                _ => [wide(&thought.old), wide(&thought.reference)],
            };
            let score = (*worth, record.finished);
            rewards.push(shape_rewards([&both[0], &both[1]], &mask, score, &options).rewards);
        }
        if ppo.whiten_rewards {
            rewards = whitened(rewards, true);
        }
        let scored = || records.iter().filter(|record| record.is_scored());
        let (mut advantages, mut returns) = (Vec::new(), Vec::new());
        for (record, rewards) in scored().zip(&rewards) {
            let mask = vec![true; rewards.len()];
            let (found, expected) = gae(rewards, &wide(&record.thought.values), &mask, ppo.gamma, ppo.lambda);
            advantages.push(found);
            returns.push(expected);
        }
        if ppo.whiten_advantages {
            advantages = whitened(advantages, false);
        }
        let narrow = |list: Vec<f64>| list.into_iter().map(|x| x as f32).collect::<Vec<f32>>();
        let scored = records.iter_mut().filter(|record| record.is_scored());
        for ((record, advantages), returns) in scored.zip(advantages).zip(returns) {
            (record.advantages, record.returns) = (narrow(advantages), narrow(returns));
        }
    }
}

/// One number of each response for all its tokens.
fn each_token(records: &[Record], values: &[f64]) -> Vec<Vec<f64>> {
    records.iter().zip(values).map(|(record, &value)| vec![value; record.response.len()]).collect()
}

/// All numbers of a rollout made to have variance 1, over all responses at once.
fn whitened(lists: Vec<Vec<f64>>, keep_mean: bool) -> Vec<Vec<f64>> {
    let all: Vec<f64> = lists.iter().flatten().copied().collect();
    let mut made = whiten(&all, &vec![true; all.len()], keep_mean, TINY).values.into_iter();
    lists.iter().map(|list| made.by_ref().take(list.len()).collect()).collect()
}

impl Rewarded {
    /// Names of the figures of a rollout.
    pub(super) fn told(&self) -> Vec<String> {
        let sources = self.sources();
        let of_source =
            sources.iter().flat_map(|name| [format!("reward_{name}"), format!("reward_{name}_std")]);
        let (is_ppo, has_reference) =
            (self.kind == Algorithm::Ppo, self.reference.is_some() && self.looks_back());
        let steered = is_ppo && self.ppo.kl_target.is_some();
        let some = |name: &'static str, asked: bool| asked.then(|| name.to_string());
        let plain = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<String>>();
        let mut all = plain(&["reward", "reward_std"]);
        all.extend(of_source);
        all.extend(plain(&["response_tokens", "response_tokens_min", "response_tokens_max", "finished"]));
        all.extend(plain(&["degenerate_groups", "unscored", "gen_batches"]));
        all.extend(some("explained_variance", is_ppo));
        all.extend(some("reference_kl", has_reference));
        all.extend(some("kl_coef", steered));
        all
    }

    /// Names of the sources that have figures of their own: where there are several. The second of one name has its number behind it.
    fn sources(&self) -> Vec<String> {
        if self.section.reward.len() < 2 {
            return Vec::new();
        }
        let mut names: Vec<String> = Vec::new();
        for reward in &self.section.reward {
            let name = reward.called();
            let same =
                names.iter().filter(|known| known.trim_end_matches(|c: char| c.is_ascii_digit()) == name);
            names.push(match same.count() {
                0 => name,
                before => format!("{name}{}", before + 1),
            });
        }
        names
    }

    /// The figures of a rollout by name.
    pub(super) fn figures_of(&self, all: &[Record]) -> BTreeMap<String, f64> {
        let flag = |holds: bool| f64::from(u8::from(holds));
        let apart = |one: &Record| {
            let pairs = one.thought.old.iter().zip(&one.thought.reference);
            pairs.map(|(old, reference)| f64::from(*old) - f64::from(*reference)).sum::<f64>()
        };
        let mean = |of: &dyn Fn(&Record) -> f64| moments(all.iter().map(of)).0;
        let lengths = || all.iter().map(|one| one.response.len() as f64);
        let (reward, deviation) = moments(all.iter().map(|one| one.worth));
        let mut figures: BTreeMap<String, f64> = [
            ("reward", reward),
            ("reward_std", deviation),
            ("response_tokens", moments(lengths()).0),
            ("response_tokens_min", lengths().fold(f64::INFINITY, f64::min)),
            ("response_tokens_max", lengths().fold(0.0, f64::max)),
            ("finished", mean(&|one| flag(one.finished))),
            ("unscored", mean(&|one| flag(!one.is_scored()))),
            ("explained_variance", explained(all)),
            ("reference_kl", mean(&apart)),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .into();
        for (place, name) in self.sources().iter().enumerate() {
            let given = all.iter().filter_map(|one| one.scores.get(place).copied());
            let (mean, deviation) = moments(given);
            figures.extend([(format!("reward_{name}"), mean), (format!("reward_{name}_std"), deviation)]);
        }
        figures
    }
}

/// Mean and deviation of the numbers among these; 0 where there are none.
fn moments(all: impl Iterator<Item = f64>) -> (f64, f64) {
    let all: Vec<f64> = all.filter(|x| !x.is_nan()).collect();
    let count = all.len().max(1) as f64;
    let mean = all.iter().sum::<f64>() / count;
    let var = all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    (mean, var.sqrt())
}

/// The share of the variance of returns that the critic foresaw; 0 where they do not vary.
fn explained(all: &[Record]) -> f64 {
    let pairs = || all.iter().flat_map(|one| one.returns.iter().zip(&one.thought.values));
    let (_, all) = moments(pairs().map(|(returned, _)| f64::from(*returned)));
    let (_, left) = moments(pairs().map(|(returned, value)| f64::from(*returned) - f64::from(*value)));
    if all == 0.0 { 0.0 } else { 1.0 - (left / all).powi(2) }
}
