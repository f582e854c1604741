//! Which tensors a model has, module by module: tables of known families, and what the names tell of others.

use crate::error::{Error, Result};
use crate::model::Model;
use std::collections::BTreeSet;

mod module;

use module::Part;

/// The weights of a family, or of one of its modules. `{}` in a name stands for the number of a layer.
#[derive(Clone, Debug)]
pub(crate) struct Architecture {
    /// The module, as recipes call it.
    pub(crate) name: &'static str,
    /// Before the layers.
    pub(crate) pre: Vec<Weight>,
    /// Of every layer.
    pub(crate) layer: Vec<Weight>,
    /// Behind the layers.
    pub(crate) post: Vec<Weight>,
    /// Where the number of layers is found.
    depth: Depth,
}

/// Where the number of layers is found.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Depth {
    /// There are none, whatever the names say.
    None,
    /// In the configuration, else in the names.
    Told,
    /// In the names that begin so.
    Named(String),
}

/// A weight of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    pub(crate) name: String,
    /// It may be missing.
    pub(crate) optional: bool,
    /// What a model that lacks it uses in its place.
    pub(crate) tied: Option<String>,
    /// Its rows are those of the vocabulary.
    pub(crate) vocabulary: bool,
}

impl Weight {
    fn plain(name: impl Into<String>) -> Weight {
        Weight { name: name.into(), optional: false, tied: None, vocabulary: false }
    }

    /// A weight that is known by nothing but its name.
    pub(crate) fn named(name: &str, optional: bool) -> Weight {
        Weight { optional, ..Weight::plain(name) }
    }

    /// Its name in a layer.
    pub(crate) fn in_layer(&self, layer: usize) -> String {
        self.name.replacen("{}", &layer.to_string(), 1)
    }
}

/// Where tables of token vectors are, the first name that is there.
pub(crate) const EMBEDDINGS: [&str; 5] =
    [EMBEDDING, "model.language_model.embed_tokens.weight", "transformer.wte.weight", "wte.weight", BARE];
const EMBEDDING: &str = "model.embed_tokens.weight";
/// Of a model that ends with hidden states, whose names have nothing before them.
const BARE: &str = "embed_tokens.weight";
/// What scores the next token.
pub(crate) const HEAD: &str = "lm_head.weight";

const ATTENTION: [&str; 4] = [
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
];
const NORMS: [&str; 2] = ["input_layernorm.weight", "post_attention_layernorm.weight"];
const MLP: [&str; 3] = ["mlp.up_proj.weight", "mlp.gate_proj.weight", "mlp.down_proj.weight"];
const QKV_BIAS: [&str; 3] = ["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"];
const QK_NORM: [&str; 2] = ["self_attn.q_norm.weight", "self_attn.k_norm.weight"];
const MORE_NORMS: [&str; 2] = ["pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"];
const FUSED: [&str; 4] = [
    "self_attn.qkv_proj.weight",
    "self_attn.o_proj.weight",
    "mlp.gate_up_proj.weight",
    "mlp.down_proj.weight",
];

/// The name of a model's table of token vectors.
pub(crate) fn embedding_of(model: &Model) -> Option<&'static str> {
    EMBEDDINGS.into_iter().find(|name| model.tensors.contains_key(*name))
}

/// Weights of a layer by `model_type`.
fn layer_weights(model_type: &str) -> Option<Vec<&'static str>> {
    let llama = [&NORMS[..], &ATTENTION, &MLP].concat();
    Some(match model_type {
        "llama" | "mistral" | "gemma" => llama,
        "qwen2" => [&llama[..], &QKV_BIAS].concat(),
        "qwen3" => [&llama[..], &QK_NORM].concat(),
        "gemma2" => [&llama[..], &MORE_NORMS].concat(),
        "gemma3_text" => [&llama[..], &MORE_NORMS, &QK_NORM].concat(),
        "phi3" => [&NORMS[..], &FUSED].concat(),
        _ => return None,
    })
}

impl Architecture {
    /// The first model of another architecture than the first of all, and how to say so.
    pub(crate) fn differ(models: &[&Model]) -> Option<(usize, String)> {
        let first = models.first()?;
        let expected = kind(first);
        let alike = |found: &(String, String)| {
            found.0 == expected.0 && (found.1 == expected.1 || found.1.is_empty() || expected.1.is_empty())
        };
        let other = models.iter().position(|model| !alike(&kind(model)))?;
        let named = |(model_type, class): (String, String)| format!("{model_type} ({class})");
        let what = format!(
            "{} is of the architecture {} and {} of {}; `--allow-crimes` merges them all the same, by the names of the first",
            first.name,
            named(kind(first)),
            models[other].name,
            named(kind(models[other]))
        );
        Some((other, what))
    }

    /// The modules of the first model's architecture; one without a table has the names of all.
    pub(crate) fn modules(models: &[&Model]) -> Result<Vec<Architecture>> {
        let first = models.first().ok_or_else(|| Error::request("there is no model"))?;
        if let Some(layer) = layer_weights(first.model_type()) {
            let is_bare = embedding_of(first) == Some(BARE);
            return Ok(vec![if is_bare { bare(&layer) } else { known(&layer) }]);
        }
        let names: BTreeSet<&str> =
            models.iter().flat_map(|model| model.tensors.keys().map(String::as_str)).collect();
        let modules = module::divided(&names).into_iter();
        Ok(modules.map(|(part, names)| inferred(part, &names, models)).collect())
    }

    /// All weights of the first model's architecture, which must be one module.
    pub(crate) fn of(models: &[&Model]) -> Result<Architecture> {
        let mut modules = Architecture::modules(models)?;
        match modules.len() {
            1 => Ok(modules.remove(0)),
            _ => {
                let names: Vec<&str> = modules.iter().map(|module| module.name).collect();
                let what = format!("it has several modules ({}), and one is needed here", names.join(", "));
                Err(Error::model(&models[0].name, what))
            }
        }
    }

    /// Whether its layers are those that a configuration speaks of first.
    pub(crate) fn is_main(&self) -> bool {
        [module::DEFAULT, module::TEXT, module::DECODER].contains(&self.name)
    }

    /// Keys by which a configuration may tell its number of layers, with dots where they are in a section.
    pub(crate) fn depth_keys(&self) -> &'static [&'static str] {
        module::depth_keys(self.name)
    }

    /// Weights without layers.
    pub(crate) fn flat(weights: Vec<Weight>) -> Architecture {
        Architecture {
            name: module::DEFAULT,
            pre: weights,
            layer: Vec::new(),
            post: Vec::new(),
            depth: Depth::None,
        }
    }

    /// Number of layers of a model.
    pub(crate) fn layers(&self, model: &Model) -> usize {
        let among = |before: &str| {
            let numbers = model.tensors.keys().filter_map(|name| split_layer(name));
            let own = numbers.filter(|(found, ..)| before.is_empty() || *found == before);
            own.map(|(_, number, _)| number + 1).max().unwrap_or(0)
        };
        match &self.depth {
            Depth::None => 0,
            Depth::Told => module::told(model, self.depth_keys()).unwrap_or_else(|| among("")),
            Depth::Named(before) => among(before),
        }
    }
}

/// `model_type` and class.
fn kind(model: &Model) -> (String, String) {
    let class = model.config["architectures"][0].as_str().unwrap_or("");
    (model.model_type().to_string(), class.to_string())
}

fn known(layer: &[&str]) -> Architecture {
    let embedding = Weight { vocabulary: true, ..Weight::plain(EMBEDDING) };
    let head =
        Weight { optional: true, tied: Some(EMBEDDING.to_string()), vocabulary: true, ..Weight::plain(HEAD) };
    Architecture {
        name: module::DEFAULT,
        pre: vec![embedding],
        layer: layer.iter().map(|name| Weight::plain(format!("model.layers.{{}}.{name}"))).collect(),
        post: vec![Weight::plain("model.norm.weight"), head],
        depth: Depth::Told,
    }
}

/// The same model without its head.
fn bare(layer: &[&str]) -> Architecture {
    Architecture {
        name: module::DEFAULT,
        pre: vec![Weight { vocabulary: true, ..Weight::plain(BARE) }],
        layer: layer.iter().map(|name| Weight::plain(format!("layers.{{}}.{name}"))).collect(),
        post: vec![Weight::plain("norm.weight")],
        depth: Depth::Told,
    }
}

/// Parts of a name around its first number between dots.
fn split_layer(name: &str) -> Option<(&str, usize, &str)> {
    let mut start = 0;
    for part in name.split('.') {
        let end = start + part.len();
        if start > 0 && end < name.len() && !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
        {
            return Some((&name[..start], part.parse().ok()?, &name[end..]));
        }
        start = end + 1;
    }
    None
}

/// The names of a module in all models; what some of them lack is optional.
fn inferred(part: Part, names: &BTreeSet<&str>, models: &[&Model]) -> Architecture {
    // Numbers mean layers where most names have them.
    let mut prefixes: Vec<(usize, &str)> = Vec::new();
    for (prefix, ..) in names.iter().filter_map(|name| split_layer(name)) {
        match prefixes.iter_mut().find(|(_, other)| *other == prefix) {
            Some((count, _)) => *count += 1,
            None => prefixes.push((1, prefix)),
        }
    }
    let prefix = prefixes.iter().filter(|_| part.layered).max_by_key(|(count, _)| *count);
    let prefix = prefix.map(|(_, prefix)| *prefix);
    let depth = match prefix {
        _ if part.name == module::DEFAULT => Depth::Told,
        Some(prefix) => Depth::Named(prefix.to_string()),
        None => Depth::None,
    };
    let mut architecture =
        Architecture { name: part.name, pre: Vec::new(), layer: Vec::new(), post: Vec::new(), depth };
    for &name in names {
        let is_embedding = ["embed_tokens", "wte.", "word_embeddings", "embed_in", "tok_embeddings"]
            .iter()
            .any(|part| name.contains(part));
        let is_head = name.starts_with("lm_head.") || name.starts_with("embed_out.");
        let embedding =
            models.iter().flat_map(|model| model.tensors.keys()).find(|n| n.contains("embed_tokens.weight"));
        let weight = |name: String| Weight {
            name,
            optional: true,
            tied: is_head.then(|| embedding.cloned()).flatten(),
            vocabulary: is_embedding || is_head,
        };
        match split_layer(name).filter(|(found, ..)| Some(*found) == prefix) {
            Some((before, _, after)) => {
                let weight = weight(format!("{before}{{}}{after}"));
                if !architecture.layer.contains(&weight) {
                    architecture.layer.push(weight);
                }
            }
            None if is_embedding || name.contains("wpe.") => architecture.pre.push(weight(name.to_string())),
            None => architecture.post.push(weight(name.to_string())),
        }
    }
    architecture
}
