//! Text from a checkpoint: the newest of a run, or any Hugging Face folder, on one rank or on tensor ranks.

use crate::data::Tokenizer;
use crate::error::{Error, Result};
use crate::trainer::read_model_config;
use planaria_array::ops::Distribution;
use planaria_array::random::Key;
use planaria_array::{Array, DType};
use planaria_ckpt::{Casts, Item, Kind, LoadOptions, State, Unmatched};
use planaria_comm::{Comm, CommExt, alone, threads};
use planaria_layout::Mesh;
use planaria_nn::models::{Config as ModelConfig, Model, Run, Stage};
use planaria_nn::{Init, Module, Parallel, Param};
use planaria_store::{Store, StoreExt};
use planaria_tensor::{Tensor, World, no_grad};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Most tokens to make.
    pub tokens: usize,
    /// 0 takes the likeliest token; higher is more random.
    pub temperature: f64,
    /// Only this many of the likeliest tokens; 0 for all.
    pub top_k: usize,
    /// Only the likeliest tokens whose probabilities reach this sum.
    pub top_p: f64,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { tokens: 128, temperature: 0.8, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

/// A checkpoint that text can be made from.
#[derive(Debug)]
pub struct Generator {
    store: Arc<dyn Store>,
    folder: String,
    config: ModelConfig,
    tokenizer: Tokenizer,
}

/// Largest small file of a checkpoint.
const SMALL: u64 = 1 << 28;

impl Generator {
    /// Opens the newest checkpoint of a run's folder, or a folder of weights.
    pub fn open(path: &Path) -> Result<Generator> {
        let dir = path.display().to_string();
        let store = planaria_store::open(&dir)?;
        let folder = planaria_ckpt::latest(&*store, "ckpt")?.unwrap_or_default();
        let inside = if folder.is_empty() { path.to_path_buf() } else { path.join(&folder) };
        let config = ModelConfig::from_value(read_model_config(&inside)?.into())?;
        let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for entry in store.list(&folder)?.iter().filter(|e| e.is_file() && e.short().ends_with(".json")) {
            files.insert(entry.short().to_string(), store.read(&entry.name, SMALL)?);
        }
        let tokenizer = Tokenizer::from_files(&files)?;
        Ok(Generator { store, folder, config, tokenizer })
    }

    /// The checkpoint's folder inside the path it was opened with.
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// Continues a text; `each` is given every new token's text as it comes. Ranks are threads that share each matrix.
    pub fn generate(
        &self,
        prompt: &str,
        sampling: &Sampling,
        ranks: usize,
        each: &(dyn Fn(&str) + Sync),
    ) -> Result<String> {
        if ranks <= 1 {
            return self.on(&alone(), prompt, sampling, each);
        }
        let work = |comm: Arc<dyn Comm>| self.on(&comm, prompt, sampling, each);
        let mut texts = threads::try_run(&threads::Options::new(ranks), work)?;
        Ok(texts.swap_remove(0))
    }

    fn on(
        &self,
        comm: &Arc<dyn Comm>,
        prompt: &str,
        sampling: &Sampling,
        each: &(dyn Fn(&str) + Sync),
    ) -> Result<String> {
        let model = self.model(comm)?;
        let mut tokens = self.tokenizer.encode(prompt)?;
        if tokens.is_empty() {
            tokens.extend(self.tokenizer.frame().bos.or(self.tokenizer.frame().eos));
        }
        if tokens.is_empty() {
            return Err(Error::Value {
                key: "the text".into(),
                found: "empty".into(),
                expected: "at least one token, as this tokenizer has none that begins a document".into(),
            });
        }
        let (given, mut said) = (tokens.len(), 0);
        let cache = model.cache(given + sampling.tokens);
        let mut fresh = tokens.clone();
        for number in 0..sampling.tokens {
            let scores = no_grad(|| next_scores(&model, &fresh, &cache))?;
            let token = choose(&scores, sampling, number)?;
            if Some(token) == self.tokenizer.frame().eos {
                break;
            }
            tokens.push(token);
            fresh = vec![token];
            let text = self.tokenizer.decode(&tokens[given..])?;
            // A character may need several tokens; what is not complete yet waits.
            let ready = text.trim_end_matches('\u{fffd}').len();
            if comm.rank() == 0 && ready > said && text.is_char_boundary(said) {
                each(&text[said..ready]);
                said = ready;
            }
        }
        Ok(self.tokenizer.decode(&tokens[given..])?)
    }

    /// The model with its weights, in this rank's pieces.
    fn model(&self, comm: &Arc<dyn Comm>) -> Result<Model> {
        let mesh = Mesh::new(&[("ep", 1), ("tp", comm.size())])?;
        let parallel =
            (comm.size() > 1).then(|| Parallel { world: World::new(comm.clone()), mesh, sequence: false });
        let stage = Stage::whole(&self.config);
        let model = Model::new(&self.config, stage, parallel.as_ref(), &Init { seed: 0, dtype: DType::F32 })?;
        let mut items = Vec::new();
        for param in model.params().iter().filter(|p| p.tied().is_none()) {
            items.extend(pieces(param, comm.world_rank())?);
        }
        let mut state = State::new(items);
        let options =
            LoadOptions { unexpected: Unmatched::Allow, casts: Casts::Floats, ..LoadOptions::default() };
        planaria_ckpt::load(&**comm, &*self.store, &self.folder, &mut state, &options)?;
        Ok(model)
    }
}

/// What this rank has of a parameter, as a checkpoint names it.
fn pieces(param: &Param, rank: usize) -> Result<Vec<Item>> {
    let (leaf, spec) = (param.leaf(), param.spec());
    let local = leaf.local();
    let item = |name: &str, layout: Option<&planaria_layout::Layout>, array: &Array| match layout {
        Some(layout) => Ok(Item::placed(Kind::Parameter, name, layout, rank, array)?),
        None => Ok(Item::whole(Kind::Parameter, name, array)),
    };
    if !spec.is_stacked() {
        return Ok(vec![item(&spec.name, leaf.layout(), local)?]);
    }
    let files = spec.files();
    let first = match leaf.layout() {
        Some(layout) => layout.piece(rank)?.boxes().first().map_or(0, |b| b.lo()[0]),
        None => 0,
    };
    let inner = leaf.layout().map(without_first_dim).transpose()?;
    (0..local.shape()[0])
        .map(|i| item(&files[first + i], inner.as_ref(), &local.select(0, i as i64)?))
        .collect()
}

/// The layout of one expert: the dims after the first, on the same mesh.
fn without_first_dim(layout: &planaria_layout::Layout) -> Result<planaria_layout::Layout> {
    use planaria_layout::{Layout, Placement, Shape};
    let shape = Shape::new(&layout.shape()[1..])?;
    let dim = |p: &Placement| match p {
        Placement::Shard(shard) if shard.dim > 0 => Placement::shard(shard.dim - 1),
        _ => Placement::Replicate,
    };
    let placements: Vec<Placement> = layout.placements().iter().map(dim).collect();
    Ok(Layout::new(layout.mesh(), &shape, &placements)?)
}

/// Scores of the token after `fresh`, the same on every rank.
fn next_scores(model: &Model, fresh: &[u32], cache: &planaria_nn::models::Cache) -> Result<Vec<f32>> {
    let ids: Vec<i64> = fresh.iter().map(|&t| i64::from(t)).collect();
    let input = Tensor::from_slice(&ids, &[1, ids.len()])?;
    let end = model.forward(input, &Run { cache: Some(cache), ..Run::default() })?;
    let last = end.hidden.narrow(1, ids.len() - 1, 1)?;
    let scores = model.logits(&last)?.whole()?.cast(DType::F32)?;
    Ok(scores.to_vec()?)
}

/// The next token.
fn choose(scores: &[f32], sampling: &Sampling, number: usize) -> Result<u32> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    let best = order.first().copied().ok_or_else(|| Error::Bug { what: "a model without tokens".into() })?;
    if sampling.temperature <= 0.0 {
        return Ok(best as u32);
    }
    if sampling.top_k > 0 {
        order.truncate(sampling.top_k);
    }
    let weight = |token: usize| (f64::from(scores[token] - scores[best]) / sampling.temperature).exp();
    let total: f64 = order.iter().map(|&t| weight(t)).sum();
    let mut kept = 0.0;
    let enough = order.iter().position(|&t| {
        kept += weight(t) / total;
        kept >= sampling.top_p
    });
    order.truncate(enough.map_or(order.len(), |last| last + 1));
    let total: f64 = order.iter().map(|&t| weight(t)).sum();
    let key = Key::new(sampling.seed, number as u64);
    let uniform = Distribution::Uniform { low: 0.0, high: 1.0 };
    let mut draw = Array::random(&[1], uniform, DType::F64, key)?.to_vec::<f64>()?[0] * total;
    for &token in &order {
        draw -= weight(token);
        if draw < 0.0 {
            return Ok(token as u32);
        }
    }
    Ok(order.last().copied().unwrap_or(best) as u32)
}
