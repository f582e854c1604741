//! What the configuration of an adapter says of its factors, held against the factors.

use super::adapter::{Adapter, Parts};
use super::stacks::INNER;
use crate::error::Result;
use regex::Regex;

impl Adapter {
    /// Refuses factors of another rank than `file` says: one of the two belongs to another adapter. Where it does not say `r`, only
    /// patterns count.
    pub(super) fn check_ranks(&self, file: &str, says_r: bool) -> Result<()> {
        let patterns = self.patterns()?;
        for (module, parts) in self.modules() {
            // Factors of all experts lie in one tensor, which the rank cuts.
            if !self.parameters_of(module.trim_end_matches(INNER)).is_empty() {
                continue;
            }
            let pattern = patterns.iter().find(|(pattern, _)| pattern.is_match(&module));
            let (key, said) = match pattern {
                Some((_, rank)) => ("rank_pattern", *rank),
                None if says_r => ("r", self.config.r),
                None => continue,
            };
            if let Some(found) = ranks(&parts).into_iter().flatten().find(|rank| *rank as i64 != said) {
                return Err(self.wrong(format!(
                    "'{module}' has factors of rank {found}, and `{key}` of {file} says {said}; write the rank of the tensors there"
                )));
            }
        }
        Ok(())
    }

    /// Other ranks by the names that they count for, compiled once for all modules.
    fn patterns(&self) -> Result<Vec<(Regex, i64)>> {
        let compiled = |(key, rank): &(String, i64)| {
            let pattern = Regex::new(&format!("^(.*\\.)?({key})$"));
            let what = || format!("'{key}' of `rank_pattern` is not a regular expression");
            Ok((pattern.map_err(|error| self.wrong(format!("{}: {error}", what())))?, *rank))
        };
        self.config.rank_pattern.iter().map(compiled).collect()
    }
}

/// The rank as each factor has it. Other shapes are for those who read them.
fn ranks(parts: &Parts) -> [Option<usize>; 2] {
    let down = parts.down.as_ref().filter(|down| down.shape().len() >= 2);
    let up = parts.up.as_ref().filter(|up| up.shape().len() >= 2);
    [down.map(|down| down.shape()[0]), up.map(|up| up.shape()[1])]
}
