//! Mixtures of experts from dense models: the layers of a base, with the MLPs of several models as experts.

mod gates;
mod hidden;
mod recipe;

use crate::architecture::Architecture;
use crate::error::{Error, Result};
use crate::how::How;
use crate::merge::{Merge, Options};
use crate::method::sparsify::Stream;
use crate::model::Model;
use crate::result::{Outcome, bytes_of, companions, main_dtype, pretty, set_dtype};
use crate::values::{Held, Joined, Scaled, Values, cast, round};
use planaria_array::random::{Key, Normal, Window, normal_f64};
use planaria_layout::{DType, Shape};
use recipe::{Alike, Expert, Family, Recipe};
use serde_json::{Value, json};
use std::sync::Arc;

/// Plans a mixture of experts by a recipe as `mergekit-moe` reads it.
pub fn plan_moe(text: &str, options: &Options) -> Result<Merge> {
    let alike = if options.allow_crimes { Alike::Allowed } else { Alike::Refused };
    let recipe = recipe::parse(text, alike)?;
    let lines = recipe.lines();
    let base = Model::open(&recipe.base, &options.root).map_err(|error| error.at_line(lines[0]))?;
    let open = |expert: &Expert| {
        Model::open(&expert.model, &options.root).map_err(|error| error.at_line(expert.line))
    };
    let experts: Vec<Model> = recipe.experts.iter().map(open).collect::<Result<_>>()?;
    let shared: Vec<Model> = recipe.shared.iter().map(open).collect::<Result<_>>()?;
    let all: Vec<&Model> = std::iter::once(&base).chain(&experts).chain(&shared).collect();
    if let Some((other, what)) = Architecture::differ(&all).filter(|_| !options.allow_crimes) {
        return Err(Error::recipe(lines[other], what));
    }
    let architecture = Architecture::of(&all)?;
    let layers = architecture.layers(&base);
    for (model, line) in all.iter().zip(&lines) {
        let found = architecture.layers(model);
        if found != layers {
            let what = format!("{} has {found} layers, and {} has {layers}", model.name, base.name);
            return Err(Error::recipe(*line, what));
        }
    }
    let family = recipe.family(&base)?;
    let mixture =
        Mixture { recipe: &recipe, base: &base, experts: &experts, shared: &shared, seed: options.seed };
    let gates = gates::gates(&recipe, &base, layers, options.seed)?;
    let mut tensors: Vec<(String, Arc<dyn Values>)> = Vec::new();
    for weight in architecture.pre.iter().chain(&architecture.post) {
        if let Some(values) = base.tensors.get(&weight.name) {
            tensors.push((weight.name.clone(), mixture.typed(values.clone())));
        } else if !weight.optional {
            base.tensor(&weight.name)?;
        }
    }
    for layer in 0..layers {
        for weight in architecture.layer.iter().filter(|weight| !weight.name.contains(".mlp.")) {
            let name = weight.in_layer(layer);
            match base.tensors.get(&name) {
                Some(values) => tensors.push((name, mixture.typed(values.clone()))),
                None if weight.optional => {}
                None => drop(base.tensor(&name)?),
            }
        }
        mixture.layer(family, layer, &gates, &mut tensors)?;
    }
    let removed = recipe.removed.iter().map(|(line, pattern)| (Some(*line), pattern.clone())).collect();
    let merge = mixture.finish(family, tensors)?.finished(removed, options)?;
    Ok(merge.titled("Mixture of experts").told("mergekit_moe_config.yml", text))
}

struct Mixture<'a> {
    recipe: &'a Recipe,
    base: &'a Model,
    experts: &'a [Model],
    shared: &'a [Model],
    seed: u64,
}

impl Mixture<'_> {
    /// In the element type of the result.
    fn typed(&self, values: Arc<dyn Values>) -> Arc<dyn Values> {
        match self.recipe.dtype {
            Some(dtype) => cast(values, dtype),
            None => values,
        }
    }

    /// A weight of an expert, with noise and scale.
    fn weight(&self, expert: &Expert, model: &Model, layer: usize, part: &str) -> Result<Arc<dyn Values>> {
        let name = format!("model.layers.{layer}.mlp.{part}.weight");
        let mut values = self.typed(model.tensor(&name)?.clone());
        if expert.noise != 0.0 {
            let stream =
                Stream::new(self.seed, &expert.model.to_string(), &format!("{name}#{}", expert.number));
            values = Arc::new(Noisy { inner: values, key: Key::new(stream.0, 0), std: expert.noise });
        }
        if part == "down_proj" && expert.residual != 1.0 {
            values = Arc::new(Scaled { inner: values, factor: expert.residual });
        }
        Ok(values)
    }

    fn layer(
        &self,
        family: Family,
        layer: usize,
        gates: &gates::Gates,
        tensors: &mut Vec<(String, Arc<dyn Values>)>,
    ) -> Result<()> {
        let within = format!("model.layers.{layer}.mlp");
        let dtype = self
            .recipe
            .dtype
            .unwrap_or_else(|| self.base.tensors.values().next().map_or(DType::F32, |v| v.dtype()));
        let pairs: Vec<(&Expert, &Model)> = self.recipe.experts.iter().zip(self.experts).collect();
        if family == Family::Mixtral {
            let (mut fused, mut down) = (Vec::new(), Vec::new());
            for (expert, model) in &pairs {
                fused.push(self.weight(expert, model, layer, "gate_proj")?);
                fused.push(self.weight(expert, model, layer, "up_proj")?);
                down.push(self.weight(expert, model, layer, "down_proj")?);
            }
            tensors.push((format!("{within}.experts.gate_up_proj"), stacked(fused, pairs.len())?));
            tensors.push((format!("{within}.experts.down_proj"), stacked(down, pairs.len())?));
        } else {
            for (number, (expert, model)) in pairs.iter().enumerate() {
                for part in ["gate_proj", "up_proj", "down_proj"] {
                    tensors.push((
                        format!("{within}.experts.{number}.{part}.weight"),
                        self.weight(expert, model, layer, part)?,
                    ));
                }
            }
        }
        let held = |values: Vec<f64>, rows: usize| -> Result<Arc<dyn Values>> {
            let shape = Shape::new(&[rows, values.len() / rows.max(1)])?;
            Ok(Arc::new(Held { values, shape, dtype }))
        };
        tensors.push((format!("{within}.gate.weight"), held(gates.experts[layer].concat(), pairs.len())?));
        for (expert, model) in self.recipe.shared.iter().zip(self.shared) {
            let name = if family == Family::DeepSeek { "shared_experts" } else { "shared_expert" };
            for part in ["gate_proj", "up_proj", "down_proj"] {
                tensors.push((
                    format!("{within}.{name}.{part}.weight"),
                    self.weight(expert, model, layer, part)?,
                ));
            }
        }
        if family == Family::Qwen2 {
            let gate = gates.shared[layer].first().cloned().unwrap_or_default();
            tensors.push((format!("{within}.shared_expert_gate.weight"), held(gate, 1)?));
            self.biases(layer, dtype, tensors)?;
        }
        Ok(())
    }

    /// Qwen's attention has biases; a base without them gets zeros.
    fn biases(&self, layer: usize, dtype: DType, tensors: &mut Vec<(String, Arc<dyn Values>)>) -> Result<()> {
        for part in ["q_proj", "k_proj", "v_proj"] {
            let name = format!("model.layers.{layer}.self_attn.{part}.bias");
            if tensors.iter().any(|(other, _)| *other == name) {
                continue;
            }
            let rows = self.base.tensor(&format!("model.layers.{layer}.self_attn.{part}.weight"))?.shape()[0];
            let values = vec![0.0; rows];
            tensors.push((name, Arc::new(Held { values, shape: Shape::new(&[rows])?, dtype })));
        }
        Ok(())
    }

    fn finish(&self, family: Family, tensors: Vec<(String, Arc<dyn Values>)>) -> Result<Merge> {
        let mut config = self.base.config.clone();
        self.configure(&mut config, family);
        if let Some(dtype) = main_dtype(&tensors) {
            set_dtype(&mut config, dtype);
        }
        let mut files = companions(self.base)?;
        files.insert("config.json".to_string(), pretty(&config));
        let all = std::iter::once(self.base).chain(self.experts).chain(self.shared);
        let inputs = all.flat_map(|model| model.inputs.clone()).collect();
        let added = tensors.iter().filter(|(name, _)| !self.base.tensors.contains_key(name));
        let added = added.map(|(name, values)| (name.clone(), bytes_of(values))).collect();
        let (warnings, donor) = (self.recipe.warnings.clone(), Arc::new(self.base.clone()));
        let hows = tensors.iter().map(|(name, _)| (name.clone(), self.how(name))).collect();
        Ok(Merge::new(
            Outcome { config, files, added, warnings, hows, ..Outcome::new(tensors, donor) },
            "model",
            inputs,
        ))
    }

    /// What a tensor of the result is, by its name.
    fn how(&self, name: &str) -> How {
        let expert =
            [".experts.", ".shared_expert.", ".shared_experts."].iter().any(|part| name.contains(part));
        let router =
            [".mlp.gate.weight", ".shared_expert_gate.weight"].iter().any(|part| name.ends_with(part));
        How::plain(match (expert, router) {
            (true, _) => format!("experts of {} models", self.experts.len() + self.shared.len()),
            (_, true) => "routers".to_string(),
            _ => format!("copied from {}", self.base.name),
        })
    }

    fn configure(&self, config: &mut Value, family: Family) {
        let (experts, active) = (self.experts.len(), self.recipe.active);
        let inner = config["intermediate_size"].clone();
        let (kind, class) = family.names();
        config["model_type"] = json!(kind);
        config["architectures"] = json!([class]);
        config["num_experts_per_tok"] = json!(active);
        config["output_router_logits"] = json!(false);
        config["router_aux_loss_coef"] = json!(0.001);
        match family {
            Family::Mixtral => {
                config["num_local_experts"] = json!(experts);
                config["sliding_window"] = Value::Null;
            }
            Family::DeepSeek => {
                config["n_routed_experts"] = json!(experts);
                config["n_shared_experts"] =
                    if self.shared.is_empty() { Value::Null } else { json!(self.shared.len()) };
                config["moe_intermediate_size"] = inner;
                config["first_k_dense_replace"] = json!(0);
                config["moe_layer_freq"] = json!(1);
                config["scoring_func"] = json!("softmax");
                config["norm_topk_prob"] = json!(true);
            }
            Family::Qwen2 | Family::Qwen3 => {
                config["num_experts"] = json!(experts);
                config["moe_intermediate_size"] = inner.clone();
                config["decoder_sparse_step"] = json!(1);
                config["norm_topk_prob"] = json!(true);
                config["mlp_only_layers"] = json!([]);
                if family == Family::Qwen2 {
                    config["shared_expert_intermediate_size"] = inner;
                }
            }
        }
    }
}

/// Matrices one after the other, as many to an expert as there are.
fn stacked(parts: Vec<Arc<dyn Values>>, experts: usize) -> Result<Arc<dyn Values>> {
    let rows: usize = parts.iter().map(|part| part.shape()[0]).sum();
    let (columns, dtype) = (parts[0].shape()[1], parts[0].dtype());
    if parts.iter().any(|part| part.shape()[1] != columns) || !rows.is_multiple_of(experts.max(1)) {
        return Err(Error::request("the experts have MLPs of different sizes"));
    }
    let shape = Shape::new(&[experts, rows / experts.max(1), columns])?;
    Ok(Arc::new(Joined { parts, shape, dtype }))
}

/// A tensor with noise on top.
#[derive(Debug)]
struct Noisy {
    inner: Arc<dyn Values>,
    key: Key,
    std: f64,
}

impl Values for Noisy {
    fn dtype(&self) -> DType {
        self.inner.dtype()
    }

    fn shape(&self) -> &Shape {
        self.inner.shape()
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<()> {
        let mut noise = vec![0.0; out.len()];
        normal_f64(
            &mut noise,
            self.key,
            &Window::flat(first as u64, out.len()),
            Normal { mean: 0.0, std: self.std },
        )?;
        self.inner.read(first, out)?;
        out.iter_mut().zip(noise).for_each(|(out, noise)| *out += noise);
        round(out, self.dtype());
        Ok(())
    }
}
