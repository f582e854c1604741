//! GPT-2: learned positions, layer norms, one product for queries, keys and values, weights that lie `[in, out]`.
//!
//! Its matrices are whole on every tensor rank but for the token vectors: old models are small, and their fused products have
//! no cut between heads.

use super::architecture::{Architecture, Stage};
use super::blocks::{Block, attention_step, through};
use super::head::Head;
use super::json::Reader;
use super::network::{Activations, Cache, Network, Run};
use crate::error::{Error, Result};
use crate::layers::{AttentionStep, Dropout, Embedding, LayerCache, LayerNorm, Linear, Parts, Positions};
use crate::parallel::{Lanes, Parallel};
use crate::param::{Adaptable, Cut, Init, Module, Param, ParamKind, ParamSpec};
use crate::table::Table;
use planaria_array::ops::Span;
use planaria_array::random::Key;
use planaria_array::{Array, DType};
use planaria_tensor::{Result as Computed, Tensor, ops, steps};
use serde_json::{Map, Value};
use std::sync::Arc;

/// The configuration of a GPT-2.
#[derive(Clone, Debug)]
pub struct Gpt2 {
    raw: Map<String, Value>,
    vocab_size: usize,
    positions: usize,
    width: usize,
    inner: usize,
    layers: usize,
    heads: usize,
    eps: f64,
    deviation: f64,
    /// Of attention, of what is added to the residual, of the first hidden states.
    dropout: [f64; 3],
}

impl Gpt2 {
    /// Reads a parsed `config.json`.
    pub(super) fn open(map: Map<String, Value>) -> Result<Arc<dyn Architecture>> {
        let read = Reader::new(&map);
        let (width, heads) = (read.size("n_embd")?, read.size("n_head")?);
        if !width.is_multiple_of(heads) {
            return Err(Error::Sizes { what: format!("{heads} heads do not divide n_embd {width}") });
        }
        let act = read.text("activation_function", "gelu_new")?;
        let refuse = |key: &str, found: String, hint: &str| {
            Err(Error::Unsupported { key: key.into(), found, hint: hint.into() })
        };
        if !["gelu_new", "gelu_pytorch_tanh"].contains(&act) {
            return refuse("activation_function", format!("\"{act}\""), "only gelu_new is supported");
        }
        for key in ["scale_attn_by_inverse_layer_idx", "add_cross_attention"] {
            if read.flag(key, false)? {
                return refuse(key, "true".into(), "only false is supported");
            }
        }
        for key in ["tie_word_embeddings", "scale_attn_weights"] {
            if !read.flag(key, true)? {
                return refuse(key, "false".into(), "only true is supported");
            }
        }
        Ok(Arc::new(Gpt2 {
            vocab_size: read.size("vocab_size")?,
            positions: read.size("n_positions")?,
            width,
            inner: read.maybe_size("n_inner")?.unwrap_or(4 * width),
            layers: read.size("n_layer")?,
            heads,
            eps: read.number("layer_norm_epsilon", 1e-5)?,
            deviation: read.number("initializer_range", 0.02)?,
            dropout: [
                read.number("attn_pdrop", 0.0)?,
                read.number("resid_pdrop", 0.0)?,
                read.number("embd_pdrop", 0.0)?,
            ],
            raw: map,
        }))
    }
}

const WORDS: &str = "transformer.wte";

impl Architecture for Gpt2 {
    fn model_type(&self) -> &str {
        "gpt2"
    }

    fn to_value(&self) -> Value {
        Value::Object(self.raw.clone())
    }

    fn blocks(&self) -> usize {
        self.layers
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn positions(&self) -> usize {
        self.positions
    }

    fn parameters(&self, stage: &Stage) -> Result<Vec<ParamSpec>> {
        stage.check(self)?;
        let Gpt2 { width, inner, vocab_size, .. } = *self;
        let mut table = Table::new(self.deviation);
        let norm = |table: &mut Table, name: &str| -> Result<()> {
            table.norm(name, width)?;
            table.bias(name, width, Cut::Whole)
        };
        let product = |table: &mut Table, name: &str, shape: [usize; 2]| -> Result<()> {
            table.matrix(name, shape, Cut::Whole)?;
            table.bias(name, shape[1], Cut::Whole)
        };
        if stage.embed {
            table.embedding(WORDS, [vocab_size, width])?;
            let places = [self.positions, width];
            table.add("transformer.wpe.weight", &places, ParamKind::Embedding, Cut::Whole)?;
        }
        for layer in stage.layers.clone() {
            table.begin_block(Some(layer));
            let name = |part: &str| format!("transformer.h.{layer}.{part}");
            norm(&mut table, &name("ln_1"))?;
            product(&mut table, &name("attn.c_attn"), [width, 3 * width])?;
            product(&mut table, &name("attn.c_proj"), [width, width])?;
            norm(&mut table, &name("ln_2"))?;
            product(&mut table, &name("mlp.c_fc"), [width, inner])?;
            product(&mut table, &name("mlp.c_proj"), [inner, width])?;
        }
        if stage.head {
            table.begin_block(None);
            norm(&mut table, "transformer.ln_f")?;
            table.tied("lm_head", WORDS, [vocab_size, width])?;
        }
        Ok(table.into_specs())
    }

    fn build(&self, stage: &Stage, parallel: Option<&Parallel>, init: &Init) -> Result<Box<dyn Network>> {
        parallel.map_or(Ok(()), Parallel::check_axes)?;
        let parallel = parallel.filter(|parallel| parallel.mesh.size() > 1).map(Parallel::on_purpose);
        let parallel = parallel.as_ref();
        let parts = Parts::new(self.parameters(stage)?, init, parallel)?;
        let (model, lanes) = (parts.at("transformer"), Lanes::new(parallel));
        let block = |layer: usize| Gpt2Block::new(&model.at(&format!("h.{layer}")), self, &lanes);
        Ok(Box::new(Gpt2Network {
            words: stage.embed.then(|| model.embedding("wte")).transpose()?,
            places: stage.embed.then(|| model.embedding("wpe")).transpose()?,
            blocks: stage.layers.clone().map(block).collect::<Result<_>>()?,
            norm: stage.head.then(|| model.layer_norm("ln_f", self.eps)).transpose()?,
            head: stage.head.then(|| parts.linear("lm_head")).transpose()?,
            dropout: Dropout { p: self.dropout[2] },
            stage: stage.clone(),
            lanes,
        }))
    }

    fn is_turned(&self, weight: &ParamSpec) -> bool {
        weight.kind == ParamKind::Matrix && weight.block.is_some()
    }
}

/// `x + attention(norm(x))`, then `x + mlp(norm(x))`.
#[derive(Clone, Debug)]
struct Gpt2Block {
    norms: [LayerNorm; 2],
    /// Into queries, keys and values, and out of the heads.
    attention: [Linear; 2],
    mlp: [Linear; 2],
    heads: usize,
    dropout: [Dropout; 2],
    lanes: Lanes,
}

impl Gpt2Block {
    fn new(parts: &Parts, model: &Gpt2, lanes: &Lanes) -> Result<Gpt2Block> {
        let turned = |name: &str| -> Result<Linear> { Ok(Linear { turned: true, ..parts.linear(name)? }) };
        Ok(Gpt2Block {
            norms: [parts.layer_norm("ln_1", model.eps)?, parts.layer_norm("ln_2", model.eps)?],
            attention: [turned("attn.c_attn")?, turned("attn.c_proj")?],
            mlp: [turned("mlp.c_fc")?, turned("mlp.c_proj")?],
            heads: model.heads,
            dropout: [Dropout { p: model.dropout[0] }, Dropout { p: model.dropout[1] }],
            lanes: lanes.clone(),
        })
    }

    fn attend(
        &self,
        x: &Tensor,
        step: &AttentionStep,
        key: Option<Key>,
        cache: Option<&LayerCache>,
    ) -> Computed<Tensor> {
        let [batch, length, width] = x.shape()[..] else {
            let message = format!("expected [batch, sequence, width], got shape {}", x.shape());
            return Err(planaria_tensor::Error::Argument { op: "attention", message });
        };
        let all = self.attention[0].forward(x)?.split_sizes(&[width, width, width], -1)?;
        let of_heads =
            |y: &Tensor| y.reshape(&[batch, length, self.heads, width / self.heads])?.transpose(1, 2);
        let (q, k, v) = (of_heads(&all[0])?, of_heads(&all[1])?, of_heads(&all[2])?);
        let (k, v) = match cache {
            Some(cache) => cache.extended(&k, &v, step)?,
            None => (k, v),
        };
        let (keys, device) = (k.shape()[2], x.local().device());
        let mask = match &step.rows {
            Some(rows) => Some(rows.seen(keys, None, device, &self.lanes)?),
            None if keys == length || length == 1 => None,
            None => {
                let seen = Array::full_on(&[length, keys], true, DType::Bool, device)?;
                Some(Tensor::new(seen.tril((keys - length) as i64)?))
            }
        };
        let options = ops::AttentionOptions {
            scale: None,
            span: if keys == length && step.rows.is_none() { Span::Causal } else { Span::All },
            mask: mask.as_ref(),
            documents: step.documents.as_ref(),
            dropout: self.dropout[0].drawn(key),
        };
        let mixed =
            ops::attention(&q, &k, &v, &options)?.transpose(1, 2)?.reshape(&[batch, length, width])?;
        self.attention[1].forward(&mixed)
    }
}

impl Block for Gpt2Block {
    fn forward(
        &self,
        x: &Tensor,
        step: &AttentionStep,
        cache: Option<&LayerCache>,
    ) -> Computed<(Tensor, Option<Tensor>)> {
        let key = |part: u64| step.dropout.map(|key: Key| key.fold(part));
        let y = self.lanes.into_columns(&self.norms[0].forward(x)?)?;
        let y = self.lanes.out_of_rows(&self.attend(&y, step, key(2), cache)?)?;
        let x = self.dropout[1].add_to(x, &y, key(0))?;
        let y = self.lanes.into_columns(&self.norms[1].forward(&x)?)?;
        let y = self.mlp[1].forward(&self.mlp[0].forward(&y)?.gelu_tanh()?)?;
        Ok((self.dropout[1].add_to(&x, &self.lanes.out_of_rows(&y)?, key(1))?, None))
    }
}

impl Module for Gpt2Block {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        self.norms[0].visit(f);
        self.attention.iter().for_each(|layer| layer.visit(f));
        self.norms[1].visit(f);
        self.mlp.iter().for_each(|layer| layer.visit(f));
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.norms[0].visit_mut(f);
        self.attention.iter_mut().for_each(|layer| layer.visit_mut(f));
        self.norms[1].visit_mut(f);
        self.mlp.iter_mut().for_each(|layer| layer.visit_mut(f));
    }

    fn visit_layers(&mut self, f: &mut dyn FnMut(Adaptable<'_>)) {
        self.attention.iter_mut().chain(&mut self.mlp).for_each(|layer| layer.visit_layers(f));
    }
}

/// A stage with weights.
#[derive(Debug)]
struct Gpt2Network {
    stage: Stage,
    lanes: Lanes,
    words: Option<Embedding>,
    places: Option<Embedding>,
    blocks: Vec<Gpt2Block>,
    norm: Option<LayerNorm>,
    head: Option<Linear>,
    dropout: Dropout,
}

impl Gpt2Network {
    /// Vectors of tokens and of the places they stand at.
    fn embedded(&self, words: &Embedding, places: &Embedding, ids: &Tensor, run: &Run<'_>) -> Result<Tensor> {
        let ids = self.lanes.batch(ids)?;
        let length = ids.shape()[1];
        let words = words.forward(&ids)?.settled()?;
        let at = match attention_step(&self.lanes, run)?.positions {
            // A program of any length has the rows of the table, no list of as many positions.
            Positions::From(first)
                if steps::is_listing() && self.lanes.parallel().is_none() && places.is_plain() =>
            {
                let rows = places.weight.value()?.narrow(0, first, length)?.unsqueeze(0)?;
                return Ok(self.dropped(&words.add(&rows)?, run)?);
            }
            Positions::From(first) => {
                let at: Vec<i64> = (first..first + length).map(|place| place as i64).collect();
                Tensor::from_slice(&at, &[1, length])?
            }
            Positions::Ids { ids, .. } => ids,
            Positions::Each(_) | Positions::Axes(_) | Positions::Rows { .. } | Positions::Flat(_) => {
                let message = "this model has one position for each token, not three".to_string();
                return Err(Error::Argument { what: "positions", message });
            }
        };
        // All ranks have the vectors of places whole: they join what is whole in its sequence, and are cut with it.
        Ok(self.dropped(&words.add(&places.forward(&at)?)?, run)?)
    }

    fn dropped(&self, x: &Tensor, run: &Run<'_>) -> Computed<Tensor> {
        self.dropout.forward(&self.lanes.out_of_rows(x)?, run.train.map(|key| key.fold(u64::MAX)))
    }
}

impl Network for Gpt2Network {
    fn stage(&self) -> &Stage {
        &self.stage
    }

    fn forward(&self, input: Activations, run: &Run<'_>) -> Result<Activations> {
        let hidden = match (&self.words, &self.places) {
            (Some(words), Some(places)) => self.embedded(words, places, &input.hidden, run)?,
            _ => self.lanes.residual(&input.hidden)?,
        };
        through(&self.blocks, &self.stage, hidden.into(), &self.lanes, run)
    }

    fn head(&self, hidden: &Tensor) -> Result<Head> {
        let (Some(norm), Some(head)) = (&self.norm, &self.head) else {
            let message = format!("the stage of layers {:?} has no head", self.stage.layers);
            return Err(Error::Argument { what: "logits", message });
        };
        let states = self.lanes.into_columns(&norm.forward(hidden)?)?;
        let (states, weight) = head.widened(&states)?;
        Ok(Head { states, weight, lanes: self.lanes.clone(), cap: None })
    }

    fn cache(&self, capacity: usize) -> Cache {
        Cache::new(self.blocks.len(), capacity)
    }

    fn rows_apart(&self, _: usize) -> Option<&Lanes> {
        (self.stage.embed && self.stage.head).then_some(&self.lanes)
    }
}

impl Module for Gpt2Network {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        self.words.visit(f);
        self.places.visit(f);
        self.blocks.visit(f);
        self.norm.visit(f);
        self.head.visit(f);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.words.visit_mut(f);
        self.places.visit_mut(f);
        self.blocks.visit_mut(f);
        self.norm.visit_mut(f);
        self.head.visit_mut(f);
    }

    fn visit_layers(&mut self, f: &mut dyn FnMut(Adaptable<'_>)) {
        self.words.visit_layers(f);
        self.places.visit_layers(f);
        self.blocks.visit_layers(f);
        self.head.visit_layers(f);
    }
}
