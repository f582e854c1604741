//! Functions of plain numbers: rewards, advantages, geometry.

use crate::values::{Case, Numbers, field, list, maybe, number, numbers, size, sizes};
use anyhow::{Context, Result, bail, ensure};
use planaria_train::rl::{
    AdaptiveKl, Remainder, Response, RolloutBatching, RolloutGeometry, RunningMoments, Scale, ShapeOptions,
    combine_rewards, gae as estimate, group_advantages, leave_one_out as without_own, overlong_penalty,
    pad_rollouts, reinforce_returns, shape_rewards, varied_groups, whiten as whitened,
};
use serde_json::Value;

fn kind<T: serde::de::DeserializeOwned>(case: &Case, name: &str) -> Result<T> {
    Ok(serde_json::from_value(field(&case.given, name)?.clone())?)
}

/// The rows of a tensor of flags.
fn masks(of: &Numbers) -> Vec<Vec<bool>> {
    of.rows().iter().map(|row| row.iter().map(|&flag| flag != 0.0).collect()).collect()
}

pub(super) fn shape(case: &Case) -> Result<()> {
    let (policy, reference) = (case.tensor("logprobs")?.rows(), case.tensor("ref_logprobs")?.rows());
    let (mask, scores) = (masks(&case.tensor("mask")?), case.tensor("scores")?.data);
    let ended = case.tensor("ended_with_eos")?.flags();
    let options = ShapeOptions {
        kl: kind(case, "kl_kind")?,
        kl_coef: case.number("kl_coef")?,
        clip: case.maybe("score_clip")?,
        missing_eos_penalty: case.maybe("missing_eos_penalty")?,
    };
    let (mut rewards, mut at, mut far) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..mask.len() {
        let found =
            shape_rewards([&policy[row], &reference[row]], &mask[row], (scores[row], ended[row]), &options);
        rewards.extend(found.rewards);
        at.push(found.scored.map_or(-1.0, |at| at as f64));
        far.extend(found.kl);
    }
    case.is("rewards", &rewards)?;
    case.is("score_index", &at)?;
    case.is_number("kl_mean", far.iter().sum::<f64>() / far.len().max(1) as f64)
}

pub(super) fn whiten(case: &Case) -> Result<()> {
    let all = |name: &str| -> Result<Vec<f64>> {
        let parts = list(&case.given, name)?
            .iter()
            .map(|part| Ok(numbers(part)?.data))
            .collect::<Result<Vec<_>>>()?;
        Ok(parts.concat())
    };
    let mask: Vec<bool> = all("masks")?.iter().map(|&flag| flag != 0.0).collect();
    let keep = field(&case.given, "shift_mean")?.as_bool() == Some(false);
    let found = whitened(&all("values")?, &mask, keep, case.number("eps")?);
    case.is_number("mean", found.mean)?;
    case.is_number("var", found.var)?;
    let mut first = 0;
    for want in list(&case.out, "whitened")? {
        let want = numbers(want)?.data;
        case.tol.same_all("whitened", &found.values[first..first + want.len()], &want)?;
        first += want.len();
    }
    Ok(())
}

pub(super) fn gae(case: &Case) -> Result<()> {
    let (rewards, values) = (case.tensor("rewards")?.rows(), case.tensor("values")?.rows());
    let (gamma, lambda) = (case.number("gamma")?, case.number("lambda")?);
    let (mut advantages, mut returns) = (Vec::new(), Vec::new());
    for (row, mask) in masks(&case.tensor("mask")?).iter().enumerate() {
        let (a, r) = estimate(&rewards[row], &values[row], mask, gamma, lambda);
        advantages.extend(a);
        returns.extend(r);
    }
    case.is("advantages", &advantages)?;
    case.is("returns", &returns)
}

pub(super) fn reinforce(case: &Case) -> Result<()> {
    let (rewards, mask) = (case.tensor("rewards")?.rows(), masks(&case.tensor("mask")?));
    let gamma = case.number("gamma")?;
    let returns: Vec<f64> =
        rewards.iter().zip(&mask).flat_map(|(row, mask)| reinforce_returns(row, mask, gamma)).collect();
    case.is("returns", &returns)?;
    case.is("advantages", &whitened(&returns, &mask.concat(), false, 1e-8).values)
}

/// Rewards of which some may be missing.
fn given(values: &[f64]) -> Vec<Option<f64>> {
    values.iter().map(|&value| Some(value).filter(|value| !value.is_nan())).collect()
}

pub(super) fn groups(case: &Case) -> Result<()> {
    let scale: Scale = kind(case, "scale")?;
    let of = case.tensor("groups")?.integers();
    let found = group_advantages(&given(&case.tensor("rewards")?.data), &of, scale, case.number("eps")?);
    case.is("advantages", &found.values)?;
    let flags: Vec<f64> = found.degenerate.iter().map(|&flag| f64::from(u8::from(flag))).collect();
    case.is("degenerate_groups", &flags)
}

pub(super) fn leave_one_out(case: &Case) -> Result<()> {
    case.is("advantages", &without_own(&case.tensor("rewards")?.data, &case.tensor("groups")?.integers()))
}

pub(super) fn combine(case: &Case) -> Result<()> {
    let weights = case.tensor("weights")?.data;
    let rows = case.tensor("rewards")?.rows();
    let combined: Vec<Option<f64>> = rows.iter().map(|row| combine_rewards(&given(row), &weights)).collect();
    let numbers: Vec<f64> = combined.iter().map(|value| value.unwrap_or(f64::NAN)).collect();
    case.is("combined", &numbers)?;
    let of = case.tensor("groups")?.integers();
    case.is("advantages", &group_advantages(&combined, &of, kind(case, "scale")?, case.number("eps")?).values)
}

pub(super) fn dynamic(case: &Case) -> Result<()> {
    let kept = varied_groups(
        &case.tensor("rewards")?.data,
        &case.tensor("groups")?.integers(),
        case.number("min_variance")?,
    );
    case.is("kept_groups", &kept.iter().map(|&group| group as f64).collect::<Vec<_>>())?;
    let enough = kept.len() >= size(&case.given, "need")?;
    ensure!(field(&case.out, "enough")?.as_bool() == Some(enough), "enough is {enough}");
    Ok(())
}

pub(super) fn overlong(case: &Case) -> Result<()> {
    let (most, buffer) = (size(&case.given, "max_len")?, size(&case.given, "buffer")?);
    let factor = case.number("factor")?;
    let penalty = |length: &i64| overlong_penalty(*length as usize, most, buffer, factor);
    case.is("penalty", &case.tensor("lengths")?.integers().iter().map(penalty).collect::<Vec<_>>())
}

pub(super) fn adaptive(case: &Case) -> Result<()> {
    let mut kl = AdaptiveKl {
        coef: case.number("init")?,
        target: case.number("target")?,
        horizon: case.number("horizon")?,
    };
    let samples = case.number("samples_per_step")?;
    let step = |&observed: &f64| {
        kl.update(observed, samples);
        kl.coef
    };
    case.is("coef", &case.tensor("observed")?.data.iter().map(step).collect::<Vec<_>>())
}

pub(super) fn running(case: &Case) -> Result<()> {
    let (mut seen, eps) = (RunningMoments::default(), case.number("eps")?);
    for (batch, want) in list(&case.given, "batches")?.iter().zip(list(&case.out, "steps")?) {
        let batch = numbers(batch)?.data;
        seen.add(&batch);
        for (name, got) in [("count", seen.count), ("mean", seen.mean), ("var", seen.var)] {
            case.tol.same(name, got, number(field(want, name)?)?)?;
        }
        let found: Vec<f64> = batch.iter().map(|&value| seen.normalize(value, eps)).collect();
        case.tol.same_all("normalized", &found, &numbers(field(want, "normalized")?)?.data)?;
    }
    Ok(())
}

pub(super) fn layout(case: &Case) -> Result<()> {
    let lists = |name: &str| -> Result<Vec<Vec<i64>>> {
        list(&case.given, name)?.iter().map(|row| Ok(numbers(row)?.integers())).collect()
    };
    let (prompts, generated) = (lists("prompts")?, lists("generated")?);
    let ends = numbers(field(&case.given, "eos_ids")?)?.integers();
    let most = size(&case.given, "max_new_tokens")?;
    let responses: Vec<Response> = generated.iter().map(|row| Response::of(row, &ends, most)).collect();
    let width = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let found = pad_rollouts(&prompts, &responses, width, most, case.number("pad_id")? as i64);
    let numbers = |values: &[i64]| values.iter().map(|&value| value as f64).collect::<Vec<_>>();
    let flags = |values: &[bool]| values.iter().map(|&flag| f64::from(u8::from(flag))).collect::<Vec<_>>();
    case.is("input_ids", &numbers(&found.tokens))?;
    case.is("attention_mask", &flags(&found.seen))?;
    case.is("position_ids", &numbers(&found.positions))?;
    case.is("response_mask", &flags(&found.response))?;
    case.is("response_lengths", &responses.iter().map(|r| r.tokens.len() as f64).collect::<Vec<_>>())?;
    case.is("finished", &flags(&responses.iter().map(|r| r.finished).collect::<Vec<_>>()))?;
    case.is_number("prompt_width", found.prompt_width as f64)
}

fn batching(case: &Case) -> Result<RolloutBatching> {
    let whole = |name: &str| Ok::<_, anyhow::Error>(maybe(&case.given, name)?.map(|value| value as i64));
    let needed = |name: &str| whole(name)?.with_context(|| format!("there is no `{name}`"));
    Ok(RolloutBatching {
        prompts_per_rollout: needed("prompts_per_rollout")?,
        samples_per_prompt: needed("samples_per_prompt")?,
        prompts_per_update: whole("prompts_per_update")?,
        data_ranks: needed("data_ranks")?,
        per_device: needed("per_device")?,
        epochs: whole("epochs")?,
        accumulation: whole("accumulation")?,
        remainder: match case.given.get("remainder").and_then(Value::as_str) {
            Some("short") => Remainder::Short,
            _ => Remainder::Refuse,
        },
        dataset_prompts: whole("dataset_prompts")?,
        drop_last: case.given.get("drop_last").and_then(Value::as_bool).unwrap_or(false),
    })
}

pub(super) fn geometry(case: &Case) -> Result<()> {
    let found = RolloutGeometry::derive(&batching(case)?);
    let found = match (case.out.get("error"), found) {
        (None, Ok(found)) => found,
        (None, Err(error)) => bail!("refused: {error}"),
        (Some(error), Ok(_)) => bail!("{error} is expected"),
        (Some(want), Err(error)) => {
            let text = |name: &str| want.get(name).and_then(Value::as_str);
            ensure!(text("kind") == Some(error.kind), "refused as {}, expected {want}", error.kind);
            ensure!(
                text("field").is_none_or(|field| field == error.field),
                "names {}, expected {want}",
                error.field
            );
            let expected = want.get("expected").and_then(Value::as_i64);
            ensure!(
                expected.is_none() || expected == error.expected,
                "expects {:?}, expected {want}",
                error.expected
            );
            return Ok(());
        }
    };
    case.is_number("samples_per_rollout", found.samples_per_rollout as f64)?;
    case.is_number("updates_per_epoch", found.updates_per_epoch as f64)?;
    case.is_number("optimizer_steps_per_rollout", found.optimizer_steps_per_rollout as f64)?;
    let each = |of: fn(&planaria_train::rl::RolloutUpdate) -> usize| {
        found.updates.iter().map(|u| of(u) as f64).collect::<Vec<_>>()
    };
    case.is("samples_per_update", &each(|update| update.samples))?;
    case.is("accumulation", &each(|update| update.micro_steps))?;
    for (update, want) in found.updates.iter().zip(list(&case.out, "updates")?) {
        ensure!(
            update.share == sizes(field(want, "share")?)?,
            "shares are {:?}, expected {want}",
            update.share
        );
        for (ranges, want) in update.ranges.iter().zip(list(want, "ranges")?) {
            let want = want.as_array().context("no ranges")?.iter().map(sizes).collect::<Result<Vec<_>>>()?;
            let ranges: Vec<Vec<usize>> = ranges.iter().map(|range| vec![range.start, range.end]).collect();
            ensure!(ranges == want, "ranges are {ranges:?}, expected {want:?}");
        }
    }
    if let Some(pass) = found.dataset {
        case.is_number("rollouts_per_dataset_epoch", pass.rollouts as f64)?;
        case.is_number("optimizer_steps_per_dataset_epoch", pass.optimizer_steps as f64)?;
        case.is_number("prompts_left_out", pass.prompts_left_out as f64)?;
    }
    Ok(())
}
