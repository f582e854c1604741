//! The trainer: a configuration in, a trained model out, on any mesh, resumed from wherever the run stopped.

mod adapter;
mod averager;
mod base;
mod compute;
mod evaluate;
mod feed;
mod figures;
mod holders;
mod hosts;
pub(crate) mod line;
mod lock;
pub(crate) mod narrow;
mod now;
pub(crate) mod place;
mod rank;
mod records;
mod resume;
mod sample;
mod saves;
mod setup;
mod stages;
mod start;
mod step;
mod tiers;
mod trust;
mod whole;
mod writer;

use crate::beat;
use crate::config::{Compute, Config};
use crate::data::{Data, Order, Sampler, Stream, Streamed, Tokenizer};
use crate::drill::Fault;
use crate::error::{Error, Result};
use crate::event::{Event, Observer, Silent};
use crate::objective::{Objective, Objectives};
use crate::pretrained::{self, together};
use crate::rl::{RewardFunction, RewardFunctions};
use crate::sight;
use crate::signals::Requests;
use hosts::Shares;
use planaria_array::{Device, Threads};
use planaria_comm::nccl::{self, Way};
use planaria_comm::{Comm, CommExt, metered, threads};
use planaria_nn::models::{Architecture, Models};
use planaria_store::{Store, Trap};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

pub(crate) use resume::updates_of;
pub(crate) use setup::model;
pub use setup::read_model_config;
pub use tiers::{Kept, clear_memory, persist_memory};
pub(crate) use tiers::{address as tier_address, state_bytes};

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Steps done since the start of the run.
    pub step: u64,
    /// Loss of the last step that this process did.
    pub loss: Option<f64>,
    /// True when it was asked to stop before its last step; what is done is saved.
    pub stopped: bool,
    /// The newest checkpoint.
    pub checkpoint: Option<String>,
    /// Step and loss of the best evaluation, where `checkpoint.keep_best` keeps its checkpoint.
    pub best: Option<(u64, f64)>,
    /// Loss of every step that this process did.
    pub losses: Vec<f64>,
    /// Most bytes of arrays that this rank had at once; on a device, that all ranks which share it had.
    pub peak_bytes: u64,
}

/// A run about to begin.
#[derive(Clone, Debug)]
pub struct Trainer {
    config: Config,
    observer: Arc<dyn Observer>,
    requests: Requests,
    last: Option<u64>,
    store: Option<Arc<dyn Store>>,
    models: Models,
    objectives: Objectives,
    stream: Option<Arc<dyn Stream>>,
    rewards: RewardFunctions,
    healing: Healing,
    /// The name that ranks of other machines know this one by.
    host: Option<String>,
}

/// What a run does for whoever started it and starts it again when it fails.
#[derive(Clone, Debug, Default)]
pub struct Healing {
    /// Where ranks tell what they do; see [`crate::beat`].
    pub beats: Option<PathBuf>,
    /// Go on from an older checkpoint where the newest is damaged, and say so, instead of refusing.
    pub fall_back: bool,
    /// What happens to ranks on purpose.
    pub faults: Vec<Fault>,
    /// What happens to places of checkpoints on purpose: the run's folder, then the tiers. No more than were given are looked at.
    pub traps: Vec<Trap>,
}

/// What all ranks of a process share.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) config: Config,
    /// Where this rank computes; the configuration may leave the choice.
    pub(crate) device: Device,
    pub(crate) model: Arc<dyn Architecture>,
    pub(crate) objective: Arc<dyn Objective>,
    /// The models that a checkpoint may hold.
    pub(crate) models: Models,
    pub(crate) tokenizer: Tokenizer,
    /// The `generation_config.json` that the run began with.
    pub(crate) generation: Map<String, Value>,
    /// Files that say how pictures become patches, of a model that sees.
    pub(crate) seeing: BTreeMap<String, String>,
    pub(crate) data: Data,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) requests: Requests,
    /// The last step of this call, where that is not the last of the run.
    pub(crate) last: Option<u64>,
    /// Where checkpoints go, if not to the run's folder.
    pub(crate) store: Option<Arc<dyn Store>>,
    /// What several hosts have in memory together.
    pub(crate) memory: Option<Arc<dyn Store>>,
    /// The program's own samples, which `data` has then.
    pub(crate) stream: Option<Arc<Streamed>>,
    pub(crate) healing: Healing,
    /// What stands beside the weights of every checkpoint.
    pub(crate) kept: Arc<OnceLock<resume::Kept>>,
}

impl Trainer {
    /// A run of this configuration.
    pub fn new(config: Config) -> Trainer {
        Trainer {
            config,
            observer: Arc::new(Silent),
            requests: Requests::default(),
            last: None,
            store: None,
            models: Models::default(),
            objectives: Objectives::default(),
            stream: None,
            rewards: RewardFunctions::new(),
            healing: Healing::default(),
            host: None,
        }
    }

    /// For whoever starts it again when it fails.
    #[must_use]
    pub fn healing(self, healing: Healing) -> Trainer {
        Trainer { healing, ..self }
    }

    /// With samples that the program makes itself, in place of `[[data.source]]`. Ranks are threads of this process then.
    #[must_use]
    pub fn stream(self, stream: Arc<dyn Stream>) -> Trainer {
        Trainer { stream: Some(stream), ..self }
    }

    /// With a judge of responses that the program has itself, for `grpo` and `ppo`: the `[[rl.reward]]` of kind `function` and this
    /// name says what it counts, 1 where there is none. Every process of a run gives it.
    #[must_use]
    pub fn reward(mut self, name: impl Into<String>, function: Arc<dyn RewardFunction>) -> Trainer {
        self.rewards.insert(name.into(), function);
        self
    }

    /// With models of one's own.
    #[must_use]
    pub fn models(self, models: Models) -> Trainer {
        Trainer { models, ..self }
    }

    /// With objectives of one's own.
    #[must_use]
    pub fn objectives(self, objectives: Objectives) -> Trainer {
        Trainer { objectives, ..self }
    }

    /// With a listener.
    #[must_use]
    pub fn observer(self, observer: Arc<dyn Observer>) -> Trainer {
        Trainer { observer, ..self }
    }

    /// With requests from outside.
    #[must_use]
    pub fn requests(self, requests: Requests) -> Trainer {
        Trainer { requests, ..self }
    }

    /// With checkpoints in a store of one's own instead of the run's folder.
    #[must_use]
    pub fn store(self, store: Arc<dyn Store>) -> Trainer {
        Trainer { store: Some(store), ..self }
    }

    /// Stops after this step as if it was asked to: the schedule stays that of the whole run.
    #[must_use]
    pub fn until(self, step: u64) -> Trainer {
        Trainer { last: Some(step), ..self }
    }

    /// Runs with ranks as threads of this process; as many as the mesh asks for where `ranks` does not say.
    pub fn run(&self, ranks: Option<usize>) -> Result<Outcome> {
        let ranks = ranks.unwrap_or_else(|| self.config.mesh.ranks());
        self.config.mesh.on(ranks)?;
        let job = self.job()?;
        job.check(ranks, Shares::over(1, None))?;
        let timeout = Duration::from_secs(self.config.train.timeout);
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        let gpus = if self.config.device == Compute::Cuda { gpus() } else { 1 };
        let work = |comm: Arc<dyn Comm>| {
            let rank = comm.rank();
            let own = (gpus > 1).then(|| job.of_thread(rank, gpus));
            own.as_ref().unwrap_or(&job).run(comm, ranks).map_err(|error| {
                let text = error.to_string();
                // Ranks that only followed say that a rank stopped; the first one knows why.
                if !error.is_echo() {
                    let mut first = failure.lock().unwrap_or_else(PoisonError::into_inner);
                    first.get_or_insert(error.of_rank(rank));
                }
                text
            })
        };
        match threads::try_run(&threads::Options::new(ranks).timeout(timeout), work) {
            Ok(outcomes) => first(outcomes),
            Err(error) => {
                let first = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
                Err(first.unwrap_or_else(|| error.into()))
            }
        }
    }

    /// What a run on this many ranks would be refused for, before anything is built: also a checkpoint in its folder
    /// that it could not resume from, and weights to start from that are not those of the model. Returns the checkpoint
    /// it would resume from.
    pub fn check(&self, ranks: usize) -> Result<Option<String>> {
        let job = self.job()?;
        // How many ranks are elsewhere is known where a launcher says so.
        let local = local_ranks().unwrap_or(ranks);
        let hosts = ranks.div_ceil(local.max(1));
        job.check(ranks, Shares::over(hosts, self.config.checkpoint.copies))?;
        tiers::check_peers(&job, local, ranks)?;
        job.check_start()
    }

    /// What the run reads: its tokenizer, its data, and the order of the samples. Nothing is computed.
    pub fn open_data(&self) -> Result<(Tokenizer, Data, Sampler)> {
        let job = self.job()?;
        let sampler = job.sampler()?;
        Ok((job.tokenizer, job.data, sampler))
    }

    /// Runs as one of the processes that `mpirun` started.
    #[cfg(feature = "mpi")]
    pub fn run_mpi(&self) -> Result<Outcome> {
        let options = planaria_comm::mpi::Options {
            timeout: Duration::from_secs(self.config.train.timeout),
            ..planaria_comm::mpi::Options::default()
        };
        let mut own = None;
        let end = planaria_comm::mpi::run(&options, |comm| self.run_process(comm, &mut own));
        end.map_err(|error| own.unwrap_or_else(|| error.into()))
    }

    /// Runs as one of several processes of this machine, which are connected by sockets.
    #[cfg(unix)]
    pub fn run_sockets(&self, place: &planaria_comm::sockets::Place) -> Result<Outcome> {
        let options = planaria_comm::letters::Options {
            timeout: Duration::from_secs(self.config.train.timeout),
            ..planaria_comm::letters::Options::default()
        };
        let mut own = None;
        let host = place.network.as_ref().map(|network| network.address.clone());
        let here = Trainer { host, ..self.clone() };
        let end = planaria_comm::sockets::run(place, &options, |comm| here.run_process(comm, &mut own));
        end.map_err(|error| own.unwrap_or_else(|| error.into()))
    }

    /// Runs as a rank in a process of its own. What it tells the others is text; `own` is what it found itself, which says more.
    fn run_process(&self, comm: Arc<dyn Comm>, own: &mut Option<Error>) -> Result<Outcome, String> {
        self.run_on(comm).map_err(|error| {
            let text = error.to_string();
            *own = Some(error).filter(|error| !error.is_echo() || matches!(error, Error::Told { .. }));
            text
        })
    }

    /// Runs as one rank of a communicator. Collective.
    pub fn run_on(&self, comm: Arc<dyn Comm>) -> Result<Outcome> {
        let mut served = hosts::Served::meet(self, &*comm)?;
        let shares = Shares::over(served.count(), self.config.checkpoint.copies);
        let ready = self.of_process().begin().and_then(|job| job.check(comm.size(), shares).map(|()| job));
        let mut job = together(&*comm, ready)?;
        // What is recorded is the same on every rank.
        job.config.device = self.config.device;
        job.data = feed::open(&job, &comm)?;
        served.gather(&mut job, &*comm)?;
        let outcome = job.run(job.connect(comm.clone())?, local_ranks().unwrap_or(1))?;
        served.end(&*comm)?;
        Ok(outcome)
    }

    /// Brings the newest checkpoint that the hosts of a job have only in memory to the run's folder, for a run that will not be started
    /// again; `free` removes what they have in memory. Collective.
    pub fn settle_on(&self, comm: &dyn Comm, hosts: &planaria_ckpt::Hosts, free: bool) -> Result<Kept> {
        let mut served = hosts::Served::of(hosts);
        let mut job = together(comm, self.begin())?;
        served.gather(&mut job, comm)?;
        let kept = match comm.rank() {
            0 => job.store().and_then(|own| tiers::persist(&job.config, &*own, job.memory.clone())),
            _ => Ok(Kept::Nothing),
        };
        let kept = together(comm, kept)?;
        served.end(comm)?;
        if free && hosts.is_first() {
            clear_memory(&job.config)?;
        }
        Ok(kept)
    }

    /// With the GPU that belongs to this process, where the configuration leaves the choice.
    fn of_process(&self) -> Trainer {
        let mut trainer = self.clone();
        if trainer.config.device == Compute::Cuda {
            trainer.config.device = trainer.config.device.dealt(local_rank(), gpus());
        }
        trainer
    }

    /// A run whose ranks share this process, and with it the data.
    fn job(&self) -> Result<Job> {
        let mut job = self.begin()?;
        job.data = match &self.stream {
            None => job.objective.open(&job.config.data, &job.tokenizer)?,
            Some(stream) => job.streamed(stream)?,
        };
        Ok(job)
    }

    /// A run without its data.
    fn begin(&self) -> Result<Job> {
        let mut config = self.config.clone();
        match self.stream {
            None => config.check(&self.models)?,
            Some(_) => {
                config.check_with_own_data(&self.models)?;
                config.data.order = Order::Sequential;
            }
        }
        let mut objective = self.objectives.find(&config.train.objective)?;
        if !self.rewards.is_empty() {
            objective = objective.with_rewards(&self.rewards).ok_or_else(|| Error::Value {
                key: "train.objective".into(),
                found: format!("\"{}\"", objective.name()),
                expected: "\"grpo\" or \"ppo\" in a run with reward functions; leave them away".into(),
            })?;
        }
        let objective = objective.configured(&config)?.unwrap_or(objective);
        let tokenizer = objective.tokenizer(pretrained::open_tokenizer(&config)?)?;
        let model = setup::model(&config, &*objective, tokenizer.vocab_size(), &self.models)?;
        let settings = |name: &str| pretrained::settings(&config, name);
        let objective = objective.for_model(&*model, &settings)?.unwrap_or(objective);
        let generation = settings("generation_config.json")?;
        let seeing = if model.sight().is_some() { &sight::FILES[..] } else { &[] };
        let seeing = pretrained::texts(&config, seeing)?;
        let data = Data::none();
        let Trainer { observer, requests, last, store, models, healing, .. } = self.clone();
        Ok(Job {
            device: config.device.device(),
            config,
            model,
            objective,
            models,
            tokenizer,
            generation,
            seeing,
            data,
            observer,
            requests,
            last,
            store,
            memory: None,
            stream: None,
            healing,
            kept: Arc::default(),
        })
    }
}

/// GPUs that this process sees. Without a driver the device itself says so.
fn gpus() -> u32 {
    planaria_array::cuda_devices().unwrap_or(1)
}

/// How many processes of the job are on this machine, as whoever started them says.
fn local_ranks() -> Option<usize> {
    number_of(&["LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"])
}

/// Where this process stands among them.
fn local_rank() -> usize {
    number_of(&["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"]).unwrap_or(0)
}

/// The first of these variables that is a number.
fn number_of(names: &[&str]) -> Option<usize> {
    names.iter().find_map(|name| std::env::var(name).ok()?.parse().ok())
}

fn first(outcomes: Vec<Outcome>) -> Result<Outcome> {
    outcomes.into_iter().next().ok_or_else(|| Error::Bug { what: "a run without ranks".into() })
}

impl Job {
    /// With the GPU of one of the thread ranks.
    fn of_thread(&self, rank: usize, gpus: u32) -> Job {
        Job { device: self.config.device.dealt(rank, gpus).device(), ..self.clone() }
    }

    /// Has arrays of GPUs go over NCCL where every rank has a GPU of its own.
    fn connect(&self, comm: Arc<dyn Comm>) -> Result<Arc<dyn Comm>> {
        let Device::Cuda(ordinal) = self.device else { return Ok(comm) };
        if comm.size() == 1 {
            return Ok(comm);
        }
        let timeout = Duration::from_secs(self.config.train.timeout);
        let options = nccl::Options { timeout, ..nccl::Options::default() };
        match nccl::where_possible(comm, ordinal, &options)? {
            Way::Nccl(comm) => Ok(comm),
            Way::Host(comm, why) => {
                if comm.rank() == 0 {
                    self.observer.event(&Event::ThroughHost { why });
                }
                Ok(comm)
            }
        }
    }

    /// The program's own samples as the data of the run; `[[data.eval]]` is evaluated as ever.
    fn streamed(&mut self, stream: &Arc<dyn Stream>) -> Result<Data> {
        if !self.objective.streams() {
            return Err(Error::Value {
                key: "train.objective".into(),
                found: format!("\"{}\"", self.objective.name()),
                expected: "\"next_token\" or \"sft\" with the program's own samples; name files of rows in `[[data.source]]`".into(),
            });
        }
        let (config, vocab) = (&self.config.data, self.model.vocab_size() as u64);
        let train = Arc::new(Streamed::new(stream.clone(), config.sequence, vocab));
        let mut measured = config.clone();
        measured.source = std::mem::take(&mut measured.eval);
        let eval = match measured.source.is_empty() {
            true => None,
            false => Some(self.objective.open(&measured, &self.tokenizer)?.train),
        };
        self.stream = Some(train.clone());
        Ok(Data { train, eval, report: None })
    }

    /// Runs one rank, of `local` on this machine, which share its processors unless the configuration says how many threads each
    /// has. Collective.
    fn run(&self, comm: Arc<dyn Comm>, local: usize) -> Result<Outcome> {
        tiers::check_memory(self, local, comm.size())?;
        tiers::check_peers(self, local, comm.size())?;
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let own = self.config.train.threads.unwrap_or_else(|| (processors / local.max(1)).max(1));
        let (comm, tally) = metered(comm);
        let (pulse, comm) = beat::feel(comm, &self.healing)?;
        let rank = comm.world_rank();
        let end = Threads::new(own)
            .map_err(planaria_array::Error::from)?
            .run(|| rank::RankRun::begin(self, comm, pulse, tally)?.go());
        end.inspect_err(|error| records::failed(self, rank, error))
    }

    /// What can be refused before any rank starts.
    fn check(&self, ranks: usize, shares: Shares) -> Result<()> {
        crate::fit::check(&self.config, &*self.model)?;
        let place = setup::Position::of(self.config.mesh.on(ranks)?, 0)?;
        let geometry = rank::geometry(self, &place)?;
        stages::Pipeline::new(self, &place, &geometry)?;
        tiers::check(self, shares)
    }

    /// The run's configuration as JSON, with paths that do not depend on where it was started.
    pub(crate) fn config_json(&self) -> Value {
        let config = self.config.recorded();
        serde_json::to_value(config.as_ref().unwrap_or(&self.config)).unwrap_or(Value::Null)
    }
}
