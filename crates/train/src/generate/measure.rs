//! How likely a model finds a text: mean loss per token and perplexity over all of it.

use super::Generator;
use crate::data::{Batch, Config, Dataset, Source};
use crate::error::{Error, Result};
use crate::objective::{Input, NextToken, Objective};
use planaria_nn::models::{Network, Run};
use planaria_tensor::no_grad;
use serde::Serialize;

/// Most tokens of a sample where nothing is said.
const SEQUENCE: usize = 1024;

/// How a text is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasureOptions {
    /// Most tokens that a token sees before it; as many as the model has positions, up to 1024, where nothing is said.
    pub sequence: Option<usize>,
    /// Samples computed at a time.
    pub batch: usize,
    /// Thread ranks that share each matrix.
    pub ranks: usize,
}

impl Default for MeasureOptions {
    fn default() -> MeasureOptions {
        MeasureOptions { sequence: None, batch: 4, ranks: 1 }
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measure {
    /// Mean loss per token: the negative natural logarithm of its probability.
    pub loss: f64,
    /// `exp(loss)`.
    pub perplexity: f64,
    /// Tokens that were predicted.
    pub tokens: u64,
    /// Samples they stood in.
    pub samples: u64,
    /// Tokens of a sample.
    pub sequence: usize,
}

impl Generator {
    /// Measures sources with the model's own tokenizer. `data` says how documents are packed; its sources are not used.
    /// `each` is told how many of how many samples are done.
    pub fn measure(
        &self,
        sources: &[Source],
        data: &Config,
        options: &MeasureOptions,
        each: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Measure> {
        let most = self.model.reach();
        let sequence = options.sequence.unwrap_or(most.min(SEQUENCE));
        if sequence > most {
            return Err(Error::Value {
                key: "sequence".into(),
                found: sequence.to_string(),
                expected: format!("at most the {most} positions of the model (max_position_embeddings)"),
            });
        }
        self.check_ranks(options.ranks)?;
        let mut config = data.clone();
        (config.source, config.sequence, config.held_out) = (sources.to_vec(), sequence, 0.0);
        let opened = NextToken.open(&config, &self.tokenizer)?;
        let samples = &*opened.train;
        let (sum, tokens) = self.on_ranks(options.ranks, &|comm| {
            let model = self.network(comm)?;
            let tell = |done: u64| {
                if comm.rank() == 0 {
                    each(done, samples.len());
                }
            };
            total(&*model, samples, options.batch.max(1) as u64, &tell)
        })?;
        let loss = sum / tokens as f64;
        Ok(Measure { loss, perplexity: loss.exp(), tokens, samples: samples.len(), sequence })
    }
}

/// Sum of losses and number of predicted tokens of all samples, in their order.
fn total(model: &dyn Network, data: &dyn Dataset, batch: u64, each: &dyn Fn(u64)) -> Result<(f64, u64)> {
    let (mut sum, mut tokens) = (0.0, 0);
    for first in (0..data.len()).step_by(batch as usize) {
        let last = (first + batch).min(data.len());
        let read = Batch::read(data, first..last, |position| Ok(position.into()))?;
        no_grad(|| -> Result<()> {
            let Input { tokens: input, documents } = NextToken.input(&read)?;
            let end = model.forward(input.into(), &Run { documents, ..Run::default() })?;
            let loss = NextToken.loss(model, &end, &read)?;
            sum += loss.sum.whole()?.item()?.as_f64();
            tokens += loss.count;
            Ok(())
        })?;
        each(last);
    }
    Ok((sum, tokens))
}
