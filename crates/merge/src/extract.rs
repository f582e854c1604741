//! Adapters from two models: the best factors of small rank for what one changed in the other.

use crate::error::{Error, Result};
use crate::merge::{Merge, Options};
use crate::model::Model;
use crate::recipe::Reference;
use crate::result::{Outcome, pretty};
use crate::values::{Packed, Values};
use planaria_layout::{DType, Shape};
use planaria_nn::svd::{Matrix, largest, most_in_parts, whole_bytes};
use regex::Regex;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What to extract.
#[derive(Clone, Debug)]
pub struct ExtractOptions {
    /// Largest rank of a module.
    pub max_rank: usize,
    /// Singular values up to this are none.
    pub sv_epsilon: f64,
    /// Whether both factors get the root of the singular values; else the first has them whole.
    pub distribute_scale: bool,
    /// Factors for embeddings and the head too; else they are copied whole.
    pub embed_lora: bool,
    /// If not empty, only modules whose names one of these regular expressions finds.
    pub include: Vec<String>,
    /// No modules whose names one of these finds.
    pub exclude: Vec<String>,
    /// Bytes that one decomposition may hold.
    pub memory: u64,
}

impl Default for ExtractOptions {
    fn default() -> ExtractOptions {
        ExtractOptions {
            max_rank: 32,
            sv_epsilon: 0.0,
            distribute_scale: true,
            embed_lora: false,
            include: Vec::new(),
            exclude: Vec::new(),
            memory: 512 << 20,
        }
    }
}

/// What one model changed in a weight of another.
struct Change<'a> {
    model: &'a dyn Values,
    base: &'a dyn Values,
}

impl Change<'_> {
    fn extents(&self) -> (usize, usize) {
        (self.base.shape()[0], self.base.shape()[1])
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<()> {
        let at = first * self.extents().1;
        let mut base = vec![0.0; out.len()];
        self.model.read(at, out)?;
        self.base.read(at, &mut base)?;
        out.iter_mut().zip(base).for_each(|(out, base)| *out -= base);
        Ok(())
    }
}

/// Whose factors are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// The change's.
    Plain,
    /// The transposed change's.
    Transposed,
}

/// `[rank, inputs]` and `[outputs, rank]`.
struct Factors {
    down: Vec<f64>,
    up: Vec<f64>,
    rank: usize,
}

#[derive(Default)]
struct Found {
    tensors: Vec<(String, Arc<dyn Values>)>,
    ranks: BTreeMap<String, usize>,
    saved: BTreeSet<String>,
    biases: bool,
}

/// Extracts an adapter that makes `model` of `base`. Weights are read and decomposed here; what is kept are the factors.
pub fn extract(model: &str, base: &str, asked: &ExtractOptions, options: &Options) -> Result<Merge> {
    if asked.max_rank == 0 {
        return Err(Error::request("an adapter of rank 0 changes nothing; choose a larger rank"));
    }
    if !asked.sv_epsilon.is_finite() {
        let what = format!("the largest singular value that counts as zero is {}", asked.sv_epsilon);
        return Err(Error::request(format!("{what}; choose a finite sv-epsilon, such as 1e-6")));
    }
    let tuned = Model::open(&Reference::path(model), &options.root)?;
    let base = Model::open(&Reference::path(base), &options.root)?;
    let chosen = Chosen::new(asked)?;
    let mut found = Found::default();
    for (name, values) in &tuned.tensors {
        let Some((module, last)) = name.rsplit_once('.') else { continue };
        if !chosen.has(module) {
            continue;
        }
        let before = base.tensor(name)?;
        if before.shape() != values.shape() {
            let what = format!(
                "the shapes differ: {} in {model} and {} in the base",
                values.shape(),
                before.shape()
            );
            return Err(Error::tensor(name, what));
        }
        let vocabulary = module.ends_with("embed_tokens") || module.ends_with("lm_head");
        match last {
            "bias" => found.bias(module, values, before)?,
            "weight" if values.shape().len() == 2 && module.ends_with("embed_tokens") && asked.embed_lora => {
                found.embedding(module, values, before, asked)?;
            }
            "weight" if values.shape().len() == 2 && (!vocabulary || asked.embed_lora) => {
                found.linear(module, values, before, asked)?;
            }
            _ => found.whole(module, name, values),
        }
    }
    if found.ranks.is_empty() && found.saved.is_empty() {
        return Err(Error::request("no module was chosen, so there is nothing to extract"));
    }
    let inputs = [tuned.inputs.clone(), base.inputs.clone()].concat();
    let config = found.config(&base.name);
    let mut files = BTreeMap::from([("adapter_config.json".to_string(), pretty(&config))]);
    let card =
        format!("# Adapter\n\nExtracted by planaria: what `{}` changed in `{}`.\n", tuned.name, base.name);
    files.insert("README.md".to_string(), card.into_bytes());
    let what = format!("factors of {} less {}", tuned.name, base.name);
    let outcome = Outcome { files, ..Outcome::new(found.tensors, Arc::new(base)) }.all_by(&what);
    Merge::new(outcome, "adapter_model", inputs).finished(Vec::new(), options)
}

struct Chosen {
    include: Vec<Regex>,
    exclude: Vec<Regex>,
}

impl Chosen {
    fn new(asked: &ExtractOptions) -> Result<Chosen> {
        let compiled = |list: &[String]| -> Result<Vec<Regex>> {
            let bad = |text: &String, error: regex::Error| {
                Error::request(format!("'{text}' is not a regular expression: {error}"))
            };
            list.iter().map(|text| Regex::new(text).map_err(|error| bad(text, error))).collect()
        };
        Ok(Chosen { include: compiled(&asked.include)?, exclude: compiled(&asked.exclude)? })
    }

    fn has(&self, module: &str) -> bool {
        let any = |list: &[Regex]| list.iter().any(|regex| regex.is_match(module));
        (self.include.is_empty() || any(&self.include)) && !any(&self.exclude)
    }
}

/// Factors of all modules are kept until they are written, so in the type in which they are.
fn held(values: Vec<f64>, shape: &[usize], dtype: DType) -> Result<Arc<dyn Values>> {
    Ok(Arc::new(Packed::new(&values, Shape::new(shape)?, dtype)?))
}

/// Refuses a rank for which a large change would have to be in memory.
fn fits(module: &str, (rows, columns): (usize, usize), asked: &ExtractOptions) -> Result<()> {
    // There are no more than these.
    let rank = asked.max_rank.min(rows).min(columns);
    match whole_bytes(rows, columns, rank).filter(|bytes| *bytes as u64 > asked.memory) {
        None => Ok(()),
        Some(bytes) => {
            let most = most_in_parts(rows, columns);
            let what = format!(
                "{rank} singular values of {rows} x {columns} are found in {bytes} bytes of memory, and there are to be {} at most; ask for a rank of at most {most}, or for that much memory",
                asked.memory
            );
            Err(Error::tensor(module, what))
        }
    }
}

impl Found {
    fn put(&mut self, name: String, values: Arc<dyn Values>) {
        self.tensors.push((format!("base_model.model.{name}"), values));
    }

    /// The factors of a change, as far as there is one; `side` says whose they are.
    fn factors(
        &mut self,
        module: &str,
        change: &Change<'_>,
        side: Side,
        asked: &ExtractOptions,
    ) -> Result<Option<Factors>> {
        let (rows, columns) = change.extents();
        let matrix = Matrix { rows, columns, read: &|first, out| change.read(first, out) };
        fits(module, (rows, columns), asked)?;
        let svd = largest(&matrix, asked.max_rank)?;
        let rank = svd.values.iter().take_while(|value| **value > asked.sv_epsilon).count();
        if rank == 0 {
            return Ok(None);
        }
        let all = svd.values.len();
        let share =
            |value: f64| if asked.distribute_scale { (value.sqrt(), value.sqrt()) } else { (value, 1.0) };
        let left = |row: usize, k: usize| svd.left[row * all + k];
        let right = |k: usize, column: usize| svd.right[k * columns + column];
        // A transposed change has the same values, and its vectors have changed places.
        let (inputs, outputs) = if side == Side::Plain { (columns, rows) } else { (rows, columns) };
        let mut down = vec![0.0; rank * inputs];
        let mut up = vec![0.0; outputs * rank];
        for k in 0..rank {
            let (for_down, for_up) = share(svd.values[k]);
            for (j, down) in down[k * inputs..(k + 1) * inputs].iter_mut().enumerate() {
                *down = for_down * if side == Side::Plain { right(k, j) } else { left(j, k) };
            }
            for (i, up) in up.iter_mut().skip(k).step_by(rank).enumerate() {
                *up = for_up * if side == Side::Plain { left(i, k) } else { right(k, i) };
            }
        }
        self.ranks.insert(module.to_string(), rank);
        Ok(Some(Factors { down, up, rank }))
    }

    fn linear(
        &mut self,
        module: &str,
        values: &Arc<dyn Values>,
        base: &Arc<dyn Values>,
        asked: &ExtractOptions,
    ) -> Result<()> {
        let change = Change { model: &**values, base: &**base };
        let ((rows, columns), dtype) = (change.extents(), values.dtype());
        let found = self.factors(module, &change, Side::Plain, asked)?;
        let Some(Factors { down, up, rank }) = found else { return Ok(()) };
        self.put(format!("{module}.lora_A.weight"), held(down, &[rank, columns], dtype)?);
        self.put(format!("{module}.lora_B.weight"), held(up, &[rows, rank], dtype)?);
        Ok(())
    }

    /// An embedding is adapted the other way round: the factors are those of the transposed change.
    fn embedding(
        &mut self,
        module: &str,
        values: &Arc<dyn Values>,
        base: &Arc<dyn Values>,
        asked: &ExtractOptions,
    ) -> Result<()> {
        let change = Change { model: &**values, base: &**base };
        let ((rows, columns), dtype) = (change.extents(), values.dtype());
        let found = self.factors(module, &change, Side::Transposed, asked)?;
        let Some(Factors { down, up, rank }) = found else { return Ok(()) };
        self.put(format!("{module}.lora_embedding_A"), held(down, &[rank, rows], dtype)?);
        self.put(format!("{module}.lora_embedding_B"), held(up, &[columns, rank], dtype)?);
        Ok(())
    }

    fn bias(&mut self, module: &str, values: &Arc<dyn Values>, base: &Arc<dyn Values>) -> Result<()> {
        let mut change = crate::values::whole(&**values)?;
        let before = crate::values::whole(&**base)?;
        change.iter_mut().zip(before).for_each(|(change, before)| *change -= before);
        self.biases |= change.iter().any(|change| *change != 0.0);
        self.put(format!("{module}.lora_B.bias"), held(change, values.shape(), values.dtype())?);
        Ok(())
    }

    fn whole(&mut self, module: &str, name: &str, values: &Arc<dyn Values>) {
        self.saved.insert(last_part(module).to_string());
        self.put(name.to_string(), values.clone());
    }

    /// The configuration as peft reads it.
    fn config(&mut self, base: &str) -> Value {
        let ranks = &self.ranks;
        // Shifts of biases go with factors; alone they have no module to belong to.
        let adapted = |name: &str| {
            let module =
                name.strip_prefix("base_model.model.").and_then(|name| name.strip_suffix(".lora_B.bias"));
            module.is_none_or(|module| ranks.contains_key(module))
        };
        let biases = self.biases;
        self.tensors.retain(|(name, _)| adapted(name) && (biases || !name.ends_with(".lora_B.bias")));
        let most = self.ranks.values().copied().max().unwrap_or(1);
        // A name also counts for those that end with it, unless it is held to the beginning.
        let key = |module: &String| {
            let end = format!(".{module}");
            let ends = self.ranks.keys().any(|other| other.ends_with(&end));
            if ends { format!("^{module}") } else { module.clone() }
        };
        let others: Map<String, Value> = self
            .ranks
            .iter()
            .filter(|(_, rank)| **rank != most)
            .map(|(module, rank)| (key(module), json!(rank)))
            .collect();
        let targets: BTreeSet<&str> = self.ranks.keys().map(|module| last_part(module)).collect();
        json!({
            "base_model_name_or_path": base,
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "use_rslora": false,
            "target_modules": targets,
            "modules_to_save": self.saved,
            "r": most,
            "lora_alpha": most,
            "rank_pattern": others,
            "alpha_pattern": others,
            "lora_dropout": 0.0,
            "lora_bias": self.biases,
            "fan_in_fan_out": false,
            "inference_mode": true,
        })
    }
}

fn last_part(module: &str) -> &str {
    module.rsplit('.').next().unwrap_or(module)
}
