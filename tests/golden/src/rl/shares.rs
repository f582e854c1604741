//! How the samples of a case are shared out over updates, as rows of prompts that a run reads in order.

use crate::values::{list, sizes};
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Prompts with their responses, update after update. Where updates or groups have several sizes, or ranks are more than fit, they
/// are filled up with responses that have no reward, which count nothing.
pub(super) struct Shares {
    /// Responses to a prompt.
    pub(super) group: usize,
    /// Prompts of an update.
    pub(super) update: usize,
    /// Prompts of the rollout.
    pub(super) prompts: usize,
    pub(super) epochs: usize,
    pub(super) steps: usize,
    /// The samples of each prompt, in the order of the rows; none where a place is filled up.
    pub(super) places: Vec<Vec<Option<usize>>>,
}

impl Shares {
    /// For a number of data ranks, each of which has micro-batches of so many prompts.
    pub(super) fn of(case: &Value, ranks: usize, micro: Option<usize>) -> Result<Shares> {
        let rollouts = list(case, "rollouts")?;
        let schedule = list(case, "schedule")?.iter().map(sizes).collect::<Result<Vec<_>>>()?;
        let mut groups: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
        for (sample, rollout) in rollouts.iter().enumerate() {
            let group = rollout.get("group").and_then(Value::as_i64);
            groups.entry(group.unwrap_or(sample as i64)).or_default().push(sample);
        }
        let groups: Vec<Vec<usize>> = groups.into_values().collect();
        let of_update = |samples: &Vec<usize>| -> Result<Vec<usize>> {
            let inside = |group: &usize| groups[*group].iter().any(|sample| samples.contains(sample));
            let found: Vec<usize> = (0..groups.len()).filter(inside).collect();
            let count: usize = found.iter().map(|&group| groups[group].len()).sum();
            ensure!(count == samples.len(), "an update has a part of a group: {samples:?}");
            Ok(found)
        };
        let all = schedule.iter().map(of_update).collect::<Result<Vec<_>>>()?;
        // A pass ends before the first group comes again.
        let mut pass: Vec<Vec<usize>> = Vec::new();
        for update in &all {
            if update.iter().any(|group| pass.iter().flatten().any(|known| known == group)) {
                break;
            }
            pass.push(update.clone());
        }
        for (at, update) in all.iter().enumerate() {
            ensure!(*update == pass[at % pass.len()], "passes over a rollout in several orders");
        }
        let left: Vec<usize> =
            (0..groups.len()).filter(|group| !pass.iter().flatten().any(|known| known == group)).collect();
        ensure!(left.is_empty() || all.len() == pass.len(), "passes over a part of a rollout");
        // What no update is made from still counts in means over the rollout.
        let size = pass.iter().map(Vec::len).max().unwrap_or(1);
        pass.extend(left.chunks(size).map(<[usize]>::to_vec));
        let group = groups.iter().map(Vec::len).max().unwrap_or(1);
        let group = if rollouts[0].get("group").is_some() { group.max(2) } else { group };
        let update = size.next_multiple_of(ranks * micro.unwrap_or(1));
        let filled = |groups: &[Vec<usize>], of: &Vec<usize>| -> Vec<Vec<Option<usize>>> {
            let one = |at: usize| {
                let samples = of.get(at).map_or(&[][..], |&group| &groups[group]);
                (0..group).map(|number| samples.get(number).copied()).collect()
            };
            (0..update).map(one).collect()
        };
        let places: Vec<_> = pass.iter().flat_map(|of| filled(&groups, of)).collect();
        let (prompts, epochs) = (places.len(), all.len().div_ceil(pass.len()));
        Ok(Shares { group, update, prompts, epochs, steps: all.len(), places })
    }

    /// One row for each prompt, with its responses and their scores, and the most tokens of one.
    pub(super) fn rows(&self, case: &Value) -> Result<(String, usize)> {
        let rollouts = list(case, "rollouts")?;
        let long = |value: &Value| value.as_array().map_or(0, Vec::len);
        let (mut rows, mut most) = (String::new(), 0);
        for samples in &self.places {
            let known = samples.iter().flatten().next().map_or(&rollouts[0], |&sample| &rollouts[sample]);
            let first = &known["prompt"];
            let of = |name: &str, none: Value| -> Vec<Value> {
                let one = |sample: &Option<usize>| sample.map_or(none.clone(), |s| rollouts[s][name].clone());
                samples.iter().map(one).collect()
            };
            // Something that fits: it is never learned from.
            let response = json!([known["response"][0]]);
            let responses = of("response", response);
            most = responses.iter().map(|one| long(one) + long(first)).max().unwrap_or(0).max(most);
            let mut row =
                json!({ "prompt": first, "responses": responses, "scores": of("score", Value::Null) });
            if known.get("sampled").is_some() {
                row["logprobs"] = json!(of("sampled", json!([0.0])));
            }
            writeln!(rows, "{row}")?;
        }
        Ok((rows, most))
    }
}
