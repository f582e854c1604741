//! Supervised fine-tuning: a sample is one or several conversations, the loss is that of what the assistant says.

use super::{Input, NextToken, Objective};
use crate::data::{Batch, Config as DataConfig, Data, Tokenizer};
use crate::error::Result;
use planaria_nn::models::{Activations, Loss, Network};

/// Learns from conversations. What is counted, and how they share samples, says `[data.chat]`.
#[derive(Clone, Copy, Debug)]
pub struct Sft;

impl Objective for Sft {
    fn name(&self) -> &str {
        "sft"
    }

    fn open(&self, config: &DataConfig, tokenizer: &Tokenizer) -> Result<Data> {
        Ok(config.open_conversations(tokenizer)?)
    }

    fn separates(&self, _: &DataConfig) -> bool {
        true
    }

    fn input(&self, batch: &Batch) -> Result<Input> {
        NextToken.input(batch)
    }

    fn loss(&self, model: &dyn Network, last: &Activations, batch: &Batch) -> Result<Loss> {
        NextToken.loss(model, last, batch)
    }
}
