//! The prompts of `log.samples`, continued now and then by the model as it is, to be read beside the curves.

use super::rank::RankRun;
use super::whole::Whole;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::rl::{Roll, Rolled, TokenSampling, roll};
use planaria_nn::models::Network;
use planaria_telemetry::Sample;

impl RankRun<'_> {
    /// Continues them after the step that was just done, where it is time. Collective.
    pub(super) fn sample(&self) -> Result<()> {
        let (config, step) = (&self.job.config, self.progress.step);
        let Some(section) = &config.log.samples else { return Ok(()) };
        if !step.is_multiple_of(section.every) && step != config.train.steps {
            return Ok(());
        }
        let whole = Whole::of(self).map(|whole| whole.build()).transpose()?;
        // The ranks of one inner mesh are enough, and rank 0 is among them.
        if (self.place.replica, self.place.stage) != (0, 0) {
            return Ok(());
        }
        let model: &dyn Network = match (&whole, &self.replica.parts[..]) {
            (Some(whole), _) => &**whole,
            (None, [part]) => &*part.model,
            (None, parts) => {
                return Err(Error::Bug { what: format!("{} parts of a whole model", parts.len()) });
            }
        };
        let tokenizer = &self.job.tokenizer;
        let encode = |text: &String| -> Result<Vec<i64>> {
            let tokens = tokenizer.encode_prompt(text)?;
            let most = config.data.sequence.saturating_sub(1);
            Ok(tokens.into_iter().take(most).map(i64::from).collect())
        };
        let prompts = section.prompts.iter().map(encode).collect::<Result<Vec<Vec<i64>>>>()?;
        let options = Roll {
            sampling: TokenSampling { greedy: true, ..TokenSampling::default() },
            ends: tokenizer.frame().eos.into_iter().map(i64::from).collect(),
            most: section.max_new_tokens,
            context: config.data.sequence,
            rows: prompts.len(),
            logprobs: false,
        };
        let made = roll(model, &prompts, &options, &|_, _| 0.0)?;
        let sample = |(prompt, Rolled { response, .. }): (&String, Rolled)| -> Result<Sample> {
            let tokens: Vec<u32> = response.tokens.iter().map(|&token| token as u32).collect();
            let said = &tokens[..tokens.len() - usize::from(response.finished)];
            let (prompt, response, finished) = (prompt.clone(), tokenizer.decode(said)?, response.finished);
            Ok(Sample { prompt, response, reward: None, finished })
        };
        let samples = section.prompts.iter().zip(made).map(sample).collect::<Result<Vec<Sample>>>()?;
        self.tell(&Event::Samples { step, samples });
        Ok(())
    }
}
