//! Runs in folders: where they are, what they say of themselves, and their curves as they grow.

use crate::cluster::Glances;
use crate::error::Result;
use planaria_telemetry::{Follower, History, METRICS, Mark};
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How deep below a given folder runs are looked for.
const DEPTH: usize = 3;

/// How long what was found in folders counts.
const FRESH: Duration = Duration::from_secs(2);

/// Largest configuration that is shown.
const CONFIG_LIMIT: u64 = 1 << 20;

/// Runs below some folders, read when they are asked for and followed from there.
#[derive(Debug)]
pub struct Board {
    roots: Vec<PathBuf>,
    followed: Mutex<BTreeMap<PathBuf, Follower>>,
    found: Mutex<Option<(Instant, Arc<[Found]>)>>,
    pub(crate) glances: Mutex<Glances>,
}

/// One run and where it lies.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) id: String,
    pub(crate) path: PathBuf,
}

/// What a list of runs shows of one.
#[derive(Clone, Debug, Serialize)]
pub struct RunSummary {
    /// What the run is asked for by.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Whether a process of this machine holds it.
    pub running: bool,
    /// The last step with a record.
    pub step: Option<u64>,
    /// How many steps it is to make, as its configuration says.
    pub steps: Option<u64>,
    /// When the last record was made, in seconds since 1970.
    pub time: Option<f64>,
    /// The last value of every metric.
    pub last: BTreeMap<String, Option<f64>>,
    /// Checkpoints and restarts.
    pub marks: Vec<Mark>,
    /// What its last process said about itself, such as its mesh.
    pub about: BTreeMap<String, String>,
    /// Lines that could not be read.
    pub damaged: u64,
}

/// A saved state.
#[derive(Clone, Debug, Serialize)]
pub struct Checkpoint {
    /// Its folder's name.
    pub name: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// Whether it was committed; one that was not is being written, or was given up.
    pub committed: bool,
}

impl Board {
    /// The runs in these folders: each is a run, or holds some.
    pub fn new(roots: &[PathBuf]) -> Board {
        Board {
            roots: roots.to_vec(),
            followed: Mutex::default(),
            found: Mutex::default(),
            glances: Mutex::default(),
        }
    }

    /// All runs, by their ids.
    pub(crate) fn found(&self) -> Arc<[Found]> {
        let mut kept = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, found)) = &*kept
            && at.elapsed() < FRESH
        {
            return found.clone();
        }
        let mut found: Vec<Found> = Vec::new();
        let (mut ids, mut known) = (HashSet::new(), HashSet::new());
        for root in &self.roots {
            let mut paths = Vec::new();
            look(root, DEPTH, &mut paths);
            for path in paths {
                let inside =
                    path.strip_prefix(root).map(|path| path.display().to_string()).unwrap_or_default();
                let id = if inside.is_empty() { name_of(&path) } else { inside };
                if !known.insert(path.clone()) {
                    continue;
                }
                // Runs of one name in two folders are told apart by these.
                let taken = ids.contains(&id);
                let id = if taken { path.display().to_string() } else { id };
                ids.insert(id.clone());
                found.push(Found { id, path });
            }
        }
        found.sort_by(|a, b| a.id.cmp(&b.id));
        let found: Arc<[Found]> = found.into();
        *kept = Some((Instant::now(), found.clone()));
        found
    }

    /// Looks for runs anew the next time.
    #[cfg(test)]
    pub(crate) fn forget_found(&self) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The folder of a run.
    pub(crate) fn path(&self, id: &str) -> Option<PathBuf> {
        let found = self.found();
        let at = found.binary_search_by(|run| run.id.as_str().cmp(id)).ok()?;
        Some(found[at].path.clone())
    }

    /// Looks at a run's history as it is now.
    pub(crate) fn with_history<T>(&self, path: &Path, look: impl FnOnce(&History) -> T) -> Result<T> {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if !followed.contains_key(path) {
            followed.insert(path.to_path_buf(), Follower::open(path)?);
        }
        let follower = match followed.get_mut(path) {
            Some(follower) => follower,
            None => return Ok(look(&History::default())),
        };
        follower.poll()?;
        Ok(look(follower.history()))
    }

    /// What a list shows of every run that can be read.
    pub fn summaries(&self) -> Vec<RunSummary> {
        self.found().iter().filter_map(|run| self.summary(run).ok()).collect()
    }

    /// The same of some runs.
    pub(crate) fn summaries_of(&self, ids: &[&str]) -> Vec<RunSummary> {
        let found = self.found();
        let asked = found.iter().filter(|run| ids.contains(&run.id.as_str()));
        asked.filter_map(|run| self.summary(run).ok()).collect()
    }

    fn summary(&self, run: &Found) -> Result<RunSummary> {
        let steps = steps(&run.path);
        let running = is_running(&run.path);
        self.with_history(&run.path, |history| {
            let metrics = history.metrics();
            let last = metrics.into_iter().filter_map(|name| {
                let value = history.series(&name).ok()?.last()?.1;
                Some((name, value.is_finite().then_some(value)))
            });
            RunSummary {
                id: run.id.clone(),
                name: history.name.clone(),
                running,
                step: history.last_step(),
                steps,
                time: history.times().last().map(|p| p.1).filter(|time| time.is_finite()),
                last: last.collect(),
                marks: history.marks.clone(),
                about: history.about.clone(),
                damaged: history.damaged,
            }
        })
    }
}

/// Folders with metrics at most `depth` below one.
fn look(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    if folder.join(METRICS).is_file() {
        found.push(folder.to_path_buf());
        return;
    }
    if depth == 0 {
        return;
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    // Links are not followed: what is shown lies in the folders that were given.
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut folders: Vec<PathBuf> = folders.map(|entry| entry.path()).collect();
    folders.sort();
    folders.iter().for_each(|folder| look(folder, depth - 1, found));
}

fn name_of(path: &Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    whole.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// The configuration of a run as it was resolved.
pub(crate) fn config(run: &Path) -> Option<String> {
    let path = run.join("config.toml");
    let small = std::fs::metadata(&path).is_ok_and(|about| about.is_file() && about.len() <= CONFIG_LIMIT);
    small.then(|| std::fs::read_to_string(path).ok()).flatten()
}

pub(crate) fn steps(run: &Path) -> Option<u64> {
    let table: toml::Table = config(run)?.parse().ok()?;
    u64::try_from(table.get("train")?.get("steps")?.as_integer()?).ok()
}

/// Whether the process that the run's lock names is alive. The lock itself is left alone: a run that starts wants it.
fn is_running(run: &Path) -> bool {
    holder(run) == Holder::Alive
}

/// Who last took a run, as its lock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Nobody that is known.
    None,
    /// A process of this machine that is there.
    Alive,
    /// One that is not.
    Gone,
    /// A process of another machine.
    Elsewhere,
}

pub(crate) fn holder(run: &Path) -> Holder {
    let Ok(text) = std::fs::read_to_string(run.join("LOCK")) else { return Holder::None };
    let mut words = text.split_whitespace();
    let (Some("process"), Some(number)) = (words.next(), words.next()) else { return Holder::None };
    let (Some("on"), Some(host)) = (words.next(), words.next()) else { return Holder::None };
    let Ok(number) = number.parse::<u32>() else { return Holder::None };
    let here = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match (host == here.trim(), Path::new("/proc").join(number.to_string()).exists()) {
        (false, _) => Holder::Elsewhere,
        (true, true) => Holder::Alive,
        (true, false) => Holder::Gone,
    }
}

/// The checkpoints of a run, oldest first.
pub(crate) fn checkpoints(run: &Path) -> Vec<Checkpoint> {
    let entries = std::fs::read_dir(run.join("ckpt")).into_iter().flatten().flatten();
    let of = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        if !name.starts_with("step-") || !entry.file_type().ok()?.is_dir() {
            return None;
        }
        let files = std::fs::read_dir(entry.path()).ok()?.flatten();
        let bytes = files.filter_map(|file| file.metadata().ok()).map(|about| about.len()).sum();
        Some(Checkpoint { committed: entry.path().join("COMMIT").is_file(), name, bytes })
    };
    let mut found: Vec<Checkpoint> = entries.filter_map(of).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_telemetry::{MetricsWriter, Record, Session};
    use std::fs;

    fn run(folder: &Path, steps: u64) {
        fs::create_dir_all(folder).unwrap();
        let mut writer = MetricsWriter::open(&folder.join(METRICS), &Session::default()).unwrap();
        for step in 1..=steps {
            writer.write(&Record::new(step).with("loss", step as f64).with("lr", f64::NAN)).unwrap();
        }
    }

    #[test]
    fn runs_are_found_where_they_are_and_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        run(&at("a/one"), 3);
        run(&at("a/two"), 1);
        run(&at("b/one"), 2);
        fs::write(at("a/one/config.toml"), "[train]\nsteps = 70\n").unwrap();
        fs::create_dir_all(at("a/one/ckpt/step-00000002")).unwrap();
        fs::write(at("a/one/ckpt/step-00000002/COMMIT"), "12345").unwrap();
        fs::create_dir_all(at("a/one/ckpt/step-00000003")).unwrap();
        let board = Board::new(&[at("a"), at("b/one"), at("a/one"), at("nowhere")]);
        let ids: Vec<String> = board.found().iter().map(|run| run.id.clone()).collect();
        assert_eq!(ids, [at("b/one").display().to_string(), "one".into(), "two".into()]);
        let one = board.summaries().into_iter().find(|run| run.id == "one").unwrap();
        assert_eq!((one.step, one.steps, one.running), (Some(3), Some(70), false));
        assert_eq!((one.last["loss"], one.last["lr"]), (Some(3.0), None), "JSON has no NaN");
        let kept: Vec<_> = checkpoints(&at("a/one")).into_iter().map(|c| (c.bytes, c.committed)).collect();
        assert_eq!(kept, [(5, true), (0, false)]);
        let mut file = fs::File::options().append(true).open(at("a/one").join(METRICS)).unwrap();
        std::io::Write::write_all(&mut file, b"{\"step\":4,\"loss\":0.5}\n").unwrap();
        let one = board.summaries().into_iter().find(|run| run.id == "one").unwrap();
        assert_eq!((one.step, one.last["loss"]), (Some(4), Some(0.5)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_run_is_running_while_its_process_lives() {
        let folder = tempfile::tempdir().unwrap();
        let here = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let says = |text: String| {
            fs::write(folder.path().join("LOCK"), text).unwrap();
            is_running(folder.path())
        };
        assert!(!is_running(folder.path()));
        assert!(says(format!("process {} on {here}", std::process::id())));
        assert!(!says(format!("process {} on elsewhere", std::process::id())));
        assert!(!says(format!("process ../1 on {here}")));
        assert!(!says("anything".into()));
    }
}
