//! Draws of the next token, and whole responses of a tiny policy from given random numbers.

use crate::values::{Case, Tolerance, field, list, maybe, numbers, size, text};
use anyhow::{Context, Result, ensure};
use planaria_train::rl::{Roll, TokenSampling, roll_folder};
use serde_json::Value;
use std::path::Path;

fn params(given: &Value) -> Result<TokenSampling> {
    let own = TokenSampling::default();
    Ok(TokenSampling {
        temperature: maybe(given, "temperature")?.unwrap_or(own.temperature),
        top_k: maybe(given, "top_k")?.map(|k| k as usize),
        top_p: maybe(given, "top_p")?.unwrap_or(own.top_p),
        min_p: maybe(given, "min_p")?.unwrap_or(own.min_p),
        repetition_penalty: maybe(given, "repetition_penalty")?.unwrap_or(own.repetition_penalty),
        min_new_tokens: maybe(given, "min_new_tokens")?.unwrap_or(0.0) as usize,
        greedy: given.get("greedy").and_then(Value::as_bool).unwrap_or(false),
    })
}

pub(super) fn sample(case: &Case) -> Result<()> {
    let given = field(&case.given, "params")?;
    let sampling = params(given)?;
    let ends = given.get("eos_ids").map(numbers).transpose()?.map_or(Vec::new(), |ids| ids.integers());
    let (logits, before) = (case.tensor("logits")?.data, case.tensor("previous_ids")?.integers());
    let made = before.len() - size(&case.given, "prompt_length")?;
    let found = sampling.scores(&logits, &before, made, &ends);
    case.is("processed", &found.processed)?;
    case.is("probabilities", &found.probabilities)?;
    let picks: Vec<f64> =
        case.tensor("uniforms")?.data.iter().map(|&uniform| sampling.draw(&found, uniform) as f64).collect();
    case.is("picks", &picks)?;
    case.is("policy_logprobs", &sampling.policy(&logits))
}

/// Responses with given random numbers, however many are made side by side.
pub(super) fn rollouts(folder: &Path) -> Result<()> {
    let all: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("rollouts.json"))?)?;
    let tolerance = Tolerance::of(&all, "tol")?;
    let policy = folder.join(text(&all, "policy")?);
    for case in list(&all, "cases")? {
        let ids = |value: &Value| Ok::<_, anyhow::Error>(numbers(value)?.integers());
        let prompts = list(case, "prompts")?.iter().map(ids).collect::<Result<Vec<_>>>()?;
        let rows = list(case, "rows")?;
        let uniforms =
            rows.iter().map(|row| Ok(numbers(field(row, "uniforms")?)?.data)).collect::<Result<Vec<_>>>()?;
        for side_by_side in [1, 2, 8] {
            let roll = Roll {
                sampling: params(field(case, "params")?)?,
                ends: ids(field(case, "eos_ids")?)?,
                most: size(case, "max_new_tokens")?,
                context: usize::MAX,
                rows: side_by_side,
                logprobs: true,
            };
            let draw = |row: usize, place: usize| uniforms[row].get(place).copied().unwrap_or(0.0);
            let found = roll_folder(&policy, &prompts, &roll, &draw)?;
            for (number_of, (found, want)) in found.iter().zip(rows).enumerate() {
                let tokens = ids(field(want, "tokens")?)?;
                ensure!(
                    found.response.tokens == tokens,
                    "row {number_of} is {:?}, expected {tokens:?}",
                    found.response.tokens
                );
                tolerance.same_all("logprobs", &found.logprobs, &numbers(field(want, "logprobs")?)?.data)?;
                let finished = field(want, "finished")?.as_bool().context("`finished` is not a flag")?;
                ensure!(
                    found.response.finished == finished,
                    "row {number_of} finished: {}",
                    found.response.finished
                );
            }
        }
    }
    Ok(())
}
