//! Jobs as processes of two hosts on one machine, whose link lets so many bits through.

use anyhow::{Context, Result, bail};
use planaria_bench::bed::Bed;
use planaria_train::config::Config;
use planaria_train::simulate::LinkCost;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Part of a link's bits that are bytes of collectives, as the benchmark `links` has it: others are heads of frames, or not used.
const CONTENTS: f64 = 0.895;

/// Seconds before the first byte of a message, through the stacks of both hosts.
const LATENCY: f64 = 1e-4;

/// After this a job is ended.
const DEADLINE: Duration = Duration::from_secs(300);

/// Two hosts, and the program that their ranks run.
pub(crate) struct Hosts {
    planaria: PathBuf,
    bed: Bed,
    mbit: u64,
}

/// What was seen of a job.
pub(crate) struct Run {
    /// Seconds from its start to its first step.
    pub(crate) ready: f64,
    /// Seconds from its first step to its end.
    pub(crate) seconds: f64,
    pub(crate) failed: Option<Failed>,
}

/// When a rank was killed.
pub(crate) struct Failed {
    /// Steps that were done, in all the time until then.
    pub(crate) steps: f64,
}

/// A line of a run's metrics: the step, or none where it says that the run starts, and when it was written.
struct Line {
    step: Option<u64>,
    time: f64,
    seconds: f64,
}

impl Hosts {
    pub(crate) fn make(planaria: &Path, mbit: u64) -> Result<Hosts> {
        let planaria = std::fs::canonicalize(planaria).with_context(|| planaria.display().to_string())?;
        Ok(Hosts { planaria, bed: Bed::make(mbit)?, mbit })
    }

    /// What messages cost between the hosts.
    pub(crate) fn link(&self) -> LinkCost {
        LinkCost { bandwidth: self.mbit as f64 * 1e6 / 8.0 * CONTENTS, latency: LATENCY }
    }

    /// Runs a job with one rank on each host; the second is killed after a step where one is given.
    pub(crate) fn run(&self, config: &Config, fails: Option<u64>) -> Result<Run> {
        let run = config.log.dir.join(&config.name);
        // One before this may have had the same name.
        let _ = std::fs::remove_dir_all(&run);
        std::fs::create_dir_all(&config.log.dir)?;
        let file = config.log.dir.join("job.toml");
        std::fs::write(&file, config.to_toml()?)?;
        let list = format!("{}:1,{}:1", self.bed.host(0).address, self.bed.host(1).address);
        let start = format!("{} {{host}}", self.bed.agent()?.display());
        let said = std::fs::File::create(config.log.dir.join("said.txt"))?;
        let mut launch = self.bed.host(0).command(&self.planaria);
        launch.args(["launch", "--hosts", &list, "--start", &start, "--max-restarts", "1", "--"]);
        launch.arg(&self.planaria).arg("train").arg(&file).arg("-q");
        launch.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said);
        let (began, clock) = (Instant::now(), now());
        let mut child = launch.spawn().context("`ip` cannot be run")?;
        let mut failed = None;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            let due = fails.filter(|_| failed.is_none());
            if let Some(step) = due
                && lines(&run).iter().any(|line| line.step == Some(step))
            {
                self.kill()?;
                failed = Some(now());
            }
            if began.elapsed() > DEADLINE {
                let _ = child.kill();
                bail!("a job over two hosts took more than {DEADLINE:?}");
            }
            sleep(Duration::from_millis(5));
        };
        if !status.success() {
            bail!(
                "a job over two hosts failed: {}",
                std::fs::read_to_string(config.log.dir.join("said.txt"))?
            );
        }
        let all = lines(&run);
        let (first, last) = (all.first().context("no metrics")?, all.last().context("no metrics")?);
        let failed = failed.map(|when| {
            let before = all.iter().filter(|line| line.time <= when);
            let (count, end) = before
                .filter(|line| line.step.is_some())
                .fold((0, first.time), |(n, _), line| (n + 1, line.time));
            let each = (end - first.time) / f64::from(count.max(1));
            Failed { steps: f64::from(count) + (when - end) / each }
        });
        Ok(Run { ready: first.time - first.seconds - clock, seconds: last.time - first.time, failed })
    }

    /// Ends the rank on the second host as nothing could hinder it.
    fn kill(&self) -> Result<()> {
        for process in self.bed.host(1).processes()? {
            let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            let is_rank = words.next().is_some_and(|word| word.ends_with(b"planaria"))
                && words.next() == Some(b"train");
            if is_rank {
                Command::new("kill").args(["-9", &process.to_string()]).status()?;
                return Ok(());
            }
        }
        bail!("no rank on the second host")
    }
}

/// What a run has written so far.
fn lines(run: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    let line = |text: &str| {
        let value: serde_json::Value = serde_json::from_str(text).ok()?;
        let number = |name: &str| value.get(name).and_then(serde_json::Value::as_f64);
        let step = value.get("loss").and(value.get("step")).and_then(serde_json::Value::as_u64);
        Some(Line { step, time: number("time")?, seconds: number("seconds").unwrap_or(0.0) })
    };
    text.lines().filter_map(line).collect()
}

/// Seconds by the clock that metrics have.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}
