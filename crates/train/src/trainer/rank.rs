//! One rank of a run, from its first collective to its last.

use super::averager::Averager;
use super::compute::Compute;
use super::holders;
use super::lock::Lock;
use super::now::Now;
use super::place::OWN;
use super::records::Records;
use super::resume::{self, Progress};
use super::saves::{Keep, Saves};
use super::setup::{self, Position};
use super::stages::{Pipeline, Running};
use super::start::{self, Damaged, Start};
use super::tiers;
use super::writer::Ahead;
use super::{Job, Outcome};
use crate::beat::Pulse;
use crate::bundle::BundleOptions;
use crate::config::{Reduction, TrainSection};
use crate::data::{Loader, LoaderOptions, Sampler, Share, Window};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::freeze::Frozen;
use crate::geometry::{Batching, Geometry};
use crate::partition;
use crate::pretrained::{Pretrained, Which, together};
use crate::reduce::ReduceOptions;
use crate::replica::{Making, Neighbours, Replica};
use crate::update;
use crate::weights::{Files, Keeping, Zero};
use planaria_array::Device;
use planaria_ckpt::{Known, LoadOptions, TensorKind, TrainState, Unmatched};
use planaria_comm::{Comm, CommExt, Tally, Value};
use planaria_layout::Rank;
use planaria_nn::Init;
use planaria_nn::models::{BESIDE, LATENT, LATENT_ATTENTION, Stage, parameter_count};
use planaria_nn::optim::Schedule;
use planaria_store::{StoreExt as _, join};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Largest file of an objective in a checkpoint.
const MOST_BYTES: u64 = 1 << 36;

/// One rank of a run.
pub(super) struct RankRun<'a> {
    pub(super) job: &'a Job,
    pub(super) world: Arc<dyn Comm>,
    pub(super) place: Position,
    pub(super) near: Neighbours,
    pub(super) geometry: Geometry,
    sampler: Sampler,
    /// Weights of `model.init` that the model has no place for.
    unused: Vec<String>,
    pub(super) keeping: Keeping,
    pub(super) pipeline: Option<Running>,
    pub(super) replica: Replica,
    pub(super) compute: Compute,
    pub(super) averager: Averager,
    pub(super) schedule: Schedule,
    /// That of a second model, where there is one.
    pub(super) second: Option<Schedule>,
    pub(super) progress: Progress,
    pub(super) saves: Saves,
    /// Who holds what of the state, on all ranks.
    pub(super) known: Known,
    /// The model parts of each position of the pipeline.
    pub(super) positions: Vec<Vec<Stage>>,
    /// Absent until the state is there.
    records: Option<Arc<Records>>,
    /// Likewise.
    pub(super) now: Option<Now>,
    pub(super) losses: Vec<f64>,
    /// FLOPs of the model in one step, over all ranks, where they are known.
    pub(super) flops: Option<f64>,
    /// Steps in a row that changed nothing, up to the last one.
    pub(super) skipped: u64,
    /// Tells whoever started this rank how far it is.
    pub(super) pulse: Arc<Pulse>,
}

impl<'a> RankRun<'a> {
    /// Builds or loads everything. Collective.
    pub(super) fn begin(
        job: &'a Job,
        world: Arc<dyn Comm>,
        pulse: Arc<Pulse>,
        tally: Arc<Tally>,
    ) -> Result<RankRun<'a>> {
        let config = &job.config;
        let lock = lock(job, &world)?;
        let mesh = config.mesh.on(world.size())?;
        let place = Position::of(mesh, world.world_rank())?;
        let geometry = geometry(job, &place)?;
        let sampler = job.sampler()?;
        let lanes = Pipeline::new(job, &place, &geometry)?;
        let near = place.neighbours(&world, config, lanes.parts())?;
        let keeping = keeping(job, &place, world.world_rank())?;
        let (seed, dtype) = (config.train.seed, config.train.precision.dtype());
        let init = Init { seed, dtype, device: job.device };
        let own = lanes.own(place.stage);
        let positions: Vec<Vec<Stage>> = (0..place.stages).map(|position| lanes.own(position)).collect();
        let known = holders::known(job, &place.mesh, &positions, (&keeping, Files::Run))?;
        let replica = replica(job, &own, &init, &near, &keeping)?;
        holders::check_order(job, &own, &replica.weights)?;
        let pipeline = lanes.start(&world, &place, &near)?;
        let saves = Saves::new(&world, job, lock)?;
        let progress = Progress::first(job, &sampler, &place.mesh);
        let (compute, schedule) = (Compute::new(job), setup::schedule(config, config.optim.lr)?);
        let second =
            job.objective.second().map(|second| setup::schedule(config, second.optim.lr)).transpose()?;
        let flops = partition::flops(&*job.model, geometry.global_batch, config.data.sequence as u64).ok();
        let averager = Averager::new(keeping.averages.clone(), job.device);
        let mut run = RankRun {
            job,
            averager,
            world,
            place,
            near,
            geometry,
            sampler,
            keeping,
            pipeline,
            replica,
            compute,
            schedule,
            second,
            progress,
            saves,
            unused: Vec::new(),
            positions,
            known,
            records: None,
            now: None,
            losses: Vec::new(),
            flops,
            skipped: 0,
            pulse,
        };
        run.take_up(tally)?;
        Ok(run)
    }

    /// Goes on from where the run was left, if it was, and opens its records. Collective.
    fn take_up(&mut self, tally: Arc<Tally>) -> Result<()> {
        let (job, mesh) = (self.job, self.place.mesh.to_string());
        let resumed = self.restore()?;
        self.narrow_base()?;
        if job.config.checkpoint.is_regular() {
            let sizes = self.state_sizes()?;
            let bytes = sizes.iter().sum();
            planaria_array::prepare_snapshots(job.device, bytes)?;
            self.saves.set_pace(job, bytes)?;
            if self.saves.overlaps() {
                resume::prepare(job, &self.replica)?;
                if job.device != Device::Cpu {
                    self.saves.start_ahead(Ahead { device: job.device, sizes })?;
                }
            }
        }
        let opened = Records::open(job, self.world.rank(), self.progress.step, &mesh).and_then(|records| {
            let ranks = (&*self.world, &self.place.pipeline[..]);
            Ok((records, Now::open(job, ranks, tally, self.progress.step)?))
        });
        let (records, now) = together(&*self.world, opened)?;
        let records = Arc::new(records);
        self.now = Some(now);
        self.saves.records = Some(records.clone());
        self.records = Some(records);
        self.progress.mesh = mesh;
        if let Some(event) = resumed {
            self.tell(&event);
        }
        Ok(())
    }
}

/// What this rank keeps for each parameter.
fn keeping(job: &Job, place: &Position, world: Rank) -> Result<Keeping> {
    let config = &job.config;
    Ok(Keeping {
        // One data rank owns everything.
        zero: if place.replicas > 1 { Zero::from(config.train.zero) } else { Zero::Off },
        rule: update::rule(&config.optim),
        averages: config.optim.averages()?,
        frozen: Frozen::new(&config.train.freeze, &*job.model)?,
        rank: place.replica,
        world,
        mesh: place.mesh.fix(&[("pp", place.stage)])?,
    })
}

/// The model parts of this rank as the configuration divides them. Collective over the data ranks.
fn replica(
    job: &Job,
    stages: &[Stage],
    init: &Init,
    near: &Neighbours,
    keeping: &Keeping,
) -> Result<Replica> {
    let TrainSection { reduce, shard: sharding, bucket_bytes: bytes, .. } = job.config.train;
    // Divided gradients have no whole sum of one rank to wait for the end of the step.
    let mode = if keeping.zero >= Zero::Gradients { Reduction::Exact } else { reduce };
    Replica::new(Making {
        model: &*job.model,
        stages,
        init,
        near,
        keeping,
        reduce: ReduceOptions { mode, bucket_bytes: bytes, device: job.device },
        bundles: BundleOptions { sharding, bytes },
    })
}

/// The batch, divided over the replicas that there are.
pub(super) fn geometry(job: &Job, place: &Position) -> Result<Geometry> {
    let train = &job.config.train;
    Ok(Geometry::derive(&Batching {
        global_batch: Some(train.global_batch as u64),
        micro_batch: Some(train.micro_batch as u64),
        data_ranks: Some(place.replicas as u64),
        micro_split: Some(job.config.mesh.ep as u64),
        uneven: job.objective.uneven(),
        ..Batching::default()
    })?)
}

/// Makes the run's folder and takes it for this process. Collective.
fn lock(job: &Job, world: &Arc<dyn Comm>) -> Result<Option<Lock>> {
    let dir = job.config.run_dir();
    let taken = match world.rank() {
        0 => std::fs::create_dir_all(&dir)
            .map_err(|source| Error::Io { path: dir.display().to_string(), source })
            .and_then(|()| Lock::take(&dir))
            // That of several hosts is made on each of them.
            .and_then(|lock| match &job.memory {
                Some(_) => Ok(Some(lock)),
                None => tiers::make_memory(&job.config, None).map(|()| Some(lock)),
            }),
        _ => Ok(None),
    };
    together(&**world, taken)
}

impl RankRun<'_> {
    /// Loads the checkpoint to resume from, or the weights to start from. Collective.
    fn restore(&mut self) -> Result<Option<Event>> {
        let job = self.job;
        let Some(start) = self.take_state()? else { return Ok(None) };
        let (step, mesh) =
            (self.progress.step, Some(self.progress.mesh.clone()).filter(|mesh| !mesh.is_empty()));
        self.progress.from = job.config.recorded()?.checkpoint.from;
        self.saves.resume_best(self.progress.best.filter(|_| job.config.checkpoint.keep_best));
        if start.is_of_the_folder() {
            self.saves.newest = Some((step, start.folder.clone()));
        }
        self.saves.safe = step;
        let folder = start.label(job)?;
        let Start { changed, damaged, newer, .. } = start;
        if self.world.rank() == 0 {
            self.saves.newer = tiers::after(&job.tiers()?, step, newer);
        }
        Ok(Some(Event::Resumed { folder, step, mesh, changed, damaged }))
    }

    /// The state to begin with; where it came from, if not from new weights. Collective.
    fn take_state(&mut self) -> Result<Option<Start>> {
        let job = self.job;
        let mut damaged: Vec<Damaged> = Vec::new();
        // Why this rank could not load what was found first, and its step.
        let mut failed: Option<(Error, Option<u64>)> = None;
        loop {
            // Rank 0 decides, so that a checkpoint committed meanwhile is seen by all or by none.
            let found = match self.world.rank() {
                0 => start::find(job, &damaged),
                _ => Ok(None),
            };
            let start = from_first(&self.world, found)?;
            // Another copy of the same step loses nothing; an older one is taken only where that was asked for.
            let same = |step: &Option<u64>| start.as_ref().is_some_and(|start| start.step() == *step);
            if let Some((error, _)) = failed.take_if(|(_, step)| !job.healing.fall_back && !same(step)) {
                return Err(error);
            }
            // A checkpoint of an adapter has none of the model under it.
            let init =
                job.config.model.init.as_ref().filter(|_| start.is_none() || job.config.lora.is_some());
            if let Some(path) = init.filter(|_| start.is_none() || damaged.is_empty()) {
                self.start_from(path)?;
                self.note_base()?;
            }
            if start.is_none() || damaged.is_empty() {
                self.begin_adapter()?;
            }
            let Some(start) = start else {
                self.replica.begin_states(&self.keeping)?;
                return Ok(None);
            };
            if damaged.is_empty() {
                self.replica.begin_states(&self.keeping)?;
            }
            let loaded = self.load(&start);
            // One rank may have met the damage; all of them go back together.
            let why = loaded.as_ref().err().filter(|e| e.is_damage()).map(ToString::to_string);
            let all = planaria_comm::value::all_gather(&*self.world, &why.map_or(Value::None, Value::Text))?;
            let first = all.into_iter().find_map(|told| match told {
                Value::Text(why) => Some(why),
                _ => None,
            });
            match (first, loaded) {
                (Some(why), loaded) if start.is_own() => {
                    damaged = start.damaged.clone();
                    damaged.push(Damaged { folder: start.label(job)?, why: why.clone() });
                    let error = loaded.err().unwrap_or(Error::Run { what: why });
                    failed.get_or_insert((error, start.step()));
                }
                (_, loaded) => return loaded.map(|()| Some(start)),
            }
        }
    }

    /// Bytes of every array that this rank saves.
    fn state_sizes(&self) -> Result<Vec<usize>> {
        let items = resume::items(&self.replica, Files::Run, |array| Ok(array.clone()))?;
        let pieces = items.iter().flat_map(|item| &item.pieces);
        Ok(pieces.map(|piece| piece.array.numel() * piece.array.dtype().size()).collect())
    }

    /// Fills this rank's arrays from a checkpoint of the run, written on any mesh. Collective.
    fn load(&mut self, start: &Start) -> Result<()> {
        let (store, Start { folder, prefix, .. }) = (start.store(self.job)?, start);
        let mut state = TrainState::new(resume::items(&self.replica, Files::Run, |array| Ok(array.clone()))?);
        state.known = Some(self.known.clone());
        let mut options = LoadOptions::default();
        if !prefix.is_empty() {
            // What else a program of others saved beside its model is not ours to take.
            state.rename(|name| format!("{prefix}{name}"))?;
            options.unexpected = Unmatched::Allow;
        }
        let loaded = planaria_ckpt::load(&*self.world, &*store, folder, &mut state, &options);
        loaded.map_err(|error| start::unreadable(self.job, start, error))?;
        let progress = resume::progress(&state)?;
        self.check_base(&start.label(self.job)?, progress.base.as_ref())?;
        let first = std::mem::replace(&mut self.progress, progress);
        self.progress.go_on(first);
        let read = |name: &str| {
            let name = join(folder, name);
            let there = store.exists(&name)?.then(|| store.read(&name, MOST_BYTES)).transpose()?;
            Ok(there.map(|bytes| bytes.to_vec()))
        };
        self.job.objective.restore(self.progress.step, &read)
    }

    /// Weights of another folder to begin with: a checkpoint of ours, a run's newest, or what others wrote. Collective.
    fn start_from(&mut self, path: &Path) -> Result<()> {
        let items = resume::items(&self.replica, Files::Model, |array| Ok(array.clone()))?;
        let known =
            holders::known(self.job, &self.place.mesh, &self.positions, (&self.keeping, Files::Model))?;
        // Those of `names`, which the folder calls by their names without `prefix`.
        let load = |path: &Path, names: &dyn Fn(&str) -> bool, prefix: &str| {
            let wanted = |kind: &TensorKind, name: &str| *kind == TensorKind::Parameter && names(name);
            let items = items.iter().filter(|item| wanted(&item.kind, &item.name)).cloned();
            let mut state = TrainState::new(items.collect());
            state.known = Some(known.only(|tensor| wanted(&tensor.kind, &tensor.name))?);
            state.rename(|name| name.strip_prefix(prefix).unwrap_or(name).to_string())?;
            Pretrained::find(path)?.load(&*self.world, &mut state, Which::Trained, &self.job.models)
        };
        // What the folder's model does not have begins as it was made.
        let about = Pretrained::find(path)?.json("config.json")?;
        let asks = about.is_some_and(|about| about.contains_key(LATENT_ATTENTION));
        // Names alone say nothing: a model of one's own may have such ones.
        let second = self.job.objective.second();
        let adds = !asks && self.job.model.to_value().get(LATENT_ATTENTION).is_some();
        let is_new =
            |name: &str| second.is_some() && name.starts_with(BESIDE) || adds && name.starts_with(LATENT);
        let mut unused = load(path, &|name| !is_new(name), "")?;
        // What is asked for by other means, or not of this model alone.
        unused.retain(|name| !items.iter().any(|item| item.name == *name) && !name.starts_with(BESIDE));
        self.unused = unused;
        let Some(second) = second else { return Ok(()) };
        let beside = |name: &str| {
            name.strip_prefix(BESIDE).is_some_and(|name| !second.fresh.iter().any(|fresh| fresh == name))
        };
        load(&second.folder, &beside, BESIDE)?;
        Ok(())
    }

    pub(super) fn tell(&self, event: &Event) {
        if let Some(records) = &self.records {
            records.event(event);
        }
        if self.world.rank() == 0 {
            self.job.observer.event(event);
        }
    }

    /// The steps. Collective.
    pub(super) fn go(mut self) -> Result<Outcome> {
        let config = &self.job.config;
        let steps = config.train.steps;
        let last = self.job.last.unwrap_or(steps).min(steps);
        self.tell(&Event::Started {
            ranks: self.world.size(),
            mesh: self.place.mesh.to_string(),
            parameters: parameter_count(&*self.job.model)?,
            trained: self.keeping.frozen.trained(&*self.job.model)?,
            samples: self.job.data.train.len(),
            step: self.progress.step + 1,
            steps,
        });
        if let Some(report) = &self.job.data.report {
            self.tell(&Event::Rows(report.clone()));
        }
        let unmatched = self.job.model.adapted().map(|model| model.targets(0).unmatched.clone());
        for name in unmatched.unwrap_or_default() {
            self.tell(&Event::Unmatched { name });
        }
        if let (Some(init), false) = (&config.model.init, self.unused.is_empty()) {
            let (folder, names) = (init.display().to_string(), self.unused.clone());
            self.tell(&Event::Unused { folder, names });
        }
        let mut loader = self.loader(last)?;
        let (mut stopped, mut due) = (false, BTreeSet::new());
        while self.progress.step < last && !stopped {
            self.pulse.step(self.progress.step + 1);
            let wishes = self.step(loader.as_mut())?;
            let step = self.progress.step;
            self.saves.poll(self.job);
            self.pulse.saved(self.saves.safe);
            self.refuse_divergence()?;
            self.compare_replicas()?;
            let mut best = false;
            if config.train.eval_every > 0 && step.is_multiple_of(config.train.eval_every) {
                best = self.evaluate()?;
            }
            self.sample()?;
            stopped = wishes.stop && step < steps;
            due.extend(self.saves.due(step));
            // A step that was skipped leaves nothing new to save: what is due waits for one that was not.
            let now = !due.is_empty() && self.skipped == 0;
            if best || ((now || wishes.save) && step < last && !stopped) {
                due.extend((best || wishes.save).then_some(OWN));
                self.save(&std::mem::take(&mut due).into_iter().collect::<Vec<_>>())?;
            }
        }
        self.end(stopped || last < steps, due)
    }

    /// Stops a run whose gradients stay without finite values. A loss scale above 1 may still come down.
    fn refuse_divergence(&mut self) -> Result<()> {
        let most = self.job.config.train.max_skipped;
        let scaled = self.progress.scale.is_some_and(|scale| scale.factor > 1.0);
        if most == 0 || scaled || self.skipped < most {
            return Ok(());
        }
        self.saves.finish(self.job)?;
        let newest = self.saves.newest.as_ref().map(|(_, folder)| folder.clone());
        Err(Error::Diverged { step: self.progress.step, skipped: self.skipped, newest })
    }

    /// The last save, to the run's folder and wherever else one is due, and what is left of those before.
    fn end(mut self, stopped: bool, mut due: BTreeSet<usize>) -> Result<Outcome> {
        self.saves.finish(self.job)?;
        let step = self.progress.step;
        let is_saved = self.saves.newest.as_ref().is_some_and(|(saved, _)| *saved == step);
        if !is_saved && step > 0 && (stopped || self.job.config.checkpoint.final_save) {
            due.insert(OWN);
            self.save(&due.into_iter().collect::<Vec<_>>())?;
            if let Some(why) = self.saves.finish(self.job)? {
                let newest = self.saves.newest.map(|(_, folder)| folder);
                return Err(Error::NotSaved { step, why, newest });
            }
        }
        let best = self.saves.best().map(|best| (best.step, best.loss));
        let peak_bytes = self.peak();
        let checkpoint = self.saves.newest.map(|(_, folder)| folder);
        let loss = self.losses.last().copied();
        if let Some(records) = &self.records {
            records.ended(step, stopped);
        }
        Ok(Outcome { step, loss, stopped, checkpoint, best, losses: self.losses, peak_bytes })
    }

    /// Begins to save to these tiers.
    fn save(&mut self, to: &[usize]) -> Result<()> {
        self.averager.finish()?;
        self.progress.best = self.saves.best();
        // After a skipped step the checkpoints before it may be the good ones: they all stay.
        let keep = if self.skipped > 0 { Keep::All } else { Keep::Configured };
        let RankRun { job, replica, progress, known, saves, .. } = self;
        let take = || {
            let mut state = resume::snapshot(job, replica, progress)?;
            state.known = Some(known.clone());
            Ok(state)
        };
        saves.begin(job, to, take, keep)
    }

    /// Reads this replica's micro-batches ahead, where they are needed.
    fn loader(&self, last: u64) -> Result<Option<Loader>> {
        if !self.place.reads(self.job) {
            return Ok(None);
        }
        let position = self.progress.position();
        let share = Share::new(&self.geometry, self.place.replica as u64, position);
        if let Some(stream) = &self.job.stream {
            let (step, ahead) = (share.per_step(), self.job.config.data.prefetch as u64 + 2);
            // A rank may have read ahead while another is still at the step's first micro-batch.
            let behind = 2 * (step + ahead * share.micro_batch * share.ranks);
            stream.begin(position, self.progress.stream.as_ref(), Window { step, behind })?;
        }
        let objective = &self.job.objective;
        let planned = || (self.progress.step + 1..=last).map(|step| objective.reads(step)).sum();
        let steps = (!objective.reads_on()).then(planned);
        let options = LoaderOptions { prefetch: self.job.config.data.prefetch, steps };
        Ok(Some(Loader::start(self.job.data.train.clone(), self.sampler.clone(), share, options)?))
    }
}

/// Rank 0's answer on every rank. Collective.
fn from_first(world: &Arc<dyn Comm>, mine: Result<Option<Start>>) -> Result<Option<Start>> {
    let lost = |e: serde_json::Error| Error::Bug { what: format!("the start of a run has no text: {e}") };
    let text = mine.and_then(|start| start.map(|s| serde_json::to_string(&s)).transpose().map_err(lost));
    let mine = together(&**world, text)?.map_or(Value::None, Value::Text);
    match planaria_comm::value::broadcast(&**world, &mine, 0)? {
        Value::Text(text) => serde_json::from_str(&text).map(Some).map_err(lost),
        _ => Ok(None),
    }
}
