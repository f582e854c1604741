//! What a run leaves on disk besides checkpoints: its configuration, metrics, TensorBoard events, logs by rank.

use super::Job;
use crate::error::{Error, Result};
use crate::event::{Event, Observer, StepReport};
use planaria_telemetry::{
    EventWriter, Level, METRICS, MetricsWriter, RankLog, Record, SamplesWriter, Session,
};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The files of one rank. Only rank 0 has metrics. A file that cannot be written is no reason to stop: what is lost is
/// said once, in the log and to whoever listens.
#[derive(Debug)]
pub(super) struct Records {
    log: RankLog,
    /// Hears of metrics that cannot be written: the log is on the same disk.
    observer: Arc<dyn Observer>,
    curves: Option<Mutex<Curves>>,
}

#[derive(Debug)]
struct Curves {
    metrics: MetricsWriter,
    events: Option<EventWriter>,
    samples: SamplesWriter,
    broken: bool,
}

impl Records {
    /// Opens the files of a rank; `step` is the one the run resumes from.
    pub(super) fn open(job: &Job, rank: usize, step: u64, mesh: &str) -> Result<Records> {
        let dir = job.config.run_dir();
        let log = RankLog::open(&dir, rank, Level::Info)?;
        let curves = match rank {
            0 => {
                write_config(job, &dir)?;
                let about = [("mesh", mesh), ("version", env!("CARGO_PKG_VERSION"))];
                let about = about.map(|(k, v)| (k.to_string(), v.to_string())).into();
                let metrics = MetricsWriter::open(&dir.join(METRICS), &Session { step, about })?;
                let wanted = job.config.log.tensorboard;
                let events = wanted.then(|| EventWriter::create(&dir, step)).transpose()?;
                Some(Mutex::new(Curves { metrics, events, samples: SamplesWriter::new(&dir), broken: false }))
            }
            _ => None,
        };
        Ok(Records { log, observer: job.observer.clone(), curves })
    }

    /// Keeps what is worth keeping of an event.
    pub(super) fn event(&self, event: &Event) {
        let (level, message, values) = match event {
            Event::Started { mesh, step, ranks, .. } => {
                let process = json!(std::process::id());
                let values = [("mesh", json!(mesh)), ("step", json!(step)), ("ranks", json!(ranks))];
                (Level::Info, "started", [&values[..], &[("process", process)]].concat())
            }
            Event::ThroughHost { why } => {
                (Level::Warn, "arrays of GPUs go through the host", vec![("why", json!(why))])
            }
            Event::RewardFailed { .. } => return self.unscored(event),
            Event::Rows(report) => (Level::Info, "rows", vec![("told", json!(report.lines()))]),
            Event::Unmatched { name } => {
                (Level::Warn, "no module has a name of target_modules", vec![("name", json!(name))])
            }
            Event::Unused { folder, names } => {
                let values = vec![("folder", json!(folder)), ("names", json!(names))];
                (Level::Warn, "weights that the model has no place for", values)
            }
            Event::Resumed { folder, step, changed, damaged, .. } => {
                let values = [("folder", json!(folder)), ("step", json!(step)), ("changed", json!(changed))];
                (Level::Info, "resumed", [&values[..], &[("damaged", json!(damaged))]].concat())
            }
            Event::Step(_) | Event::Figures { .. } | Event::Evaluated { .. } | Event::Samples { .. } => {
                return self.drawn(event);
            }
            Event::SaveProgress(_) => return,
            Event::SaveDropped { step, by } => (
                Level::Warn,
                "snapshot dropped for a newer one",
                vec![("step", json!(step)), ("by", json!(by))],
            ),
            // Told by this very file, and written to its log there.
            Event::RecordsFailed { .. } => return,
            Event::Best { step, loss } => {
                (Level::Info, "best evaluation so far", vec![("step", json!(step)), ("loss", json!(loss))])
            }
            Event::Saving { step } => (Level::Info, "saving", vec![("step", json!(step))]),
            Event::Saved { step, folder, took, .. } => {
                self.with_curves(|curves| curves.metrics.checkpoint(*step));
                let seconds = json!(took.as_secs_f64());
                (
                    Level::Info,
                    "saved",
                    vec![("step", json!(step)), ("folder", json!(folder)), ("seconds", seconds)],
                )
            }
            Event::NotRemoved { step, error } => {
                (Level::Warn, "not removed", vec![("step", json!(step)), ("error", json!(error))])
            }
            Event::SaveFailed { step, error } => {
                (Level::Error, "save failed", vec![("step", json!(step)), ("error", json!(error))])
            }
        };
        self.say(level, message, &values);
    }

    /// Keeps numbers and texts of a step.
    fn drawn(&self, event: &Event) {
        match event {
            Event::Step(report) => self.step(report),
            Event::Figures { step, values } => {
                let record = Record::new(*step);
                self.curve(&values.iter().fold(record, |record, (name, value)| record.with(name, *value)));
            }
            Event::Evaluated { step, loss } => {
                self.curve(&Record::new(*step).with("eval_loss", *loss).with("eval_perplexity", loss.exp()));
            }
            Event::Samples { step, samples } => {
                self.with_curves(|curves| curves.samples.write(*step, samples));
            }
            _ => {}
        }
    }

    /// Says that the run ended as it should, or because it was asked to.
    pub(super) fn ended(&self, step: u64, stopped: bool) {
        self.say(Level::Info, "ended", &[("step", json!(step)), ("stopped", json!(stopped))]);
    }

    fn unscored(&self, event: &Event) {
        let Event::RewardFailed { step, unscored, error, .. } = event else { return };
        let values = [("step", json!(step)), ("unscored", json!(unscored)), ("error", json!(error))];
        self.say(Level::Warn, "responses without a reward", &values);
    }

    fn step(&self, report: &StepReport) {
        if report.skipped {
            self.say(
                Level::Warn,
                "step skipped: the gradient is not finite",
                &[("step", json!(report.step))],
            );
        }
        let record = Record::new(report.step)
            .with("loss", report.loss)
            .with("perplexity", report.perplexity())
            .with("grad_norm", report.grad_norm)
            .with("lr", report.lr)
            .with("tokens_per_second", report.tokens_per_second())
            .with("seconds", report.seconds)
            .with("samples", report.samples as f64)
            .with("tokens", report.consumed_tokens as f64)
            .with("epoch", report.epoch)
            .with("skipped", f64::from(u8::from(report.skipped)))
            .with("peak_bytes", report.peak_bytes as f64);
        let some = [
            ("flops_per_second", report.flops.map(|flops| flops / report.seconds.max(1e-9))),
            ("mfu", report.mfu),
            ("loss_scale", Some(report.loss_scale).filter(|scale| *scale != 1.0)),
        ];
        let known = some.into_iter().filter_map(|(name, value)| Some((name, value?)));
        self.curve(&known.fold(record, |record, (name, value)| record.with(name, value)));
    }

    fn curve(&self, record: &Record) {
        self.with_curves(|curves| {
            curves.metrics.write(record)?;
            curves.events.as_mut().map_or(Ok(()), |events| events.write(record))
        });
    }

    fn with_curves(&self, work: impl FnOnce(&mut Curves) -> planaria_telemetry::Result<()>) {
        let Some(curves) = &self.curves else { return };
        let mut curves = curves.lock().unwrap_or_else(PoisonError::into_inner);
        let end = work(&mut curves);
        let first = !std::mem::replace(&mut curves.broken, end.is_err());
        if let Err(error) = end.as_ref().map_err(ToString::to_string)
            && first
        {
            self.say(Level::Warn, "metrics could not be written", &[("error", json!(error))]);
            self.observer.event(&Event::RecordsFailed { error });
        }
    }

    fn say(&self, level: Level, message: &str, values: &[(&str, Value)]) {
        // A log that cannot be written has nobody to tell.
        let _ = self.log.log(level, message, values);
    }
}

/// Says in the log of a rank why it failed, where there is a run; the folder of another process is left alone.
pub(super) fn failed(job: &Job, rank: usize, error: &Error) {
    let dir = job.config.run_dir();
    if matches!(error, Error::Locked { .. }) || !dir.join(METRICS).is_file() {
        return;
    }
    if let Ok(log) = RankLog::open(&dir, rank, Level::Info) {
        let _ = log.log(Level::Error, "failed", &[("error", json!(error.to_string()))]);
    }
}

/// The configuration as it was resolved.
fn write_config(job: &Job, dir: &Path) -> Result<()> {
    let file = dir.join("config.toml");
    let text = job.config.recorded()?.to_toml()?;
    std::fs::write(&file, text).map_err(|source| Error::Io { path: file.display().to_string(), source })
}
