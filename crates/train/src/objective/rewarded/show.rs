//! A few responses of a rollout as text, for whoever watches the run.

use super::Rewarded;
use super::record::Record;
use crate::error::Result;
use crate::event::Event;
use crate::objective::Before;
use planaria_telemetry::Sample;

/// Prompts of a rollout whose responses are shown.
const PROMPTS: usize = 4;

impl Rewarded {
    /// Notes the best and the worst response to each of the first prompts.
    pub(super) fn show(&self, before: &Before<'_>, records: &[Record]) -> Result<()> {
        let opened = self.opened()?;
        let text =
            |ids: &[i64]| opened.tokenizer.decode(&ids.iter().map(|&id| id as u32).collect::<Vec<_>>());
        let mut samples = Vec::new();
        for group in records.chunks(self.group.max(1)).take(PROMPTS) {
            let worth = |one: &&Record, other: &&Record| one.worth.total_cmp(&other.worth);
            let scored = || group.iter().filter(|one| one.is_scored());
            let (best, worst) = (scored().max_by(worth), scored().min_by(worth));
            let worst = worst.filter(|worst| best.is_some_and(|best| best.worth > worst.worth));
            for one in best.into_iter().chain(worst) {
                let said = &one.response[..one.response.len() - usize::from(one.finished)];
                let (prompt, response) = (text(&one.prompt)?, text(said)?);
                samples.push(Sample { prompt, response, reward: Some(one.worth), finished: one.finished });
            }
        }
        before.note(Event::Samples { step: before.step, samples });
        Ok(())
    }
}
