//! Supervised fine-tuning: a sample is one or several conversations, the loss is that of what the assistant says.

use super::{Figures, Input, NextToken, Objective};
use crate::config::Config;
use crate::data::{Batch, Config as DataConfig, Data, Tokenizer};
use crate::error::Result;
use planaria_nn::models::{Activations, Loss, Network};
use planaria_tensor::Tensor;
use std::sync::Arc;

/// Learns from conversations. What is counted, and how they share samples, says `[data.chat]`; the loss says `[sft]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sft {
    label_smoothing: f64,
}

impl Objective for Sft {
    fn name(&self) -> &str {
        "sft"
    }

    fn configured(&self, config: &Config) -> Result<Option<Arc<dyn Objective>>> {
        config.sft.check()?;
        Ok(Some(Arc::new(Sft { label_smoothing: config.sft.label_smoothing })))
    }

    fn open(&self, config: &DataConfig, tokenizer: &Tokenizer) -> Result<Data> {
        Ok(config.open_conversations(tokenizer)?)
    }

    fn separates(&self, _: &DataConfig) -> bool {
        true
    }

    fn figures(&self) -> Figures {
        Figures { told: &[], counted: &["token_accuracy"] }
    }

    fn input(&self, batch: &Batch) -> Result<Input> {
        NextToken.input(batch)
    }

    fn loss(&self, model: &dyn Network, last: &Activations, batch: &Batch) -> Result<Loss> {
        let labels = Tensor::new(batch.labels.clone());
        let loss = model.head(&last.hidden)?.counting_cross_entropy(&labels, self.label_smoothing)?;
        Ok(Loss { own: model.own_loss(last, labels.numel())?, ..loss })
    }
}
