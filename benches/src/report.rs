//! From answers to tables: ratios to the anchor, bars, and the record of a run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use planaria_array::CpuPath;
use serde_json::{Value, json};

use crate::machine::Machine;
use crate::measure::Sample;
use crate::record::head;
use crate::stats::{Ratio, geometric_mean, wall};
use crate::table::{FAMILIES, Family};
use crate::worker::Answer;

/// The family whose peak memory is compared too.
const MEMORY_OF: &str = "train";

/// Name of our own worker.
pub const OURS: &str = "ours";

/// All samples of one worker for one case.
#[derive(Debug, Default, Clone)]
pub struct Series {
    /// The samples of each round.
    pub rounds: Vec<Vec<Sample>>,
    /// Sum and scale of the result.
    pub check: Option<[f64; 2]>,
    /// Peaks of memory in bytes, the largest of all rounds: above what there was before, and as a whole.
    pub peak: Option<[u64; 2]>,
    /// Why there are no samples.
    pub unsupported: Option<String>,
}

/// Answers by case, then by worker, for one number of threads.
#[derive(Debug, Default)]
pub struct Answers(BTreeMap<String, BTreeMap<&'static str, Series>>);

impl Answers {
    /// Adds what `worker` said about `case`.
    pub fn add(&mut self, case: &str, worker: &'static str, answer: Answer) {
        let series = self.0.entry(case.to_owned()).or_default().entry(worker).or_default();
        match answer {
            Answer::Timed { s, check, peak } => {
                series.rounds.push(s);
                series.check = Some(check);
                let larger = |a: [u64; 2], b: [u64; 2]| [a[0].max(b[0]), a[1].max(b[1])];
                series.peak = series.peak.into_iter().chain(peak).reduce(larger);
            }
            Answer::Unsupported { unsupported } => series.unsupported = Some(unsupported),
        }
    }

    /// The median of all samples of a worker.
    fn time(&self, case: &str, worker: &str) -> Option<f64> {
        wall(self.0.get(case)?.get(worker)?.rounds.iter().flatten())
    }

    /// Our time as a share of the anchor's, the faster of all workers but ours, round by round.
    fn ratio(&self, case: &str) -> Option<Ratio> {
        let workers = self.0.get(case)?;
        let of = |series: &Series, round: usize| wall(series.rounds.get(round)?);
        let ratio = |round: usize| {
            let peers = workers.iter().filter(|(name, _)| **name != OURS);
            let anchor = peers.filter_map(|(_, series)| of(series, round)).reduce(f64::min)?;
            Some(of(workers.get(OURS)?, round)? / anchor)
        };
        let rounds = workers.get(OURS)?.rounds.len();
        Ratio::of(&(0..rounds).filter_map(ratio).collect::<Vec<_>>())
    }

    /// Cases whose results differ between workers by more than rounding explains.
    pub fn disagreements(&self) -> Vec<String> {
        let differ = |case: &str, workers: &BTreeMap<&str, Series>| {
            // bf16 results carry 8 bits; everything else is f32.
            let share = if case.contains("bf16") { 2e-3 } else { 1e-5 };
            let checks: Vec<[f64; 2]> = workers.values().filter_map(|series| series.check).collect();
            checks.windows(2).any(|pair| (pair[0][0] - pair[1][0]).abs() > share * pair[0][1].max(pair[1][1]))
        };
        self.0.iter().filter(|(case, workers)| differ(case, workers)).map(|(case, _)| case.clone()).collect()
    }

    /// The tables of all families, in Markdown.
    pub fn tables(&self, workers: &[&'static str]) -> String {
        let mut text = String::new();
        for family in FAMILIES {
            let cases: Vec<_> = family.cases.iter().filter(|case| self.0.contains_key(**case)).collect();
            if !cases.is_empty() {
                let _ = write!(text, "{}\n\n| case |", heading(family));
                let _ = workers.iter().try_for_each(|worker| write!(text, " {worker}, ms |"));
                let _ =
                    writeln!(text, " ratio | spread | |\n|---|{}---|---|---|", "---|".repeat(workers.len()));
                cases.iter().for_each(|case| self.row(&mut text, family, case, workers));
                self.mean_row(&mut text, family, workers);
                if family.name == MEMORY_OF {
                    cases.iter().for_each(|case| self.memory(&mut text, case, workers));
                }
                text.push('\n');
            }
        }
        text
    }

    fn row(&self, text: &mut String, family: &Family, case: &str, workers: &[&'static str]) {
        let _ = write!(text, "| {case} |");
        for worker in workers {
            let cell = self.time(case, worker).map(milliseconds);
            let _ = write!(text, " {} |", cell.unwrap_or_else(|| "–".into()));
        }
        let (ratio, spread) = match self.ratio(case) {
            Some(Ratio { median, spread: (low, high) }) => {
                (format!("{median:.2}"), format!("{low:.2} to {high:.2}"))
            }
            None => ("–".into(), "–".into()),
        };
        let reason =
            self.0.get(case).and_then(|by| by.get(OURS)).and_then(|series| series.unsupported.clone());
        let note = reason.unwrap_or_else(|| verdict(self.ratio(case).map(|r| r.median), family.bar).into());
        let _ = writeln!(text, " {ratio} | {spread} | {note} |");
    }

    fn mean_row(&self, text: &mut String, family: &Family, workers: &[&'static str]) {
        let ratios = family.cases.iter().filter_map(|case| Some(self.ratio(case)?.median));
        if let Some(mean) = geometric_mean(&ratios.collect::<Vec<_>>()) {
            let empty = " |".repeat(workers.len());
            let note = verdict(Some(mean), family.mean_bar);
            let _ = writeln!(text, "| **geometric mean** |{empty} **{mean:.2}** | | {note} |");
        }
    }

    /// Peak memory of one case, worker by worker, and ours over that of plain torch.
    fn memory(&self, text: &mut String, case: &str, workers: &[&'static str]) {
        let peak =
            |worker: &str| self.0.get(case).and_then(|by| by.get(worker)).and_then(|series| series.peak);
        let mib = |bytes: u64| bytes >> 20;
        let _ = write!(text, "\n{case}, peak memory in MiB above the start of the case (of the process):");
        for (worker, [grown, all]) in workers.iter().filter_map(|w| Some((w, peak(w)?))) {
            let _ = write!(text, " {worker} {} ({});", mib(grown), mib(all));
        }
        if let (Some([ours, _]), Some([torch, _])) = (peak(OURS), peak("torch")) {
            let _ = write!(text, " ratio {:.2}", ours as f64 / torch.max(1) as f64);
        }
        text.push('\n');
    }

    fn to_json(&self) -> Value {
        // Tenths of microseconds are finer than the clock's noise, and keep the record small.
        let short = |s: &Sample| {
            json!([(s[0] * 1e7).round() / 10.0, (s[1] * 1e6).round() as u64, (s[2] * 1e6).round() as u64])
        };
        let series = |s: &Series| json!({"us": s.rounds.iter().map(|r| r.iter().map(short).collect::<Vec<_>>()).collect::<Vec<_>>(), "check": s.check, "peak": s.peak});
        let case = |by: &BTreeMap<&'static str, Series>| {
            Value::Object(by.iter().map(|(worker, s)| ((*worker).to_owned(), series(s))).collect())
        };
        Value::Object(self.0.iter().map(|(name, by)| (name.clone(), case(by))).collect())
    }
}

fn heading(family: &Family) -> String {
    let each = family.bar.map(|bar| format!(" (bar: {bar} each")).unwrap_or_else(|| " (no bar".into());
    let mean = family.mean_bar.map(|bar| format!(", {bar} in the mean")).unwrap_or_default();
    format!("### {}{each}{mean})", family.name)
}

fn verdict(ratio: Option<f64>, bar: Option<f64>) -> &'static str {
    match (ratio, bar) {
        // Half a percent is below what a repeated run moves.
        (Some(ratio), Some(bar)) if ratio > bar + 0.005 => "**over the bar**",
        (Some(_), Some(_)) => "ok",
        _ => "",
    }
}

fn milliseconds(seconds: f64) -> String {
    let ms = seconds * 1e3;
    let digits = if ms >= 100.0 {
        0
    } else if ms >= 10.0 {
        1
    } else if ms >= 1.0 {
        2
    } else {
        3
    };
    format!("{ms:.digits$}")
}

/// Writes the record of a whole run under `runs` and answers its folder.
pub fn record(
    runs: &Path,
    machine: &Machine,
    path: CpuPath,
    command: &str,
    parts: &[(usize, Answers, String)],
) -> Result<PathBuf> {
    let held = if path == CpuPath::highest() { String::new() } else { format!("-{path}") };
    let folder = free_folder(runs, &(machine.run_name() + &held));
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let save = |name: &str, text: &str| {
        fs::write(folder.join(name), text)
            .with_context(|| format!("cannot write {name} in {}", folder.display()))
    };
    let mut summary = String::from("# Ratios to torch\n\n");
    summary.push_str(HOW_TO_READ);
    let mut raw = serde_json::Map::new();
    for (threads, answers, tables) in parts {
        let _ = write!(summary, "\n## {threads} thread(s)\n\n{tables}");
        raw.insert(threads.to_string(), answers.to_json());
    }
    save("summary.md", &(summary.trim_end().to_owned() + "\n"))?;
    save("raw.json", &(json!({"machine": machine, "threads": raw}).to_string() + "\n"))?;
    save("README.md", &about(machine, path, command))?;
    Ok(folder)
}

const HOW_TO_READ: &str = "Times are medians of all samples. A ratio is our time over the time of the faster of torch and torch-nofault, by the medians of one round; the
table has the median over rounds, and as spread the best and the worst round. Below 1 we are faster. `_bwd` is forward and backward.
";

fn free_folder(runs: &Path, name: &str) -> PathBuf {
    let numbered = |n: u32| runs.join(if n == 1 { name.to_owned() } else { format!("{name}-{n}") });
    (1..).map(numbered).find(|path| !path.exists()).unwrap_or_else(|| runs.join(name))
}

fn about(machine: &Machine, path: CpuPath, command: &str) -> String {
    let used = [("instructions used", path.to_string())];
    format!("{}\n{HOW_IT_RAN}", head("Kernels against torch", command, machine, &used))
}

const HOW_IT_RAN: &str = "Workers stay alive for the whole run and one works at a time, the others wait for their next line; cases and workers come in random order in each round; every worker makes the same inputs,
bit for bit, and the checksums of their results are compared. `torch-nofault` is torch with `MALLOC_MMAP_MAX_=0` and a high
`MALLOC_TRIM_THRESHOLD_`, so that large results cost it no page faults. [summary.md](summary.md) has the tables, `raw.json` every sample:
wall, CPU and run-queue delay in microseconds, round by round. Where the instructions are held to less than the CPU has, so are torch's.
";

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(ms: f64, check: f64) -> Answer {
        Answer::Timed {
            s: vec![[ms / 1e3, 0.0, 0.0]; 3],
            check: [check, 10.0],
            peak: Some([3 << 20, 9 << 20]),
        }
    }

    fn answers() -> Answers {
        let mut answers = Answers::default();
        for (worker, ms) in [(OURS, 2.0), ("torch", 8.0), ("torch-nofault", 4.0)] {
            answers.add("gather", worker, timed(ms, 1.0));
            answers.add("softmax", worker, timed(10.0 / ms, 1.0));
        }
        answers.add("adamw_10m", OURS, Answer::Unsupported { unsupported: "no such kernel".into() });
        answers
    }

    #[test]
    fn the_anchor_is_the_faster_peer() {
        let tables = answers().tables(&[OURS, "torch", "torch-nofault"]);
        assert!(tables.contains("| gather | 2.00 | 8.00 | 4.00 | 0.50 | 0.50 to 0.50 | ok |"), "{tables}");
        assert!(tables.contains("| softmax | 5.00 | 1.25 | 2.50 | 4.00 | 4.00 to 4.00 | **over the bar** |"));
        assert!(tables.contains("| adamw_10m | – | – | – | – | – | no such kernel |"));
        assert!(tables.contains("| **geometric mean** | | | | **0.50** | | ok |"));
    }

    #[test]
    fn the_ratio_is_that_of_the_middle_round() {
        let mut answers = Answers::default();
        for (ours, torch) in [(2.0, 4.0), (9.0, 3.0), (4.0, 5.0)] {
            answers.add("gather", OURS, timed(ours, 1.0));
            answers.add("gather", "torch", timed(torch, 1.0));
        }
        let tables = answers.tables(&[OURS, "torch"]);
        assert!(tables.contains("| gather | 4.00 | 4.00 | 0.80 | 0.50 to 3.00 | ok |"), "{tables}");
    }

    #[test]
    fn the_training_step_names_its_peak_memory() {
        let mut answers = Answers::default();
        answers.add("train_step", OURS, timed(1.0, 1.0));
        answers.add("train_step", "torch", timed(1.0, 1.0));
        let tables = answers.tables(&[OURS, "torch"]);
        assert!(tables.contains("ours 3 (9); torch 3 (9); ratio 1.00"), "{tables}");
    }

    #[test]
    fn results_that_differ_are_named() {
        let mut answers = answers();
        assert_eq!(answers.disagreements(), Vec::<String>::new());
        answers.add("gather", "torch", timed(8.0, 1.1));
        assert_eq!(answers.disagreements(), ["gather"]);
    }

    #[test]
    fn a_record_has_three_files_and_never_replaces_another() {
        let runs = std::env::temp_dir().join(format!("planaria-record-{}", std::process::id()));
        let machine = Machine::here(None);
        let parts = [(1, answers(), "tables\n".to_owned())];
        let write = |path| record(&runs, &machine, path, "cargo xtask bench", &parts).unwrap();
        let (first, second) = (write(CpuPath::highest()), write(CpuPath::highest()));
        assert_ne!(first, second);
        if CpuPath::highest() != CpuPath::Portable {
            assert!(write(CpuPath::Portable).to_string_lossy().ends_with("-portable"));
        }
        for name in ["README.md", "raw.json", "summary.md"] {
            assert!(fs::read_to_string(second.join(name)).is_ok_and(|text| text.len() > 10), "{name}");
        }
        fs::remove_dir_all(runs).unwrap();
    }
}
