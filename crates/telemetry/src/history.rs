//! Reading a run's metrics back, also of runs that were killed and resumed elsewhere.

use crate::error::{Error, Result};
use crate::metrics::{METRICS, as_number};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Longest line that is read; longer ones are damage.
const LINE_LIMIT: u64 = 1 << 20;

/// The values of one metric: step and value, by step.
pub type Series = Vec<(u64, f64)>;

/// What happened at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum MarkKind {
    /// A checkpoint was committed.
    Checkpoint,
    /// The run resumed from here in a new process.
    Restart,
}

/// Something that happened at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Mark {
    /// The step.
    pub step: u64,
    /// What happened.
    pub kind: MarkKind,
}

/// Everything a run has written that still counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// Name of the run: its folder.
    pub name: String,
    /// Scalars by name, the newest of each step.
    metrics: BTreeMap<String, Series>,
    /// Steps with a record, and when it was made, in seconds since 1970; NaN where that is not known.
    times: Series,
    /// Checkpoints and restarts, in order.
    pub marks: Vec<Mark>,
    /// Records that a resumed run overtook.
    pub overtaken: u64,
    /// Lines that could not be read: a process died while it wrote.
    pub damaged: u64,
    /// What the last process said about itself.
    pub about: BTreeMap<String, String>,
}

impl History {
    /// Reads the metrics of a run's folder, or a metrics file.
    pub fn read(path: &Path) -> Result<History> {
        let mut follower = Follower::open(path)?;
        follower.poll()?;
        Ok(follower.finish())
    }

    fn take(&mut self, line: &[u8]) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let parsed = serde_json::from_slice::<Map<String, Value>>(line).ok();
        let step = parsed.as_ref().and_then(|object| object.get("step")?.as_u64());
        let (Some(object), Some(step)) = (parsed, step) else {
            self.damaged += 1;
            return;
        };
        match object.get("event").and_then(Value::as_str) {
            Some("start") => self.start(step, &object),
            Some("checkpoint") => self.marks.push(Mark { step, kind: MarkKind::Checkpoint }),
            Some(_) => {}
            None => {
                let time = object.get("time").and_then(as_number);
                put(&mut self.times, step, time.unwrap_or(f64::NAN));
                for (name, value) in object.iter().filter(|(name, _)| *name != "step" && *name != "time") {
                    let Some(value) = as_number(value) else { continue };
                    match self.metrics.get_mut(name) {
                        Some(series) => put(series, step, value),
                        None => drop(self.metrics.insert(name.clone(), vec![(step, value)])),
                    }
                }
            }
        }
    }

    fn start(&mut self, step: u64, object: &Map<String, Value>) {
        let kept = self.times.len();
        let upto = |series: &mut Series| series.truncate(series.partition_point(|&(s, _)| s <= step));
        upto(&mut self.times);
        self.metrics.values_mut().for_each(upto);
        self.overtaken += (kept - self.times.len()) as u64;
        self.marks.retain(|mark| mark.step <= step);
        if step > 0 {
            self.marks.push(Mark { step, kind: MarkKind::Restart });
        }
        let text = |(k, v): (&String, &Value)| Some((k.clone(), v.as_str()?.to_string()));
        self.about = object.iter().filter_map(text).filter(|(k, _)| k != "event" && k != "schema").collect();
    }

    /// Names of all metrics.
    pub fn metrics(&self) -> Vec<String> {
        self.metrics.iter().filter(|(_, series)| !series.is_empty()).map(|(name, _)| name.clone()).collect()
    }

    /// The values of one metric, by step.
    pub fn series(&self, name: &str) -> Result<&[(u64, f64)]> {
        match self.metrics.get(name) {
            Some(series) if !series.is_empty() => Ok(series),
            _ => {
                let (run, name) = (self.name.clone(), name.to_string());
                Err(Error::NoMetric { run, name, known: self.metrics() })
            }
        }
    }

    /// When each step was recorded, in seconds since 1970; NaN where that is not known.
    pub fn times(&self) -> &[(u64, f64)] {
        &self.times
    }

    /// The history as Weights & Biases has it: one JSON object per step with `_step`, `_timestamp` and `_runtime` (seconds
    /// since the first record) beside the metrics.
    pub fn wandb_rows(&self) -> impl Iterator<Item = Value> {
        let first = self.times.iter().map(|(_, time)| *time).fold(f64::INFINITY, f64::min);
        self.times.iter().map(move |&(step, time)| {
            let mut row = Map::new();
            row.insert("_step".into(), step.into());
            if !time.is_nan() {
                row.insert("_timestamp".into(), time.into());
                row.insert("_runtime".into(), (time - first).into());
            }
            let values = self.metrics.iter().filter_map(|(name, series)| {
                let at = series.binary_search_by_key(&step, |&(s, _)| s).ok()?;
                Some((name.clone(), wandb_number(series[at].1)))
            });
            row.extend(values);
            Value::Object(row)
        })
    }

    /// The last step with a record.
    pub fn last_step(&self) -> Option<u64> {
        self.times.last().map(|(step, _)| *step)
    }
}

/// Sets the value of a step; steps nearly always come in order.
fn put(series: &mut Series, step: u64, value: f64) {
    match series.last() {
        Some(&(last, _)) if last >= step => match series.binary_search_by_key(&step, |&(s, _)| s) {
            Ok(at) => series[at].1 = value,
            Err(at) => series.insert(at, (step, value)),
        },
        _ => series.push((step, value)),
    }
}

/// The history of a run that may still be written: [`Follower::poll`] reads what came since the last time.
#[derive(Debug)]
pub struct Follower {
    path: PathBuf,
    history: History,
    /// Bytes of the file that were read.
    offset: u64,
    /// A line whose end has not been written yet.
    unfinished: Vec<u8>,
}

impl Follower {
    /// Finds the metrics of a run's folder, or takes a metrics file; nothing is read yet.
    pub fn open(path: &Path) -> Result<Follower> {
        let file: PathBuf = if path.is_dir() { path.join(METRICS) } else { path.to_path_buf() };
        if !file.is_file() {
            return Err(Error::NoRun { path: path.to_path_buf() });
        }
        let folder = file.parent().and_then(|p| p.canonicalize().ok());
        let name = folder.as_deref().and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| path.display().to_string());
        let history = History { name, ..History::default() };
        Ok(Follower { path: file, history, offset: 0, unfinished: Vec::new() })
    }

    /// What was read so far.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Reads what was written meanwhile and answers whether there was anything. A file that became shorter is another
    /// one, and read from its beginning.
    pub fn poll(&mut self) -> Result<bool> {
        let mut file = File::open(&self.path).map_err(Error::io("open", &self.path))?;
        let length = file.metadata().map_err(Error::io("read", &self.path))?.len();
        if length < self.offset {
            let name = std::mem::take(&mut self.history.name);
            (self.history, self.offset) = (History { name, ..History::default() }, 0);
            self.unfinished.clear();
        }
        if length == self.offset {
            return Ok(false);
        }
        file.seek(SeekFrom::Start(self.offset)).map_err(Error::io("read", &self.path))?;
        let mut reader = BufReader::with_capacity(1 << 18, file);
        loop {
            let room = LINE_LIMIT.saturating_sub(self.unfinished.len() as u64);
            let mut limited = reader.by_ref().take(room);
            let got =
                limited.read_until(b'\n', &mut self.unfinished).map_err(Error::io("read", &self.path))?;
            self.offset += got as u64;
            if self.unfinished.ends_with(b"\n") || self.unfinished.len() as u64 >= LINE_LIMIT {
                self.history.take(&self.unfinished);
                self.unfinished.clear();
            } else if got == 0 {
                return Ok(true);
            }
        }
    }

    /// The history with what stands behind the last end of a line, when nobody writes it on.
    fn finish(mut self) -> History {
        let last = std::mem::take(&mut self.unfinished);
        self.history.take(&last);
        self.history
    }
}

/// A number, or the text that stands for it in the files of Weights & Biases.
fn wandb_number(value: f64) -> Value {
    match value {
        _ if value.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        _ => value.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{MetricsWriter, Record, Session};
    use std::fs;
    use std::io::Write;

    fn session(step: u64) -> Session {
        Session { step, about: BTreeMap::from([("mesh".to_string(), format!("dp={step}"))]) }
    }

    #[test]
    fn a_resumed_run_overtakes_what_it_repeats() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut first = MetricsWriter::open(&path, &session(0)).unwrap();
        for step in 1..=7 {
            first.write(&Record::new(step).with("loss", step as f64).with("lr", 0.5)).unwrap();
            if step % 2 == 0 {
                first.checkpoint(step).unwrap();
            }
        }
        drop(first);
        let mut second = MetricsWriter::open(&path, &session(4)).unwrap();
        second.write(&Record::new(5).with("loss", 50.0)).unwrap();
        let history = History::read(folder.path()).unwrap();
        let loss: Vec<f64> = history.series("loss").unwrap().iter().map(|p| p.1).collect();
        assert_eq!(loss, [1.0, 2.0, 3.0, 4.0, 50.0]);
        assert_eq!(history.series("lr").unwrap().len(), 4, "nothing of the old step 5 is left");
        let marks: Vec<_> = history.marks.iter().map(|m| (m.step, m.kind)).collect();
        use MarkKind::{Checkpoint, Restart};
        assert_eq!(marks, [(2, Checkpoint), (4, Checkpoint), (4, Restart)]);
        assert_eq!((history.overtaken, history.damaged, history.last_step()), (3, 0, Some(5)));
        assert_eq!(history.about["mesh"], "dp=4");
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 13, "no line was removed");
    }

    #[test]
    fn a_follower_reads_what_came_and_no_half_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let line = |step: u64| format!("{{\"step\":{step},\"time\":7.0,\"loss\":{step}.5}}\n");
        fs::write(&path, line(1)).unwrap();
        let mut follower = Follower::open(folder.path()).unwrap();
        assert!(follower.poll().unwrap() && !follower.poll().unwrap());
        let mut file = fs::File::options().append(true).open(&path).unwrap();
        let text = line(2) + &line(3);
        let (begin, rest) = text.split_at(text.len() - 7);
        file.write_all(begin.as_bytes()).unwrap();
        assert!(follower.poll().unwrap());
        assert_eq!(follower.history().last_step(), Some(2));
        file.write_all(rest.as_bytes()).unwrap();
        assert!(follower.poll().unwrap());
        assert_eq!(follower.history().series("loss").unwrap(), [(1, 1.5), (2, 2.5), (3, 3.5)]);
        assert_eq!(follower.history().damaged, 0);
        assert_eq!(follower.history(), &History::read(&path).unwrap());
        fs::write(&path, line(9)).unwrap();
        assert!(follower.poll().unwrap());
        assert_eq!(follower.history().series("loss").unwrap(), [(9, 9.5)], "another file");
    }

    #[test]
    fn rows_for_weights_and_biases_have_its_keys_and_only_what_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let at = |step: u64, time: f64| Record { time: Some(time), ..Record::new(step) };
        let mut first = MetricsWriter::open(&path, &session(0)).unwrap();
        first.write(&at(1, 100.0).with("loss", 4.0)).unwrap();
        first.write(&at(2, 101.5).with("loss", 9.0)).unwrap();
        let mut second = MetricsWriter::open(&path, &session(1)).unwrap();
        second.write(&at(2, 110.0).with("loss", f64::NAN)).unwrap();
        let rows: Vec<Value> = History::read(&path).unwrap().wandb_rows().collect();
        let expected = [
            serde_json::json!({ "_step": 1, "_timestamp": 100.0, "_runtime": 0.0, "loss": 4.0 }),
            serde_json::json!({ "_step": 2, "_timestamp": 110.0, "_runtime": 10.0, "loss": "NaN" }),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn a_torn_line_costs_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut writer = MetricsWriter::open(&path, &session(0)).unwrap();
        writer.write(&Record::new(1).with("loss", 1.0)).unwrap();
        drop(writer);
        let mut raw = fs::OpenOptions::new().append(true).open(&path).unwrap();
        raw.write_all(b"{\"step\":2,\"lo").unwrap();
        let mut writer = MetricsWriter::open(&path, &session(1)).unwrap();
        writer.write(&Record::new(2).with("loss", 2.0)).unwrap();
        raw.write_all(b"[1]\n\xff\xfe\n{\"step\":-3}\n\n{\"loss\":1}\n").unwrap();
        let history = History::read(&path).unwrap();
        assert_eq!(history.series("loss").unwrap(), [(1, 1.0), (2, 2.0)]);
        assert_eq!(history.damaged, 5);
    }

    #[test]
    fn numbers_that_json_lacks_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut writer = MetricsWriter::open(&path, &Session::default()).unwrap();
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-300, -0.1];
        for (step, value) in odd.into_iter().enumerate() {
            writer.write(&Record::new(step as u64).with("x", value)).unwrap();
        }
        let back = History::read(&path).unwrap().series("x").unwrap().to_vec();
        assert!(
            back.into_iter()
                .zip(odd)
                .all(|((_, a), b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
        );
    }

    #[test]
    fn a_full_disk_is_an_error_with_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let full = MetricsWriter::open(&path, &Session::default()).unwrap_err().to_string();
        assert!(full.contains("metrics.jsonl"), "{full}");
    }

    #[test]
    fn places_without_a_run_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = History::read(folder.path()).unwrap_err();
        assert!(missing.to_string().contains("is not the folder of a run") && missing.hint().is_some());
        assert!(History::read(Path::new("no/such")).is_err());
    }
}
