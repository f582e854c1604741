//! Which modules of a model an adapter changes, and which it takes whole, as peft finds them.

use super::config::{Biases, LoraConfig, Names, Tokens, regex};
use crate::error::{Error, Result};
use crate::models::{Architecture, Stage};
use crate::param::{ParamKind, ParamSpec};
use std::collections::{BTreeMap, BTreeSet};

/// What an adapter does to one module.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Path of the module; `*` stands for the number of an expert.
    pub module: String,
    /// Rank of the factors.
    pub rank: usize,
    /// Numerator of the factor.
    pub alpha: f64,
    /// The factor on their product.
    pub scale: f64,
}

/// What an adapter does to a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Targets {
    /// The adapted modules, in the order of the model's table.
    pub adapted: Vec<Target>,
    /// Parameters of the model that are trained and saved whole.
    pub saved: BTreeSet<String>,
    /// Biases of the model that are trained.
    pub biases: BTreeSet<String>,
    /// Tokens whose vectors are trained, by the module of the vectors.
    pub tokens: BTreeMap<String, Vec<usize>>,
    /// Names of `target_modules` and `modules_to_save` that no module has.
    pub unmatched: Vec<String>,
}

impl Targets {
    /// The target of a module.
    pub fn of(&self, module: &str) -> Option<&Target> {
        self.adapted.iter().find(|target| target.module == module)
    }
}

/// A module of a model, as its table shows it.
#[derive(Clone, Debug)]
struct Found {
    key: String,
    /// Numbers of experts that share the row.
    experts: Option<usize>,
    adaptable: bool,
    /// A table of rows by token, not a product.
    table: bool,
    /// The scores of the next token come from it.
    head: bool,
}

impl Found {
    /// The paths that patterns see: one, or one for each expert.
    fn keys(&self) -> Vec<String> {
        match (self.key.split_once('*'), self.experts) {
            (Some((before, after)), Some(count)) => {
                (0..count).map(|i| format!("{before}{i}{after}")).collect()
            }
            _ => vec![self.key.clone()],
        }
    }
}

/// The path of the module that a parameter belongs to.
pub(super) fn module_of(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}

/// Every module that has parameters, and those that hold them.
fn modules(model: &dyn Architecture) -> Result<Vec<Found>> {
    let last = model.blocks()..model.blocks();
    let head = model.parameters(&Stage { layers: last, embed: false, head: true })?;
    let is_head = |spec: &ParamSpec| {
        let product = spec.kind == ParamKind::Matrix || spec.tied.is_some();
        product && head.iter().any(|other| other.name == spec.name)
    };
    let mut found: Vec<Found> = Vec::new();
    let mut known = BTreeSet::new();
    for spec in model.parameters(&Stage::whole(model))? {
        let key = module_of(&spec.name).to_string();
        let mut above = key.as_str();
        while let Some((parent, _)) = above.rsplit_once('.') {
            above = parent;
            if !above.ends_with('*') && known.insert(above.to_string()) {
                found.push(Found {
                    key: above.to_string(),
                    experts: None,
                    adaptable: false,
                    table: false,
                    head: false,
                });
            }
        }
        if known.insert(key.clone()) {
            let experts = spec.is_stacked().then(|| spec.shape[0]);
            let adaptable = matches!(spec.kind, ParamKind::Matrix | ParamKind::Embedding);
            let table = spec.kind == ParamKind::Embedding && spec.tied.is_none();
            found.push(Found { key, experts, adaptable, table, head: is_head(&spec) });
        }
    }
    Ok(found)
}

/// How modules are chosen.
struct Chooser<'a> {
    config: &'a LoraConfig,
    targets: Names,
    whole: Option<regex::Regex>,
    excluded: Option<regex::Regex>,
    saved: Vec<regex::Regex>,
    layer: Vec<regex::Regex>,
}

impl Chooser<'_> {
    fn new<'a>(config: &'a LoraConfig, found: &[Found]) -> Result<Chooser<'a>> {
        let targets = match &config.target_modules {
            Some(names) => names.clone(),
            None => default_targets(found)?,
        };
        let fullmatch = |names: Option<&Names>| match names {
            Some(Names::Pattern(text)) => regex(&format!("^(?:{text})$"), text).map(Some),
            _ => Ok(None),
        };
        if matches!(targets, Names::Pattern(_)) && config.layers_to_transform.is_some() {
            let what =
                "`layers_to_transform` does not go with a pattern in `target_modules`; name the layers in it";
            return Err(Error::Adapter { what: what.into() });
        }
        let whole = (!is_all_linear(&targets)).then(|| fullmatch(Some(&targets))).transpose()?.flatten();
        let saved = config.modules_to_save.iter().flatten();
        let saved =
            saved.map(|name| regex(&format!("(^|.*\\.){name}($|\\..*)"), name)).collect::<Result<_>>()?;
        let patterns = match &config.layers_pattern {
            None => Vec::new(),
            Some(Names::Pattern(one)) if one.is_empty() => Vec::new(),
            Some(Names::Pattern(one)) => vec![one.clone()],
            Some(Names::List(list)) => list.clone(),
        };
        let layer = match patterns.is_empty() {
            true => vec![regex(r".*?\.[^.]*\.(\d+)\.", "layers_pattern")?],
            false => patterns
                .iter()
                .map(|name| regex(&format!(r"^(?:.*\.)?{name}\.(\d+)(?:\.|$)"), name))
                .collect::<Result<_>>()?,
        };
        let excluded = fullmatch(config.exclude_modules.as_ref())?;
        Ok(Chooser { config, targets, whole, excluded, saved, layer })
    }

    fn excludes(&self, key: &str) -> bool {
        let listed = match &self.config.exclude_modules {
            Some(Names::List(list)) => list.iter().any(|name| names(name, key)),
            _ => false,
        };
        listed
            || self.excluded.as_ref().is_some_and(|excluded| excluded.is_match(key))
            || self.saved.iter().any(|saved| saved.is_match(key))
    }

    /// Whether a path is adapted.
    fn takes(&self, key: &str, module: &Found) -> bool {
        if self.excludes(key) {
            return false;
        }
        match &self.targets {
            all if is_all_linear(all) => module.adaptable && !module.head && !module.table,
            Names::Pattern(_) => self.whole.as_ref().is_some_and(|whole| whole.is_match(key)),
            Names::List(list) => {
                let exact = list.iter().any(|name| name == key);
                exact || list.iter().any(|name| names(name, key)) && self.takes_layer(key)
            }
        }
    }

    /// Whether the layer of a path is one that was asked for.
    fn takes_layer(&self, key: &str) -> bool {
        let Some(layers) = self.config.layers_to_transform.as_ref().filter(|layers| !layers.is_empty())
        else {
            return true;
        };
        let number =
            self.layer.iter().find_map(|pattern| pattern.captures(key)?.get(1)?.as_str().parse().ok());
        number.is_some_and(|number| layers.has(number))
    }
}

fn is_all_linear(names: &Names) -> bool {
    matches!(names, Names::Pattern(text) if text.eq_ignore_ascii_case("all-linear"))
}

/// Whether a name is that of a module or the end of its path, in whole parts.
fn names(name: &str, key: &str) -> bool {
    key.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// What is adapted where nobody says it: as in peft, queries and values, or what they come from.
fn default_targets(found: &[Found]) -> Result<Names> {
    let has = |name: &str| found.iter().any(|module| names(name, &module.key));
    for usual in [&["q_proj", "v_proj"][..], &["qkv_proj"], &["c_attn"]] {
        if usual.iter().all(|name| has(name)) {
            return Ok(Names::List(usual.iter().map(ToString::to_string).collect()));
        }
    }
    let what = "`target_modules` is missing, and this kind of model has no usual ones; name them".to_string();
    Err(Error::Adapter { what })
}

/// Finds what an adapter does to a model; refuses one that does nothing, or something that modules cannot do.
pub fn find(config: &LoraConfig, model: &dyn Architecture) -> Result<Targets> {
    config.check()?;
    if let Some(first) = config.target_parameters.iter().flatten().next() {
        let what = format!(
            "`target_parameters` names '{first}', and factors belong to modules here; `planaria lora convert --layout peft --model MODEL` divides those of experts into factors of each"
        );
        return Err(Error::Adapter { what });
    }
    let found = modules(model)?;
    let chooser = Chooser::new(config, &found)?;
    let mut targets = Targets::default();
    for module in &found {
        let keys = module.keys();
        let taken = keys.iter().filter(|key| chooser.takes(key, module)).count();
        if taken == 0 {
            continue;
        }
        if !module.adaptable {
            let what = format!(
                "'{}' is neither a product nor a table of token vectors, so it has no factors; name its modules instead",
                module.key
            );
            return Err(Error::Adapter { what });
        }
        if taken < keys.len() {
            let what = format!(
                "only {taken} of the {} experts of '{}' are chosen; take all or none",
                keys.len(),
                module.key
            );
            return Err(Error::Adapter { what });
        }
        if module.table && config.lora_bias {
            let what = format!(
                "'{}' is a table of token vectors, which `lora_bias` is not for, as in peft",
                module.key
            );
            return Err(Error::Adapter { what });
        }
        targets.adapted.push(target(config, module, &keys)?);
    }
    targets.saved = saved(config, &found, model)?;
    targets.tokens = tokens(config, &found, model)?;
    if let Some(module) = targets.tokens.keys().find(|module| targets.of(module).is_some()) {
        let what = format!(
            "'{module}' is in `trainable_token_indices` and adapted too; take it out of one of them, as peft wants it"
        );
        return Err(Error::Adapter { what });
    }
    if targets.adapted.is_empty() {
        return Err(nothing(config, &chooser, &found));
    }
    targets.unmatched = unmatched(&chooser, &found);
    // As peft has it: one list serves several models, and each has the modules that it has.
    let has = |name: &&String| found.iter().any(|module| module.key.ends_with(name.as_str()));
    let unsaved = config.modules_to_save.iter().flatten().filter(|name| !has(name));
    targets.unmatched.extend(unsaved.cloned());
    targets.biases = biases(config, &targets, model)?;
    Ok(targets)
}

fn target(config: &LoraConfig, module: &Found, keys: &[String]) -> Result<Target> {
    let mut same: Option<Target> = None;
    for key in keys {
        let rank = config.rank(key)?;
        let (alpha, scale) = (config.alpha(key)?, config.scale(key, rank)?);
        let own = Target { module: module.key.clone(), rank, alpha, scale };
        if same.as_ref().is_some_and(|same| *same != own) {
            let what = format!(
                "patterns give the experts of '{}' different ranks or numerators; give all the same",
                module.key
            );
            return Err(Error::Adapter { what });
        }
        same = Some(own);
    }
    same.ok_or_else(|| Error::Adapter { what: format!("'{}' has no experts", module.key) })
}

/// The parameters of modules that are saved whole. Their names end in one of the given ones, in whole parts or not.
fn saved(config: &LoraConfig, found: &[Found], model: &dyn Architecture) -> Result<BTreeSet<String>> {
    let mut parameters = BTreeSet::new();
    for name in config.modules_to_save.iter().flatten() {
        let chosen: Vec<&str> = found
            .iter()
            .filter(|module| module.key.ends_with(name.as_str()))
            .map(|m| m.key.as_str())
            .collect();
        for spec in model.parameters(&Stage::whole(model))? {
            let under = |key: &&str| spec.name.strip_prefix(*key).is_some_and(|rest| rest.starts_with('.'));
            if chosen.iter().any(under) {
                parameters.insert(spec.name);
            }
        }
    }
    Ok(parameters)
}

/// Tokens by the module of their vectors, in the order they are given.
fn tokens(
    config: &LoraConfig,
    found: &[Found],
    model: &dyn Architecture,
) -> Result<BTreeMap<String, Vec<usize>>> {
    let given = match &config.trainable_token_indices {
        None => return Ok(BTreeMap::new()),
        Some(Tokens::Ids(ids)) => {
            let first = model.parameters(&Stage { layers: 0..0, embed: true, head: false })?;
            let name = first.iter().find(|spec| spec.kind == ParamKind::Embedding);
            let name = name.map_or("embed_tokens", |spec| module_of(&spec.name)).to_string();
            BTreeMap::from([(name, ids.clone())])
        }
        Some(Tokens::ByModule(map)) => map.clone(),
    };
    let mut by_module = BTreeMap::new();
    for (name, ids) in given {
        let module = found.iter().find(|module| module.table && names(&name, &module.key));
        let Some(module) = module else {
            let what = format!(
                "'{name}' (`trainable_token_indices`) is not a table of token vectors{}",
                nearest(&name, found)
            );
            return Err(Error::Adapter { what });
        };
        if let Some(id) = ids.iter().find(|id| **id >= model.vocab_size()) {
            let what = format!(
                "token {id} (`trainable_token_indices`) is outside the vocabulary of {}",
                model.vocab_size()
            );
            return Err(Error::Adapter { what });
        }
        let distinct: BTreeSet<&usize> = ids.iter().collect();
        if distinct.len() != ids.len() || ids.is_empty() {
            let what = format!("`trainable_token_indices` of '{name}' is {ids:?}; name each token once");
            return Err(Error::Adapter { what });
        }
        by_module.insert(module.key.clone(), ids);
    }
    Ok(by_module)
}

fn biases(config: &LoraConfig, targets: &Targets, model: &dyn Architecture) -> Result<BTreeSet<String>> {
    let which = config.biases()?;
    let table = model.parameters(&Stage::whole(model))?;
    let chosen = |spec: &&ParamSpec| match which {
        Biases::None => false,
        Biases::All => spec.name.ends_with(".bias"),
        Biases::Adapted => spec.name.ends_with(".bias") && targets.of(module_of(&spec.name)).is_some(),
    };
    Ok(table.iter().filter(chosen).map(|spec| spec.name.clone()).collect())
}

/// Names of a list that no module has.
fn unmatched(chooser: &Chooser<'_>, found: &[Found]) -> Vec<String> {
    let Names::List(list) = &chooser.targets else { return Vec::new() };
    let has = |name: &str| found.iter().any(|module| module.keys().iter().any(|key| names(name, key)));
    list.iter().filter(|name| !has(name)).cloned().collect()
}

fn nothing(config: &LoraConfig, chooser: &Chooser<'_>, found: &[Found]) -> Error {
    let given = match &chooser.targets {
        Names::Pattern(text) => format!("'{text}'"),
        Names::List(list) => list.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", "),
    };
    let near = match &chooser.targets {
        Names::List(list) if !unmatched(chooser, found).is_empty() => nearest(&list[0], found),
        Names::Pattern(_) => {
            "; a text is a regular expression of whole paths, such as `.*q_proj`".to_string()
        }
        Names::List(_) => String::new(),
    };
    let less = match config.exclude_modules.is_some()
        || config.layers_to_transform.is_some()
        || config.modules_to_save.is_some()
    {
        true => " after exclusions",
        false => "",
    };
    Error::Adapter { what: format!("no module is adapted by `target_modules` {given}{less}{near}") }
}

/// The module whose name comes closest, as advice.
fn nearest(name: &str, found: &[Found]) -> String {
    let last = |key: &str| key.rsplit('.').next().unwrap_or(key).to_string();
    let near = |key: &str| strsim::jaro_winkler(&last(key), name);
    let best =
        found.iter().filter(|module| module.adaptable).max_by(|a, b| near(&a.key).total_cmp(&near(&b.key)));
    best.map(|module| format!("; the nearest is `{}`", last(&module.key))).unwrap_or_default()
}
