//! What a run is made of before its first step: the model's configuration, the mesh seen from one rank.

use super::Job;
use crate::config::{Config, ScheduleKind};
use crate::error::{Error, Result};
use crate::objective::Objective;
use crate::pretrained;
use crate::replica::Neighbours;
use planaria_comm::{Comm, CommExt};
use planaria_layout::Mesh;
use planaria_nn::Parallel;
use planaria_nn::lora::Adapted;
use planaria_nn::models::{Architecture, Models, Stage};
use planaria_nn::optim::{Decay, Schedule, Shape};
use planaria_tensor::World;
use std::path::Path;
use std::sync::Arc;

/// Reads the `config.json` at a path, or in a folder.
pub fn read_model_config(path: &Path) -> Result<serde_json::Map<String, serde_json::Value>> {
    let file = if path.is_dir() { path.join("config.json") } else { path.to_path_buf() };
    let name = file.display().to_string();
    let read = planaria_store::open_file(&file).and_then(std::io::read_to_string);
    let text = read.map_err(|source| Error::Io { path: name.clone(), source })?;
    match serde_json::from_str(&text) {
        Ok(serde_json::Value::Object(map)) => Ok(map),
        Ok(_) => Err(Error::Syntax { origin: name, what: "not a JSON object".into() }),
        Err(e) => Err(Error::Syntax { origin: format!("{name}:{}", e.line()), what: e.to_string() }),
    }
}

/// The model that `[model]` asks for, with a tokenizer of this many tokens.
pub(crate) fn model(
    config: &Config,
    objective: &dyn Objective,
    vocab: usize,
    models: &Models,
) -> Result<Arc<dyn Architecture>> {
    let section = &config.model;
    let base = pretrained::base_config(config)?;
    let mut json = section.to_json(base, Some(vocab))?;
    if let Some(keys) = json.as_object_mut() {
        // Nobody said how long sequences may be: as long as they are.
        let longest = config.data.sequence.max(2048);
        keys.entry("max_position_embeddings").or_insert(longest.into());
        objective.shape(keys)?;
    }
    let model = models.open(json)?;
    objective.check(&*model)?;
    if let Some(samples) = &config.log.samples {
        samples.check_for(objective)?;
    }
    if model.vocab_size() < vocab {
        return Err(Error::Value {
            key: "model.vocab_size".into(),
            found: model.vocab_size().to_string(),
            expected: format!("at least the {vocab} of the tokenizer"),
        });
    }
    let model = match &config.lora {
        None => model,
        Some(lora) => Arc::new(Adapted::new(model, lora.config(section.init.as_deref())?)?),
    };
    objective.model(model, models)
}

/// The learning rate of every step, where the highest is `lr`. The first step has a rate above 0, so that it is not lost.
pub(super) fn schedule(config: &Config, lr: f64) -> Result<Schedule> {
    let optim = &config.optim;
    let steps = optim.horizon.unwrap_or(config.train.steps);
    let decay = optim.decay.unwrap_or(steps / 10).min(steps);
    let stable = steps.saturating_sub(optim.warmup).saturating_sub(decay);
    let shape = match optim.schedule {
        ScheduleKind::Constant => Shape::Constant,
        ScheduleKind::Linear => Shape::Linear { steps },
        ScheduleKind::Cosine => Shape::Cosine { steps },
        ScheduleKind::Wsd => Shape::Wsd { stable, decay, kind: Decay::Linear },
    };
    let min_ratio = if optim.lr > 0.0 { optim.min_lr / optim.lr } else { 0.0 };
    let schedule = Schedule { lr, min_ratio, warmup: optim.warmup, shape };
    schedule.check()?;
    Ok(schedule)
}

/// The mesh as one rank sees it.
#[derive(Debug)]
pub(super) struct Position {
    pub(super) mesh: Mesh,
    /// Pipeline stage.
    pub(super) stage: usize,
    pub(super) stages: usize,
    /// Data replica.
    pub(super) replica: usize,
    pub(super) replicas: usize,
    /// This rank speaks for its inner mesh.
    pub(super) speaks: bool,
    /// The stages of this replica at this place of the inner mesh, first to last.
    pub(super) pipeline: Vec<usize>,
}

impl Position {
    pub(super) fn of(mesh: Mesh, rank: usize) -> Result<Position> {
        let coords = mesh.require(rank)?;
        let size = |axis: usize| mesh.axis_size(axis);
        let pipeline = mesh.group(rank, mesh.axis_set(&["pp"])?)?;
        Ok(Position {
            stage: coords[0],
            stages: size(0),
            replica: coords[1],
            replicas: size(1),
            speaks: coords[2] == 0 && coords[3] == 0,
            pipeline,
            mesh,
        })
    }

    /// Whether this rank reads data: the first stage has the inputs, the last one the labels, unless all must know where
    /// documents begin.
    pub(super) fn reads(&self, job: &Job) -> bool {
        let Position { stage, stages, .. } = *self;
        stage == 0 || stage + 1 == stages || job.objective.separates(&job.config.data)
    }

    /// Who else is there; `parts` are the model's, each with its position along `pp`.
    pub(super) fn neighbours(
        &self,
        comm: &Arc<dyn Comm>,
        config: &Config,
        parts: Vec<(Stage, usize)>,
    ) -> Result<Neighbours> {
        let here = comm.world_rank();
        let inner = self.mesh.keep(&["ep", "tp"], here)?;
        let sequence = config.train.sequence_parallel;
        // What comes from another stage is treated as what the model makes itself, or pipelines would change bits.
        let parallel = (inner.size() > 1)
            .then(|| Parallel { world: World::new(comm.clone()), mesh: inner, sequence }.on_purpose());
        let group = |axes: &[&str]| -> Result<Arc<dyn Comm>> {
            Ok(comm.group(&self.mesh.group(here, self.mesh.axis_set(axes)?)?)?)
        };
        let (data, within) = (group(&["dp"])?, group(&["ep", "tp"])?);
        let peers = if self.stages == 1 { data.clone() } else { group(&["pp", "dp"])? };
        let parts = parts.into_iter().map(|(stage, position)| (stage, self.pipeline[position])).collect();
        Ok(Neighbours { parallel, data, inner: within, peers, parts })
    }
}
