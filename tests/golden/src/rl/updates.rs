//! Losses with their gradients, over the micro-batches and ranks of one update.

use crate::values::{Case, Numbers, elements, field, gradient, maybe, number, numbers};
use anyhow::{Context, Result, ensure};
use planaria_array::ops::Keep;
use planaria_tensor::Tensor;
use planaria_train::rl::{
    Aggregation, KlKind, PolicyConfig, PolicyInputs, PolicyTerms, Preference, ValueTerms, policy_terms,
    preference_terms, reward_pair_loss, sequence_logprobs, token_logprobs as logprobs, value_terms,
};
use serde_json::Value;

fn whole(of: &Numbers) -> Result<Tensor> {
    Ok(Tensor::from_slice(&of.integers(), &of.shape)?)
}

fn total(of: &Tensor) -> Result<f64> {
    Ok(of.sum(&[], Keep::No)?.item()?.as_f64())
}

fn values(of: &Tensor) -> Result<Vec<f64>> {
    elements(of.local())
}

pub(super) fn token_logprobs(case: &Case) -> Result<()> {
    let (logits, labels) = (case.tensor("logits")?, whole(&case.tensor("labels")?)?);
    let weights = case.tensor("weights")?.plain()?;
    for (name, which) in [("grad_logprobs", 0), ("grad_entropy", 1)] {
        let leaf = logits.leaf()?;
        let (found, entropy) = logprobs(&leaf, &labels, case.number("temperature")?)?;
        case.is("logprobs", &values(&found)?)?;
        case.is("entropy", &values(&entropy)?)?;
        let of = if which == 0 { found } else { entropy };
        of.mul(&weights)?.sum(&[], Keep::No)?.backward()?;
        case.is(name, &gradient(&leaf)?)?;
    }
    Ok(())
}

/// Values where a mask is set, their mean, and its gradient.
fn masked(case: &Case, leaf: &Tensor, found: &Tensor) -> Result<()> {
    let mask = case.tensor("mask")?.plain()?;
    let counted = found.mul(&mask)?;
    let want = numbers(field(&case.out, "tokens")?)?.data;
    let got = values(found)?;
    let both = got.iter().zip(&want).zip(case.tensor("mask")?.data);
    for ((got, want), valid) in both.filter(|(_, valid)| *valid != 0.0) {
        case.tol.same("tokens", *got, *want)?;
        ensure!(valid == 1.0, "a mask of {valid}");
    }
    let mean = counted.sum(&[], Keep::No)?.mul_scalar(1.0 / total(&mask)?.max(1.0))?;
    case.is_number("mean", mean.item()?.as_f64())?;
    mean.backward()?;
    case.is("grad", &gradient(leaf)?)
}

pub(super) fn kl(case: &Case) -> Result<()> {
    let kind: KlKind = serde_json::from_value(field(&case.given, "kind")?.clone())?;
    let leaf = case.tensor("logprobs")?.leaf()?;
    let found = planaria_train::rl::kl(kind, &leaf, &case.tensor("ref_logprobs")?.plain()?)?;
    masked(case, &leaf, &found)
}

pub(super) fn kl_full(case: &Case) -> Result<()> {
    let leaf = case.tensor("logits")?.leaf()?;
    let found = planaria_train::rl::kl_full(&leaf, &case.tensor("ref_logits")?.plain()?)?;
    masked(case, &leaf, &found)
}

/// The micro-batches of all ranks, one after the other.
fn micros(value: &Value) -> Result<Vec<&Value>> {
    let ranks = value.as_array().context("no ranks")?;
    Ok(ranks.iter().filter_map(Value::as_array).flatten().collect())
}

/// One micro-batch of a policy update.
struct Micro {
    leaf: Tensor,
    terms: PolicyTerms,
    entropy: Tensor,
    mask: Numbers,
}

fn config(given: &Value) -> Result<PolicyConfig> {
    let read = |name: &str| given.get(name).filter(|value| !value.is_null()).cloned();
    Ok(PolicyConfig {
        clip_low: number(field(given, "clip_low")?)?,
        clip_high: number(field(given, "clip_high")?)?,
        dual_clip: maybe(given, "dual_clip")?,
        delta: maybe(given, "delta")?,
        ratio: read("ratio_level").map(serde_json::from_value).transpose()?.unwrap_or_default(),
        surrogate: read("objective").map(serde_json::from_value).transpose()?.unwrap_or_default(),
        tis_cap: maybe(given, "tis_cap")?,
        kl: read("kl_kind").map(serde_json::from_value).transpose()?.unwrap_or(KlKind::K3),
        kl_coef: maybe(given, "kl_coef")?.unwrap_or(0.0),
    })
}

fn micro(given: &Value, config: &PolicyConfig, temperature: f64) -> Result<Micro> {
    let read = |name: &str| numbers(field(given, name)?);
    let (mask, leaf) = (read("mask")?, read("logits")?.leaf()?);
    let (found, entropy) = logprobs(&leaf, &whole(&read("labels")?)?, temperature)?;
    let advantages = read("adv")?;
    let advantages = match advantages.shape.len() {
        1 => advantages.plain()?.unsqueeze(-1)?.broadcast_to(found.shape())?,
        _ => advantages.plain()?,
    };
    let some = |name: &str| given.get(name).map(|value| numbers(value)?.plain()).transpose();
    let inputs = PolicyInputs {
        old: read("old")?.plain()?,
        advantages,
        mask: mask.plain()?,
        reference: some("ref")?,
        sampled: some("sampled")?,
        distance: None,
    };
    Ok(Micro { terms: policy_terms(&found, &inputs, config)?, leaf, entropy, mask })
}

pub(super) fn policy(case: &Case) -> Result<()> {
    let given = field(&case.given, "config")?;
    let (config, temperature) = (config(given)?, number(field(given, "temperature")?)?);
    let aggregation: Aggregation = serde_json::from_value(field(given, "aggregation")?.clone())?;
    let horizon = maybe(given, "horizon")?.unwrap_or(1.0) as usize;
    let entropy_coef = maybe(given, "entropy_coef")?.unwrap_or(0.0);
    let all = micros(field(&case.given, "ranks")?)?;
    let all = all.into_iter().map(|given| micro(given, &config, temperature)).collect::<Result<Vec<_>>>()?;
    let rows: Vec<usize> =
        all.iter().flat_map(|m| m.mask.rows()).map(|row| row.iter().filter(|&&v| v != 0.0).count()).collect();
    let (tokens, divisor) =
        (rows.iter().sum::<usize>() as f64, rows.iter().map(|&n| aggregation.count(n)).sum::<u64>());
    let mut sums = [0.0; 7];
    for micro in &all {
        let weight = |row: &Vec<f64>| aggregation.weight(row.iter().filter(|&&v| v != 0.0).count(), horizon);
        let weights: Vec<f64> = micro.mask.rows().iter().map(weight).collect();
        let weights = Tensor::from_slice(&weights, &[weights.len(), 1])?;
        let policy =
            micro.terms.loss.mul(&weights)?.sum(&[], Keep::No)?.mul_scalar(1.0 / divisor.max(1) as f64)?;
        let entropy =
            micro.entropy.mul(&micro.mask.plain()?)?.sum(&[], Keep::No)?.mul_scalar(1.0 / tokens.max(1.0))?;
        let loss = policy.sub(&entropy.mul_scalar(entropy_coef)?)?;
        loss.backward()?;
        let terms = &micro.terms;
        let figures = [
            loss.item()?.as_f64(),
            policy.item()?.as_f64(),
            entropy.item()?.as_f64(),
            total(&terms.clipped_low)? / tokens.max(1.0),
            total(&terms.clipped_high)? / tokens.max(1.0),
            total(&terms.moved_k1)? / tokens.max(1.0),
            total(&terms.moved_k3)? / tokens.max(1.0),
        ];
        sums.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure);
    }
    let names = [
        "loss",
        "policy_loss",
        "entropy",
        "clip_fraction_low",
        "clip_fraction_high",
        "approx_kl_k1",
        "approx_kl_k3",
    ];
    names.iter().zip(sums).try_for_each(|(name, sum)| case.is_number(name, sum))?;
    if case.out.get("kl").is_some() {
        let far =
            all.iter().filter_map(|micro| micro.terms.kl.as_ref()).map(total).collect::<Result<Vec<_>>>()?;
        case.is_number("kl", far.iter().sum::<f64>() / tokens.max(1.0))?;
    }
    same_gradients(case, &all.iter().map(|micro| &micro.leaf).collect::<Vec<_>>())
}

fn same_gradients(case: &Case, leaves: &[&Tensor]) -> Result<()> {
    let want = micros(field(&case.out, "grads")?)?;
    ensure!(want.len() == leaves.len(), "{} gradients are expected of {}", want.len(), leaves.len());
    for (leaf, want) in leaves.iter().zip(want) {
        case.tol.same_all("grads", &gradient(leaf)?, &numbers(want)?.data)?;
    }
    Ok(())
}

pub(super) fn value(case: &Case) -> Result<()> {
    let clip = case.maybe("clip")?;
    let all = micros(field(&case.given, "ranks")?)?;
    let tokens: f64 =
        all.iter().map(|m| Ok(numbers(field(m, "mask")?)?.data.iter().sum::<f64>())).sum::<Result<f64>>()?;
    let (mut leaves, mut loss, mut clipped) = (Vec::new(), 0.0, 0.0);
    for given in all {
        let read = |name: &str| numbers(field(given, name)?);
        let leaf = read("values")?.leaf()?;
        let rest = [read("old_values")?.plain()?, read("returns")?.plain()?, read("mask")?.plain()?];
        let ValueTerms { loss: terms, clipped: over } =
            value_terms(&leaf, [&rest[0], &rest[1], &rest[2]], clip)?;
        let part = terms.sum(&[], Keep::No)?.mul_scalar(1.0 / tokens.max(1.0))?;
        part.backward()?;
        loss += part.item()?.as_f64();
        clipped += total(&over)?;
        leaves.push(leaf);
    }
    case.is_number("loss", loss)?;
    case.is_number("clip_fraction", clipped / tokens.max(1.0))?;
    same_gradients(case, &leaves.iter().collect::<Vec<_>>())
}

pub(super) fn preference(case: &Case) -> Result<()> {
    let given = field(&case.given, "config")?;
    let own = Preference::default();
    let config = Preference {
        loss: serde_json::from_value(field(given, "loss")?.clone())?,
        beta: maybe(given, "beta")?.unwrap_or(own.beta),
        label_smoothing: maybe(given, "label_smoothing")?.unwrap_or(0.0),
        gamma: maybe(given, "gamma")?.unwrap_or(0.0),
        lambda: maybe(given, "lambda")?.unwrap_or(own.lambda),
        reference_free: given.get("reference_free").and_then(Value::as_bool).unwrap_or(false),
        sft_coef: maybe(given, "sft_coef")?.unwrap_or(0.0),
    };
    let (chosen, rejected) = (case.tensor("chosen_logps")?.leaf()?, case.tensor("rejected_logps")?.leaf()?);
    let reference = [case.tensor("ref_chosen_logps")?.plain()?, case.tensor("ref_rejected_logps")?.plain()?];
    let tokens = [case.tensor("chosen_tokens")?.plain()?, case.tensor("rejected_tokens")?.plain()?];
    let terms = preference_terms(
        [&chosen, &rejected],
        Some([&reference[0], &reference[1]]),
        [&tokens[0], &tokens[1]],
        &config,
    )?;
    case.is("losses", &values(&terms.losses)?)?;
    let loss = terms.losses.mean(&[], Keep::No)?;
    case.is_number("loss", loss.item()?.as_f64())?;
    let (good, bad) = (values(&terms.chosen)?, values(&terms.rejected)?);
    case.is("chosen_rewards", &good)?;
    case.is("rejected_rewards", &bad)?;
    let pairs = good.len() as f64;
    case.is_number("margin", good.iter().zip(&bad).map(|(a, b)| a - b).sum::<f64>() / pairs)?;
    case.is_number("accuracy", good.iter().zip(&bad).filter(|(a, b)| a > b).count() as f64 / pairs)?;
    loss.backward()?;
    case.is("grad_chosen", &gradient(&chosen)?)?;
    case.is("grad_rejected", &gradient(&rejected)?)
}

pub(super) fn sequences(case: &Case) -> Result<()> {
    let leaf = case.tensor("logits")?.leaf()?;
    let (ids, mask) = (whole(&case.tensor("input_ids")?)?, case.tensor("completion_mask")?.plain()?);
    let (sums, counts) = sequence_logprobs(&leaf, &ids, &mask)?;
    case.is("sum", &values(&sums)?)?;
    case.is("tokens", &values(&counts)?)?;
    case.is("mean", &values(&sums.div(&counts.clip(Some(1.0), None)?)?)?)?;
    sums.mul(&case.tensor("weights")?.plain()?)?.sum(&[], Keep::No)?.backward()?;
    case.is("grad_sum", &gradient(&leaf)?)
}

pub(super) fn reward_pairs(case: &Case) -> Result<()> {
    let (chosen, rejected) = (case.tensor("chosen")?.leaf()?, case.tensor("rejected")?.leaf()?);
    let margin = case.tensor("margin")?.plain()?;
    let loss = reward_pair_loss([&chosen, &rejected], Some(&margin), case.number("center_coef")?)?;
    case.is_number("loss", loss.item()?.as_f64())?;
    let (good, bad) = (values(&chosen)?, values(&rejected)?);
    case.is_number(
        "accuracy",
        good.iter().zip(&bad).filter(|(a, b)| a > b).count() as f64 / good.len() as f64,
    )?;
    loss.backward()?;
    case.is("grad_chosen", &gradient(&chosen)?)?;
    case.is("grad_rejected", &gradient(&rejected)?)?;
    Ok(())
}
