//! The scratch folder of a drill: runs in it, and what they left compared with the undisturbed one.

use super::fault::{FaultKind, Planned};
use super::{Args, harm};
use crate::commands::launch::{Engine, Notes};
use crate::commands::train::{FAULT, STORE_FAULT};
use crate::failure::Failure;
use crate::quantity::count;
use crate::terminal::Terminal;
use anyhow::{Context, Result};
use clap::ValueEnum;
use planaria::store::{Agent, StoreExt, peer_token};
use planaria::train::beat::Beat;
use planaria::train::config::{Sources, TierKind, TierSection};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a run may take at most, as a multiple of the undisturbed one and beside it.
const SLOWER: f64 = 20.0;
const BESIDE: f64 = 120.0;

/// Starts again of a run that is harmed.
const RESTARTS: &str = "8";

/// Bytes that the agent of a drill holds at most.
const AGENT: u64 = 64 << 30;

/// What an undisturbed run leaves.
#[derive(Clone, Debug, Default)]
pub(super) struct Undisturbed {
    /// What each rank comes to.
    pub(super) ranks: Vec<Reached>,
    pub(super) steps: u64,
    /// Steps between its checkpoints.
    pub(super) every: u64,
    pub(super) seconds: f64,
    pub(super) left: Left,
}

/// What a rank comes to in a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Reached {
    /// Calls to others, by group.
    pub(super) calls: BTreeMap<String, u64>,
    /// Operations on the run's folder, then on the tiers.
    pub(super) operations: Vec<u64>,
}

/// What a run leaves that must not depend on faults.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Left {
    /// The loss of every step, as it is written.
    losses: BTreeMap<u64, String>,
    /// Every file of tensors of the last checkpoint.
    tensors: BTreeMap<PathBuf, Vec<u8>>,
}

/// What became of one fault.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) kind: FaultKind,
    /// Where the run resumed from, each time.
    pub(super) from: Vec<String>,
    pub(super) seconds: f64,
    pub(super) steps: u64,
    /// Why it counts as lost.
    lost: Option<String>,
}

impl Told {
    pub(super) fn is_whole(&self) -> bool {
        self.lost.is_none()
    }

    pub(super) fn words(&self) -> String {
        let from = if self.from.is_empty() {
            "from the beginning".into()
        } else {
            format!("from {}", self.from.join(", "))
        };
        let lost = self.lost.as_ref().map(|lost| format!("; {lost}")).unwrap_or_default();
        format!("{from}, {} and {:.1} s lost{lost}", count(self.steps as usize, "step"), self.seconds)
    }
}

/// The folder, which goes with it.
#[derive(Debug)]
pub(super) struct Scratch {
    folder: PathBuf,
    config: PathBuf,
    sets: Vec<String>,
    /// The tiers of the run; each run of the drill has its own in the folder.
    tiers: Vec<TierSection>,
    /// Holds what goes to peers.
    agent: Option<Agent>,
    ranks: usize,
    engine: Engine,
    patience: f64,
    pub(super) undisturbed: Undisturbed,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Scratch {
    /// Makes the folder and lets the run go through it undisturbed.
    pub(super) fn new(args: &Args, terminal: &mut Terminal) -> Result<Scratch> {
        let sources = Sources::file(&args.config).variables(std::env::vars()).set(args.set.clone());
        let config = sources.resolve()?.config;
        let folder = Notes::new("drill")?.keep();
        let every = 2;
        let horizon = config.optim.horizon.unwrap_or(config.train.steps);
        let mut sets = args.set.clone();
        sets.extend([
            format!("train.steps={}", args.steps),
            format!("optim.horizon={horizon}"),
            format!("checkpoint.every={every}"),
            "checkpoint.keep=3".into(),
            "checkpoint.resume=true".into(),
            "checkpoint.final_save=true".into(),
            // Every checkpoint is written, so that the same ones are there each time.
            "checkpoint.behind=wait".into(),
            "checkpoint.keep_best=false".into(),
            "train.eval_every=0".into(),
            "log.tensorboard=false".into(),
            "train.timeout=20".into(),
            format!("log.dir={}", folder.display()),
        ]);
        let ranks = args.ranks.unwrap_or_else(|| config.mesh.ranks());
        let tiers = config.checkpoint.tiers;
        let config = args.config.clone();
        let peers = tiers.iter().any(|tier| tier.kind == TierKind::Peer);
        let agent = peers.then(|| Agent::listen("127.0.0.1:0", AGENT, &peer_token()?)).transpose()?;
        let mut scratch = Scratch {
            folder,
            config,
            sets,
            tiers,
            agent,
            ranks,
            engine: args.engine,
            patience: args.patience,
            undisturbed: Undisturbed::default(),
        };
        terminal.note(format!("{} steps on {ranks} ranks without a fault", args.steps));
        let began = Instant::now();
        let ended = scratch.launch("whole", None, &[(STORE_FAULT, "count")])?;
        if !ended.status.success() {
            let message = format!("the shortened run fails without any fault:\n{}", ended.said);
            return Err(Failure::usage(message)
                .hint("`planaria train` on the same configuration says more")
                .into());
        }
        let reached = |beat: Beat| Reached { calls: beat.lanes, operations: beat.operations };
        let ranks = ended.beats.into_iter().map(reached).collect();
        let left = scratch.left("whole", args.steps)?;
        if left.losses.is_empty() || left.tensors.is_empty() {
            let message = "the shortened run leaves no losses or no checkpoint: nothing could be compared";
            return Err(Failure::usage(message)
                .hint("drills need runs that save; see `[checkpoint]`")
                .into());
        }
        let seconds = began.elapsed().as_secs_f64();
        scratch.undisturbed = Undisturbed { ranks, steps: args.steps, every, seconds, left };
        Ok(scratch)
    }

    /// Does one fault to a run of its own.
    pub(super) fn suffer(&self, number: usize, planned: &Planned) -> Result<Told> {
        let name = format!("fault-{number:05}");
        let began = Instant::now();
        let inside = planned.inside.iter().map(|text| (FAULT, text.as_str()));
        let store = planned.store.iter().map(|text| (STORE_FAULT, text.as_str()));
        let variables: Vec<(&str, &str)> = inside.chain(store).collect();
        let mut lost = None;
        let ended = match planned.is_between() {
            false => self.launch(&name, Some(RESTARTS), &variables)?,
            true => {
                self.launch(&name, Some("0"), &variables)?;
                self.harm(&name, planned)?;
                self.launch(&name, Some(RESTARTS), &[])?
            }
        };
        if !ended.status.success() {
            lost = Some(format!("it did not heal: {}", ended.said));
        } else if self.left(&name, self.undisturbed.steps)? != self.undisturbed.left {
            lost = Some("its curve or its last checkpoint differs".into());
        }
        let (from, steps) = self.resumed(&name)?;
        let seconds = (began.elapsed().as_secs_f64() - self.undisturbed.seconds).max(0.0);
        self.clear(&name)?;
        Ok(Told { kind: planned.kind, from, seconds, steps, lost })
    }

    /// Launches the run to its end or its deadline. Where there are no restarts the run is one that is looked at.
    fn launch(&self, name: &str, restarts: Option<&str>, variables: &[(&str, &str)]) -> Result<Ended> {
        let notes = Notes::new("drill-notes")?;
        let said = self.folder.join(format!("{name}.err"));
        let mut command = Command::new(std::env::current_exe()?);
        let (ranks, patience) = (self.ranks.to_string(), self.patience.to_string());
        let engine = self.engine.to_possible_value().map(|value| value.get_name().to_string());
        let engine = engine.unwrap_or_default();
        command.args(["launch", "-n", &ranks, "--engine", &engine, "--back-off", "0.1", "--min-ranks", "1"]);
        command.args(["--hang-after", &patience, "--max-restarts", restarts.unwrap_or("0")]);
        command.arg("--notes").arg(notes.path()).args(["--", "planaria", "train"]).arg(&self.config);
        command.args(["--set", &format!("name={name}")]);
        for set in self.sets.iter().chain([&self.places(name)]) {
            command.args(["--set", set]);
        }
        command
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&said)?);
        let mut child = command.spawn().context("cannot launch the run")?;
        let limit = Duration::from_secs_f64(self.undisturbed.seconds * SLOWER + BESIDE);
        let began = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if began.elapsed() > limit {
                child.kill()?;
                break child.wait()?;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let text = fs::read_to_string(&said).unwrap_or_default();
        let last: Vec<&str> = text.lines().rev().take(12).collect();
        let said = last.into_iter().rev().collect::<Vec<_>>().join("\n");
        Ok(Ended { status, said, beats: Beat::read_all(notes.path()) })
    }

    /// Removes everything of one run.
    fn clear(&self, name: &str) -> Result<()> {
        for folder in self.folders(name).iter().filter(|folder| folder.exists()) {
            fs::remove_dir_all(folder).context("cannot remove the folder of a run")?;
        }
        for number in (0..self.tiers.len()).filter(|&number| self.place(name, number).starts_with("peer://"))
        {
            planaria::store::open(&self.place(name, number))?.delete_all("")?;
        }
        Ok(())
    }

    /// What happens to files while a run is down.
    fn harm(&self, name: &str, planned: &Planned) -> Result<()> {
        if planned.kind == FaultKind::Clock {
            harm::shift_times(&self.folders(name), planned.pick);
            return Ok(());
        }
        let run = self.folder.join(name).display().to_string();
        let places = std::iter::once(run).chain((0..self.tiers.len()).map(|number| self.place(name, number)));
        let stores = places.map(|place| planaria::store::open(&place)).collect::<Result<Vec<_>, _>>()?;
        harm::harm(&stores, planned.kind, planned.pick)
    }

    /// The folder of one run, then those of its tiers.
    fn folders(&self, name: &str) -> Vec<PathBuf> {
        let tiers = (0..self.tiers.len()).map(|number| format!("{name}-tier-{number}"));
        std::iter::once(name.to_string()).chain(tiers).map(|name| self.folder.join(name)).collect()
    }

    /// Where a run has a tier: never where the user's is. A peer is the memory of this very process.
    fn place(&self, name: &str, number: usize) -> String {
        match (&self.agent, self.tiers[number].kind) {
            (Some(agent), TierKind::Peer) => format!("peer://{}/{name}-tier-{number}", agent.address()),
            _ => self.folders(name)[number + 1].display().to_string(),
        }
    }

    /// The tiers of one run, none of them where the user's are, as often as the shortened run can have them.
    fn places(&self, name: &str) -> String {
        let one = |(number, tier): (usize, &TierSection)| {
            let (kind, every, keep, place) =
                (tier.kind, tier.every.min(2), tier.keep, self.place(name, number));
            format!("{{ kind = \"{kind}\", every = {every}, keep = {keep}, path = \"{place}\" }}")
        };
        let all: Vec<String> = self.tiers.iter().enumerate().map(one).collect();
        format!("checkpoint.tiers=[{}]", all.join(", "))
    }

    /// What a run left.
    fn left(&self, name: &str, steps: u64) -> Result<Left> {
        let run = self.folder.join(name);
        let line = |line: Value| Some((line["step"].as_u64()?, line.get("loss")?.to_string()));
        let losses = lines(&run.join("metrics.jsonl")).into_iter().filter_map(line).collect();
        let last = run.join(format!("ckpt/step-{steps:08}"));
        let mut tensors = BTreeMap::new();
        for file in
            harm::files(&last).into_iter().filter(|file| file.extension().is_some_and(|e| e == "safetensors"))
        {
            let name = file.strip_prefix(&last).unwrap_or(&file).to_path_buf();
            tensors.insert(name, fs::read(&file)?);
        }
        Ok(Left { losses, tensors })
    }

    /// Where a run resumed from each time, and the most steps that were done again.
    fn resumed(&self, name: &str) -> Result<(Vec<String>, u64)> {
        let (mut from, mut again) = (Vec::new(), 0);
        let run = self.folder.join(name);
        let (mut last, mut reached) = (0, 0);
        for line in lines(&run.join("metrics.jsonl")) {
            let Some(step) = line["step"].as_u64().filter(|_| line.get("loss").is_some()) else { continue };
            if step <= last {
                again = again.max(reached + 1 - step);
            }
            (last, reached) = (step, step.max(reached));
        }
        for line in
            lines(&run.join("log/rank-00000.jsonl")).iter().filter(|line| line["message"] == "resumed")
        {
            // `ckpt/step-00000004 (memory)`, or without a tier for the run's folder.
            let folder = line["folder"].as_str().unwrap_or_default();
            let tier = folder.strip_suffix(')').and_then(|text| text.rsplit('(').next());
            from.push(tier.unwrap_or("folder").to_string());
        }
        Ok((from, again))
    }
}

/// How a launch ended.
struct Ended {
    status: ExitStatus,
    said: String,
    beats: Vec<Beat>,
}

/// The lines of a file of JSON lines.
fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}
