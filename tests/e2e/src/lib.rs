//! What the tests of the whole system share: a folder with text to learn, tiny configurations, and the bits of a
//! checkpoint.

pub mod job;

use anyhow::{Context, Result, ensure};
use planaria_train::event::{Event, Observer};
use planaria_train::{Config, Outcome, Trainer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tempfile::TempDir;

/// The settings that make the tiny model one with experts.
pub const MOE: [&str; 5] = [
    "model.kind=qwen2_moe",
    "model.num_experts=4",
    "model.num_experts_per_tok=2",
    "model.moe_intermediate_size=8",
    "model.shared_expert_intermediate_size=8",
];

/// A folder in which runs learn.
#[derive(Debug)]
pub struct Sandbox {
    path: PathBuf,
    /// Taken away with the sandbox.
    _folder: Option<TempDir>,
}

impl Sandbox {
    /// With a text of a few thousand characters.
    pub fn new() -> Result<Sandbox> {
        let folder = tempfile::tempdir()?;
        let sandbox = Sandbox { path: folder.path().to_path_buf(), _folder: Some(folder) };
        sandbox.write_text()?;
        Ok(sandbox)
    }

    /// The same in a folder that stays; several processes may share it.
    pub fn at(path: &Path) -> Result<Sandbox> {
        std::fs::create_dir_all(path)?;
        // A configuration written into it would take its relative paths from there.
        let sandbox = Sandbox { path: std::path::absolute(path)?, _folder: None };
        sandbox.write_text()?;
        Ok(sandbox)
    }

    fn write_text(&self) -> Result<()> {
        let line = |i: usize| format!("{i}: cut the worm anywhere, piece {} grows back whole.\n", i * i % 97);
        let text: String = (0..120).map(line).collect();
        let file = self.path.join("text.txt");
        match std::fs::read_to_string(&file) {
            Ok(there) if there == text => Ok(()),
            _ => Ok(std::fs::write(file, text)?),
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A run's folder.
    pub fn run_dir(&self, name: &str) -> PathBuf {
        self.path().join("runs").join(name)
    }

    /// The configuration of a tiny model on a mesh, with further lines of the form `section.key=value`.
    pub fn config(&self, name: &str, mesh: &str, more: &[&str]) -> Result<Config> {
        let text = TINY.replace("FOLDER", &self.path().display().to_string());
        let mut set = vec![format!("name={name}"), format!("mesh={mesh}")];
        set.extend(more.iter().map(ToString::to_string));
        Ok(planaria_train::config::Sources::text("tiny.toml", &text).set(set).resolve()?.config)
    }

    /// Trains it to its end.
    pub fn train(&self, name: &str, mesh: &str, more: &[&str]) -> Result<Run> {
        let config = self.config(name, mesh, more)?;
        let outcome = Trainer::new(config).run(None).with_context(|| format!("{name} on {mesh}"))?;
        self.finished(name, outcome)
    }

    /// Trains it up to a step, where it saves and stops.
    pub fn train_until(&self, step: u64, name: &str, mesh: &str, more: &[&str]) -> Result<Run> {
        let config = self.config(name, mesh, more)?;
        let outcome =
            Trainer::new(config).until(step).run(None).with_context(|| format!("{name} on {mesh}"))?;
        self.finished(name, outcome)
    }

    /// A run that ended, with the bytes of its last checkpoint.
    pub fn finished(&self, name: &str, outcome: Outcome) -> Result<Run> {
        let folder = outcome.checkpoint.as_ref().context("nothing was saved")?;
        let tensors = tensors(&self.run_dir(name).join(folder))?;
        Ok(Run { outcome, tensors })
    }
}

/// A finished run and the bytes of its last checkpoint.
#[derive(Clone, Debug)]
pub struct Run {
    /// How it ended.
    pub outcome: Outcome,
    /// Every tensor of the checkpoint: weights, masters and optimizer state.
    pub tensors: BTreeMap<String, Vec<u8>>,
}

impl Run {
    /// Loss curve and every tensor are the same bits.
    pub fn same_bits(&self, other: &Run) -> Result<()> {
        let bits = |run: &Run| run.outcome.losses.iter().map(|l| l.to_bits()).collect::<Vec<_>>();
        let (ours, theirs) = (&self.outcome.losses, &other.outcome.losses);
        ensure!(bits(self) == bits(other), "the losses differ: {ours:?} and {theirs:?}");
        self.same_tensors(other)
    }

    /// Every tensor is the same bits.
    pub fn same_tensors(&self, other: &Run) -> Result<()> {
        let names = |run: &Run| run.tensors.keys().cloned().collect::<Vec<_>>();
        ensure!(names(self) == names(other), "{:?} and {:?}", names(self), names(other));
        for (name, bytes) in &self.tensors {
            ensure!(*bytes == other.tensors[name], "`{name}` differs");
        }
        Ok(())
    }

    /// Every f32 tensor of the model within a bound, relative to its largest element.
    pub fn close_weights(&self, other: &Run, bound: f32) -> Result<()> {
        let mut compared = 0;
        for (name, bytes) in self.tensors.iter().filter(|(name, _)| name.starts_with("model:")) {
            let theirs = other.tensors.get(name).with_context(|| format!("no `{name}`"))?;
            let (a, b) = (floats(bytes)?, floats(theirs)?);
            ensure!(a.len() == b.len(), "`{name}` has {} and {} elements", a.len(), b.len());
            let largest = b.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let apart = a.iter().zip(&b).fold(0.0f32, |most, (x, y)| most.max((x - y).abs()));
            ensure!(apart <= bound * largest, "`{name}` is {apart} apart, of {largest}");
            compared += 1;
        }
        ensure!(compared > 0, "no tensors of a model");
        Ok(())
    }

    /// Losses within a relative bound.
    pub fn close_losses(&self, other: &Run, bound: f64) -> Result<()> {
        let (ours, theirs) = (&self.outcome.losses, &other.outcome.losses);
        ensure!(ours.len() == theirs.len(), "{} and {} steps", ours.len(), theirs.len());
        for (step, (a, b)) in ours.iter().zip(theirs).enumerate() {
            ensure!((a - b).abs() <= bound * b.abs(), "step {}: {a} and {b}", step + 1);
        }
        Ok(())
    }
}

/// The elements of a tensor as [`tensors`] has it.
pub fn floats(content: &[u8]) -> Result<Vec<f32>> {
    let end = content.iter().position(|&byte| byte == b']').context("a tensor without a shape")?;
    ensure!(content.starts_with(b"F32"), "not f32");
    let words = content[end + 1..].chunks_exact(4);
    Ok(words.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
}

/// All tensors in the safetensors files of a folder, by file stem and name.
pub fn tensors(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_string();
        if !name.ends_with(".safetensors") {
            continue;
        }
        let stem = name.split('-').next().unwrap_or_default().trim_end_matches(".safetensors").to_string();
        let bytes = std::fs::read(&path)?;
        for (tensor, view) in safetensors::SafeTensors::deserialize(&bytes)?.tensors() {
            let text = format!("{:?}{:?}", view.dtype(), view.shape());
            let content = [text.as_bytes(), view.data()].concat();
            ensure!(all.insert(format!("{stem}:{tensor}"), content).is_none(), "{tensor} appears twice");
        }
    }
    Ok(all)
}

/// Keeps everything a run tells.
#[derive(Debug, Default)]
pub struct Recorder(Mutex<Vec<Event>>);

impl Recorder {
    /// A new one, to be shared with a run.
    pub fn shared() -> Arc<Recorder> {
        Arc::default()
    }

    /// What was told so far.
    pub fn events(&self) -> Vec<Event> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Observer for Recorder {
    fn event(&self, event: &Event) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(event.clone());
    }
}

/// A model of some ten thousand elements.
const TINY: &str = r#"
[model]
kind = "qwen2"
hidden_size = 16
intermediate_size = 24
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
[data]
sequence = 16
[[data.source]]
path = "FOLDER/text.txt"
[optim]
lr = 1e-2
warmup = 2
[train]
steps = 4
global_batch = 8
micro_batch = 1
seed = 7
timeout = 60
[log]
dir = "FOLDER/runs"
tensorboard = false
"#;
