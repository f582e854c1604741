//! What the tensors of a source are to a training: parameter, master weight, optimizer slot or moving average, and of
//! which weight. Formats say it by file, by the end of a name, or by the path of a value.

use super::ours::STATE;
use super::python;
use super::source::{Format, Key, Part, Source};
use crate::state::{TensorKey, TensorKind};
use planaria_aoa::split_slot;
use std::collections::{BTreeMap, BTreeSet};

/// Optimizer state under torch's names and under ours, which are Paddle's. Other names are the same for all.
const SLOTS: [(&str, &str); 4] = [
    ("exp_avg", "moment1_0"),
    ("exp_avg_sq", "moment2_0"),
    ("max_exp_avg_sq", "moment2_max_0"),
    ("momentum_buffer", "velocity_0"),
];

/// Slots by which the state of one of torch's optimizers is known.
const MARKS: [&str; 6] = ["exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg", "sum", "step"];

/// Optimizer state of Paddle that stands behind the static name of its weight.
const STATIC: [&str; 6] =
    ["_moment1_0", "_moment2_0", "_moment2_max_0", "_velocity_0", "_beta1_pow_acc_0", "_beta2_pow_acc_0"];

/// What stands before master weights and moving averages in the torch checkpoints we write.
const MASTERS: &str = "master_weights.";
const AVERAGES: &str = "ema.";

/// The table under which `.pdparams` files hold the static names of their weights.
pub(crate) const NAME_TABLE: &str = "StructuredToParameterName@@";

/// Torch's name of a slot.
pub(crate) fn torch_slot(slot: &str) -> &str {
    SLOTS.iter().find(|(_, ours)| *ours == slot).map_or(slot, |(torch, _)| torch)
}

fn our_slot(slot: &str) -> &str {
    SLOTS.iter().find(|(torch, _)| *torch == slot).map_or(slot, |(_, ours)| ours)
}

/// Where a torch checkpoint keeps its model and its optimizer: what stands before the names of the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TorchNames {
    /// `model.` of `model.layer.weight`; mostly empty.
    pub(crate) model: String,
    /// `optim.` of `optim.state.layer.weight.exp_avg`.
    pub(crate) optimizer: String,
}

impl Default for TorchNames {
    fn default() -> TorchNames {
        TorchNames { model: String::new(), optimizer: "optim.".to_string() }
    }
}

/// The roles of all tensors of a source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roles {
    of: BTreeMap<Key, TensorKey>,
    /// Where a torch checkpoint has its optimizer.
    pub(crate) torch: Option<TorchNames>,
}

impl Roles {
    pub(crate) fn of(source: &Source) -> Roles {
        let torch = match source.format {
            Format::TorchDcp | Format::TorchSave => torch_names(source),
            _ => None,
        };
        let ids = torch.as_ref().map(|names| named_ids(source, names)).unwrap_or_default();
        let statics = static_names(source);
        let mut of = BTreeMap::new();
        let mut taken = BTreeSet::new();
        for key in source.tensors.keys() {
            let role = match source.format {
                Format::TorchDcp | Format::TorchSave => torch_role(source, key, torch.as_ref(), &ids),
                Format::PaddleFlex => flex_role(source, key),
                Format::PaddleSave => static_role(key, &statics),
                _ => by_part(key),
            };
            // Two tensors of one role are not understood; the second keeps its name.
            let role = if taken.contains(&role) { plain(key) } else { role };
            taken.insert(role.clone());
            of.insert(key.clone(), role);
        }
        Roles { of, torch }
    }

    /// The role of a tensor of the source.
    pub(crate) fn get(&self, key: &Key) -> TensorKey {
        self.of.get(key).cloned().unwrap_or_else(|| by_part(key))
    }

    /// All tensors with their roles.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &TensorKey)> {
        self.of.iter()
    }
}

/// The key of a role in formats that have a part for each kind.
pub(crate) fn part_key(role: &TensorKey) -> Key {
    let part = match role.kind {
        TensorKind::Parameter | TensorKind::Buffer => Part::Model,
        TensorKind::Master => Part::MasterWeights,
        TensorKind::Slot(_) => Part::Optimizer,
        TensorKind::Ema => Part::Ema,
    };
    Key { part, name: role.in_file() }
}

fn role(kind: TensorKind, name: &str) -> TensorKey {
    TensorKey { kind, name: name.to_string() }
}

fn slot(slot: &str, name: &str) -> TensorKey {
    role(TensorKind::Slot(slot.to_string()), name)
}

/// A tensor that says nothing but its name.
fn plain(key: &Key) -> TensorKey {
    match key.part {
        Part::Model => role(TensorKind::Parameter, &key.name),
        Part::MasterWeights => role(TensorKind::Master, &key.name),
        Part::Ema => role(TensorKind::Ema, &key.name),
        Part::Optimizer => slot("state", &key.name),
    }
}

/// Files of their own for each kind, and `weight/moment1_0` for optimizer state.
fn by_part(key: &Key) -> TensorKey {
    match (key.part, key.name.rsplit_once('/')) {
        (Part::Optimizer, Some((name, kind))) => slot(kind, name),
        _ => plain(key),
    }
}

/// `weight.moment1_0`, and `weight.w_0` for masters and moving averages. A weight may itself be called `fc.w_0`: the end
/// counts only where something else speaks of a weight of that name.
fn flex_role(source: &Source, key: &Key) -> TensorKey {
    match (split_slot(&key.name), key.part) {
        ((name, Some(".w_0")), Part::Ema) => role(TensorKind::Ema, name),
        ((name, Some(".w_0")), Part::MasterWeights) => role(TensorKind::Master, name),
        ((name, Some(".w_0")), _) => {
            let known = |part, ending: &str| {
                source.tensors.contains_key(&Key { part, name: format!("{name}{ending}") })
            };
            let parts = [Part::Model, Part::Optimizer];
            if parts.iter().any(|&part| known(part, "") || known(part, ".moment1_0")) {
                return role(TensorKind::Master, name);
            }
            plain(key)
        }
        ((name, Some(kind)), Part::Model | Part::Optimizer) => slot(kind.trim_start_matches('.'), name),
        _ => by_part(key),
    }
}

/// `linear_0.w_0_moment1_0` and `master_weights.linear_0.w_0` of `.pdopt` files.
fn static_role(key: &Key, statics: &BTreeMap<String, String>) -> TensorKey {
    if key.part != Part::Optimizer {
        return by_part(key);
    }
    let named = |name: &str| statics.get(name).cloned().unwrap_or_else(|| name.to_string());
    if let Some(name) = key.name.strip_prefix("master_weights.") {
        return role(TensorKind::Master, &named(name));
    }
    for ending in STATIC {
        if let Some(name) = key.name.strip_suffix(ending) {
            let name = name.strip_suffix("_fp32_master_0").unwrap_or(name);
            return slot(&ending[1..], &named(name));
        }
    }
    by_part(key)
}

/// Names of weights by their static names.
fn static_names(source: &Source) -> BTreeMap<String, String> {
    let tables = source.extra.iter().filter(|(name, _)| name.ends_with(NAME_TABLE));
    let pairs = tables.filter_map(|(_, table)| python::fields(table)).flatten();
    pairs.filter_map(|(name, given)| Some((given.as_str()?.to_string(), name.to_string()))).collect()
}

/// `optim.`, `layer.weight` and `exp_avg` of `optim.state.layer.weight.exp_avg`.
fn divided(name: &str) -> Option<(&str, &str, &str)> {
    let (rest, kind) = name.rsplit_once('.')?;
    if let Some(weight) = rest.strip_prefix("state.") {
        return Some(("", weight, kind));
    }
    let at = rest.find(".state.")?;
    Some((&name[..=at], &rest[at + ".state.".len()..], kind))
}

/// Where the optimizer is, and what stands before the names of the model's tensors.
fn torch_names(source: &Source) -> Option<TorchNames> {
    let mut roots: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for key in source.tensors.keys() {
        if let Some((root, weight, kind)) = divided(&key.name)
            && MARKS.contains(&kind)
        {
            roots.entry(root).or_default().push(weight);
        }
    }
    let known = |name: String| source.tensors.contains_key(&Key::model(name));
    let grouped = |root: &str| {
        let groups = format!("{root}param_groups");
        source.extra.keys().any(|name| name.starts_with(&groups))
    };
    let has_weights = |root: &str, weights: &[&str]| {
        grouped(root) || weights.iter().any(|weight| wrapper(source, root, weight).is_some())
    };
    roots.retain(|root, weights| has_weights(root, weights));
    let (root, weights) = roots.into_iter().max_by_key(|(_, weights)| weights.len())?;
    let covered = |model: &&str| weights.iter().filter(|weight| known(format!("{model}{weight}"))).count();
    let wrappers: BTreeSet<&str> = weights.iter().take(16).filter_map(|w| wrapper(source, root, w)).collect();
    let model = wrappers.into_iter().max_by_key(covered).unwrap_or("");
    Some(TorchNames { model: model.to_string(), optimizer: root.to_string() })
}

/// Torch has no place for master weights and moving averages, so we write them as `master_weights.weight`. They count as
/// such where there is a weight of that name, or optimizer state of one.
fn copy_role(source: &Source, key: &Key, names: Option<&TorchNames>) -> Option<TensorKey> {
    let kinds = [(TensorKind::Master, MASTERS), (TensorKind::Ema, AVERAGES)];
    let (kind, name) =
        kinds.into_iter().find_map(|(kind, start)| Some((kind, key.name.strip_prefix(start)?)))?;
    let has_state = names.is_some_and(|names| {
        let weight = name.strip_prefix(names.model.as_str()).unwrap_or(name);
        let start = Key::model(format!("{}state.{weight}.", names.optimizer));
        source.tensors.range(&start..).next().is_some_and(|(next, _)| next.name.starts_with(&start.name))
    });
    (has_state || source.tensors.contains_key(&Key::model(name))).then(|| role(kind, name))
}

/// What stands before the name of a weight where the model has it.
fn wrapper<'s>(source: &'s Source, root: &str, weight: &str) -> Option<&'s str> {
    if source.tensors.contains_key(&Key::model(weight)) {
        return Some("");
    }
    let state = format!("{root}state.");
    let starts = [state.as_str(), MASTERS, AVERAGES];
    let others = source.tensors.keys().filter(|key| starts.iter().all(|start| !key.name.starts_with(start)));
    let before = |key: &'s Key| key.name.strip_suffix(weight).filter(|before| before.ends_with('.'));
    others.filter_map(before).min_by_key(|before| before.len())
}

/// Names of the weights that an optimizer knows by number, where its groups tell them.
fn named_ids(source: &Source, names: &TorchNames) -> BTreeMap<String, String> {
    let groups = source.extra.get(&format!("{}param_groups", names.optimizer)).and_then(python::items);
    let mut found = BTreeMap::new();
    for group in groups.into_iter().flatten() {
        let list = |field: &str| python::field(group, field).and_then(python::items).unwrap_or_default();
        for (id, name) in list("params").iter().zip(list("param_names")) {
            found.extend(id.as_u64().zip(name.as_str()).map(|(id, name)| (id.to_string(), name.to_string())));
        }
    }
    found
}

fn torch_role(
    source: &Source,
    key: &Key,
    names: Option<&TorchNames>,
    ids: &BTreeMap<String, String>,
) -> TensorKey {
    if let Some(role) = copy_role(source, key, names) {
        return role;
    }
    let Some(names) = names else { return plain(key) };
    let rest = key.name.strip_prefix(&names.optimizer).and_then(|rest| rest.strip_prefix("state."));
    let Some((weight, kind)) = rest.and_then(|rest| rest.rsplit_once('.')) else { return plain(key) };
    let weight = ids.get(weight).map_or(weight, String::as_str);
    let whole = format!("{}{weight}", names.model);
    let name = if source.tensors.contains_key(&Key::model(whole.as_str())) { whole.as_str() } else { weight };
    slot(our_slot(kind), name)
}

impl Source {
    /// Elements of the parameters among these tensors: of what a training calls the model, without buffers, optimizer state
    /// and copies of the weights.
    pub fn parameters<'k>(&self, among: impl IntoIterator<Item = &'k Key>) -> u64 {
        let roles = Roles::of(self);
        let buffers = self.extra.get(STATE).and_then(|about| about["buffers"].as_array());
        let is_buffer =
            |key: &Key| buffers.is_some_and(|all| all.iter().any(|name| name == key.name.as_str()));
        let is_parameter = |key: &&Key| roles.get(key).kind == TensorKind::Parameter && !is_buffer(key);
        let elements = |key: &Key| self.extents(key).iter().product::<usize>() as u64;
        among.into_iter().filter(is_parameter).map(elements).fold(0, u64::saturating_add)
    }

    /// The same checkpoint with every tensor under the key that a training state has for it, whoever wrote it: parts by
    /// kind, and optimizer state as `weight/moment1_0`. So `optim.state.weight.exp_avg` of a torch checkpoint becomes
    /// `weight/moment1_0` of the part [`Part::Optimizer`].
    pub fn as_state(&self) -> Source {
        let roles = Roles::of(self);
        let renamed = self.tensors.iter().map(|(key, entry)| (part_key(&roles.get(key)), entry.clone()));
        let foreign = self.foreign.iter().map(|(key, foreign)| (part_key(&roles.get(key)), *foreign));
        Source { tensors: renamed.collect(), foreign: foreign.collect(), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_optimizer_state_is_divided_at_its_first_state() {
        let name = "optim.state.layers.0.state.weight.exp_avg";
        assert_eq!(divided(name), Some(("optim.", "layers.0.state.weight", "exp_avg")));
        assert_eq!(divided("state.w.step"), Some(("", "w", "step")));
        assert_eq!(divided("model.w"), None);
        assert_eq!((torch_slot("moment2_0"), our_slot("exp_avg_sq")), ("exp_avg_sq", "moment2_0"));
        assert_eq!(
            (torch_slot("beta1_pow_acc_0"), our_slot("square_avg")),
            ("beta1_pow_acc_0", "square_avg")
        );
    }

    #[test]
    fn static_names_lead_to_the_weights_they_belong_to() {
        let statics = BTreeMap::from([("linear_0.w_0".to_string(), "lin.weight".to_string())]);
        let of = |name: &str| {
            static_role(&Key { part: Part::Optimizer, name: name.to_string() }, &statics).to_string()
        };
        assert_eq!(of("linear_0.w_0_moment1_0"), "optimizer:lin.weight/moment1_0");
        assert_eq!(of("linear_0.w_0_fp32_master_0_beta1_pow_acc_0"), "optimizer:lin.weight/beta1_pow_acc_0");
        assert_eq!(of("master_weights.linear_0.w_0"), "master_weights:lin.weight");
        assert_eq!(of("linear_1.b_0_velocity_0"), "optimizer:linear_1.b_0/velocity_0");
        assert_eq!(of("lod"), "optimizer:lod/state");
    }
}
