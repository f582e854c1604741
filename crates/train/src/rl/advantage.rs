//! Advantages: how much better a token, or a whole response, was than expected. Sums go over all ranks of a rollout.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Values of one row and which of its tokens count; those that do not are stepped over.
fn valid(mask: &[bool]) -> impl DoubleEndedIterator<Item = usize> + '_ {
    mask.iter().enumerate().filter(|(_, valid)| **valid).map(|(at, _)| at)
}

/// Generalised advantage estimates of one row, and returns: 0 where the mask is not set.
pub fn gae(rewards: &[f64], values: &[f64], mask: &[bool], gamma: f64, lambda: f64) -> (Vec<f64>, Vec<f64>) {
    let (mut advantages, mut returns) = (vec![0.0; mask.len()], vec![0.0; mask.len()]);
    let (mut next_value, mut next) = (0.0, 0.0);
    for at in valid(mask).rev() {
        let delta = rewards[at] + gamma * next_value - values[at];
        next = delta + gamma * lambda * next;
        next_value = values[at];
        (advantages[at], returns[at]) = (next, next + values[at]);
    }
    (advantages, returns)
}

/// Discounted sums of what comes after each token of one row, itself among it.
pub fn reinforce_returns(rewards: &[f64], mask: &[bool], gamma: f64) -> Vec<f64> {
    let (mut out, mut next) = (vec![0.0; mask.len()], 0.0);
    for at in valid(mask).rev() {
        next = rewards[at] + gamma * next;
        out[at] = next;
    }
    out
}

/// Values with mean 0 and variance 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Whitened {
    /// Of all that count.
    pub mean: f64,
    /// With one less than their number; 0 of one.
    pub var: f64,
    /// 0 where the mask is not set.
    pub values: Vec<f64>,
}

/// Whitens all values of a rollout that count; with `keep_mean` their mean is added again.
pub fn whiten(values: &[f64], mask: &[bool], keep_mean: bool, eps: f64) -> Whitened {
    let counted = || valid(mask).map(|at| values[at]);
    let count = counted().count() as f64;
    let mean = counted().sum::<f64>() / count.max(1.0);
    let var =
        if count > 1.0 { counted().map(|x| (x - mean).powi(2)).sum::<f64>() / (count - 1.0) } else { 0.0 };
    let mut out = vec![0.0; values.len()];
    for at in valid(mask) {
        out[at] = (values[at] - mean) / (var + eps).sqrt() + if keep_mean { mean } else { 0.0 };
    }
    Whitened { mean, var, values: out }
}

/// What the rewards of a group are divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// The deviation of the group.
    #[default]
    Group,
    /// The deviation of all rewards of the rollout.
    Batch,
    /// Nothing.
    None,
}

/// What the responses to a prompt are compared with, where no critic says what was to be expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compared {
    /// The mean of their group, over a deviation.
    #[default]
    Group,
    /// The mean of the others of their group (RLOO).
    LeaveOneOut,
    /// All tokens of the rollout, by what comes after each (REINFORCE++).
    Reinforce,
}

/// Advantages of samples that are compared within their groups.
#[derive(Clone, Debug, PartialEq)]
pub struct Advantages {
    /// One for each sample.
    pub values: Vec<f64>,
    /// By group in the order of their numbers: whether all its rewards are the same, or fewer than two are there.
    pub degenerate: Vec<bool>,
}

/// Samples with a reward, by group.
fn groups(rewards: &[Option<f64>], groups: &[i64]) -> BTreeMap<i64, Vec<(usize, f64)>> {
    let mut all: BTreeMap<i64, Vec<(usize, f64)>> = BTreeMap::new();
    for (at, (reward, group)) in rewards.iter().zip(groups).enumerate() {
        let members = all.entry(*group).or_default();
        members.extend(reward.map(|reward| (at, reward)));
    }
    all
}

fn moments(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count.max(1.0);
    let squares = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
    (mean, if count > 1.0 { (squares / (count - 1.0)).sqrt() } else { 0.0 })
}

/// Rewards less the mean of their group, over a deviation. A sample without a reward has advantage 0 and counts in nothing.
pub fn group_advantages(rewards: &[Option<f64>], of: &[i64], scale: Scale, eps: f64) -> Advantages {
    let all: Vec<f64> = rewards.iter().flatten().copied().collect();
    let (_, overall) = moments(&all);
    let mut values = vec![0.0; rewards.len()];
    let mut degenerate = Vec::new();
    for members in groups(rewards, of).values() {
        let rewards: Vec<f64> = members.iter().map(|(_, reward)| *reward).collect();
        let (mean, deviation) = moments(&rewards);
        // Equal rewards may have a mean that rounding moved.
        let same = rewards.windows(2).all(|pair| pair[0] == pair[1]);
        degenerate.push(rewards.len() < 2 || same);
        if rewards.len() < 2 || same {
            continue;
        }
        let over = match scale {
            Scale::Group => deviation + eps,
            Scale::Batch => overall + eps,
            Scale::None => 1.0,
        };
        members.iter().for_each(|(at, reward)| values[*at] = (reward - mean) / over);
    }
    Advantages { values, degenerate }
}

/// Rewards less the mean of the others of their group.
pub fn leave_one_out(rewards: &[f64], of: &[i64]) -> Vec<f64> {
    let given: Vec<Option<f64>> = rewards.iter().copied().map(Some).collect();
    let mut values = vec![0.0; rewards.len()];
    for members in groups(&given, of).values().filter(|members| members.len() > 1) {
        let count = members.len() as f64;
        let mean = members.iter().map(|(_, reward)| reward).sum::<f64>() / count;
        members.iter().for_each(|(at, reward)| values[*at] = (reward - mean) * count / (count - 1.0));
    }
    values
}

/// The groups whose rewards differ: those with a population variance above `least`, in the order of their numbers.
pub fn varied_groups(rewards: &[f64], of: &[i64], least: f64) -> Vec<i64> {
    let given: Vec<Option<f64>> = rewards.iter().copied().map(Some).collect();
    let varies = |members: &[(usize, f64)]| {
        let count = members.len().max(1) as f64;
        let mean = members.iter().map(|(_, reward)| reward).sum::<f64>() / count;
        members.iter().map(|(_, reward)| (reward - mean).powi(2)).sum::<f64>() / count > least
    };
    groups(&given, of).into_iter().filter(|(_, members)| varies(members)).map(|(group, _)| group).collect()
}
