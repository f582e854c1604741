//! Merges as PaddleFormers configures them: `merge_config.json`.

use crate::architecture::HEAD;
use crate::error::{Error, Result, nearest};
use crate::input::Input;
use crate::merge::{Merge, Options};
use crate::merged::Merged;
use crate::method::deltas::{Deltas, Divide, Elect, Rescale};
use crate::method::sparsify::{Sparsify, Stream};
use crate::method::{Ends, Range, Rule, Slerp, total};
use crate::model::Model;
use crate::passes::Inputs;
use crate::recipe::Reference;
use crate::result::{Outcome, bytes_of, pretty};
use crate::values::Values;
use planaria_array::promote;
use planaria_layout::DType;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Fields that are known; those behind `remove_keys` decide how their program runs, not what it makes.
const FIELDS: [&str; 28] = [
    "merge_method",
    "model_path_list",
    "model_path_str",
    "base_model_path",
    "lora_model_path",
    "weight_list",
    "normalize",
    "slerp_alpha",
    "slerp_normalize_eps",
    "slerp_dot_threshold",
    "ties_elect_type",
    "rescale",
    "reserve_p",
    "epsilon",
    "remove_keys",
    "output_path",
    "copy_file_list",
    "tensor_type",
    "n_process",
    "merge_prefix",
    "split_pieces",
    "max_tensor_mem",
    "convert_from_hf",
    "save_to_hf",
    "device",
    "merge_type",
    "sparsify_type",
    "merge_preifx",
];

const METHODS: [&str; 7] = ["linear", "slerp", "ties", "dare_linear", "dare_ties", "della_linear", "della"];

struct Config<'t> {
    text: &'t str,
    value: Value,
}

impl Config<'_> {
    /// The first line that holds a text, if possible in quotes: a field, or a path.
    fn line(&self, what: &str) -> usize {
        let quoted = Value::from(what).to_string();
        let find = |text: &str| self.text.lines().position(|line| line.contains(text));
        find(&quoted).or_else(|| find(what)).map_or(1, |at| at + 1)
    }

    /// What is wrong with a field, at its line.
    fn wrong(&self, field: &str, what: impl Into<String>) -> Error {
        Error::recipe(self.line(field), what)
    }

    fn number(&self, field: &str, default: f64) -> Result<f64> {
        match &self.value[field] {
            Value::Null => Ok(default),
            value => value
                .as_f64()
                .ok_or_else(|| self.wrong(field, format!("`{field}` is {value}, which is not a number"))),
        }
    }

    fn share(&self, field: &str, default: f64) -> Result<f64> {
        let share = self.number(field, default)?;
        match Range::Share.has(share) {
            true => Ok(share),
            false => Err(self.wrong(field, format!("`{field}` is {share}; write {}", Range::Share))),
        }
    }

    fn truth(&self, field: &str, default: bool) -> bool {
        self.value[field].as_bool().unwrap_or(default)
    }

    fn text(&self, field: &str) -> Option<&str> {
        self.value[field].as_str().filter(|text| !text.is_empty())
    }

    fn list(&self, field: &str) -> Vec<String> {
        let list = self.value[field].as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_string).collect()
    }

    fn models(&self) -> Result<Vec<String>> {
        let mut models = self.list("model_path_list");
        if let (true, Some(text)) = (models.is_empty(), self.text("model_path_str")) {
            models = text.split(',').map(|path| path.trim().to_string()).collect();
        }
        match models.len() {
            0 | 1 => {
                let fields = ["model_path_list", "model_path_str"];
                let field = fields.into_iter().find(|field| !self.value[*field].is_null());
                let what = "`model_path_list` needs at least two models";
                Err(self.wrong(field.unwrap_or("merge_method"), what))
            }
            _ => Ok(models),
        }
    }

    fn weights(&self, models: usize) -> Result<Vec<f64>> {
        let Some(list) = self.value["weight_list"].as_array() else { return Ok(vec![1.0; models]) };
        let weights: Option<Vec<f64>> = list.iter().map(Value::as_f64).collect();
        match weights {
            Some(weights) if weights.len() == models => Ok(weights),
            Some(weights) => {
                let what = format!("`weight_list` has {} numbers for {models} models", weights.len());
                Err(self.wrong("weight_list", what))
            }
            None => Err(self.wrong("weight_list", "`weight_list` holds something that is not a number")),
        }
    }
}

/// Plans the merge of a configuration. No tensor is read.
pub fn plan_paddle(text: &str, options: &Options) -> Result<Merge> {
    let value: Value = serde_json::from_str(text)
        .map_err(|error| Error::recipe(error.line(), format!("no JSON: {error}")))?;
    let config = Config { text, value };
    let mut warnings = Vec::new();
    for field in config.value.as_object().into_iter().flatten().map(|(field, _)| field) {
        if !FIELDS.contains(&field.as_str()) {
            let (line, near) = (config.line(field), nearest(field, FIELDS));
            warnings.push(format!("line {line}: '{field}' has no effect{near}"));
        }
    }
    if let Some(adapter) = config.text("lora_model_path") {
        return adapted(&config, adapter, warnings, options);
    }
    let paths = config.models()?;
    let open = |path: &str| {
        let model = Model::open(&Reference::path(path), &options.root);
        model.map_err(|error| error.at_line(config.line(path)))
    };
    let mut models: Vec<Model> = paths.iter().map(|path| open(path)).collect::<Result<_>>()?;
    let base = config.text("base_model_path").map(open).transpose()?;
    let at = base.as_ref().map(|_| models.len());
    models.extend(base);
    same_names(&models, &config)?;
    let mut tensors: Vec<(String, Arc<dyn Values>)> = Vec::new();
    for name in models[0].tensors.keys() {
        let values: Vec<Arc<dyn Values>> =
            models.iter().map(|model| model.tensor(name).cloned()).collect::<Result<_>>()?;
        tensors.push((name.clone(), tensor(name, values, at, &config, &paths, options)?));
    }
    let inputs = models.iter().flat_map(|model| model.inputs.clone()).collect();
    let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
    let what = format!("{} of {}", config.text("merge_method").unwrap_or("linear"), names.join(", "));
    let donor = Arc::new(models.swap_remove(at.unwrap_or(0)));
    finish(&config, donor, tensors, (inputs, warnings), &what, options)
}

/// A model with an adapter in it: every tensor of the model stays.
fn adapted(
    config: &Config<'_>,
    adapter: &str,
    mut warnings: Vec<String>,
    options: &Options,
) -> Result<Merge> {
    let Some(base) = config.text("base_model_path") else {
        let what = "`lora_model_path` needs a `base_model_path`, the model that the adapter changes";
        return Err(config.wrong("lora_model_path", what));
    };
    let models = !config.list("model_path_list").is_empty() || config.text("model_path_str").is_some();
    if models {
        let what = "`lora_model_path` goes into `base_model_path` alone; merge other models in a second step";
        return Err(config.wrong("lora_model_path", what));
    }
    let reference = Reference { lora: Some((adapter.to_string(), None)), ..Reference::path(base) };
    let model = Model::open(&reference, &options.root);
    let model = model.map_err(|error| error.at_line(config.line("lora_model_path")))?;
    warnings.extend(model.warnings.clone());
    let tensors = model.tensors.iter().map(|(name, values)| (name.clone(), values.clone())).collect();
    let (inputs, what) = (model.inputs.clone(), format!("{base} with {adapter}"));
    finish(config, Arc::new(model), tensors, (inputs, warnings), &what, options)
}

/// The result with the small files of a donor, without what is to be removed.
fn finish(
    config: &Config<'_>,
    donor: Arc<Model>,
    tensors: Vec<(String, Arc<dyn Values>)>,
    (inputs, warnings): (Vec<Arc<Input>>, Vec<String>),
    what: &str,
    options: &Options,
) -> Result<Merge> {
    let mut files = BTreeMap::new();
    let companions = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
    ];
    for name in companions.iter().map(|name| (*name).to_string()).chain(config.list("copy_file_list")) {
        if let Some(bytes) = donor.file(&name)? {
            files.insert(name, bytes);
        }
    }
    let mut settings = donor.config.clone();
    let head = tensors.iter().any(|(name, _)| name == HEAD);
    if settings["tie_word_embeddings"] == true && head {
        settings["tie_word_embeddings"] = Value::Bool(false);
        files.insert("config.json".to_string(), pretty(&settings));
    }
    let outcome = Outcome { config: settings, files, warnings, ..Outcome::new(tensors, donor) }.all_by(what);
    let removed = config.list("remove_keys").into_iter();
    let removed = removed.map(|pattern| (Some(config.line(&pattern)), pattern)).collect();
    Ok(Merge::new(outcome, "model", inputs)
        .finished(removed, options)?
        .told("merge_config.json", config.text))
}

/// All models must hold the same tensors.
fn same_names(models: &[Model], config: &Config<'_>) -> Result<()> {
    let (first, rest) = models.split_first().ok_or_else(|| Error::request("there is no model"))?;
    let size = |model: &Model| model.tensors.values().map(bytes_of).sum::<u64>();
    for model in rest {
        for (one, other) in [(first, model), (model, first)] {
            if let Some(name) = one.tensors.keys().find(|name| !other.tensors.contains_key(*name)) {
                let what = format!("{}: '{name}' is missing, and {} has it", other.name, one.name);
                return Err(config.wrong(&other.name, what));
            }
        }
        if size(model) != size(first) {
            let what = format!(
                "{}: its total_size is {}, and {} has {}; convert them to one element type first",
                model.name,
                size(model),
                first.name,
                size(first)
            );
            return Err(config.wrong(&model.name, what));
        }
        for (name, values) in &first.tensors {
            let other = model.tensor(name)?;
            if other.shape() != values.shape() {
                let what = format!(
                    "'{name}': the shapes differ: {} in {} and {} in {}",
                    values.shape(),
                    first.name,
                    other.shape(),
                    model.name
                );
                return Err(config.wrong(&model.name, what));
            }
        }
    }
    Ok(())
}

fn tensor(
    name: &str,
    values: Vec<Arc<dyn Values>>,
    base: Option<usize>,
    config: &Config<'_>,
    paths: &[String],
    options: &Options,
) -> Result<Arc<dyn Values>> {
    let mut dtype = values[0].dtype();
    for other in &values[1..] {
        dtype = promote("merge", dtype, other.dtype())?;
    }
    if !dtype.is_float() {
        return Ok(Arc::new(crate::merged::Same { name: name.to_string(), values }));
    }
    let streams: Vec<Stream> = paths.iter().map(|path| Stream::new(options.seed, path, name)).collect();
    let rule = rule(config, paths.len(), &streams)?;
    let shape = values[0].shape().to_vec();
    let inputs = Inputs { values, base, shape, wide: dtype == DType::F64 };
    Ok(Arc::new(Merged::new(name, inputs, rule, dtype)?))
}

/// Thins out with a density, an epsilon, whether what stays is divided, and random numbers.
type Thin = fn(f64, f64, bool, Stream) -> Sparsify;

/// How a method thins out, and whether it elects signs.
fn parts_of(method: &str, config: &Config<'_>) -> Result<(Thin, bool)> {
    let trim: Thin = |density, _, _, _| Sparsify::Quantile { density };
    let random: Thin = |density, _, _, stream| Sparsify::Random { density, stream };
    let pruned: Thin =
        |density, epsilon, divided, stream| Sparsify::Pruned { density, epsilon, divided, stream };
    Ok(match method {
        "linear" => (|_, _, _, _| Sparsify::Nothing, false),
        "ties" => (trim, true),
        "dare_linear" => (random, false),
        "dare_ties" => (random, true),
        "della_linear" => (pruned, false),
        "della" => (pruned, true),
        other => {
            let (near, known) = (nearest(other, METHODS), METHODS.join(", "));
            let what = format!("no such method: '{other}'{near} (known: {known})");
            return Err(config.wrong("merge_method", what));
        }
    })
}

fn rule(config: &Config<'_>, models: usize, streams: &[Stream]) -> Result<Box<dyn Rule>> {
    let method = config.text("merge_method").unwrap_or("linear");
    let mut weights = config.weights(models)?;
    if method == "slerp" {
        if models != 2 {
            let what = format!("slerp takes two models, and there are {models}");
            return Err(config.wrong("merge_method", what));
        }
        let t = config.number("slerp_alpha", 0.5)?;
        let eps = config.number("slerp_normalize_eps", 1e-8)?;
        let parallel = config.number("slerp_dot_threshold", 0.9995)?;
        return Ok(Box::new(Slerp { t, eps, parallel, ends: Ends::Others }));
    }
    let (thin, elects) = parts_of(method, config)?;
    let (density, epsilon) = (config.share("reserve_p", 0.7)?, config.number("epsilon", 0.14)?);
    let (divided, normalize) = (config.truth("rescale", true), config.truth("normalize", true));
    let elect = match (elects, config.text("ties_elect_type").unwrap_or("sum")) {
        (false, _) => Elect::Nobody,
        (true, "sum") => Elect::Sum,
        (true, "count") => Elect::Count,
        (true, other) => {
            let what = format!("`ties_elect_type` is '{other}', not 'sum' or 'count'");
            return Err(config.wrong("ties_elect_type", what));
        }
    };
    if normalize {
        let sizes: Vec<f64> = weights.iter().map(|weight| weight.abs()).collect();
        total(&sizes, "`normalize`").map_err(|error| config.wrong("weight_list", error.to_string()))?;
    }
    if normalize && !elects {
        let sum: f64 = weights.iter().sum();
        if sum.abs() < 1e-12 {
            let what = "`weight_list` has a sum of zero, and `normalize` divides by it";
            return Err(config.wrong("weight_list", what));
        }
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    // The base stands last and has no weight.
    weights.push(0.0);
    let rescale = match (divided, method) {
        (true, "ties") => Rescale::Magnitudes,
        (true, "dare_linear" | "dare_ties") => Rescale::By(1.0 / density),
        _ => Rescale::Never,
    };
    let sparsify = streams.iter().map(|stream| thin(density, epsilon, divided, *stream)).collect();
    let divide = if normalize && elects { Divide::Weights } else { Divide::Never };
    Ok(Box::new(Deltas { weights, sparsify, rescale, elect, divide, factor: 1.0 }))
}
