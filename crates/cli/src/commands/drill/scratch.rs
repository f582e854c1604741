//! The scratch folder of a drill: runs in it, and what they left compared with the undisturbed one.

use super::fault::{Kind, Planned};
use super::{Args, harm};
use crate::commands::launch::Notes;
use crate::commands::train::{FAULT, STORE_FAULT};
use crate::failure::Failure;
use crate::quantity::count;
use crate::terminal::Terminal;
use anyhow::{Context, Result};
use planaria::train::config::{Sources, TierSection};
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

/// What an undisturbed run leaves.
#[derive(Clone, Debug, Default)]
pub(super) struct Undisturbed {
    /// Calls that each rank makes.
    pub(super) calls: Vec<u64>,
    pub(super) steps: u64,
    /// Steps between its checkpoints.
    pub(super) every: u64,
    pub(super) seconds: f64,
    pub(super) left: Left,
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
    pub(super) kind: Kind,
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
    ranks: usize,
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
        let mut scratch = Scratch {
            folder,
            config,
            sets,
            tiers,
            ranks,
            patience: args.patience,
            undisturbed: Undisturbed::default(),
        };
        terminal.note(format!("{} steps on {ranks} processes without a fault", args.steps));
        let began = Instant::now();
        let ended = scratch.launch("whole", None, &[])?;
        if !ended.status.success() {
            let message = format!("the shortened run fails without any fault:\n{}", ended.said);
            return Err(Failure::usage(message)
                .hint("`planaria train` on the same configuration says more")
                .into());
        }
        let calls = ended.beats.iter().map(|beat| beat.calls.max(1)).collect();
        let left = scratch.left("whole", args.steps)?;
        let seconds = began.elapsed().as_secs_f64();
        scratch.undisturbed = Undisturbed { calls, steps: args.steps, every, seconds, left };
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
                harm::harm(&self.folder.join(&name), planned.kind, planned.pick)?;
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
        fs::remove_dir_all(self.folder.join(&name)).context("cannot remove the folder of a run")?;
        Ok(Told { kind: planned.kind, from, seconds, steps, lost })
    }

    /// Launches the run to its end or its deadline. Where there are no restarts the run is one that is looked at.
    fn launch(&self, name: &str, restarts: Option<&str>, variables: &[(&str, &str)]) -> Result<Ended> {
        let notes = Notes::new("drill-notes")?;
        let said = self.folder.join(format!("{name}.err"));
        let mut command = Command::new(std::env::current_exe()?);
        let (ranks, patience) = (self.ranks.to_string(), self.patience.to_string());
        command.args([
            "launch",
            "-n",
            &ranks,
            "--engine",
            "processes",
            "--back-off",
            "0.1",
            "--min-ranks",
            "1",
        ]);
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
        Ok(Ended { status, said, beats: planaria::train::beat::Beat::read_all(notes.path()) })
    }

    /// The tiers of one run, none of them where the user's are, as often as the shortened run can have them.
    fn places(&self, name: &str) -> String {
        let one = |(number, tier): (usize, &TierSection)| {
            let place = self.folder.join(format!("{name}-tier-{number}"));
            let (kind, every, keep, place) = (tier.kind, tier.every.min(2), tier.keep, place.display());
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
    beats: Vec<planaria::train::beat::Beat>,
}

/// The lines of a file of JSON lines.
fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}
