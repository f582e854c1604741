//! What whoever started this process asks of it: to tell how it is, to go past damage, and what a drill does to it.

use super::super::launch::BEATS;
use super::{FAULT, STORE_FAULT, Started};
use crate::failure::Failure;
use anyhow::Result;
use planaria::store::{Fault, Trap};
use planaria::train::{Config, Healing};
use std::path::PathBuf;
use std::time::Duration;

/// What whoever started this process has asked for.
pub(super) fn asked(config: &Config, place: &Started) -> Result<Healing> {
    let variable = |name: &str| std::env::var(name).ok();
    let budget = variable("TORCHELASTIC_MAX_RESTARTS").and_then(|text| text.parse::<u64>().ok());
    // A drill's faults happen once; what is started again is left alone.
    let text = variable(FAULT).filter(|_| place.restarts() == 0).unwrap_or_default();
    let faults = text.split(';').filter(|one| !one.trim().is_empty()).map(str::parse);
    Ok(Healing {
        beats: variable(BEATS).map(PathBuf::from),
        fall_back: budget.unwrap_or(0) > 0,
        faults: faults.collect::<std::result::Result<_, _>>()?,
        traps: traps(config, place)?,
    })
}

/// What a drill does to the places of checkpoints, as `PLANARIA_STORE_FAULT` says it: `full after=12 for=3`, `slow after=0 for=40`
/// or `kill after=17`, each with `tier=1` for another place than the run's folder and `rank=1` for one rank alone; `count`
/// does nothing and has operations counted.
fn traps(config: &Config, place: &Started) -> Result<Vec<Trap>> {
    let Some(text) = std::env::var(STORE_FAULT).ok().filter(|_| place.restarts() == 0) else {
        return Ok(Vec::new());
    };
    let number = |key: &str| {
        let found = text.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        found.and_then(|number| number.parse::<u64>().ok())
    };
    let fault = match (text.split(' ').next(), number("after"), number("for")) {
        (Some("count"), None, None) => None,
        (Some("full"), Some(_), Some(times)) => Some(Fault::Full(times)),
        (Some("slow"), Some(_), Some(times)) => Some(Fault::Slow(times, Duration::from_millis(50))),
        (Some("kill"), Some(_), None) => Some(Fault::Die),
        _ => {
            return Err(
                Failure::usage(format!("{STORE_FAULT} is '{text}'; write 'full after=12 for=3'")).into()
            );
        }
    };
    // Ranks that are threads share what they write to.
    let together = place.threads().is_some();
    let here = number("rank").is_none_or(|rank| together || place.rank() as u64 == rank);
    let tier = number("tier").unwrap_or(0);
    let trap = |number_of: u64| {
        let fault = fault.filter(|_| here && number_of == tier);
        Trap::new(fault, number("after").unwrap_or(0))
    };
    Ok((0..=config.checkpoint.tiers.len() as u64).map(trap).collect())
}
