//! Supervised fine-tuning: a sample is one or several conversations, the loss is that of what the assistant says. Models that see are
//! shown the pictures of the conversations.

use super::{Figures, Input, NextToken, Objective, View};
use crate::config::Config;
use crate::data::pictures::Sight;
use crate::data::{Batch, Config as DataConfig, Data, Tokenizer};
use crate::error::Result;
use crate::sight;
use planaria_nn::models::qwen2_vl::{Marks, document_axes};
use planaria_nn::models::{Activations, Architecture, Loss, Network};
use planaria_tensor::Tensor;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Learns from conversations. What is counted, and how they share samples, says `[data.chat]`; the loss says `[sft]`.
#[derive(Clone, Debug, Default)]
pub struct Sft {
    label_smoothing: f64,
    sight: Option<(Sight, Marks)>,
}

impl Objective for Sft {
    fn name(&self) -> &str {
        "sft"
    }

    fn configured(&self, config: &Config) -> Result<Option<Arc<dyn Objective>>> {
        config.sft.check()?;
        Ok(Some(Arc::new(Sft { label_smoothing: config.sft.label_smoothing, ..self.clone() })))
    }

    fn for_model(
        &self,
        model: &dyn Architecture,
        settings: &dyn Fn(&str) -> Result<Map<String, Value>>,
    ) -> Result<Option<Arc<dyn Objective>>> {
        let sight = sight::of(model, &settings(sight::SETTINGS)?)?;
        Ok(Some(Arc::new(Sft { sight, ..self.clone() })))
    }

    fn open(&self, config: &DataConfig, tokenizer: &Tokenizer) -> Result<Data> {
        Ok(config.open_conversations(tokenizer, self.sight.as_ref().map(|(sight, _)| sight))?)
    }

    fn separates(&self, _: &DataConfig) -> bool {
        true
    }

    fn figures(&self) -> Figures {
        Figures::counted(&["token_accuracy"])
    }

    fn input(&self, batch: &Batch) -> Result<Input> {
        NextToken.input(batch)
    }

    fn view(&self, batch: &Batch) -> Result<Option<View>> {
        let Some((sight, marks)) = self.sight.as_ref().filter(|_| !batch.shown.is_empty()) else {
            return Ok(None);
        };
        let shown = sight::shown(&batch.shown, &sight.settings)?;
        let starts = batch.starts.as_deref().unwrap_or(&[]);
        Ok(Some(View { axes: document_axes(&batch.tokens, starts, &shown.scenes, marks)?, shown }))
    }

    fn loss(&self, model: &dyn Network, last: &Activations, batch: &Batch) -> Result<Loss> {
        let labels = Tensor::new(batch.labels.clone());
        let loss = model.head(&last.hidden)?.counting_cross_entropy(&labels, self.label_smoothing)?;
        Ok(Loss { own: model.own_loss(last, labels.numel())?, ..loss })
    }
}
