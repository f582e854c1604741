//! Rows of routers: directions in which the hidden states of prompts lie.

use super::hidden::{self, Positions};
use super::recipe::{Expert, GateMode, Recipe};
use crate::error::{Error, Result};
use crate::method::sparsify::Stream;
use crate::model::Model;
use planaria_array::random::{Key, Normal, Window, normal_f64, uniform_f64};
use planaria_data::{SpecialText, Tokenizer};
use std::collections::BTreeMap;

/// Rows by layer and expert.
#[derive(Debug)]
pub(super) struct Gates {
    pub(super) experts: Vec<Vec<Vec<f64>>>,
    pub(super) shared: Vec<Vec<Vec<f64>>>,
}

pub(super) fn gates(recipe: &Recipe, base: &Model, layers: usize, seed: u64) -> Result<Gates> {
    let drawn = |experts: &[Expert], kind: &str| -> Result<Vec<Vec<Vec<f64>>>> {
        let of_layer = |layer: usize| {
            experts.iter().map(|expert| drawn(recipe, base, (layer, kind), expert, seed)).collect()
        };
        (0..layers).map(of_layer).collect()
    };
    match recipe.gate_mode {
        GateMode::Random | GateMode::UniformRandom => {
            Ok(Gates { experts: drawn(&recipe.experts, "expert")?, shared: drawn(&recipe.shared, "shared")? })
        }
        mode => prompted(recipe, base, layers, mode),
    }
}

/// Rows that lead from the negative prompts of an expert to its positive ones.
fn prompted(recipe: &Recipe, base: &Model, layers: usize, mode: GateMode) -> Result<Gates> {
    let reader = Reader::new(base)?;
    let all: Vec<&Expert> = recipe.experts.iter().chain(&recipe.shared).collect();
    // Two sets for every expert; that of an expert without negative prompts is empty.
    let mut sets = Vec::new();
    for expert in &all {
        sets.push(reader.tokens(&expert.positive)?);
        sets.push(reader.tokens(&expert.negative)?);
    }
    let states = match mode {
        GateMode::CheapEmbed => {
            vec![sets.iter().map(|set| reader.sum(set)).collect::<Result<Vec<_>>>()?; layers]
        }
        GateMode::HiddenAverage => hidden::states(base, layers, &sets, Positions::Mean)?,
        _ => hidden::states(base, layers, &sets, Positions::Last)?,
    };
    let count = recipe.experts.len();
    let mut gates = Gates { experts: Vec::new(), shared: Vec::new() };
    for of_layer in states {
        let mut rows: Vec<Vec<f64>> = of_layer
            .chunks(2)
            .map(|pair| {
                let mut row = pair[0].clone();
                row.iter_mut().zip(&pair[1]).for_each(|(row, away)| *row -= away);
                unit(&mut row);
                row
            })
            .collect();
        gates.shared.push(rows.split_off(count));
        gates.experts.push(rows);
    }
    Ok(gates)
}

fn drawn(
    recipe: &Recipe,
    base: &Model,
    (layer, kind): (usize, &str),
    expert: &Expert,
    seed: u64,
) -> Result<Vec<f64>> {
    let hidden = base.tensor("model.embed_tokens.weight")?.shape()[1];
    let stream =
        Stream::new(seed, &expert.model.to_string(), &format!("{kind} {} of layer {layer}", expert.number));
    let (key, window) = (Key::new(stream.0, 0), Window::flat(0, hidden));
    let mut row = vec![0.0; hidden];
    match recipe.gate_mode {
        GateMode::UniformRandom => {
            uniform_f64(&mut row, key, &window)?;
            let limit = 1.0 / (hidden as f64).sqrt();
            row.iter_mut().for_each(|value| *value = (2.0 * *value - 1.0) * limit);
        }
        _ => normal_f64(&mut row, key, &window, Normal::STANDARD)?,
    }
    Ok(row)
}

/// The base as prompts see it: its tokenizer and its embedding.
struct Reader<'a> {
    base: &'a Model,
    tokenizer: Tokenizer,
    start: String,
}

impl<'a> Reader<'a> {
    fn new(base: &'a Model) -> Result<Reader<'a>> {
        let mut files = BTreeMap::new();
        for name in Tokenizer::file_names() {
            if let Some(bytes) = base.file(name)? {
                files.insert((*name).to_string(), bytes);
            }
        }
        if !Tokenizer::is_in(&files) {
            return Err(Error::model(&base.name, "it has no tokenizer, and prompts need one"));
        }
        let mut tokenizer =
            Tokenizer::from_files(&files).map_err(|error| Error::model(&base.name, error.to_string()))?;
        tokenizer.set_special_text(SpecialText::Parse);
        let start = tokenizer.frame().bos.and_then(|id| tokenizer.token(id)).unwrap_or_default();
        Ok(Reader { base, tokenizer, start })
    }

    /// The tokens of prompts, each behind what begins a text.
    fn tokens(&self, prompts: &[String]) -> Result<Vec<Vec<u32>>> {
        let rows = self.base.tensor("model.embed_tokens.weight")?.shape()[0];
        let mut all = Vec::new();
        for prompt in prompts {
            let encoded = self.tokenizer.encode(&format!("{}{prompt}", self.start));
            let ids = encoded.map_err(|error| Error::model(&self.base.name, error.to_string()))?;
            if let Some(id) = ids.iter().find(|id| **id as usize >= rows) {
                let what = format!("token {id} of the prompt '{prompt}' has no row in the embedding");
                return Err(Error::model(&self.base.name, what));
            }
            if ids.is_empty() {
                return Err(Error::model(&self.base.name, format!("the prompt '{prompt}' has no tokens")));
            }
            all.push(ids);
        }
        Ok(all)
    }

    /// The sum of the embeddings of all tokens, brought to length 1.
    fn sum(&self, prompts: &[Vec<u32>]) -> Result<Vec<f64>> {
        let embedding = self.base.tensor("model.embed_tokens.weight")?;
        let hidden = embedding.shape()[1];
        let (mut sum, mut one) = (vec![0.0; hidden], vec![0.0; hidden]);
        for id in prompts.iter().flatten() {
            embedding.read(*id as usize * hidden, &mut one)?;
            sum.iter_mut().zip(&one).for_each(|(sum, x)| *sum += x);
        }
        unit(&mut sum);
        Ok(sum)
    }
}

fn unit(row: &mut [f64]) {
    let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-8);
    row.iter_mut().for_each(|x| *x /= norm);
}
