//! What a mixture is made of, as `mergekit-moe` writes it.

use crate::error::{Error, Result, nearest};
use crate::model::Model;
use crate::recipe::yaml::{Node, Yaml, documents};
use crate::recipe::{Reference, dtype_of, patterns};
use planaria_layout::DType;

/// How rows of routers are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GateMode {
    Hidden,
    HiddenAverage,
    CheapEmbed,
    Random,
    UniformRandom,
}

/// A family of mixtures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Mixtral,
    DeepSeek,
    Qwen2,
    Qwen3,
}

const FAMILIES: [(&str, Family); 4] = [
    ("Mixtral", Family::Mixtral),
    ("DeepSeek MoE", Family::DeepSeek),
    ("Qwen MoE", Family::Qwen2),
    ("Qwen3 MoE", Family::Qwen3),
];

impl Family {
    /// Its `model_type` and class.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Family::Mixtral => ("mixtral", "MixtralForCausalLM"),
            Family::DeepSeek => ("deepseek", "DeepseekForCausalLM"),
            Family::Qwen2 => ("qwen2_moe", "Qwen2MoeForCausalLM"),
            Family::Qwen3 => ("qwen3_moe", "Qwen3MoeForCausalLM"),
        }
    }
}

/// A model whose MLPs become experts.
#[derive(Clone, Debug)]
pub(super) struct Expert {
    pub(super) number: usize,
    pub(super) line: usize,
    pub(super) model: Reference,
    pub(super) positive: Vec<String>,
    pub(super) negative: Vec<String>,
    pub(super) noise: f64,
    pub(super) residual: f64,
}

/// A mixture.
#[derive(Debug)]
pub(super) struct Recipe {
    line: usize,
    pub(super) base: Reference,
    pub(super) experts: Vec<Expert>,
    pub(super) shared: Vec<Expert>,
    pub(super) gate_mode: GateMode,
    /// Experts that work on a token.
    pub(super) active: usize,
    pub(super) dtype: Option<DType>,
    architecture: Option<(usize, String)>,
    /// Patterns of names that are not written, with their lines.
    pub(super) removed: Vec<(usize, String)>,
    base_line: usize,
    pub(super) warnings: Vec<String>,
}

const KEYS: [&str; 9] = [
    "base_model",
    "experts",
    "shared_experts",
    "gate_mode",
    "experts_per_token",
    "dtype",
    "architecture",
    "router_bias",
    "remove_keys",
];

/// Whether all experts may be one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alike {
    Refused,
    Allowed,
}

pub(super) fn parse(text: &str, alike: Alike) -> Result<Recipe> {
    let documents = documents(text)?;
    let [node] = &documents[..] else { return Err(Error::recipe(1, "a mixture is one document")) };
    let mut warnings = Vec::new();
    let (mut base, mut experts, mut shared) = (None, Vec::new(), Vec::new());
    let (mut gate_mode, mut active, mut dtype, mut architecture) = (GateMode::Hidden, 2, None, None);
    let (mut removed, mut base_line) = (Vec::new(), node.line);
    for (name, line, value) in node.entries("a recipe")? {
        match name.as_str() {
            _ if value.value == Yaml::Null => {}
            "base_model" => (base, base_line) = (Some(Reference::parse(value)?), line),
            "remove_keys" => removed = patterns(value)?,
            "experts" => experts = list(value, &mut warnings)?,
            "shared_experts" => shared = list(value, &mut warnings)?,
            "gate_mode" => gate_mode = mode(value)?,
            "experts_per_token" => active = value.count("a number of experts")?,
            "dtype" => {
                let name = value.text("an element type")?;
                let known = dtype_of(&name);
                dtype = Some(
                    known.ok_or_else(|| Error::recipe(line, format!("'{name}' is not an element type")))?,
                );
            }
            "architecture" => architecture = Some((line, value.text("an architecture")?)),
            other => warnings.push(format!("line {line}: '{other}' has no effect{}", nearest(other, KEYS))),
        }
    }
    let line = node.line;
    let base = base.ok_or_else(|| Error::recipe(line, "`base_model` is missing"))?;
    let recipe = Recipe {
        line,
        base,
        experts,
        shared,
        gate_mode,
        active,
        dtype,
        architecture,
        removed,
        base_line,
        warnings,
    };
    recipe.check(alike)?;
    Ok(recipe)
}

fn mode(node: &Node) -> Result<GateMode> {
    let name = node.text("a gate_mode")?;
    Ok(match name.as_str() {
        "hidden" | "hidden_last" => GateMode::Hidden,
        "hidden_avg" => GateMode::HiddenAverage,
        "cheap_embed" => GateMode::CheapEmbed,
        "random" => GateMode::Random,
        "uniform_random" => GateMode::UniformRandom,
        other => {
            let near = nearest(
                other,
                ["hidden", "hidden_last", "hidden_avg", "cheap_embed", "random", "uniform_random"],
            );
            return Err(Error::recipe(node.line, format!("'{other}' is not a gate_mode{near}")));
        }
    })
}

fn list(node: &Node, warnings: &mut Vec<String>) -> Result<Vec<Expert>> {
    let items = node.items("a list of experts")?.iter().enumerate();
    items.map(|(number, item)| expert(number, item, warnings)).collect()
}

fn number(node: &Node) -> Result<f64> {
    let number = match &node.value {
        Yaml::Float(value) => Some(*value),
        Yaml::Int(value) => Some(*value as f64),
        Yaml::Text(text) => text.parse().ok(),
        _ => None,
    };
    number.filter(|number| number.is_finite()).ok_or_else(|| node.wrong("a finite number"))
}

fn expert(at: usize, node: &Node, warnings: &mut Vec<String>) -> Result<Expert> {
    let mut model = None;
    let mut expert = Expert {
        number: at,
        line: node.line,
        model: Reference::path(""),
        positive: Vec::new(),
        negative: Vec::new(),
        noise: 0.0,
        residual: 1.0,
    };
    let prompts = |node: &Node| -> Result<Vec<String>> {
        match &node.value {
            Yaml::Text(text) => Ok(vec![text.clone()]),
            _ => node.items("a list of prompts")?.iter().map(|item| item.text("a prompt")).collect(),
        }
    };
    for (name, line, value) in node.entries("an expert with `source_model`")? {
        match name.as_str() {
            _ if value.value == Yaml::Null => {}
            "source_model" => model = Some(Reference::parse(value)?),
            "positive_prompts" => expert.positive = prompts(value)?,
            "negative_prompts" => expert.negative = prompts(value)?,
            "noise_scale" => expert.noise = number(value)?,
            "residual_scale" => expert.residual = number(value)?,
            other => {
                let known =
                    ["source_model", "positive_prompts", "negative_prompts", "noise_scale", "residual_scale"];
                warnings.push(format!("line {line}: '{other}' has no effect{}", nearest(other, known)));
            }
        }
    }
    expert.model = model.ok_or_else(|| Error::recipe(node.line, "an expert needs a `source_model`"))?;
    Ok(expert)
}

impl Recipe {
    fn check(&self, alike: Alike) -> Result<()> {
        let wrong = |what: String| Err(Error::recipe(self.line, what));
        let count = self.experts.len();
        if count < self.active {
            return wrong(format!("there are {count} experts, and experts_per_token is {}", self.active));
        }
        if self.active == 0 {
            return wrong("experts_per_token is 0; no expert would process a token".to_string());
        }
        let same = self.experts.iter().all(|expert| expert.model == self.experts[0].model);
        if same && count > 1 && alike == Alike::Refused {
            let model = &self.experts[0].model;
            return wrong(format!(
                "all experts are {model}, so nothing is gained before training; `--allow-crimes` makes it all the same"
            ));
        }
        if self.is_random() {
            return Ok(());
        }
        if let Some(bare) = self.experts.iter().find(|expert| expert.positive.is_empty()) {
            let what = format!("{} has no positive_prompts, and the gate_mode needs them", bare.model);
            return Err(Error::recipe(bare.line, what));
        }
        let prompts = |expert: &Expert| (expert.positive.clone(), expert.negative.clone());
        if count > 1 && self.experts.iter().all(|expert| prompts(expert) == prompts(&self.experts[0])) {
            return wrong(
                "all experts have the same prompts, so a router cannot tell them apart".to_string(),
            );
        }
        Ok(())
    }

    /// Lines of the base, the experts and the shared experts, in this order.
    pub(super) fn lines(&self) -> Vec<usize> {
        let experts = self.experts.iter().chain(&self.shared).map(|expert| expert.line);
        std::iter::once(self.base_line).chain(experts).collect()
    }

    /// The family of the result: the first that can hold it, of those that the recipe names or of all.
    pub(super) fn family(&self, base: &Model) -> Result<Family> {
        self.of_type(base.model_type())
    }

    fn of_type(&self, model_type: &str) -> Result<Family> {
        let (line, wanted) = match &self.architecture {
            None => (self.line, ""),
            Some((line, name)) => (*line, name.as_str()),
        };
        let lower = |name: &str| name.to_ascii_lowercase();
        let named: Vec<Family> = FAMILIES
            .iter()
            .filter(|(full, _)| lower(full).starts_with(&lower(wanted)))
            .map(|(_, family)| *family)
            .collect();
        if named.is_empty() {
            let names: Vec<&str> = FAMILIES.iter().map(|(full, _)| *full).collect();
            let near = nearest(wanted, names.iter().copied());
            let what = format!("'{wanted}' is not an architecture{near} (known: {})", names.join(", "));
            return Err(Error::recipe(line, what));
        }
        let mut obstacles = Vec::new();
        for family in named {
            match self.obstacle(family, model_type) {
                None => return Ok(family),
                Some(what) => obstacles.push(format!("{} {what}", family.names().0)),
            }
        }
        Err(Error::recipe(line, format!("no mixture can be made of this: {}", obstacles.join("; "))))
    }

    /// Why a family cannot hold this mixture of models of a type.
    fn obstacle(&self, family: Family, model_type: &str) -> Option<String> {
        let types: &[&str] = match family {
            Family::Mixtral | Family::DeepSeek => &["llama", "mistral"],
            Family::Qwen2 => &["llama", "mistral", "qwen2"],
            Family::Qwen3 => &["qwen3"],
        };
        let shared = self.shared.len();
        if !types.contains(&model_type) {
            return Some(format!("is made of {}, and the models are {model_type}", types.join(" or ")));
        }
        let prompted = |expert: &Expert| !expert.positive.is_empty() || !expert.negative.is_empty();
        let what = match family {
            Family::Mixtral | Family::Qwen3 if shared > 0 => "has no shared experts",
            Family::Qwen2 if shared != 1 => "has exactly one shared expert",
            Family::Qwen2 if self.shared[0].positive.is_empty() && !self.is_random() => {
                "needs positive_prompts for its shared expert"
            }
            Family::DeepSeek if shared > 1 => "has at most one shared expert",
            Family::DeepSeek if self.shared.iter().any(prompted) => {
                "has no gate for its shared expert, so its prompts would do nothing"
            }
            _ => return None,
        };
        Some(what.to_string())
    }

    fn is_random(&self) -> bool {
        matches!(self.gate_mode, GateMode::Random | GateMode::UniformRandom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(more: &str, model_type: &str) -> std::result::Result<Family, String> {
        let text = format!(
            "base_model: a\nexperts:\n- {{source_model: a, positive_prompts: [x]}}\n- {{source_model: b, positive_prompts: [y]}}\n{more}"
        );
        let recipe = parse(&text, Alike::Refused).unwrap();
        recipe.of_type(model_type).map_err(|error| error.to_string())
    }

    #[test]
    fn the_first_family_that_can_hold_a_mixture_is_taken() {
        let plain = "shared_experts: [{source_model: a}]\n";
        let prompted = "shared_experts: [{source_model: a, positive_prompts: [z]}]\n";
        assert_eq!(family("", "mistral"), Ok(Family::Mixtral));
        assert_eq!(family(plain, "llama"), Ok(Family::DeepSeek));
        assert_eq!(family(prompted, "llama"), Ok(Family::Qwen2));
        assert_eq!(family(prompted, "qwen2"), Ok(Family::Qwen2));
        assert_eq!(family("", "qwen3"), Ok(Family::Qwen3));
        assert_eq!(family("architecture: qwen\n", "qwen3"), Ok(Family::Qwen3));
        let refused = |more: &str, model_type: &str, words: &str| {
            let said = family(more, model_type).unwrap_err();
            assert!(said.contains(words), "{more} {model_type}: {said}");
        };
        refused("", "gemma2", "mixtral is made of llama or mistral, and the models are gemma2");
        refused("", "qwen2", "qwen2_moe has exactly one shared expert");
        refused("architecture: mixtral\n", "qwen2", "line 5 of the recipe");
        refused(&format!("architecture: deepseek\n{prompted}"), "llama", "no gate for its shared expert");
        refused("architecture: mixtrel\n", "llama", "did you mean 'Mixtral'?");
    }
}
