//! How many steps a weight has taken, as frameworks keep it: torch counts them, Paddle keeps the powers of its betas.
//!
//! Paddle begins with `beta` and multiplies by it after each step, in f32, so after `t` steps there is `beta` to the
//! power of `t + 1` with all its rounding. Both ways follow this very chain, so that nothing is lost.

use crate::error::{Error, Result};
use crate::formats::{Key, Part, STATE, Source};
use crate::stream::Feed;
use planaria_array::Array;
use planaria_layout::DType;

/// Longest chain that is followed; values of betas that train stand still long before.
const CHAIN: u64 = 100_000_000;

/// Where the number of steps comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Steps {
    /// A tensor that counts them, or several that must agree.
    Counted(Vec<Key>),
    /// Powers of betas, and what else tells the number where they ran out.
    Powers(Vec<Power>, Option<u64>),
    /// Known already.
    Known(u64),
}

/// The power of a beta.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Power {
    /// The tensor that holds it, or several that must agree.
    pub(crate) keys: Vec<Key>,
    /// What the beta may be: one where it is known.
    pub(crate) betas: Vec<f64>,
}

/// Betas that runs use, the usual ones first.
pub(super) const USUAL: [&[f64]; 2] =
    [&[0.9, 0.95, 0.8, 0.85, 0.98], &[0.999, 0.95, 0.99, 0.98, 0.995, 0.9995, 0.9999]];

/// What is written about them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Face {
    /// Their number.
    Count,
    /// The power of this beta.
    Power(f64),
}

/// The power after `steps` steps.
fn power(beta: f64, steps: u64) -> f32 {
    let beta = beta as f32;
    let mut value = beta;
    for _ in 0..steps.min(CHAIN) {
        let next = value * beta;
        if next == value {
            break;
        }
        value = next;
    }
    value
}

/// What a power tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// This many steps.
    Steps(u64),
    /// At least so many: the chain stands still from here on, and a correction by it is none.
    AtLeast(u64),
    /// It is not a power of this beta.
    Nothing,
}

/// After how many steps the power is `value`, or so near to it that rounding explains the rest.
fn told(beta: f64, value: f32) -> Told {
    let slack = (1.0 - beta) / 4.0;
    let beta = beta as f32;
    let mut at = beta;
    for steps in 0..CHAIN {
        let next = at * beta;
        if value <= at && next == at && value >= 0.0 {
            return Told::AtLeast(steps);
        }
        if value >= at || value - next > at - value {
            let off = (f64::from(value) - f64::from(at)).abs() / f64::from(at);
            let near = off <= slack.min(1e-6 * (steps + 8) as f64);
            return if near { Told::Steps(steps) } else { Told::Nothing };
        }
        if next == at {
            break;
        }
        at = next;
    }
    Told::Nothing
}

/// The one value of these tensors.
fn scalar<'k>(feed: &Feed<'_>, keys: &'k [Key]) -> Result<(&'k Key, f64)> {
    let mut found: Option<(&Key, f64)> = None;
    for key in keys {
        let entry = feed.source().get(key)?;
        let mut bytes = vec![0; entry.dtype.size()];
        feed.elements(key, 0..1, &mut bytes, &mut Vec::new())?;
        let value = Array::from_bytes(&bytes, &[1], entry.dtype)?.cast(DType::F64)?.to_vec::<f64>()?[0];
        match found {
            Some((first, other)) if other != value => {
                let what = format!(
                    "'{first}' is {other} and '{key}' is {value}, and the mapping makes one tensor of theirs"
                );
                return Err(Error::Request { what });
            }
            _ => found = Some((key, value)),
        }
    }
    found.ok_or_else(|| Error::NoTensor { tensor: "step".to_string() })
}

/// How many steps the powers stand for; `known` where they ran out. Of several betas the first ones count that agree.
fn by_powers(feed: &Feed<'_>, powers: &[Power], known: Option<u64>) -> Result<u64> {
    let values: Vec<(&Key, f64)> =
        powers.iter().map(|power| scalar(feed, &power.keys)).collect::<Result<_>>()?;
    let choices: usize = powers.iter().map(|power| power.betas.len()).product();
    let mut refused = String::new();
    for choice in 0..choices {
        let mut rest = choice;
        let mut pick = |power: &Power| {
            let beta = power.betas[rest % power.betas.len()];
            rest /= power.betas.len();
            beta
        };
        let tried: Vec<(&Key, f64, f64)> =
            powers.iter().zip(&values).map(|(power, (key, value))| (*key, *value, pick(power))).collect();
        match agreed(&tried, known) {
            Ok(steps) => return Ok(steps),
            Err(what) if refused.is_empty() => refused = what,
            Err(_) => {}
        }
    }
    Err(Error::Request { what: format!("{refused}; give the betas of the run") })
}

/// The steps that all values with their betas stand for, or why there is no such number.
fn agreed(values: &[(&Key, f64, f64)], known: Option<u64>) -> Result<u64, String> {
    let mut found: Option<(&Key, u64)> = None;
    let mut least = 0;
    for (key, value, beta) in values {
        match (told(*beta, *value as f32), found) {
            (Told::Nothing, _) => return Err(format!("'{key}' is {value}, which is not a power of {beta}")),
            (Told::AtLeast(steps), _) => least = steps.max(least),
            (Told::Steps(steps), Some((first, other))) if steps != other => {
                return Err(format!("'{first}' stands for {other} steps, '{key}' with {beta} for {steps}"));
            }
            (Told::Steps(steps), _) => found = Some((key, steps)),
        }
    }
    Ok(found.map_or_else(|| known.unwrap_or(least).max(least), |(_, steps)| steps))
}

impl Steps {
    /// The number of steps.
    pub(crate) fn read(&self, feed: &Feed<'_>) -> Result<u64> {
        match self {
            Steps::Known(steps) => Ok(*steps),
            Steps::Powers(powers, known) => by_powers(feed, powers, *known),
            Steps::Counted(keys) => {
                let (key, value) = scalar(feed, keys)?;
                if value >= 0.0 && value <= 2f64.powi(53) && value.fract() == 0.0 {
                    return Ok(value as u64);
                }
                let what = format!("'{key}' is {value}, which is not a number of steps");
                Err(Error::Request { what })
            }
        }
    }

    /// Its value as it is written.
    pub(crate) fn value(&self, feed: &Feed<'_>, face: Face) -> Result<f32> {
        let steps = self.read(feed)?;
        Ok(match face {
            Face::Count => steps as f32,
            Face::Power(beta) => power(beta, steps),
        })
    }
}

/// The powers of the betas, as Paddle keeps them beside the moments.
pub(super) const POWERS: [&str; 2] = ["beta1_pow_acc_0", "beta2_pow_acc_0"];

/// Whether a tensor tells how many steps its weight has taken; the name of the weight.
pub(crate) fn counts_for(key: &Key) -> Option<&str> {
    let (weight, slot) = key.name.rsplit_once('/').filter(|_| key.part == Part::Optimizer)?;
    (slot == "step" || POWERS.contains(&slot)).then_some(weight)
}

/// The steps that a weight has taken, in whatever way a checkpoint tells them: a count of its own, powers of usual betas, or
/// the steps of the whole run. None where it has no optimizer state, or nothing tells them.
pub(crate) fn steps_taken(feed: &Feed<'_>, weight: &str) -> Option<u64> {
    let source = feed.source();
    let key = |slot: &str| Key { part: Part::Optimizer, name: format!("{weight}/{slot}") };
    let known = |slot: &str| Some(key(slot)).filter(|key| source.tensors.contains_key(key));
    if let Some(step) = known("step") {
        return Steps::Counted(vec![step]).read(feed).ok();
    }
    let run = source.extra.get(STATE).and_then(|about| about["step"].as_u64());
    let power =
        |(slot, betas): (&&str, &[f64])| Some(Power { keys: vec![known(slot)?], betas: betas.to_vec() });
    let powers: Vec<Power> = POWERS.iter().zip(USUAL).filter_map(power).collect();
    if !powers.is_empty() {
        return by_powers(feed, &powers, run).ok();
    }
    let start = key("");
    let has_state = source
        .tensors
        .range(&start..)
        .next()
        .is_some_and(|(next, _)| next.part == Part::Optimizer && next.name.starts_with(&start.name));
    run.filter(|_| has_state)
}

/// The number that all these tensors hold; none where they differ or there is none.
pub(super) fn common_step(source: &Source, keys: &[Key]) -> Result<Option<u64>> {
    let feed = Feed::new(source);
    let mut common = None;
    for key in keys {
        let steps = Steps::Counted(vec![key.clone()]).read(&feed)?;
        if *common.get_or_insert(steps) != steps {
            return Ok(None);
        }
    }
    Ok(common)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_and_steps_go_there_and_back() {
        for beta in [0.9, 0.95, 0.99, 0.999, 0.9995] {
            for steps in [0, 1, 2, 7, 100, 830, 5_000, 80_000] {
                let value = power(beta, steps);
                match told(beta, value) {
                    Told::Steps(found) => assert_eq!(found, steps, "{beta}"),
                    Told::AtLeast(found) => {
                        assert!(found <= steps && value * beta as f32 == value, "{beta} {steps}");
                    }
                    Told::Nothing => panic!("{value:e} is {beta} after {steps} steps"),
                }
            }
        }
        assert_eq!((power(0.9, 0), power(0.9, 1)), (0.9, 0.9f32 * 0.9f32));
        assert!(matches!(told(0.999, 0.0), Told::AtLeast(90_000..110_000)), "flushed to zero");
    }

    #[test]
    fn what_is_no_power_is_not_taken_for_one() {
        assert_eq!(told(0.9, 0.900_001f32.powi(4)), Told::Steps(3));
        assert_eq!(told(0.999, 0.999f64.powi(41) as f32), Told::Steps(40));
        for (beta, value) in [(0.9, 0.85f32), (0.9, -1.0), (0.9, f32::NAN), (0.8, 0.81), (0.9, 1.0)] {
            assert_eq!(told(beta, value), Told::Nothing, "{beta} {value}");
        }
    }
}
