//! What a run's folder says now: the run's own figures, and those of every rank.

use crate::failure::Failure;
use anyhow::Result;
use planaria::telemetry::{METRICS, MarkKind, RankNow};
use planaria_board::{Board, RunSummary};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A run that is followed.
pub(super) struct Look {
    path: PathBuf,
    board: Board,
}

/// One look at it.
#[derive(Debug, Serialize)]
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mesh: Option<String>,
    pub(super) step: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) steps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tokens_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seconds: Option<f64>,
    /// The newest step that is saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) saved: Option<u64>,
    pub(super) restarts: usize,
    /// Seconds since the newest word of any rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) age: Option<f64>,
    pub(super) ranks: Vec<RankNow>,
}

impl Look {
    /// Refuses a folder that is no run.
    pub(super) fn open(path: &Path) -> Result<Look> {
        let shown = path.display();
        if path.join(METRICS).is_file() {
            return Ok(Look { path: path.to_path_buf(), board: Board::new(&[path.to_path_buf()]) });
        }
        if !path.is_dir() {
            let message = format!("there is no folder '{shown}'");
            return Err(Failure::usage(message).hint("name the folder of a run, such as runs/NAME").into());
        }
        let message = format!("'{shown}' is no run: it has no {METRICS}");
        let inside = Board::new(&[path.to_path_buf()]).summaries();
        let hint = match inside.first() {
            Some(run) => format!("name one of the runs in it, such as {}", path.join(&run.id).display()),
            None => "name the folder of a run, such as runs/NAME".to_string(),
        };
        Err(Failure::usage(message).hint(hint).into())
    }

    /// What is there now.
    pub(super) fn now(&mut self) -> Result<Seen> {
        let run = self.board.summaries().into_iter().next();
        let run: RunSummary = run.ok_or_else(|| {
            let message = format!("the run '{}' can no longer be read", self.path.display());
            Failure::usage(message).hint("name the folder of a run, such as runs/NAME")
        })?;
        let ranks = RankNow::read_all(&self.path);
        let value = |name: &str| run.last.get(name).copied().flatten();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let told = ranks.iter().map(|rank| rank.time).fold(f64::NEG_INFINITY, f64::max);
        let marks = |kind: MarkKind| run.marks.iter().filter(move |mark| mark.kind == kind);
        Ok(Seen {
            running: run.running,
            mesh: run.about.get("mesh").cloned(),
            step: run.step.unwrap_or(0),
            steps: run.steps,
            loss: value("loss"),
            tokens_per_second: value("tokens_per_second"),
            seconds: value("seconds"),
            saved: marks(MarkKind::Checkpoint).map(|mark| mark.step).max(),
            restarts: marks(MarkKind::Restart).count(),
            age: told.is_finite().then_some((now - told).max(0.0)),
            name: run.name,
            ranks,
        })
    }
}
