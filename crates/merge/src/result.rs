//! The result of a merge as a model: tensors, configuration and the files that go with it.

use crate::architecture::EMBEDDINGS;
use crate::error::{Error, Result};
use crate::how::How;
use crate::model::Model;
use crate::plan::{Models, Planned};
use crate::recipe::{Recipe, Weak};
use crate::tokens::{Merging, chat_template};
use crate::values::Values;
use planaria_layout::DType;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Small files of a donor that go along.
const COMPANIONS: [&str; 14] = [
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "normalizer.json",
];

/// Everything that is written.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) tensors: Vec<(String, Arc<dyn Values>)>,
    pub(crate) config: Value,
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    pub(crate) dropped: Vec<(String, String, u64)>,
    pub(crate) added: Vec<(String, u64)>,
    pub(crate) warnings: Vec<String>,
    pub(crate) notes: Vec<String>,
    /// How tensors are made, by name; those that are not here are copied.
    pub(crate) hows: BTreeMap<String, How>,
    pub(crate) donor: Arc<Model>,
}

impl Outcome {
    /// Tensors without a configuration, files or anything to be told.
    pub(crate) fn new(tensors: Vec<(String, Arc<dyn Values>)>, donor: Arc<Model>) -> Outcome {
        Outcome {
            tensors,
            config: Value::Null,
            files: BTreeMap::new(),
            dropped: Vec::new(),
            added: Vec::new(),
            warnings: Vec::new(),
            notes: Vec::new(),
            hows: BTreeMap::new(),
            donor,
        }
    }

    /// The same with one way in which all tensors are made.
    pub(crate) fn all_by(mut self, what: &str) -> Outcome {
        self.hows = self.tensors.iter().map(|(name, _)| (name.clone(), How::plain(what))).collect();
        self
    }
}

/// The small files of a donor that go along.
pub(crate) fn companions(donor: &Model) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for name in COMPANIONS {
        if let Some(bytes) = donor.file(name)? {
            files.insert(name.to_string(), bytes);
        }
    }
    Ok(files)
}

/// The files by which sentence-transformers knows how a model embeds, each in its place: those of a folder, or those that a
/// checkpoint keeps in one.
pub(crate) fn embedding_files(folder: &Model) -> Result<BTreeMap<String, Vec<u8>>> {
    let wrong = |what: String| Error::model(&folder.name, what);
    let mut files = BTreeMap::new();
    if let Some(text) = folder.text("sentence_transformers.json")? {
        let packed: Map<String, Value> =
            serde_json::from_str(&text).map_err(|e| wrong(format!("sentence_transformers.json: {e}")))?;
        for (name, value) in packed {
            planaria_store::check_name(&name)?;
            files.insert(name, pretty(&value));
        }
        return Ok(files);
    }
    let Some(text) = folder.text("modules.json")? else { return Ok(files) };
    let modules: Value = serde_json::from_str(&text).map_err(|e| wrong(format!("modules.json: {e}")))?;
    let parts = modules.as_array().into_iter().flatten().filter_map(|module| module["path"].as_str());
    let parts = parts.filter(|part| !part.is_empty());
    let inside = parts.flat_map(|part| {
        ["config.json", "model.safetensors", "pytorch_model.bin"].map(|name| format!("{part}/{name}"))
    });
    let beside = ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"];
    for name in beside.into_iter().map(String::from).chain(inside) {
        planaria_store::check_name(&name)?;
        if let Some(bytes) = folder.file(&name)? {
            files.insert(name, bytes);
        }
    }
    Ok(files)
}

/// Bytes of a tensor as written.
pub(crate) fn bytes_of(values: &Arc<dyn Values>) -> u64 {
    (values.shape().numel() * values.dtype().size()) as u64
}

/// Torch's name of an element type.
pub(crate) fn torch_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "float64",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        _ => "float32",
    }
}

/// The element type of most bytes.
pub(crate) fn main_dtype(tensors: &[(String, Arc<dyn Values>)]) -> Option<DType> {
    let mut counts: Vec<(DType, u64)> = Vec::new();
    for (_, values) in tensors.iter().filter(|(_, values)| values.dtype().is_float()) {
        let numel = values.shape().numel() as u64;
        match counts.iter_mut().find(|(dtype, _)| *dtype == values.dtype()) {
            Some((_, count)) => *count += numel,
            None => counts.push((values.dtype(), numel)),
        }
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(dtype, _)| dtype)
}

/// Sets a number where the configuration has one, in itself or in its text part.
fn set(config: &mut Value, keys: &[&str], value: Value) {
    let set_in = |config: &mut Map<String, Value>| {
        let key = keys.iter().find(|key| config.contains_key(**key));
        key.map(|key| config.insert((*key).to_string(), value.clone())).is_some()
    };
    let Some(outer) = config.as_object_mut() else { return };
    if !set_in(outer)
        && let Some(Value::Object(inner)) = outer.get_mut("text_config")
    {
        set_in(inner);
    }
}

/// Sets the element type wherever the configuration tells one.
pub(crate) fn set_dtype(config: &mut Value, dtype: DType) {
    let Some(fields) = config.as_object_mut() else { return };
    let name = json!(torch_name(dtype));
    let key = if fields.contains_key("torch_dtype") && !fields.contains_key("dtype") {
        "torch_dtype"
    } else {
        "dtype"
    };
    fields.insert(key.to_string(), name.clone());
    for (key, value) in fields.iter_mut() {
        match key.as_str() {
            "torch_dtype" => *value = name.clone(),
            "text_config" if value["dtype"].is_string() => value["dtype"] = name.clone(),
            _ => {}
        }
    }
}

pub(crate) fn pretty(value: &Value) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).unwrap_or_default();
    text.push(b'\n');
    text
}

/// The configuration of the result.
fn config(donor: &Model, planned: &Planned, models: &Models, vocabulary: bool) -> Value {
    let mut config = donor.config.clone();
    if !config.is_object() {
        return config;
    }
    for (keys, layers) in &planned.depths {
        let pointers = keys.iter().map(|key| format!("/{}", key.replace('.', "/")));
        if let Some(at) = pointers.into_iter().find(|pointer| config.pointer(pointer).is_some()) {
            config.pointer_mut(&at).into_iter().for_each(|place| *place = json!(layers));
        }
    }
    if config["layer_types"].is_array() {
        let kind = |(reference, layer): &(crate::recipe::Reference, usize)| {
            models.get(reference).map_or(Value::Null, |model| model.config["layer_types"][*layer].clone())
        };
        let kinds: Vec<Value> = planned.layers.iter().map(kind).collect();
        if kinds.iter().all(|kind| !kind.is_null()) {
            config["layer_types"] = Value::Array(kinds);
        }
    }
    if let Some(dtype) = main_dtype(&planned.tensors) {
        set_dtype(&mut config, dtype);
    }
    let find = |name: &str| planned.tensors.iter().find(|(other, _)| other == name).map(|(_, values)| values);
    let embedding = EMBEDDINGS.into_iter().find_map(find);
    if let Some(rows) = embedding.map(|values| values.shape()[0])
        && (vocabulary || donor.vocab_size().is_some_and(|size| size != rows))
    {
        set(&mut config, &["vocab_size"], json!(rows));
    }
    // Where nothing is said, some families are tied.
    if find("lm_head.weight").is_some() && config["tie_word_embeddings"] != false {
        config["tie_word_embeddings"] = json!(false);
    }
    config
}

/// Puts together what a recipe makes.
pub(crate) fn assemble(
    recipe: &Recipe,
    models: &Models,
    planned: Planned,
    merging: Option<&Merging>,
) -> Result<Outcome> {
    let donor = recipe.donor().and_then(|reference| models.get(reference));
    let donor = donor.ok_or_else(|| Error::request("there is no model"))?.clone();
    let config = config(&donor, &planned, models, merging.is_some());
    let speaker = merging.and_then(|merging| models.get(&merging.donor)).unwrap_or(&donor);
    let mut files = companions(speaker)?;
    if let Some(merging) = merging {
        // What is told twice would contradict what is told once.
        ["tokenizer.model", "added_tokens.json", "vocab.json", "merges.txt"]
            .iter()
            .for_each(|name| drop(files.remove(*name)));
        files.insert("tokenizer.json".to_string(), merging.result.to_json());
    }
    let inputs: Vec<&Model> = recipe
        .models()
        .into_iter()
        .filter_map(|reference| models.get(reference))
        .map(|model| &**model)
        .collect();
    if let Some(template) = chat_template(recipe, &inputs)? {
        files.insert("chat_template.jinja".to_string(), template.into_bytes());
        files.remove("chat_template.json");
        if let Some(mut config) = speaker.json("tokenizer_config.json")?
            && config.as_object_mut().is_some_and(|fields| fields.remove("chat_template").is_some())
        {
            files.insert("tokenizer_config.json".to_string(), pretty(&config));
        }
    }
    if config.is_object() {
        files.insert("config.json".to_string(), pretty(&config));
    }
    let mut warnings = recipe.warnings.clone();
    warnings.extend(recipe.weak_filters().into_iter().map(|Weak { line, filter, inside }| match inside {
        None => format!("line {line}: the filter '{filter}' decides about no tensor, it has no effect"),
        Some(name) => {
            format!(
                "line {line}: the filter '{filter}' is found only in the middle of names, such as '{name}'"
            )
        }
    }));
    let missing = |name: &str| !donor.tensors.contains_key(name);
    let added = planned.tensors.iter().filter(|(name, _)| missing(name));
    let added = added.map(|(name, values)| (name.clone(), bytes_of(values))).collect();
    let Planned { tensors, dropped, notes, hows, .. } = planned;
    Ok(Outcome { config, files, dropped, added, warnings, notes, hows, ..Outcome::new(tensors, donor) })
}
