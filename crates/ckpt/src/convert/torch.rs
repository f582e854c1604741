//! What a torch checkpoint holds beside its tensors: the groups of its optimizer and other values, kept on the way through
//! our own folders and given back.

use crate::formats::roles::{Roles, TorchNames, torch_slot};
use crate::formats::{Format, Key, Part, Source};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The names and values of a torch checkpoint, or those that one is to have.
#[derive(Clone, Debug, Default)]
pub(super) struct Torch {
    pub(super) names: TorchNames,
    pub(super) values: BTreeMap<String, Value>,
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
            return Torch { values: values(source), names };
        }
        let kept = &about["extra"]["torch"];
        let text = |field: &str| kept[field].as_str().map(str::to_string);
        match (text("model"), text("optimizer"), kept["values"].as_object()) {
            (Some(model), Some(optimizer), Some(values)) => {
                let values = values.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
                Torch { names: TorchNames { model, optimizer }, values }
            }
            _ => Torch::default(),
        }
    }

    /// As our folders remember it.
    pub(super) fn to_json(&self) -> Value {
        let TorchNames { model, optimizer } = &self.names;
        json!({ "model": model, "optimizer": optimizer, "values": self.values })
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
        let holds = |group: &str| match params(group).and_then(Value::as_array) {
            Some(names) => names.iter().any(|name| name.as_str() == Some(weight)),
            None => group == weight || group.parse::<usize>().is_ok(),
        };
        let betas = self.groups().filter(|(group, field, _)| *field == "betas" && holds(group));
        let pair = |value: &Value| Some((value.get(0)?.as_f64()?, value.get(1)?.as_f64()?));
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
            match (place, value.as_array()) {
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
            fields.insert("betas".into(), json!([optim["beta1"], optim["beta2"]]));
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

/// Python values that a source holds beside its tensors, not what describes its files. Groups of an optimizer that are one
/// value become one for each field, as torch's checkpoints have them.
fn values(source: &Source) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for (name, value) in source.extra.iter().filter(|(name, _)| !source.files.contains(name)) {
        let groups = value.as_array().filter(|all| {
            name.rsplit('.').next() == Some("param_groups") && all.iter().all(Value::is_object)
        });
        let Some(groups) = groups else {
            found.insert(name.clone(), value.clone());
            continue;
        };
        for (number, group) in groups.iter().enumerate() {
            let fields = group.as_object().into_iter().flatten();
            found.extend(fields.map(|(field, value)| (format!("{name}.{number}.{field}"), value.clone())));
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
        Torch { names, values: values.map(|(name, value)| (name.to_string(), value)).into() }
    }

    #[test]
    fn a_weight_has_the_betas_of_its_group() {
        assert_eq!(torch().betas("model.b"), Some((0.9, 0.95)));
        assert_eq!(torch().betas("model.c"), Some((0.8, 0.99)));
        assert_eq!(torch().betas("model.d"), None);
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
        assert_eq!(torch.values["optim.param_groups.0.betas"], json!([0.9, 0.95]));
        assert_eq!(torch.values["optim.param_groups.0.params"], json!(["w"]));
        assert_eq!(torch.values["optim.param_groups.0.fused"], Value::Null);
    }
}
