//! What a person sees of a run: a step line, on a terminal with a bar under it, and a word on saves.

use crate::quantity::count;
use crate::terminal::Terminal;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use planaria::telemetry::{Saving, StepLine};
use planaria::train::Config;
use planaria::train::event::{Damaged, Event, Observer, StepReport};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Tells about a run on standard error, or as JSON lines on standard output.
#[derive(Debug)]
pub(crate) struct Show {
    bar: ProgressBar,
    style: Style,
    every: u64,
    steps: u64,
    saving: Mutex<Option<Saving>>,
    since: Mutex<Since>,
}

/// What was done since the last line.
#[derive(Debug)]
struct Since {
    began: Instant,
    tokens: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Lines,
    Json,
    Quiet,
}

impl Show {
    pub(crate) fn new(terminal: &Terminal, config: &Config) -> Show {
        let style = match (terminal.json, terminal.is_quiet()) {
            (true, _) => Style::Json,
            (_, true) => Style::Quiet,
            _ => Style::Lines,
        };
        let drawn = style == Style::Lines && terminal.shows_bars();
        let target = if drawn { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(config.train.steps), target);
        bar.set_style(form("[{bar:30}] {pos}/{len} steps"));
        let (every, steps) = (config.log.every, config.train.steps);
        let since = Mutex::new(Since { began: Instant::now(), tokens: 0 });
        Show { bar, style, every, steps, saving: Mutex::new(None), since }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Says what a first signal does.
    pub(crate) fn stopping(&self) {
        if self.style != Style::Lines {
            return;
        }
        self.say("stopping after this step; signal again to stop at once");
    }

    /// Tokens per second since the last line, saves and evaluations among it.
    fn rate(&self) -> f64 {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let Since { began, tokens } =
            std::mem::replace(&mut *since, Since { began: Instant::now(), tokens: 0 });
        tokens as f64 / began.elapsed().as_secs_f64().max(1e-9)
    }

    fn say(&self, text: &str) {
        if self.style == Style::Lines {
            // A closed standard error is nobody's error.
            self.bar.suspend(|| drop(writeln!(std::io::stderr().lock(), "{text}")));
        }
    }

    fn json(&self, event: &str, value: Value) {
        if self.style == Style::Json {
            let mut line = json!({ "schema": "planaria/train/1", "event": event });
            if let (Value::Object(line), Value::Object(value)) = (&mut line, value) {
                line.extend(value);
            }
            let _ = writeln!(std::io::stdout().lock(), "{line}");
        }
    }

    fn saves(&self, now: Saving) {
        *self.saving.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    fn step(&self, report: &StepReport) {
        if self.bar.message().is_empty() {
            // Before the first step nothing is known about the time.
            self.bar.set_style(form("[{bar:30}] {pos}/{len} steps{msg}, {eta} left"));
        }
        self.bar.set_message(format!(", loss {:.4}", report.loss));
        self.bar.set_position(report.step);
        self.since.lock().unwrap_or_else(PoisonError::into_inner).tokens += report.tokens;
        self.json("step", serde_json::to_value(report).unwrap_or_default());
        if !report.step.is_multiple_of(self.every) && report.step != self.steps && report.step != 1 {
            return;
        }
        let saving = match *self.saving.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(Saving::Running { step, rate, .. }) => {
                Some(Saving::Running { step, done: report.saving, rate })
            }
            other => other,
        };
        let line = StepLine {
            step: report.step,
            steps: self.steps,
            loss: report.loss,
            grad_norm: report.grad_norm,
            lr: report.lr,
            tokens_per_second: self.rate(),
            mfu: report.mfu,
            memory: Some(report.peak_bytes),
            memory_limit: None,
            saving,
        };
        let skipped = if report.skipped { "  skipped: the gradient is not finite" } else { "" };
        self.say(&format!("{line}{skipped}"));
    }
}

impl Show {
    /// What became of the rows of conversations.
    fn rows(&self, lines: &[String]) {
        lines.iter().for_each(|line| self.say(line));
        self.json("rows", json!({ "told": lines }));
    }
}

impl Show {
    /// What becomes of saves.
    fn save(&self, event: &Event) {
        match event {
            Event::Saving { step } => self.saves(Saving::Running { step: *step, done: None, rate: None }),
            Event::Saved { step, folder, blocked, took } => {
                self.saves(Saving::Saved { step: *step });
                let (took, stood) = (took.as_secs_f64(), blocked.as_secs_f64() * 1e3);
                self.say(&format!("saved {folder} in {took:.1} s; training paused for {stood:.1} ms"));
                self.json(
                    "saved",
                    json!({ "step": step, "folder": folder, "seconds": took, "blocked_ms": stood }),
                );
            }
            Event::SaveProgress(progress) => {
                self.saves(Saving::Running {
                    step: progress.step,
                    done: Some(progress.share()),
                    rate: progress.rate,
                });
                let mut told = serde_json::to_value(progress).unwrap_or_default();
                told["percent"] = json!(progress.share() * 100.0);
                self.json("saving", told);
            }
            Event::SaveDropped { step, by } => {
                self.say(&format!("the snapshot of step {step} was not written: that of step {by} is newer"));
                self.json("save_dropped", json!({ "step": step, "by": by }));
            }
            Event::NotRemoved { step, error } => {
                self.say(&format!(
                    "warning: step {step} is saved, but older checkpoints cannot be removed: {error}"
                ));
                self.json("not_removed", json!({ "step": step, "error": error }));
            }
            Event::SaveFailed { step, error } => {
                self.saves(Saving::Failed { step: *step });
                self.say(&format!("warning: the save of step {step} failed: {error}"));
                self.json("save_failed", json!({ "step": step, "error": error }));
            }
            _ => {}
        }
    }
}

fn form(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Show {
    /// What is told as a warning, and what saves say.
    fn warned(&self, event: &Event) {
        match event {
            Event::ThroughHost { why } => {
                self.say(&format!("warning: arrays of GPUs go between ranks through the host: {why}"));
                self.json("through_host", json!({ "why": why }));
            }
            Event::Unmatched { name } => {
                self.say(&format!(
                    "warning: `lora.target_modules` names '{name}', and no module of the model has this name; it has no effect"
                ));
                self.json("unmatched", json!({ "name": name }));
            }
            Event::Unused { folder, names } => {
                let shown: Vec<_> = names.iter().take(3).map(|name| format!("'{name}'")).collect();
                let dots = if names.len() > shown.len() { ", ..." } else { "" };
                self.say(&format!(
                    "warning: {} of '{folder}' are not used: the model has no place for {}{dots}; compare its config.json",
                    count(names.len(), "weight"),
                    shown.join(", ")
                ));
                self.json("unused", json!({ "folder": folder, "names": names }));
            }
            Event::RewardFailed { step, unscored, responses, error } => {
                self.say(&format!(
                    "warning: {unscored} of {responses} responses of step {step} have no reward and count nothing: {error}"
                ));
                let told =
                    json!({ "step": step, "unscored": unscored, "responses": responses, "error": error });
                self.json("reward_failed", told);
            }
            Event::RecordsFailed { error } => {
                self.say(&format!("warning: metrics cannot be written: {error}; training continues"));
                self.json("records_failed", json!({ "error": error }));
            }
            other => self.save(other),
        }
    }
}

impl Observer for Show {
    fn event(&self, event: &Event) {
        match event {
            Event::Started { ranks, mesh, parameters, trained, samples, step, steps } => {
                let mut size = crate::quantity::parameters(*parameters);
                if trained < parameters {
                    size = format!("{} trained of {size}", crate::quantity::parameters(*trained));
                }
                let noun = if *ranks == 1 { "rank" } else { "ranks" };
                let todo = match step <= steps {
                    true => format!("steps {step} to {steps}"),
                    false => format!("complete at step {}; raise `train.steps` to continue", step - 1),
                };
                self.say(&format!("{size} on {ranks} {noun} ({mesh}), {samples} samples, {todo}"));
                self.rate();
                self.bar.set_position(step.saturating_sub(1));
                self.bar.reset_eta();
                self.json(
                    "started",
                    json!({ "ranks": ranks, "mesh": mesh, "parameters": parameters, "step": step }),
                );
            }
            Event::Rows(report) => self.rows(&report.lines()),
            Event::Resumed { folder, step, mesh, changed, damaged } => {
                for Damaged { folder, why } in damaged {
                    self.say(&format!("warning: {folder} is damaged and not used: {why}"));
                }
                let from = mesh.as_ref().map(|mesh| format!(", saved on {mesh}")).unwrap_or_default();
                self.say(&format!("resuming from {folder} (step {step}{from})"));
                if !changed.is_empty() {
                    self.say(&format!("changed since: {}", changed.join(", ")));
                }
                self.json(
                    "resumed",
                    json!({ "step": step, "folder": folder, "changed": changed, "damaged": damaged }),
                );
            }
            Event::Step(report) => self.step(report),
            Event::Evaluated { step, loss } => {
                let perplexity = loss.exp();
                self.say(&format!("step {step}  evaluation loss {loss:.4}  perplexity {perplexity:.2}"));
                self.json("evaluated", json!({ "step": step, "loss": loss, "perplexity": perplexity }));
            }
            Event::Best { step, loss } => {
                self.say(&format!("step {step} is the best so far; its checkpoint is kept"));
                self.json("best", json!({ "step": step, "loss": loss }));
            }
            other => self.warned(other),
        }
    }
}
