//! Next token: a sample is a stretch of text, the loss is the cross-entropy of every token after those before it.

use super::{Input, Objective};
use crate::data::{Batch, Config as DataConfig, Data, Tokenizer};
use crate::error::Result;
use planaria_nn::models::{Activations, Loss, Network};
use planaria_tensor::Tensor;
use planaria_tensor::ops::Documents;

/// Pre-training. Labels of -100 count nothing.
#[derive(Clone, Copy, Debug)]
pub struct NextToken;

impl Objective for NextToken {
    fn name(&self) -> &str {
        "next_token"
    }

    fn open(&self, config: &DataConfig, tokenizer: &Tokenizer) -> Result<Data> {
        Ok(config.open(tokenizer)?)
    }

    fn input(&self, batch: &Batch) -> Result<Input> {
        let length = batch.tokens.shape()[1];
        let documents = batch.starts.clone().map(|starts| Documents::new(starts, length)).transpose()?;
        Ok(Input { tokens: Tensor::new(batch.tokens.clone()), documents })
    }

    fn loss(&self, model: &dyn Network, last: &Activations, batch: &Batch) -> Result<Loss> {
        Ok(model.loss(last, &Tensor::new(batch.labels.clone()))?)
    }
}
