//! Scalars and events of a run: JSON lines, TensorBoard files, curves.
//!
//! A run writes [`MetricsWriter`] lines and an [`EventWriter`] file; [`History`] reads the lines back, also of runs that were interrupted
//! and resumed; [`Chart`] draws them in a terminal or as SVG. Nothing here prints.
//!
//! ```
//! use planaria_telemetry::{Chart, ChartOptions, History, MetricsWriter, Record, Session};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! let path = folder.path().join("metrics.jsonl");
//! let mut writer = MetricsWriter::open(&path, &Session::default())?;
//! for step in 1..=20 {
//!     writer.write(&Record::new(step).with("loss", 4.0 / step as f64))?;
//! }
//! let history = History::read(folder.path())?;
//! assert_eq!(history.series("loss")?.len(), 20);
//! let chart = Chart::new(&[history], "loss", &ChartOptions::default())?;
//! assert!(chart.to_svg((800, 400))?.starts_with("<svg"));
//! # Ok::<(), planaria_telemetry::Error>(())
//! ```

mod error;
mod events;
mod history;
mod log;
mod metrics;
mod plot;
mod rank_steps;
mod ranks;
mod samples;
mod slate;
mod step_line;

pub use error::{Error, Result};
pub use events::EventWriter;
pub use history::{Follower, History, Mark, MarkKind, Series};
pub use log::{Level, RankLog};
pub use metrics::{METRICS, MetricsWriter, Record, SCHEMA, Session};
pub use plot::{Bar, Canvas, Chart, ChartOptions, Curve, Row, Scale, Timeline, smoothed};
pub use rank_steps::{RankSteps, RankStepsFile, TimedAction, TimedStep};
pub use ranks::{RANKS, RankNow, RankSlate};
pub use samples::{SAMPLES, Sample, Sampled, SamplesWriter, read_samples};
pub use slate::{Slate, read_slates};
pub use step_line::{Saving, StepLine, count};
