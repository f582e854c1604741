//! Folders of sentence-transformers: what stands in them beside the weights.

use super::contrast::named;
use super::{Pooling, Similarity};
use crate::config::EmbeddingSection;
use crate::data::texts;
use crate::error::{Error, Result};
use crate::pretrained::Pretrained;
use planaria_array::{Array, Device};
use planaria_store::{Store, StoreExt, join};
use planaria_tensor::Tensor;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Latent attention, whose weights are among the model's.
const ASKING: &str = "LatentAttention";

/// The ways of pooling by the flags of older versions.
const FLAGS: [(&str, Pooling); 6] = [
    ("pooling_mode_cls_token", Pooling::Cls),
    ("pooling_mode_max_tokens", Pooling::Max),
    ("pooling_mode_mean_tokens", Pooling::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", Pooling::MeanSqrtLength),
    ("pooling_mode_weightedmean_tokens", Pooling::WeightedMean),
    ("pooling_mode_lasttoken", Pooling::LastToken),
];

/// Makes a `config.json` that of a model which ends with hidden states.
pub(crate) fn without_head(config: &mut Map<String, Value>) {
    let named = config.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
    let base = match named.map(|name| name.split("For").next().unwrap_or(name)) {
        Some(base) if base.ends_with("Model") => base.to_string(),
        Some(base) => format!("{base}Model"),
        None => {
            // As transformers writes the names of families: `qwen2_moe` is `Qwen2Moe`.
            let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
            let word = |word: &str| {
                word.chars()
                    .take(1)
                    .flat_map(char::to_uppercase)
                    .chain(word.chars().skip(1))
                    .collect::<String>()
            };
            format!("{}Model", kind.split('_').map(word).collect::<String>())
        }
    };
    config.insert("architectures".into(), json!([base]));
    config.insert("tie_word_embeddings".into(), json!(false));
}

/// The files of a folder for embeddings of this width, which was trained on texts of at most `longest` tokens.
pub(crate) fn files(
    section: &EmbeddingSection,
    texts: &texts::Config,
    width: usize,
    longest: usize,
    latent: bool,
) -> Result<BTreeMap<String, Vec<u8>>> {
    // Older readers put several ways in an order of their own.
    let order = |way: &Pooling| FLAGS.iter().position(|(_, known)| known == way);
    if !section.pooling.is_sorted_by_key(order) {
        let expected = "ways in the order that sentence-transformers keeps: cls, max, mean, mean_sqrt_len_tokens, weightedmean, lasttoken";
        let found = named(&section.pooling);
        return Err(Error::Value { key: "embedding.pooling".into(), found, expected: expected.into() });
    }
    let module = |(number, name): (usize, &str)| {
        let path = if number == 0 { String::new() } else { format!("{number}_{name}") };
        // Nobody else has this module: others say that they do not know it instead of leaving it out.
        let home = if name == ASKING { "planaria" } else { "sentence_transformers.models" };
        json!({ "idx": number, "name": number.to_string(), "path": path, "type": format!("{home}.{name}") })
    };
    let names = [
        Some("Transformer"),
        latent.then_some(ASKING),
        Some("Pooling"),
        section.normalize.then_some("Normalize"),
    ];
    let modules: Vec<Value> = names.into_iter().flatten().enumerate().map(module).collect();
    let pooled = 1 + usize::from(latent);
    let mut pooling = Map::from_iter([("word_embedding_dimension".to_string(), json!(width))]);
    for (flag, way) in FLAGS {
        pooling.insert(flag.into(), json!(section.pooling.contains(&way)));
    }
    pooling.insert("include_prompt".into(), json!(texts.include_prompt));
    let similar = match section.similarity {
        Similarity::Cos => "cosine",
        Similarity::Dot => "dot",
        Similarity::Euclidean => "euclidean",
        Similarity::Manhattan => "manhattan",
    };
    let about = json!({
        "__version__": { "sentence_transformers": "2.2.2" },
        "prompts": { "query": texts.query_prompt, "document": texts.document_prompt },
        "default_prompt_name": null,
        "similarity_fn_name": similar,
    });
    let limits = json!({ "max_seq_length": texts.max_length.unwrap_or(longest), "do_lower_case": false });
    let mut all = vec![
        ("modules.json".to_string(), Value::Array(modules)),
        (format!("{pooled}_Pooling/config.json"), Value::Object(pooling)),
        ("config_sentence_transformers.json".to_string(), about),
        ("sentence_bert_config.json".to_string(), limits),
    ];
    if section.normalize {
        all.push((format!("{}_Normalize/config.json", pooled + 1), json!({})));
    }
    // A checkpoint has no folders inside: what belongs into some is kept in one file, and unpacked with the weights.
    let packed: Map<String, Value> = all.into_iter().collect();
    let text = format!("{:#}\n", Value::Object(packed)).into_bytes();
    Ok(BTreeMap::from([(PACKED.to_string(), text)]))
}

/// The file of a checkpoint that has the files of sentence-transformers by name.
const PACKED: &str = "sentence_transformers.json";
/// Largest one that is read.
const PACKED_BYTES: u64 = 1 << 20;

/// Writes the files of sentence-transformers that a folder has packed in one, each in its place, if there is one. Whether there
/// was.
pub fn unpack_folder(store: &dyn Store, folder: &str) -> Result<bool> {
    let name = join(folder, PACKED);
    if !store.exists(&name)? {
        return Ok(false);
    }
    let text = store.read(&name, PACKED_BYTES)?;
    let packed: Map<String, Value> = serde_json::from_slice(&text)
        .map_err(|e| Error::Syntax { origin: format!("{name}:{}", e.line()), what: e.to_string() })?;
    for (file, value) in packed {
        planaria_store::check_name(&file)?;
        store.write(&join(folder, &file), format!("{value:#}\n").as_bytes())?;
    }
    Ok(true)
}

/// What a folder says about its embeddings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Folder {
    pub(crate) pooling: Vec<Pooling>,
    pub(crate) include_prompt: bool,
    /// What comes after pooling, in order.
    pub(crate) layers: Vec<LayerSpec>,
    pub(crate) longest: Option<usize>,
    pub(crate) lower_case: bool,
    pub(crate) prompts: BTreeMap<String, String>,
    pub(crate) default_prompt: Option<String>,
    pub(crate) similarity: Similarity,
}

/// A layer after pooling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LayerSpec {
    Normalize,
    /// A product, in this folder.
    Dense(String),
}

impl LayerSpec {
    pub(crate) fn normalizes(&self) -> bool {
        *self == LayerSpec::Normalize
    }
}

/// A layer after pooling with its weights.
#[derive(Clone, Debug)]
pub(crate) enum Layer {
    Normalize,
    Dense { weight: Box<Array>, bias: Option<Box<Array>>, activation: Activation },
}

/// What a dense layer ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    Identity,
    Tanh,
    Relu,
    Gelu,
    Sigmoid,
    Silu,
}

impl Activation {
    /// By the last part of its Python path; nothing is imported.
    fn of(path: &str) -> Option<Activation> {
        Some(match path.rsplit('.').next().unwrap_or(path) {
            "Identity" => Activation::Identity,
            "Tanh" => Activation::Tanh,
            "ReLU" => Activation::Relu,
            "GELU" => Activation::Gelu,
            "Sigmoid" => Activation::Sigmoid,
            "SiLU" => Activation::Silu,
            _ => return None,
        })
    }

    pub(crate) fn apply(self, x: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Activation::Identity => x.clone(),
            Activation::Tanh => x.tanh()?,
            Activation::Relu => x.relu()?,
            Activation::Gelu => x.gelu()?,
            Activation::Sigmoid => x.sigmoid()?,
            Activation::Silu => x.silu()?,
        })
    }
}

fn unknown(key: &str, found: impl Into<String>, expected: &str) -> Error {
    Error::Value { key: key.into(), found: found.into(), expected: expected.into() }
}

impl Folder {
    /// Whether a folder says anything about embeddings.
    pub(crate) fn is_in(from: &Pretrained) -> Result<bool> {
        for name in [PACKED, "modules.json", "config_sentence_transformers.json"] {
            if from.text(name)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn read(from: &Pretrained) -> Result<Folder> {
        let empty = Map::new();
        let read = Files { from, packed: from.json(PACKED)?.unwrap_or_default() };
        let limits = read.object("sentence_bert_config.json")?;
        let tokenizer = read.object("tokenizer_config.json")?;
        let about = read.object("config_sentence_transformers.json")?;
        // Tokenizers without a limit write a number of thirty digits.
        let limit =
            |value: Option<&Value>| value.and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        let lengths = [limit(limits.get("max_seq_length")), limit(tokenizer.get("model_max_length"))];
        let prompts = about.get("prompts").and_then(Value::as_object).unwrap_or(&empty);
        let prompt = |(name, text): (&String, &Value)| Some((name.clone(), text.as_str()?.to_string()));
        let similarity = match about.get("similarity_fn_name").and_then(Value::as_str) {
            None | Some("cosine" | "cos") => Similarity::Cos,
            Some("dot" | "dot_score") => Similarity::Dot,
            Some("euclidean") => Similarity::Euclidean,
            Some("manhattan") => Similarity::Manhattan,
            Some(other) => {
                return Err(unknown("similarity_fn_name", other, "cosine, dot, euclidean or manhattan"));
            }
        };
        let mut folder = Folder {
            pooling: vec![Pooling::Mean],
            include_prompt: true,
            layers: Vec::new(),
            longest: lengths.into_iter().flatten().min(),
            lower_case: limits.get("do_lower_case").and_then(Value::as_bool).unwrap_or(false),
            prompts: prompts.iter().filter_map(prompt).collect(),
            default_prompt: about.get("default_prompt_name").and_then(Value::as_str).map(str::to_string),
            similarity,
        };
        for module in read.modules()? {
            folder.add(&read, &module)?;
        }
        Ok(folder)
    }

    /// Takes one entry of `modules.json`, known by the last part of its type.
    fn add(&mut self, read: &Files<'_>, module: &Value) -> Result<()> {
        let text = |key: &str| module.get(key).and_then(Value::as_str).unwrap_or_default();
        let path = text("path").to_string();
        match text("type").rsplit('.').next().unwrap_or_default() {
            "Transformer" if path.is_empty() => {}
            // The model's own `config.json` says how.
            ASKING => {}
            "Pooling" => {
                let config = read.object(&format!("{path}/config.json"))?;
                self.pooling = ways(&config)?;
                self.include_prompt = config.get("include_prompt").and_then(Value::as_bool).unwrap_or(true);
            }
            "Dense" => self.layers.push(LayerSpec::Dense(path)),
            "Normalize" => self.layers.push(LayerSpec::Normalize),
            other => {
                let found = format!("{other} in '{path}'");
                return Err(unknown(
                    "modules.json",
                    found,
                    "Transformer in '', Pooling, Dense and Normalize",
                ));
            }
        }
        Ok(())
    }
}

/// The files of a folder, each by itself or packed in one.
struct Files<'a> {
    from: &'a Pretrained,
    packed: Map<String, Value>,
}

impl Files<'_> {
    fn object(&self, name: &str) -> Result<Map<String, Value>> {
        let packed = || self.packed.get(name).and_then(Value::as_object).cloned();
        Ok(self.from.json(name)?.or_else(packed).unwrap_or_default())
    }

    fn modules(&self) -> Result<Vec<Value>> {
        let packed = || self.packed.get("modules.json").and_then(Value::as_array).cloned();
        Ok(self.from.json_list("modules.json")?.or_else(packed).unwrap_or_default())
    }
}

/// The ways of pooling of a `1_Pooling/config.json`, old or new; the mean where none is named.
fn ways(config: &Map<String, Value>) -> Result<Vec<Pooling>> {
    let way = |value: &Value| {
        serde_json::from_value(value.clone()).map_err(|_| {
            unknown("pooling_mode", value.to_string(), "a way of pooling that sentence-transformers has")
        })
    };
    let found = match config.get("pooling_mode") {
        Some(Value::Array(list)) => list.iter().map(way).collect::<Result<_>>()?,
        Some(one) => vec![way(one)?],
        None => {
            let set = |flag: &str| config.get(flag).and_then(Value::as_bool).unwrap_or(false);
            FLAGS.iter().filter(|(flag, _)| set(flag)).map(|(_, way)| *way).collect()
        }
    };
    Ok(if found.is_empty() { vec![Pooling::Mean] } else { found })
}

impl LayerSpec {
    /// The layer with its weights.
    pub(crate) fn load(&self, from: &Pretrained, device: Device) -> Result<Layer> {
        let LayerSpec::Dense(path) = self else { return Ok(Layer::Normalize) };
        let config = from.json(&format!("{path}/config.json"))?.unwrap_or_default();
        let named = config
            .get("activation_function")
            .and_then(Value::as_str)
            .unwrap_or("torch.nn.modules.activation.Tanh");
        let known = "Identity, Tanh, ReLU, GELU, Sigmoid or SiLU";
        let activation = Activation::of(named).ok_or_else(|| unknown("activation_function", named, known))?;
        let tensors = from.tensors_in(path)?;
        let tensor = |name: &str| tensors.get(name).map(|array| array.to(device)).transpose();
        let missing = || Error::Run { what: format!("'{path}' has no `linear.weight`") };
        let (weight, bias) = (tensor("linear.weight")?.ok_or_else(missing)?, tensor("linear.bias")?);
        Ok(Layer::Dense { weight: Box::new(weight), bias: bias.map(Box::new), activation })
    }
}
