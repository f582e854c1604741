//! `metrics.jsonl`: one JSON object per line, only ever appended to.
//!
//! Two kinds of lines. A record: `{"step":120,"time":1700000000.5,"loss":2.34}`. An event: `{"event":"start","schema":
//! "planaria/metrics/1","step":100,"time":...}`, which every process that appends writes first; `step` is the last step that counts, so
//! records with a higher step before this line were overtaken by the resumed run. Other events mark checkpoints.
//! Numbers that JSON lacks are written as the texts `NaN`, `inf` and `-inf`.

use crate::error::{Error, Result};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Name of the file in a run's folder.
pub const METRICS: &str = "metrics.jsonl";

/// Name and version of the form of the lines.
pub const SCHEMA: &str = "planaria/metrics/1";

/// Seconds since 1970.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// The scalars of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Number of the step.
    pub step: u64,
    /// Seconds since 1970; the time of writing if not given.
    pub time: Option<f64>,
    /// Scalars by name.
    pub values: BTreeMap<String, f64>,
}

impl Record {
    /// A record without scalars.
    pub fn new(step: u64) -> Record {
        Record { step, ..Record::default() }
    }

    /// With one more scalar.
    #[must_use]
    pub fn with(mut self, name: &str, value: f64) -> Record {
        self.values.insert(name.to_string(), value);
        self
    }
}

/// The process that appends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Session {
    /// Last step of the checkpoint it resumes from; 0 for a new run.
    pub step: u64,
    /// What else the first line says: mesh, ranks, version.
    pub about: BTreeMap<String, String>,
}

/// Appends lines. A line is written with one call, so readers never see half a line of a living process.
#[derive(Debug)]
pub struct MetricsWriter {
    path: PathBuf,
    file: File,
    /// The last line has no end: a dead process or a full disk cut it.
    torn: bool,
}

impl MetricsWriter {
    /// Opens or creates the file and writes the first line of the session.
    pub fn open(path: &Path, session: &Session) -> Result<MetricsWriter> {
        if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        }
        let open = File::options().read(true).append(true).create(true).open(path);
        let mut file = open.map_err(Error::io("open", path))?;
        let torn = ends_torn(&mut file).map_err(Error::io("read", path))?;
        let mut writer = MetricsWriter { path: path.to_path_buf(), file, torn };
        let mut about = Map::new();
        about.insert("schema".into(), SCHEMA.into());
        about.extend(session.about.iter().map(|(k, v)| (k.clone(), Value::from(v.as_str()))));
        writer.event("start", session.step, about)?;
        Ok(writer)
    }

    /// Appends the scalars of a step.
    pub fn write(&mut self, record: &Record) -> Result<()> {
        let mut line = Map::new();
        line.insert("step".into(), record.step.into());
        line.insert("time".into(), number(record.time.unwrap_or_else(now)));
        line.extend(record.values.iter().map(|(name, value)| (name.clone(), number(*value))));
        self.append(line)
    }

    /// Appends a mark: a checkpoint of `step` was committed.
    pub fn checkpoint(&mut self, step: u64) -> Result<()> {
        self.event("checkpoint", step, Map::new())
    }

    fn event(&mut self, name: &str, step: u64, more: Map<String, Value>) -> Result<()> {
        let mut line = Map::new();
        line.insert("event".into(), name.into());
        line.insert("step".into(), step.into());
        line.insert("time".into(), number(now()));
        line.extend(more);
        self.append(line)
    }

    fn append(&mut self, line: Map<String, Value>) -> Result<()> {
        let text = Value::Object(line).to_string();
        let start = if self.torn { "\n" } else { "" };
        let written = self.file.write_all(format!("{start}{text}\n").as_bytes());
        self.torn = written.is_err();
        written.map_err(Error::io("write", &self.path))
    }
}

/// Whether the file ends inside a line.
pub(crate) fn ends_torn(file: &mut File) -> std::io::Result<bool> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last[0] != b'\n')
}

/// A number as JSON; a text where JSON has no number for it.
fn number(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { json!(value.to_string()) }
}

/// The number a value stands for.
pub(crate) fn as_number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "inf" => Some(f64::INFINITY),
            "-inf" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}
