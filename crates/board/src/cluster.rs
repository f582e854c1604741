//! A glance at every run there is, thousands of them: what the ends of its files say, read again only where one has changed.

use crate::runs::{Board, Found, Holder, holder, steps};
use planaria_telemetry::{METRICS, RANKS, RankNow};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::SystemTime;

/// Bytes at the end of a file that are looked at.
const TAIL: u64 = 16 << 10;

/// Seconds that a run on another machine may be silent.
const SILENCE: f64 = 120.0;

/// Characters of an event that are shown.
const WORDS: usize = 300;

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// A process of this machine holds it, or one of another machine that wrote a moment ago.
    Running,
    /// It made all its steps.
    Done,
    /// It was asked to end before.
    Stopped,
    /// It said why it ended.
    Failed,
    /// It ended, and nobody said why.
    Gone,
}

/// What a list of all runs shows of one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunGlance {
    /// What the run is asked for by.
    pub id: String,
    /// What became of it.
    pub state: RunState,
    /// The last step with a record.
    pub step: Option<u64>,
    /// How many steps it is to make.
    pub steps: Option<u64>,
    /// The last loss.
    pub loss: Option<f64>,
    /// The last tokens per second.
    pub speed: Option<f64>,
    /// When something was last recorded, in seconds since 1970.
    pub time: Option<f64>,
    /// Ranks that told where they are.
    pub ranks: usize,
    /// Machines that they are on.
    pub hosts: usize,
    /// What happened last, in words.
    pub event: String,
    /// Why it failed.
    pub failure: Option<String>,
}

/// Glances that were taken, and which of them changed when.
#[derive(Debug, Default)]
pub(crate) struct Glances {
    taken: HashMap<PathBuf, Taken>,
    /// Counts looks that found something else than the one before.
    version: u64,
    /// The last of these that missed a run.
    shrunk: u64,
}

#[derive(Debug)]
struct Taken {
    marks: Marks,
    glance: RunGlance,
    version: u64,
}

/// What changes when a run has something to say.
#[derive(Clone, Debug, PartialEq)]
struct Marks {
    holder: Holder,
    /// Lengths and times of its files.
    files: [(u64, Option<SystemTime>); 3],
    /// Whether a run on another machine wrote a moment ago.
    fresh: bool,
}

impl Marks {
    fn of(run: &Path) -> Marks {
        let file = |name: &str| {
            let about = std::fs::metadata(run.join(name)).ok();
            (about.as_ref().map_or(0, std::fs::Metadata::len), about.and_then(|about| about.modified().ok()))
        };
        let files = [file(METRICS), file("log/rank-00000.jsonl"), file("config.toml")];
        let age = files[0].1.and_then(|time| time.elapsed().ok()).map_or(0.0, |age| age.as_secs_f64());
        Marks { holder: holder(run), files, fresh: age < SILENCE }
    }
}

/// Glances that changed since a version, which is answered by the newest one.
#[derive(Debug, Serialize)]
pub(crate) struct Changes {
    pub(crate) version: u64,
    /// Runs there are.
    pub(crate) count: usize,
    /// Whether these are all of them, because some are gone.
    pub(crate) all: bool,
    pub(crate) runs: Vec<RunGlance>,
}

impl Board {
    /// A glance at every run, by their ids.
    pub fn glances(&self) -> Vec<RunGlance> {
        self.changes(0).runs
    }

    /// What has changed since a version; everything since version 0.
    pub(crate) fn changes(&self, since: u64) -> Changes {
        let found = self.found();
        let mut glances = self.glances.lock().unwrap_or_else(PoisonError::into_inner);
        let Glances { taken, version, shrunk } = &mut *glances;
        let next = *version + 1;
        let mut moved = false;
        for run in found.iter() {
            let marks = Marks::of(&run.path);
            if taken.get(&run.path).is_some_and(|known| known.marks == marks) {
                continue;
            }
            let glance = look(run, &marks);
            moved = true;
            taken.insert(run.path.clone(), Taken { marks, glance, version: next });
        }
        let there: HashSet<&PathBuf> = found.iter().map(|run| &run.path).collect();
        let before = taken.len();
        taken.retain(|path, _| there.contains(path));
        if taken.len() != before {
            (moved, *shrunk) = (true, next);
        }
        if moved {
            *version = next;
        }
        // Whoever knows of a run that is gone is told all that are there, and so is who asked another server before.
        let all = since == 0 || since > *version || since < *shrunk;
        let shown = |run: &Found| taken.get(&run.path).filter(|known| all || known.version > since);
        let runs = found.iter().filter_map(|run| shown(run).map(|known| known.glance.clone())).collect();
        Changes { version: *version, count: found.len(), all, runs }
    }
}

/// What the ends of a run's files say.
fn look(run: &Found, marks: &Marks) -> RunGlance {
    let (path, number) = (&run.path, |record: &Map<String, Value>, name: &str| record.get(name)?.as_f64());
    let steps = steps(path);
    let mut glance = RunGlance {
        id: run.id.clone(),
        state: RunState::Gone,
        step: None,
        steps,
        loss: None,
        speed: None,
        time: None,
        ranks: 0,
        hosts: 0,
        event: String::new(),
        failure: None,
    };
    for record in tail(&path.join(METRICS)) {
        let Some(step) = record.get("step").and_then(Value::as_u64) else { continue };
        glance.time = number(&record, "time").or(glance.time);
        // A run that resumes begins where its checkpoint is.
        if record.contains_key("event") && record["event"] != "start" {
            continue;
        }
        glance.step = Some(step);
        glance.loss = number(&record, "loss").or(glance.loss);
        glance.speed = number(&record, "tokens_per_second").or(glance.speed);
    }
    let mut end = None;
    for line in tail(&path.join("log/rank-00000.jsonl")) {
        let Some(message) = line.get("message").and_then(Value::as_str) else { continue };
        let error = line.get("error").and_then(Value::as_str);
        end = match message {
            "started" | "resumed" => None,
            "ended" if line.get("stopped") == Some(&Value::Bool(true)) => Some(RunState::Stopped),
            "ended" => Some(RunState::Done),
            "failed" => Some(RunState::Failed),
            _ => end,
        };
        glance.failure = if end == Some(RunState::Failed) { error.map(brief) } else { None };
        let step = line.get("step").map(|step| format!(", step {step}")).unwrap_or_default();
        let why = error.map(|error| format!(": {error}")).unwrap_or_default();
        glance.event = brief(&format!("{message}{step}{why}"));
        glance.time = number(&line, "time").or(glance.time);
    }
    let whole = glance.steps.is_some_and(|steps| glance.step.is_some_and(|step| step >= steps));
    glance.state = match (end, marks.holder) {
        (Some(end), _) => end,
        (None, Holder::Alive) => RunState::Running,
        (None, Holder::Elsewhere) if marks.fresh => RunState::Running,
        (None, _) if whole => RunState::Done,
        (None, _) => RunState::Gone,
    };
    (glance.ranks, glance.hosts) = ranks(path);
    glance
}

/// How many ranks told where they are, and on how many machines.
fn ranks(run: &Path) -> (usize, usize) {
    if !run.join(RANKS).is_dir() {
        return (0, 0);
    }
    let told = RankNow::read_all(run);
    let hosts: BTreeSet<&str> = told.iter().map(|rank| rank.host.as_str()).collect();
    (told.len(), hosts.len())
}

fn brief(text: &str) -> String {
    match text.char_indices().nth(WORDS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

/// The objects at the end of a file of JSON lines.
fn tail(path: &Path) -> Vec<Map<String, Value>> {
    let read = || -> std::io::Result<(bool, Vec<u8>)> {
        let mut file = File::open(path)?;
        let begin = file.metadata()?.len().saturating_sub(TAIL);
        file.seek(SeekFrom::Start(begin))?;
        let mut bytes = Vec::new();
        file.take(2 * TAIL).read_to_end(&mut bytes)?;
        Ok((begin == 0, bytes))
    };
    let Ok((whole, bytes)) = read() else { return Vec::new() };
    // The first line may have begun before; the last may not have ended.
    let lines = bytes.split(|&byte| byte == b'\n').skip(usize::from(!whole));
    lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_telemetry::{Level, MetricsWriter, RankLog, RankSlate, Record, Session};
    use serde_json::json;

    fn write(run: &Path, steps: u64, says: &[(&str, &[(&str, Value)])]) {
        let mut writer = MetricsWriter::open(&run.join(METRICS), &Session::default()).unwrap();
        for step in 1..=steps {
            let record = Record::new(step).with("loss", 0.5 * step as f64).with("tokens_per_second", 1e4);
            writer.write(&record).unwrap();
        }
        std::fs::write(run.join("config.toml"), "[train]\nsteps = 900\n").unwrap();
        let log = RankLog::open(run, 0, Level::Info).unwrap();
        says.iter().for_each(|(message, values)| log.log(Level::Info, message, values).unwrap());
    }

    #[test]
    fn every_run_says_what_became_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        write(&at("a"), 900, &[("started", &[]), ("ended", &[("stopped", json!(false))])]);
        write(&at("b"), 30, &[("started", &[]), ("failed", &[("error", json!("rank 3: no room"))])]);
        write(&at("c"), 30, &[("failed", &[("error", json!("odd"))]), ("started", &[("step", json!(7))])]);
        write(&at("d"), 30, &[("ended", &[("stopped", json!(true))])]);
        let here = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        std::fs::write(at("c/LOCK"), format!("process {} on {here}", std::process::id())).unwrap();
        write(&at("e"), 30, &[]);
        write(&at("f"), 30, &[]);
        std::fs::write(at("f/LOCK"), "process 7 on another").unwrap();
        for rank in 0..3 {
            RankSlate::create(&at("c"), rank, 3).unwrap().tell(RankNow { rank, ..RankNow::default() });
        }
        let board = Board::new(&[folder.path().to_path_buf()]);
        let glances = board.glances();
        let states: Vec<RunState> = glances.iter().map(|run| run.state).collect();
        use RunState::{Done, Failed, Gone, Running, Stopped};
        assert_eq!(states, [Done, Failed, Running, Stopped, Gone, Running]);
        let (b, c) = (&glances[1], &glances[2]);
        assert_eq!((b.failure.as_deref(), b.step, b.steps), (Some("rank 3: no room"), Some(30), Some(900)));
        assert_eq!(b.event, "failed: rank 3: no room");
        assert_eq!((c.failure.as_ref(), c.event.as_str(), c.ranks, c.hosts), (None, "started, step 7", 3, 1));
        assert_eq!((glances[0].step, glances[0].speed, glances[0].loss), (Some(900), Some(1e4), Some(450.0)));
    }

    #[test]
    fn only_what_changed_is_told_and_what_is_gone_is_missed() {
        let folder = tempfile::tempdir().unwrap();
        (0..40).for_each(|run| write(&folder.path().join(format!("r{run:02}")), 2, &[]));
        let board = Board::new(&[folder.path().to_path_buf()]);
        let first = board.changes(0);
        assert_eq!((first.runs.len(), first.count, first.all), (40, 40, true));
        let same = board.changes(first.version);
        assert_eq!((same.runs.len(), same.all, same.version), (0, false, first.version));
        let log = RankLog::open(&folder.path().join("r07"), 0, Level::Info).unwrap();
        log.log(Level::Info, "saved", &[("step", json!(2))]).unwrap();
        let next = board.changes(first.version);
        assert_eq!((next.runs.len(), next.runs[0].event.as_str()), (1, "saved, step 2"));
        std::fs::remove_dir_all(folder.path().join("r08")).unwrap();
        board.forget_found();
        board.changes(next.version);
        let late = board.changes(first.version);
        assert_eq!((late.runs.len(), late.all, late.count), (39, true, 39), "told also to who asks later");
    }
}
