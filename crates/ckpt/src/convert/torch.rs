//! What a torch checkpoint holds beside its tensors: the groups of its optimizer and other values, kept on the way through
//! our own folders and given back.

use crate::formats::roles::{Roles, TorchNames, torch_slot};
use crate::formats::{Format, Key, Part, Source, python};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The names and values of a torch checkpoint, or those that one is to have.
#[derive(Clone, Debug, Default)]
pub(super) struct Torch {
    pub(super) names: TorchNames,
    pub(super) values: BTreeMap<String, Value>,
    /// Where names stand in the nested dicts and lists of the checkpoint; names without one stand by themselves.
    paths: BTreeMap<String, Value>,
}

/// Whether torch wrote it.
pub(super) fn is_torch(source: &Source) -> bool {
    matches!(source.format, Format::TorchDcp | Format::TorchSave)
}

impl Torch {
    /// Of a torch checkpoint its own; else what one of our folders remembers of the one it came from, if it does. `about` is
    /// what our folders hold beside tensors.
    pub(super) fn of(source: &Source, roles: &Roles, about: &Value) -> Torch {
        if is_torch(source) {
            let names = roles.torch.clone().unwrap_or_default();
            let mut paths = source.paths.clone();
            let values = values(source, &mut paths);
            return Torch { values, names, paths };
        }
        let kept = &about["extra"]["torch"];
        let text = |field: &str| kept[field].as_str().map(str::to_string);
        let map = |field: &str| kept[field].as_object().cloned().map(|map| map.into_iter().collect());
        match (text("model"), text("optimizer"), map("values")) {
            (Some(model), Some(optimizer), Some(values)) => {
                let paths = map("paths").unwrap_or_default();
                Torch { names: TorchNames { model, optimizer }, values, paths }
            }
            _ => Torch::default(),
        }
    }

    /// As our folders remember it.
    pub(super) fn to_json(&self) -> Value {
        let TorchNames { model, optimizer } = &self.names;
        let nested = self.paths.iter().filter(|(_, path)| path.as_array().is_some_and(|path| path.len() > 1));
        let paths: Map<String, Value> = nested.map(|(name, path)| (name.clone(), path.clone())).collect();
        json!({ "model": model, "optimizer": optimizer, "values": self.values, "paths": paths })
    }

    /// Where a name stands: as it stood, or beside what stood in the same dict.
    pub(super) fn path(&self, name: &str) -> Vec<Value> {
        if let Some(path) = self.paths.get(name).and_then(Value::as_array) {
            return path.clone();
        }
        let state = format!("{}state", self.names.optimizer);
        let rest = |within: &str| name.strip_prefix(within)?.strip_prefix('.');
        if let Some((path, rest)) = self.container(&state).zip(rest(&state))
            && let Some((weight, slot)) = rest.rsplit_once('.')
        {
            return [path, vec![weight.into(), slot.into()]].concat();
        }
        let ends = name.match_indices('.').map(|(at, _)| at).rev();
        let within = ends.filter_map(|at| Some((self.container(&name[..at])?, &name[at + 1..]))).next();
        within.map_or_else(|| vec![name.into()], |(path, rest)| [path, vec![rest.into()]].concat())
    }

    /// Where the dict stands whose entries have names that begin with this, if there is one.
    fn container(&self, name: &str) -> Option<Vec<Value>> {
        let start = format!("{name}.");
        let below = self.paths.range(start.clone()..).take_while(|(other, _)| other.starts_with(&start));
        let mut paths = below.filter_map(|(_, path)| path.as_array());
        paths.find_map(|path| {
            let outer = (1..path.len()).find(|&len| joined(&path[..len]) == name)?;
            path[outer].is_string().then(|| path[..outer].to_vec())
        })
    }

    /// The name that the module has for a weight.
    fn in_module<'n>(&self, weight: &'n str) -> &'n str {
        weight.strip_prefix(self.names.model.as_str()).unwrap_or(weight)
    }

    /// The key of a tensor in a torch checkpoint.
    pub(super) fn key(&self, key: &Key) -> Key {
        match (key.part, key.name.rsplit_once('/')) {
            (Part::Optimizer, Some((weight, slot))) => {
                let (root, weight) = (&self.names.optimizer, self.in_module(weight));
                Key::model(format!("{root}state.{weight}.{}", torch_slot(slot)))
            }
            _ => key.clone(),
        }
    }

    /// What stands behind `param_groups.` and its first part, for each value of a group.
    fn groups(&self) -> impl Iterator<Item = (&str, &str, &Value)> {
        let root = format!("{}param_groups.", self.names.optimizer);
        self.values.iter().filter_map(move |(name, value)| {
            let (group, field) = name.strip_prefix(root.as_str())?.rsplit_once('.')?;
            Some((group, field, value))
        })
    }

    /// The betas of the group that a weight is in.
    pub(super) fn betas(&self, weight: &str) -> Option<(f64, f64)> {
        let weight = self.in_module(weight);
        let params = |group: &str| {
            self.groups().find(|(other, field, _)| *other == group && *field == "params").map(|(.., v)| v)
        };
        let holds = |group: &str| match params(group).and_then(python::items) {
            Some(names) => names.iter().any(|name| name.as_str() == Some(weight)),
            None => group == weight || group.parse::<usize>().is_ok(),
        };
        let betas = self.groups().filter(|(group, field, _)| *field == "betas" && holds(group));
        let pair = |value: &Value| match python::items(value)? {
            [first, second] => first.as_f64().zip(second.as_f64()),
            _ => None,
        };
        betas.filter_map(|(.., value)| pair(value)).next()
    }

    /// Groups name their weights, so a mapping renames there too. Groups of one weight each (`param_groups.weight.lr`) go
    /// where it goes.
    pub(super) fn rename(&mut self, became: &BTreeMap<String, Vec<String>>) {
        let root = format!("{}param_groups.", self.names.optimizer);
        let after = |name: &str| -> Vec<String> {
            let whole = format!("{}{name}", self.names.model);
            let found = became.get(&whole).or_else(|| became.get(name));
            found.map_or(Vec::new(), |all| all.iter().map(|n| self.in_module(n).to_string()).collect())
        };
        let mut renamed = BTreeMap::new();
        for (name, value) in &self.values {
            let place = name.strip_prefix(root.as_str()).and_then(|rest| rest.rsplit_once('.'));
            match (place, python::items(value)) {
                (Some((_, "params")), Some(names)) if names.iter().all(Value::is_string) => {
                    let mut seen = BTreeSet::new();
                    let names = names.iter().filter_map(Value::as_str).flat_map(after);
                    let names: Vec<String> = names.filter(|name| seen.insert(name.clone())).collect();
                    renamed.insert(name.clone(), json!(names));
                }
                (Some((group, field)), _) if group.parse::<usize>().is_err() => {
                    for new in after(group) {
                        renamed.insert(format!("{root}{new}.{field}"), value.clone());
                    }
                }
                _ => {
                    renamed.insert(name.clone(), value.clone());
                }
            }
        }
        self.values = renamed;
    }

    /// Groups of an optimizer that has none yet, from the configuration of the run: AdamW's where it is known, else the names.
    pub(super) fn add_groups(&mut self, config: &Value, weights: &BTreeSet<String>) {
        if self.groups().next().is_some() || weights.is_empty() {
            return;
        }
        let mut fields = Map::new();
        let optim = &config["optim"];
        if optim["kind"].as_str().is_some_and(|kind| kind.eq_ignore_ascii_case("adamw")) {
            fields.insert("betas".into(), json!({ "$tuple": [optim["beta1"], optim["beta2"]] }));
            for name in ["lr", "eps", "weight_decay"] {
                fields.insert(name.into(), optim[name].clone());
            }
            for name in ["amsgrad", "maximize", "capturable", "differentiable"] {
                fields.insert(name.into(), json!(false));
            }
            fields.insert("foreach".into(), Value::Null);
            fields.insert("fused".into(), Value::Null);
            fields.insert("decoupled_weight_decay".into(), json!(true));
        }
        let names: Vec<&str> = weights.iter().map(|weight| self.in_module(weight)).collect();
        fields.insert("params".into(), json!(names));
        let root = format!("{}param_groups.0.", self.names.optimizer);
        self.values.extend(fields.into_iter().map(|(name, value)| (format!("{root}{name}"), value)));
    }
}

/// Keys and numbers, joined as torch joins them to a name.
fn joined(path: &[Value]) -> String {
    let text = |step: &Value| step.as_str().map_or_else(|| step.to_string(), str::to_string);
    path.iter().map(text).collect::<Vec<_>>().join(".")
}

/// Python values that a source holds beside its tensors, not what describes its files. Groups of an optimizer that are one
/// value become one for each field, as torch's checkpoints have them.
fn values(source: &Source, paths: &mut BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for (name, value) in source.extra.iter().filter(|(name, _)| !source.files.contains(name)) {
        let groups = value.as_array().filter(|_| name.rsplit('.').next() == Some("param_groups"));
        let groups: Option<Vec<_>> = groups.and_then(|all| all.iter().map(python::fields).collect());
        let Some(groups) = groups else {
            found.insert(name.clone(), value.clone());
            continue;
        };
        let above = paths.get(name).and_then(Value::as_array).cloned().unwrap_or_else(|| vec![json!(name)]);
        for (number, group) in groups.into_iter().enumerate() {
            for (field, value) in group {
                let (name, path) = (format!("{name}.{number}.{field}"), vec![json!(number), json!(field)]);
                paths.insert(name.clone(), Value::Array([above.clone(), path].concat()));
                found.insert(name, value.clone());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn torch() -> Torch {
        let names = TorchNames { model: "model.".into(), optimizer: "optim.".into() };
        let values = [
            ("optim.param_groups.0.params", json!(["a", "b"])),
            ("optim.param_groups.0.betas", json!([0.9, 0.95])),
            ("optim.param_groups.1.params", json!(["c"])),
            ("optim.param_groups.1.betas", json!([0.8, 0.99])),
            ("step", json!(3)),
        ];
        let paths = [
            ("optim.state.a.step", json!(["optim", "state", "a", "step"])),
            ("model.a", json!(["model", "a"])),
        ];
        let owned = |(name, value): (&str, Value)| (name.to_string(), value);
        Torch { names, values: values.map(owned).into(), paths: paths.map(owned).into() }
    }

    #[test]
    fn a_weight_has_the_betas_of_its_group() {
        assert_eq!(torch().betas("model.b"), Some((0.9, 0.95)));
        assert_eq!(torch().betas("model.c"), Some((0.8, 0.99)));
        assert_eq!(torch().betas("model.d"), None);
    }

    #[test]
    fn a_new_name_stands_beside_what_stood_in_the_same_dict() {
        let torch = torch();
        assert_eq!(json!(torch.path("model.a")), json!(["model", "a"]));
        assert_eq!(json!(torch.path("model.new.weight")), json!(["model", "new.weight"]));
        assert_eq!(
            json!(torch.path("optim.state.b.weight.step")),
            json!(["optim", "state", "b.weight", "step"])
        );
        assert_eq!(json!(torch.path("other.weight")), json!(["other.weight"]));
        assert_eq!(json!(Torch::default().path("optim.state.b.step")), json!(["optim.state.b.step"]));
    }

    #[test]
    fn groups_follow_a_mapping() {
        let mut torch = torch();
        torch.values.insert("optim.param_groups.b.lr".into(), json!(0.1));
        let pairs = [("a", "model.ab"), ("b", "model.ab"), ("c", "other")];
        torch.rename(&pairs.map(|(from, to)| (format!("model.{from}"), vec![to.to_string()])).into());
        assert_eq!(torch.values["optim.param_groups.0.params"], json!(["ab"]));
        assert_eq!(torch.values["optim.param_groups.1.params"], json!(["other"]));
        assert_eq!(torch.values["optim.param_groups.ab.lr"], json!(0.1));
        assert_eq!(torch.values["step"], json!(3));
    }

    #[test]
    fn what_a_run_of_ours_knows_becomes_a_group() {
        let mut torch = Torch::default();
        let config = json!({ "optim": { "kind": "adamw", "beta1": 0.9, "beta2": 0.95, "lr": 1e-3, "eps": 1e-8,
            "weight_decay": 0.1 } });
        torch.add_groups(&config, &["w".to_string()].into());
        assert_eq!(torch.values["optim.param_groups.0.betas"], json!({ "$tuple": [0.9, 0.95] }));
        assert_eq!(torch.values["optim.param_groups.0.params"], json!(["w"]));
        assert_eq!(torch.values["optim.param_groups.0.fused"], Value::Null);
    }
}
