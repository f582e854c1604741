//! Where a run begins: the checkpoint it resumes from, whether that fits what is asked for, and what is changed.

use super::Job;
use super::lock::Lock;
use super::place::{OWN, newest};
use super::resume::{self, Progress};
use super::tiers::{self, Tier};
use crate::data::{Continuation, Sampler};
use crate::error::{Error, Result};
pub(super) use crate::event::Damaged;
use crate::pretrained::Pretrained;
use crate::weights::Files;
use planaria_ckpt::formats::OpenOptions;
use planaria_ckpt::{Checkpoint, Mix, TensorKey, TensorKind, step_folder, step_of};
use planaria_layout::Shape;
use planaria_nn::models::{Architecture, Effect, Setting, Stage};
use planaria_store::{Store, StoreExt, join};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The folder of a run's checkpoints.
pub(super) const CHECKPOINTS: &str = "ckpt";
/// Largest `config.json` that is read.
const CONFIG_BYTES: u64 = 1 << 24;
/// What may differ without a word: where a run lies, how it is divided, and what it writes.
const SILENT: [&str; 7] = ["name", "mesh", "device", "checkpoint.", "heal.", "log.", "train.threads"];
/// What the saved tensors are made by; other values need other tensors.
const FIXED: [&str; 5] = ["optim.kind", "optim.ema", "optim.averages", "train.precision", "train.freeze"];

/// A checkpoint to resume from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Start {
    /// Address of a store that is not the run's own.
    address: Option<String>,
    /// Which of the run's places has it; see [`Job::tiers`].
    tier: usize,
    /// Whether the run's folder has the same step, sound as far as is known, wherever it is read from.
    in_folder: bool,
    /// Where each file is read from, if no place has all of them sound.
    mix: Mix,
    /// The checkpoint in its store.
    pub(super) folder: String,
    /// What stands before the names of the model's parameters there, where a program of others saved its model inside something else.
    pub(super) prefix: String,
    /// Keys that have other values than when it was saved, as in `optim.lr 0.001 -> 0.0003`.
    pub(super) changed: Vec<String>,
    /// The run's own checkpoints that come after the one it goes back to. They go when the first new one is about to
    /// be saved.
    pub(super) newer: Vec<u64>,
    /// Those that the run would rather have resumed from.
    pub(super) damaged: Vec<Damaged>,
}

impl Start {
    /// True for a checkpoint of this very run.
    pub(super) fn is_own(&self) -> bool {
        self.address.is_none()
    }

    /// True for one that the run's folder has.
    pub(super) fn is_of_the_folder(&self) -> bool {
        self.is_own() && self.in_folder
    }

    /// The step of one of the run's checkpoints.
    pub(super) fn step(&self) -> Option<u64> {
        self.folder.rsplit('/').next().and_then(step_of)
    }

    /// True where it has lost a file since it was committed.
    fn is_incomplete(&self, job: &Job) -> bool {
        let Ok(store) = self.store(job) else { return false };
        let Ok(checkpoint) = planaria_ckpt::open(&*store, &self.folder) else { return false };
        let files = checkpoint.files.iter().map(|file| &file.name);
        let mut names = files.chain(checkpoint.others.iter().map(|file| &file.name));
        names.any(|name| matches!(store.exists(&join(&self.folder, name)), Ok(false)))
    }

    /// How it is named to people.
    pub(super) fn label(&self, job: &Job) -> Result<String> {
        match self.is_own() {
            true => Ok(named(&job.tiers()?, self.tier, &self.mix, &self.folder)),
            false => Ok(self.folder.clone()),
        }
    }

    /// Where it is, as a user would name it.
    fn path(&self, job: &Job) -> String {
        match &self.address {
            Some(address) => address.clone(),
            None => job.config.run_dir().join(&self.folder).display().to_string(),
        }
    }

    /// The store that holds it.
    pub(super) fn store(&self, job: &Job) -> Result<Arc<dyn Store>> {
        match &self.address {
            Some(address) => Ok(planaria_store::open(address)?),
            None => {
                let tiers = job.tiers()?;
                let stores: Vec<Arc<dyn Store>> = tiers.into_iter().map(|tier| tier.store).collect();
                Ok(if self.mix.is_empty() { stores[self.tier].clone() } else { self.mix.store(&stores) })
            }
        }
    }
}

/// A checkpoint of the run as it is named to people: with its tier, or with what each place gives of it.
fn named(tiers: &[Tier], tier: usize, mix: &Mix, folder: &str) -> String {
    if mix.is_empty() {
        return tiers[tier].label(folder);
    }
    let name = |tier: usize| tiers[tier].name.as_deref().unwrap_or("folder");
    let parts = mix.counts().into_iter().map(|(tier, files)| format!("{files} of {}", name(tier)));
    format!("{folder} ({} files)", parts.collect::<Vec<_>>().join(" and "))
}

/// Finds out where a run begins; nothing for new weights. Refuses what cannot continue. Reads manifests, no tensors. A run that heals
/// goes past `damaged` checkpoints and those that it finds damaged here; others take another copy of the same step, if there is one.
pub(super) fn find(job: &Job, damaged: &[Damaged]) -> Result<Option<Start>> {
    let mut damaged = damaged.to_vec();
    let mut first: Option<(Error, Option<u64>)> = None;
    loop {
        match find_but(job, &damaged) {
            Err(Error::Resume { folder, source, older }) => {
                let (why, step) = (source.to_string(), step_of_label(&folder));
                let again = damaged.iter().any(|known| known.folder == folder);
                damaged.push(Damaged { folder: folder.clone(), why });
                let error = Error::Resume { folder, source, older };
                if again {
                    return Err(error);
                }
                first.get_or_insert((error, step));
            }
            Err(error) => return Err(first.map_or(error, |(first, _)| first)),
            Ok(start) => {
                // Another copy of the same step loses nothing; an older one is taken only where that was asked for.
                let same = |step: Option<u64>| start.as_ref().is_some_and(|start| start.step() == step);
                match first {
                    Some((error, step)) if !job.healing.fall_back && !same(step) => return Err(error),
                    _ => return Ok(start.map(|start| Start { damaged, ..start })),
                }
            }
        }
    }
}

/// The step of a checkpoint of the run that is named to people, as in `ckpt/step-00000004 (memory)`.
fn step_of_label(label: &str) -> Option<u64> {
    label.split(' ').next()?.rsplit('/').next().and_then(step_of)
}

/// The steps that are committed in each of the run's places, those apart that are damaged.
struct Places {
    tiers: Vec<Tier>,
    /// By place, ascending.
    steps: Vec<Vec<u64>>,
    /// By place, those that are damaged there.
    broken: Vec<Vec<u64>>,
}

impl Places {
    fn look(job: &Job, damaged: &[Damaged]) -> Result<Places> {
        let tiers = job.tiers()?;
        let (mut steps, mut broken) = (Vec::new(), Vec::new());
        for (number, tier) in tiers.iter().enumerate() {
            let found = planaria_ckpt::committed(&*tier.store, CHECKPOINTS);
            // A tier that cannot be reached is no reason not to resume from another.
            let mut found = if number == OWN { found? } else { found.unwrap_or_default() };
            let known = |step: &mut u64| damaged.iter().any(|d| d.folder == tier.label(&own(*step)));
            broken.push(found.extract_if(.., known).collect());
            steps.push(found);
        }
        Ok(Places { tiers, steps, broken })
    }

    /// The newest step of all places, in the quickest that has it.
    fn newest(&self) -> Option<(usize, u64)> {
        newest(&self.tiers, &|tier| self.steps[tier].last().copied())
    }

    /// A step that is newer than every sound one, of which several places together have all files; none where even that was found
    /// to be damaged.
    fn mended(&self, damaged: &[Damaged]) -> Option<(usize, u64, Mix)> {
        let least = self.newest().map_or(0, |(_, step)| step + 1);
        let steps: std::collections::BTreeSet<u64> = self.broken.iter().flatten().copied().collect();
        let stores: Vec<Arc<dyn Store>> = self.tiers.iter().map(|tier| tier.store.clone()).collect();
        steps.range(least..).rev().find_map(|&step| {
            let mix = Mix::find(&stores, &own(step))?;
            let label = named(&self.tiers, OWN, &mix, &own(step));
            let tier = mix.counts().keys().next().copied().unwrap_or(OWN);
            damaged.iter().all(|known| known.folder != label).then_some((tier, step, mix))
        })
    }
}

/// As if the damaged checkpoints were not there.
fn find_but(job: &Job, damaged: &[Damaged]) -> Result<Option<Start>> {
    let places = Places::look(job, damaged)?;
    let (steps, store) = (&places.steps[OWN], &places.tiers[OWN].store);
    let mended = places.mended(damaged);
    if let (None, None, Some(Damaged { folder, why })) = (&mended, places.newest(), damaged.first()) {
        let what = format!("no checkpoint of the run is whole; the newest is '{folder}': {why}");
        return Err(Error::Run { what });
    }
    let section = &job.config.checkpoint;
    let occupied = |key: &str| Error::Occupied {
        dir: job.config.run_dir().display().to_string(),
        step: steps.last().copied().unwrap_or(0),
        key: key.into(),
    };
    let newest = mended.or_else(|| places.newest().map(|(tier, step)| (tier, step, Mix::default())));
    let newest = newest.map(|(tier, step, mix)| {
        let newer = places.broken[OWN].clone();
        Start { tier, mix, newer, in_folder: steps.contains(&step), ..start(own(step)) }
    });
    let examine_own = |start: Start| examine(job, &start.store(job)?, start).map(Some);
    match (&section.from, newest) {
        (None, Some(_)) if !section.resume && !steps.is_empty() => Err(occupied("checkpoint.resume = false")),
        (None, newest) => newest.filter(|_| section.resume).map_or(Ok(None), examine_own),
        // Started again with the same key, a run continues with what came of it.
        (Some(from), Some(newest)) if descends(job, &*newest.store(job)?, &newest.folder, from) => {
            examine_own(newest)
        }
        (Some(from), _) if step_of(from).is_some() => {
            let step = step_of(from).unwrap_or(0);
            if !steps.contains(&step) {
                let known: Vec<String> = steps.iter().map(|&step| step_folder(step)).collect();
                let expected = format!("one of the run's checkpoints ({}), or a path", known.join(", "));
                return Err(Error::Value { key: "checkpoint.from".into(), found: from.clone(), expected });
            }
            let newer = steps.iter().copied().filter(|&s| s > step).collect();
            examine(job, store, Start { newer, ..start(own(step)) }).map(Some)
        }
        (Some(_), Some(_)) if !steps.is_empty() => Err(occupied("checkpoint.from, which is a path")),
        (Some(from), _) => {
            let address = Some(from.clone());
            let store = planaria_store::open(from)?;
            examine(job, &store, Start { address, ..start(String::new()) }).map(Some)
        }
    }
}

fn start(folder: String) -> Start {
    Start {
        address: None,
        tier: OWN,
        in_folder: true,
        mix: Mix::default(),
        folder,
        prefix: String::new(),
        changed: Vec::new(),
        newer: Vec::new(),
        damaged: Vec::new(),
    }
}

fn own(step: u64) -> String {
    join(CHECKPOINTS, &step_folder(step))
}

/// True where the run that saved this checkpoint had begun from `from`, wherever it was started.
fn descends(job: &Job, store: &dyn Store, folder: &str, from: &str) -> bool {
    let progress = planaria_ckpt::open(store, folder).ok().and_then(|c| resume::progress(&c.state).ok());
    let recorded = job.config.recorded().ok().and_then(|config| config.checkpoint.from);
    progress.and_then(|p| p.from).is_some_and(|began| began == from || Some(began) == recorded)
}

/// Refuses a checkpoint of another model, other data or another optimizer; finds what else is changed.
fn examine(job: &Job, store: &Arc<dyn Store>, mut start: Start) -> Result<Start> {
    let folder = &start.folder;
    let checkpoint = planaria_ckpt::open(&**store, folder).map_err(|e| match start.address {
        Some(_) if matches!(e, planaria_ckpt::Error::NotCommitted { .. }) => {
            not_of_a_run(&start.path(job), store)
        }
        _ => unreadable(job, &start, e),
    })?;
    check_config(&**store, &checkpoint).map_err(|error| unreadable(job, &start, error))?;
    let saved = saved_model(job, &**store, folder)?;
    let mut differs =
        saved.as_ref().map(|saved| model_changes(&**saved, job, Effect::Function)).unwrap_or_default();
    if job.config.data.continuation == Continuation::New {
        // Longer sequences need other rotary frequencies; the tensors are the same.
        start.changed = differs.extract_if(.., |line| line.starts_with("model.rope_")).collect();
    }
    let keys = changes(&checkpoint.state.config, &job.config_json());
    let key_of = |line: &&String| line.split(' ').next().unwrap_or_default().to_string();
    let fixed = |line: &&String| {
        let key = key_of(line);
        FIXED.contains(&key.as_str()) || key.starts_with("lora") && key != "lora.dropout"
    };
    differs.extend(keys.iter().filter(fixed).cloned());
    start.prefix = prefix(&*job.model, &checkpoint)?;
    if differs.is_empty() {
        differs.extend(shape_changes(&*job.model, &checkpoint, &start.prefix)?);
    }
    if !differs.is_empty() {
        return Err(Error::Differs { folder: start.path(job), what: few(&differs) });
    }
    let Progress { sampler, step, .. } = resume::progress(&checkpoint.state)?;
    match sampler {
        Some(saved) if job.config.data.continuation == Continuation::Same => job.sampler()?.check(&saved)?,
        Some(_) => {}
        None => start.changed.push(format!(
            "no run wrote it: {step} steps, as its optimizer counts them, and none of this data"
        )),
    }
    let silent = |line: &String| SILENT.iter().any(|start| line.starts_with(start));
    start.changed.extend(keys.into_iter().filter(|line| !silent(line) && !line.starts_with("model.")));
    start.changed.extend(saved.iter().flat_map(|saved| model_changes(&**saved, job, Effect::Training)));
    Ok(start)
}

/// A folder to resume from that no run of ours wrote.
fn not_of_a_run(path: &str, store: &Arc<dyn Store>) -> Error {
    let found = planaria_ckpt::formats::open(store, "", &OpenOptions::default());
    let what = match found {
        Ok(source) => format!("a checkpoint of a run, not one of the format '{}'", source.format),
        Err(_) => "the folder of a checkpoint".to_string(),
    };
    let next =
        format!("`planaria convert {path} NEW --to planaria` makes one that keeps the optimizer's state");
    let expected = format!("{what}; {next}, `model.init` takes the weights alone");
    Error::Value { key: "checkpoint.from".into(), found: format!("'{path}'"), expected }
}

/// Refuses a `config.json` that is not the one that was saved.
fn check_config(store: &dyn Store, checkpoint: &Checkpoint) -> planaria_ckpt::Result<()> {
    let Some(file) = checkpoint.others.iter().find(|file| file.name == "config.json") else { return Ok(()) };
    let name = join(&checkpoint.folder, &file.name);
    let text = store.read(&name, CONFIG_BYTES)?;
    Ok(planaria_store::checksum::check(&name, 0, &text, file.sum)?)
}

/// The model that a checkpoint says it holds, where it says so.
fn saved_model(job: &Job, store: &dyn Store, folder: &str) -> Result<Option<Arc<dyn Architecture>>> {
    let name = join(folder, "config.json");
    if !store.exists(&name)? {
        return Ok(None);
    }
    let text = store.read(&name, CONFIG_BYTES)?;
    Ok(Some(job.models.open_json(&String::from_utf8_lossy(&text))?))
}

/// A checkpoint that cannot be read, with the one to resume from instead.
pub(super) fn unreadable(job: &Job, start: &Start, error: planaria_ckpt::Error) -> Error {
    use planaria_ckpt::{Error as E, Trouble};
    // A file that a committed folder has lost is damage too.
    let lost = matches!(error, E::Store(planaria_store::Error::NotFound { .. })) || start.is_incomplete(job);
    let damaged = error.trouble() == Trouble::Damage || lost;
    if !damaged {
        return error.into();
    }
    let step = start.step();
    let older = job.store().ok().and_then(|store| {
        let steps = planaria_ckpt::committed(&*store, CHECKPOINTS).ok()?;
        let sound = |step: &u64| planaria_ckpt::open(&*store, &own(*step)).is_ok();
        steps.into_iter().rev().filter(|s| Some(*s) < step).find(sound).map(step_folder)
    });
    let folder = start.label(job).unwrap_or_else(|_| start.folder.clone());
    Error::Resume { folder, source: Box::new(error), older }
}

/// What this effect has changed since the checkpoint, as in `model.rope_theta 10000 -> 500`.
fn model_changes(saved: &dyn Architecture, job: &Job, effect: Effect) -> Vec<String> {
    let rows = |model: &dyn Architecture| {
        let kind = Setting { key: "kind".into(), value: model.model_type().into(), effect: Effect::Function };
        let all = std::iter::once(kind).chain(model.settings()).filter(|setting| setting.effect == effect);
        all.map(|setting| (setting.key, setting.value)).collect::<Vec<_>>()
    };
    let (before, after) = (rows(saved), rows(&*job.model));
    let value = |rows: &[(String, String)], key: &str| {
        rows.iter().find(|(k, _)| k == key).map_or("none".to_string(), |(_, value)| value.clone())
    };
    let gone = after.iter().filter(|(key, _)| before.iter().all(|(k, _)| k != key));
    let keys = before.iter().chain(gone).map(|(key, _)| key);
    let pairs = keys.map(|key| (key, value(&before, key), value(&after, key)));
    pairs.filter(|(_, a, b)| a != b).map(|(key, a, b)| format!("model.{key} {a} -> {b}")).collect()
}

/// Keys of the run's configuration with other values than before.
fn changes(saved: &Value, now: &Value) -> Vec<String> {
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    leaves(saved, "", &mut before);
    leaves(now, "", &mut after);
    let none = || "none".to_string();
    let keys: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let line = |key: &&String| {
        let (a, b) = (before.get(*key), after.get(*key));
        // What an older version did not write had the default of then.
        let differ = a != b && (a.is_some() || OPTIONAL.contains(&key.as_str()));
        differ.then(|| {
            let text = |v: Option<&String>| v.cloned().unwrap_or_else(none);
            format!("{key} {} -> {}", text(a), text(b))
        })
    };
    keys.iter().filter_map(line).collect()
}

/// Keys whose absence says something.
const OPTIONAL: [&str; 5] = ["optim.ema", "optim.averages", "optim.horizon", "optim.decay", "data.seed"];

fn leaves(value: &Value, key: &str, found: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                leaves(value, &key, found);
            }
        }
        Value::Null => {}
        Value::String(text) => drop(found.insert(key.into(), text.clone())),
        other => drop(found.insert(key.into(), other.to_string())),
    }
}

/// What stands before the names of the model's parameters in a checkpoint that no run wrote.
fn prefix(model: &dyn Architecture, checkpoint: &Checkpoint) -> Result<String> {
    if resume::is_of_a_run(&checkpoint.state) {
        return Ok(String::new());
    }
    let specs = model.parameters(&Stage::whole(model))?;
    let Some(first) =
        specs.iter().find(|spec| spec.tied.is_none()).and_then(|spec| spec.files().into_iter().next())
    else {
        return Ok(String::new());
    };
    let stored = || checkpoint.tensors.keys().filter(|key| key.kind == TensorKind::Parameter);
    let before = |key: &TensorKey| key.name.strip_suffix(&first).map(String::from);
    let found = stored().filter_map(before).filter(|prefix| prefix.is_empty() || prefix.ends_with('.'));
    // The usual names, where they are there too.
    Ok(found.min_by_key(String::len).unwrap_or_default())
}

/// Parameters whose shapes are not those of the checkpoint.
fn shape_changes(model: &dyn Architecture, checkpoint: &Checkpoint, prefix: &str) -> Result<Vec<String>> {
    let key = |name: &str| TensorKey::parameter(format!("{prefix}{name}"));
    let stored = |name: &str| checkpoint.tensors.get(&key(name)).map(|t| t.shape.clone());
    // Parameters that were left out are made from masters of the same shapes.
    if checkpoint.derive.is_some() {
        return Ok(Vec::new());
    }
    shapes(model, Files::Run, stored)
}

/// The parameters of a model that are not there, or have other shapes.
pub(super) fn shapes(
    model: &dyn Architecture,
    files: Files,
    stored: impl Fn(&str) -> Option<Shape>,
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for spec in model.parameters(&Stage::whole(model))?.iter().filter(|spec| spec.tied.is_none()) {
        let shape = if spec.is_stacked() { Shape::new(&spec.shape[1..])? } else { spec.shape.clone() };
        for name in files.names(spec).unwrap_or_default() {
            match stored(&name) {
                Some(there) if there == shape => {}
                Some(there) => found.push(format!("`{name}` {there} -> {shape}")),
                None => found.push(format!("`{name}` missing -> {shape}")),
            }
        }
    }
    Ok(found)
}

/// The first of them.
fn few(lines: &[String]) -> String {
    let shown = lines.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
    let more = lines.len().saturating_sub(4);
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

impl Job {
    /// Refuses a start that cannot be; the checkpoint that the run would resume from.
    pub(super) fn check_start(&self) -> Result<Option<String>> {
        Lock::check(&self.config.run_dir())?;
        tiers::check_reach(self)?;
        if let Some(start) = find(self, &[])? {
            return Ok(Some(start.folder));
        }
        let Some(path) = &self.config.model.init else { return Ok(None) };
        let from = Pretrained::find(path)?;
        let source = planaria_ckpt::formats::open(from.store(), from.folder(), &OpenOptions::default())?;
        let mut wrong = shapes(&*self.model, Files::Model, |name| {
            source.model(name).ok().map(|entry| entry.shape.clone())
        })?;
        // Names may be longer or shorter in the files of others; loading finds out.
        wrong.retain(|line| !line.contains("` missing -> "));
        let path = path.display().to_string();
        match wrong.is_empty() {
            true => Ok(None),
            false => Err(Error::Value {
                key: "model.init".into(),
                found: path,
                expected: format!("the tensors of this model; it has {}", few(&wrong)),
            }),
        }
    }

    /// The order of the training samples.
    pub(super) fn sampler(&self) -> Result<Sampler> {
        let config = &self.config;
        let seed = config.data.seed.unwrap_or(config.train.seed);
        let sampler = Sampler::new(&*self.data.train, seed, config.data.order)?;
        Ok(sampler.batched(&self.data.train, self.objective.batches(config))?)
    }

    /// Where checkpoints go: the store that was given, or the run's folder.
    pub(super) fn store(&self) -> Result<Arc<dyn Store>> {
        match &self.store {
            Some(store) => Ok(store.clone()),
            None => Ok(planaria_store::open(&self.config.run_dir().display().to_string())?),
        }
    }
}
