//! Contrastive learning of sentence embeddings: a sample is a query with what answers it and what does not, the loss is that of
//! every query among the texts of all samples of the step, of all ranks. Or a sample is two texts with a score, and the loss is how far
//! the order of their likeness is from that of the scores.
//!
//! The loss joins all samples, but memory holds one micro-batch. So each step goes through the model twice: before it, without
//! history, for all embeddings; their gradients are those of the loss over all of them. Then each micro-batch starts backward
//! from its embeddings times these gradients. That is the gradient of the whole step, whatever the size of a micro-batch.

use super::{Before, Draws, Held, Input, Objective, Purpose};
use crate::config::{Config, EmbeddingSection, Negatives, TextLoss, require};
use crate::data::texts::{self, score_of};
use crate::data::{Batch, Batches, Config as DataConfig, Data, IGNORED, Tokenizer};
use crate::embedding::{
    Contrasted, TextSpan, contrast, folder, joined, nested, pair_loss, pool, scores_held, triplet_loss,
};
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use planaria_array::ops::Keep;
use planaria_array::random::{Key, Window, randint};
use planaria_array::{Array, DType};
use planaria_comm::{AllGather, Comm, CommExt};
use planaria_nn::models::{Activations, Architecture, LATENT_ATTENTION, Loss, Network};
use planaria_tensor::Tensor;
use planaria_tensor::ops::Documents;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Inputs end at a multiple of this, so that tensor ranks can share their sequence out.
const ALIGNED: usize = 16;
/// Keeps the draw of sizes apart from others of the same seed.
const SIZES: u64 = 0x6d61_7472;

/// Learns embeddings. What is compared says `[embedding]`, what texts become `[data.texts]`.
#[derive(Clone, Debug, Default)]
pub struct Contrastive {
    section: EmbeddingSection,
    texts: texts::Config,
    seed: u64,
}

impl Objective for Contrastive {
    fn name(&self) -> &str {
        "contrastive"
    }

    fn configured(&self, config: &Config) -> Result<Option<Arc<dyn Objective>>> {
        config.embedding.check()?;
        config.embedding.check_losses(&config.data)?;
        let adapted = config.embedding.latents > 0 && config.lora.is_some();
        require(
            "embedding.latents",
            !adapted,
            config.embedding.latents,
            "0 with `[lora]`, which trains nothing else",
        )?;
        let (section, texts) = (config.embedding.clone(), config.data.texts.clone());
        Ok(Some(Arc::new(Contrastive { section, texts, seed: config.train.seed })))
    }

    fn tokenizer(&self, tokenizer: Tokenizer) -> Result<Tokenizer> {
        Ok(if self.texts.append_eos { tokenizer.ending_with_eos()? } else { tokenizer })
    }

    fn shape(&self, model: &mut Map<String, Value>) -> Result<()> {
        folder::without_head(model);
        if let Some(attention) = self.section.attention {
            model.insert("is_causal".into(), json!(attention.is_causal()));
        }
        let EmbeddingSection { latents, latent_heads: heads, .. } = self.section;
        if latents > 0 {
            model.insert(LATENT_ATTENTION.into(), json!({ "latents": latents, "heads": heads }));
        }
        Ok(())
    }

    fn check(&self, model: &dyn Architecture) -> Result<()> {
        self.section.check_width(model.width()? * self.section.pooling.len())
    }

    fn files(&self, model: &dyn Architecture) -> Result<BTreeMap<String, Vec<u8>>> {
        let latent = model.to_value().get(LATENT_ATTENTION).is_some();
        folder::files(&self.section, &self.texts, model.width()?, model.positions(), latent)
    }

    fn held(&self, model: &dyn Architecture, geometry: &Geometry) -> Result<Held> {
        let own = geometry.micro_batch * geometry.accumulation;
        let all = if self.section.negatives_from == Negatives::Global { geometry.global_batch } else { own };
        // What rows have is not known before they are read.
        let texts = 2 + self.texts.negatives.unwrap_or(0) as u64;
        let row = texts * (model.width()? * self.section.pooling.len()) as u64 * 4;
        let scores = match self.section.all_losses().contains(&TextLoss::InfoNce) {
            true => scores_held(all as usize, texts as usize),
            false => 0,
        };
        // This rank's vectors, all vectors in the order of the step, of length 1, and the gradients of both.
        Ok(Held { before: (own + 4 * all) * row + scores, during: own * row, keeps: true })
    }

    fn continues(&self) -> bool {
        false
    }

    fn streams(&self) -> bool {
        false
    }

    fn open(&self, config: &DataConfig, tokenizer: &Tokenizer) -> Result<Data> {
        Ok(config.open_texts(tokenizer, |source| self.section.loss_of(source).of_pairs().is_some())?)
    }

    fn batches(&self, config: &Config) -> Batches {
        let texts::Config { batches: from, no_duplicates, .. } = self.texts;
        Batches { size: config.train.global_batch as u64, from, no_duplicates }
    }

    fn separates(&self, _: &DataConfig) -> bool {
        true
    }

    fn trims(&self) -> bool {
        true
    }

    fn uneven(&self) -> bool {
        true
    }

    fn generate(&self, before: &Before<'_>, mut batches: Vec<Batch>) -> Result<Vec<Batch>> {
        let draws = match before.purpose {
            Purpose::Training => Draws::AsInTraining,
            Purpose::Evaluation => Draws::Off,
        };
        let mut found = BTreeMap::new();
        before.forward(&batches, draws, &mut |round, model, last, batch| {
            found.insert(round, self.embeddings(model, last, batch)?.whole()?);
            Ok(())
        })?;
        let own: Vec<Array> = found.into_values().collect();
        if own.is_empty() {
            return Ok(batches);
        }
        let update = Update::gather(before.data, &own, &batches, self.section.negatives_from)?;
        let found = self.contrast(&update, before.step)?;
        for (round, batch) in batches.iter_mut().enumerate() {
            batch.attached = update.part(round, &found)?;
        }
        Ok(batches)
    }

    fn input(&self, batch: &Batch) -> Result<Input> {
        let [rows, length] = batch.tokens.shape()[..] else { return Err(no_starts()) };
        let starts = batch.starts.clone().ok_or_else(no_starts)?;
        // What stands behind the texts of the longest row is left out.
        let ends = spans(batch)?.into_iter().filter_map(|row| Some(row.last()?.tokens.end));
        let used = ends.max().unwrap_or(length);
        let used = used.next_multiple_of(ALIGNED).min(length);
        let inside = |starts: &Vec<usize>| starts.iter().copied().filter(|&start| start < used).collect();
        let documents = Documents::new(starts.iter().map(inside).collect(), used)?;
        let tokens = batch.tokens.narrow(1, 0, used)?.contiguous()?.reshape(&[rows, used])?;
        Ok(Input { tokens: Tensor::new(tokens), documents: Some(documents) })
    }

    fn loss(&self, model: &dyn Network, last: &Activations, batch: &Batch) -> Result<Loss> {
        let [grads, losses] = &batch.attached[..] else {
            return Err(Error::Bug { what: "a micro-batch of texts without its gradients".into() });
        };
        let texts = spans(batch)?;
        let embeddings = self.embeddings(model, last, batch)?;
        let lanes = model.states(&last.hidden)?.lanes;
        let grads = lanes.batch(&Tensor::new(grads.clone()))?;
        let sum = embeddings.mul(&grads)?.sum(&[], Keep::No)?.settled()?;
        let count = texts.iter().filter(|row| !row.is_empty()).count() as u64;
        let shown = Some(Tensor::new(losses.clone()).sum(&[], Keep::No)?);
        Ok(Loss { sum, count, own: model.own_loss(last, batch.tokens.numel())?, shown, figures: Vec::new() })
    }

    /// One text in every row.
    fn explained(&self, model: &dyn Network, last: &Activations, labels: &Tensor) -> Result<Tensor> {
        let [rows, length] = labels.shape()[..] else { return Err(no_starts()) };
        let text = TextSpan { tokens: 0..length, counted: 0 };
        let texts: Vec<Vec<TextSpan>> = (0..rows).map(|_| vec![text.clone()]).collect();
        let pooled = pool(&model.states(&last.hidden)?, &texts, &self.section.pooling)?;
        Ok(pooled.sum(&[], Keep::No)?.settled()?)
    }
}

fn no_starts() -> Error {
    Error::Bug { what: "samples of texts that do not say where these begin".into() }
}

/// The texts of each row. Rows whose labels are all ignored have none: they only fill a micro-batch up.
fn spans(batch: &Batch) -> Result<Vec<Vec<TextSpan>>> {
    let length = batch.tokens.shape()[1];
    let labels = batch.labels.to_vec::<i64>()?;
    let starts = batch.starts.as_ref().ok_or_else(no_starts)?;
    let row = |(labels, starts): (&[i64], &Vec<usize>)| {
        let begins = std::iter::once(0).chain(starts.iter().copied());
        let ends = starts.iter().copied().chain([length]);
        let span = |(start, end): (usize, usize)| {
            let counted = start + labels[start..end].iter().position(|&label| label != IGNORED)?;
            Some(TextSpan { tokens: start..end, counted })
        };
        begins.zip(ends).map_while(span).collect()
    };
    Ok(labels.chunks(length.max(1)).zip(starts).map(row).collect())
}

impl Contrastive {
    /// The embeddings of a micro-batch, `[rows, texts, width]`.
    fn embeddings(&self, model: &dyn Network, last: &Activations, batch: &Batch) -> Result<Tensor> {
        pool(&model.states(&last.hidden)?, &spans(batch)?, &self.section.pooling)
    }

    /// Losses and gradients of an update.
    fn contrast(&self, update: &Update, step: u64) -> Result<Contrasted> {
        let (dims, weights) = self.sizes(step)?;
        let of = |columns: &[Array]| self.loss_of(columns, update);
        match dims.is_empty() {
            true => of(&update.columns),
            false => Ok(nested(&update.columns, &dims, &weights, &of)?.0),
        }
    }

    fn loss_of(&self, columns: &[Array], update: &Update) -> Result<Contrasted> {
        let EmbeddingSection { scale, distance, margin, exclude_duplicates, .. } = self.section;
        let loss = self.section.loss_of(update.source);
        if let Some(kind) = loss.of_pairs() {
            return joined(columns, &|both| pair_loss(kind, [&both[0], &both[1]], &update.scores, scale));
        }
        if loss == TextLoss::InfoNce {
            let ids = exclude_duplicates.then_some(&update.ids[1..]);
            return contrast(columns, &self.section.contrast(), ids);
        }
        joined(columns, &|texts| match texts {
            [query, near, far] => triplet_loss(distance, margin, [query, near, far]),
            _ => Err(Error::Value {
                key: "data.texts.negatives".into(),
                found: (texts.len() - 2).to_string(),
                expected: "1 with `embedding.loss = \"triplet\"`, in every row".into(),
            }),
        })
    }

    /// The sizes of embeddings that count in a step, and their weights. All ranks draw the same.
    fn sizes(&self, step: u64) -> Result<(Vec<usize>, Vec<f64>)> {
        let EmbeddingSection { matryoshka_dims: dims, matryoshka_weights: weights, .. } = &self.section;
        let all: Vec<usize> = (0..dims.len()).collect();
        let chosen = match self.section.matryoshka_per_step {
            Some(count) if count < dims.len() => {
                let mut words = vec![0i64; count];
                let key = Key::new(self.seed, SIZES).fold(step);
                randint(&mut words, key, &Window::flat(0, count), 0, i64::MAX)?;
                let mut left = all;
                words.iter().map(|&word| left.remove(word as usize % left.len())).collect()
            }
            _ => all,
        };
        let weight = |&at: &usize| weights.get(at).copied().unwrap_or(1.0);
        Ok((chosen.iter().map(|&at| dims[at]).collect(), chosen.iter().map(weight).collect()))
    }
}

/// The texts of a step, of all ranks in the order of their micro-batches.
struct Update {
    /// Vectors of each column, `[rows, width]`.
    columns: Vec<Array>,
    /// Equal for equal texts, column by column.
    ids: Vec<Vec<u64>>,
    /// Of each row, where rows have one.
    scores: Vec<f64>,
    /// The source of all rows, where losses go by it.
    source: usize,
    /// Where each row of a micro-batch of this rank stands; absent for one that only fills up.
    places: Vec<Vec<Option<usize>>>,
}

impl Update {
    /// Brings the embeddings of all ranks together, or takes those of this one alone. Collective.
    fn gather(data: &Arc<dyn Comm>, own: &[Array], batches: &[Batch], from: Negatives) -> Result<Update> {
        let (ranks, rank) = match from {
            Negatives::Global => (data.size(), data.rank()),
            Negatives::Rank => (1, 0),
        };
        let [rows, columns, width] = own[0].shape()[..] else {
            return Err(Error::Bug { what: format!("embeddings of shape {}", own[0].shape()) });
        };
        let marks: Vec<i64> =
            batches.iter().map(|batch| marks(batch, columns)).collect::<Result<Vec<_>>>()?.concat();
        let vectors = planaria_array::ops::concat(&own.iter().collect::<Vec<_>>(), 0)?.cast(DType::F32)?;
        let rounds = own.len();
        // Ranks one after the other; micro-batch `k` of rank `r` is number `k * ranks + r`.
        let in_order = |array: &Array, size: usize| -> Result<Array> {
            let all = if ranks > 1 { all_gather(data, array, ranks)? } else { array.clone() };
            let all = all.reshape(&[ranks, rounds, rows * size])?.transpose(0, 1)?.contiguous()?;
            Ok(all.reshape(&[ranks * rounds * rows, size])?)
        };
        let vectors =
            in_order(&vectors.contiguous()?.reshape(&[rounds * rows, columns * width])?, columns * width)?;
        let marks =
            in_order(&Array::from_slice(&marks, &[rounds * rows, columns])?, columns)?.to_vec::<i64>()?;
        let scores = batches.iter().map(scores).collect::<Result<Vec<_>>>()?.concat();
        let scores = in_order(&Array::from_slice(&scores, &[rounds * rows, 1])?, 1)?.to_vec::<i64>()?;
        let there: Vec<usize> = marks
            .chunks(columns)
            .enumerate()
            .filter(|(_, marks)| marks[0] != 0)
            .map(|(row, _)| row)
            .collect();
        let index: Vec<i64> = there.iter().map(|&row| row as i64).collect();
        let index = Array::from_slice(&index, &[index.len()])?.to(vectors.device())?;
        let kept = Tensor::new(vectors).index_select(0, &Tensor::new(index))?.local().clone();
        let kept = kept.contiguous()?.reshape(&[there.len(), columns, width])?;
        let column = |at: usize| kept.select(1, at as i64)?.contiguous();
        let place =
            |round: usize, row: usize| there.binary_search(&((round * ranks + rank) * rows + row)).ok();
        Ok(Update {
            columns: (0..columns).map(column).collect::<planaria_array::Result<_>>()?,
            ids: (0..columns)
                .map(|at| there.iter().map(|row| marks[row * columns + at] as u64).collect())
                .collect(),
            scores: there.iter().map(|&row| f64::from_bits(scores[row] as u64)).collect(),
            source: batches.first().map_or(0, |batch| batch.part),
            places: (0..rounds).map(|round| (0..rows).map(|row| place(round, row)).collect()).collect(),
        })
    }

    /// What a micro-batch of this rank needs: the gradients of its embeddings, `[rows, columns, width]`, and its losses.
    fn part(&self, round: usize, found: &Contrasted) -> Result<Vec<Array>> {
        let places = &self.places[round];
        let row = |place: &Option<usize>, of: &Array| match place {
            Some(at) => of.narrow(0, *at, 1),
            None => of.narrow(0, 0, 1)?.zeros_like(),
        };
        let rows = |of: &Array| -> Result<Array> {
            let rows =
                places.iter().map(|place| row(place, of)).collect::<planaria_array::Result<Vec<_>>>()?;
            Ok(planaria_array::ops::concat(&rows.iter().collect::<Vec<_>>(), 0)?)
        };
        let grads = found.grads.iter().map(rows).collect::<Result<Vec<_>>>()?;
        let grads = grads.iter().map(|grad| grad.unsqueeze(1)).collect::<planaria_array::Result<Vec<_>>>()?;
        let grads = planaria_array::ops::concat(&grads.iter().collect::<Vec<_>>(), 1)?;
        Ok(vec![grads, rows(&found.losses)?])
    }
}

/// The bits of the score of each row of a micro-batch; 0 where there is none.
fn scores(batch: &Batch) -> Result<Vec<i64>> {
    let length = batch.tokens.shape()[1];
    let labels = batch.labels.to_vec::<i64>()?;
    Ok(labels.chunks(length.max(1)).map(|row| score_of(row).unwrap_or(0.0).to_bits() as i64).collect())
}

/// A number for each text of a micro-batch, equal for equal texts; 0 where a row has none.
fn marks(batch: &Batch, columns: usize) -> Result<Vec<i64>> {
    let length = batch.tokens.shape()[1];
    let tokens = batch.tokens.to_vec::<i64>()?;
    let mut out = Vec::new();
    for (row, spans) in spans(batch)?.iter().enumerate() {
        for column in 0..columns {
            let text = spans.get(column).map(|span| &tokens[row * length..][span.tokens.clone()]);
            // FNV-1a of the ids; 0 is kept for what is not there.
            let mark = |text: &[i64]| {
                let mix = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
                text.iter().flat_map(|id| id.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, mix).max(1)
            };
            out.push(text.map_or(0, mark) as i64);
        }
    }
    Ok(out)
}

fn all_gather(data: &Arc<dyn Comm>, own: &Array, ranks: usize) -> Result<Array> {
    let recv = Array::empty_on(&[own.numel() * ranks], own.dtype(), own.device())?;
    let send = own.contiguous()?.reshape(&[own.numel()])?;
    data.all_gather(AllGather { send, recv: recv.clone(), recv_counts: vec![own.numel(); ranks] })?;
    Ok(recv)
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_array::Array;

    /// Rows of two texts of eight tokens, with and without room behind them.
    #[test]
    fn texts_that_fill_their_row_are_read_to_their_end() {
        for (length, starts) in [(16, vec![8]), (64, vec![8, 16])] {
            let labels: Vec<i64> = (0..length).map(|at| if at < 16 { 1 } else { IGNORED }).collect();
            let batch = Batch {
                positions: 0..1,
                part: 0,
                tokens: Array::from_slice(&vec![1i64; length], &[1, length]).unwrap(),
                labels: Array::from_slice(&labels, &[1, length]).unwrap(),
                starts: Some(vec![starts]),
                shown: Vec::new(),
                attached: Vec::new(),
            };
            let ends: Vec<usize> = spans(&batch).unwrap()[0].iter().map(|text| text.tokens.end).collect();
            let input = Contrastive::default().input(&batch).unwrap();
            assert_eq!(ends, [8, 16]);
            assert_eq!(input.tokens.shape()[1], 16usize.next_multiple_of(ALIGNED).min(length));
        }
    }
}
