//! Advantages of responses from what they are worth, and the figures of a rollout.

use super::Rewarded;
use super::record::Record;
use crate::rl::{
    Compared, ShapeOptions, gae, group_advantages, leave_one_out, reinforce_returns, shape_rewards, whiten,
};
use std::collections::BTreeMap;

/// Added to the variance that numbers are divided by.
const EPS: f64 = 1e-8;

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
            let (old, mask) = (wide(&record.old), vec![true; record.response.len()]);
            let reference = if record.reference.is_empty() { old.clone() } else { wide(&record.reference) };
            let score = (*worth, record.finished);
            rewards.push(shape_rewards([&old, &reference], &mask, score, &options).rewards);
        }
        if ppo.whiten_rewards {
            rewards = whitened(rewards, true);
        }
        let scored = || records.iter().filter(|record| record.is_scored());
        let (mut advantages, mut returns) = (Vec::new(), Vec::new());
        for (record, rewards) in scored().zip(&rewards) {
            let mask = vec![true; rewards.len()];
            let (found, expected) = gae(rewards, &wide(&record.values), &mask, ppo.gamma, ppo.lambda);
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
    let mut made = whiten(&all, &vec![true; all.len()], keep_mean, EPS).values.into_iter();
    lists.iter().map(|list| made.by_ref().take(list.len()).collect()).collect()
}

/// The figures of a rollout by name.
pub(super) fn figures(all: &[Record]) -> BTreeMap<&'static str, f64> {
    let mean = |of: &dyn Fn(&Record) -> f64| all.iter().map(of).sum::<f64>() / all.len().max(1) as f64;
    let flag = |holds: bool| f64::from(u8::from(holds));
    let scored: Vec<f64> = all.iter().map(|one| one.worth).filter(|worth| !worth.is_nan()).collect();
    let count = scored.len().max(1) as f64;
    let reward = scored.iter().sum::<f64>() / count;
    let var = scored.iter().map(|x| (x - reward).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    let apart = |one: &Record| {
        let pairs = one.old.iter().zip(&one.reference);
        pairs.map(|(old, reference)| f64::from(*old) - f64::from(*reference)).sum::<f64>()
    };
    [
        ("reward", reward),
        ("reward_std", var.sqrt()),
        ("response_tokens", mean(&|one| one.response.len() as f64)),
        ("finished", mean(&|one| flag(one.finished))),
        ("unscored", mean(&|one| flag(!one.is_scored()))),
        ("reference_kl", mean(&apart)),
    ]
    .into()
}
