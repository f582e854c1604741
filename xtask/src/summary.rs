//! Steps of a run with their outcome and time, the counts in their output, and the closing table.

use crate::process;
use std::fmt::Write as _;
use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    /// It could not run here, for this reason.
    Skipped(String),
}

/// Tests that ran inside a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub passed: u64,
    pub failed: u64,
}

/// One finished step.
#[derive(Debug)]
pub(crate) struct Step {
    pub name: String,
    pub outcome: Outcome,
    pub counts: Counts,
    pub time: Duration,
    /// Seconds of processors that its commands took, and those of steps beside it, which a busy machine does not change;
    /// absent where nothing says so.
    pub worked: Option<f64>,
    /// What its unsuccessful commands printed last, if it failed.
    pub told: String,
}

/// A step that is yet to run: its name, and what it does.
pub(crate) type Planned<'a> = (&'static str, Box<dyn FnOnce() -> (Outcome, Counts) + Send + 'a>);

/// The steps of a run, in order.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    steps: Vec<Step>,
    /// When the last additional step may start.
    last_start: Option<Instant>,
}

impl Summary {
    /// No steps yet; additional ones start for no longer than `within` from now.
    pub(crate) fn within(within: Duration) -> Summary {
        Summary { steps: Vec::new(), last_start: Instant::now().checked_add(within) }
    }

    /// Runs an additional `step`, where there is time for it.
    pub(crate) fn more(&mut self, name: impl Into<String>, step: impl FnOnce() -> (Outcome, Counts)) {
        let is_late = self.last_start.is_some_and(|last| Instant::now() >= last);
        let late = || (Outcome::Skipped("no time left; --within 90 gives it more".into()), Counts::default());
        match is_late {
            true => self.step(name, late),
            false => self.step(name, step),
        }
    }

    /// Runs `step` and keeps how it ended.
    pub(crate) fn step(&mut self, name: impl Into<String>, step: impl FnOnce() -> (Outcome, Counts)) {
        let before = children_seconds();
        let done = carry_out(name.into(), step);
        self.steps.push(Step { worked: since(before), ..done });
    }

    /// Runs two lists of steps beside each other, each in order, because the first leaves processors idle; the second takes no more
    /// than that. The first of all steps is told to have taken the processor time of all.
    pub(crate) fn beside(&mut self, first: Vec<Planned<'_>>, second: Vec<Planned<'_>>) {
        let before = children_seconds();
        let run = |list: Vec<Planned<'_>>| -> Vec<Step> {
            list.into_iter().map(|(name, step)| carry_out(name.into(), step)).collect()
        };
        let (mut done, others) = thread::scope(|scope| {
            let others = scope.spawn(|| {
                process::stand_back();
                run(second)
            });
            (run(first), others.join().unwrap_or_else(|panic| resume_unwind(panic)))
        });
        done.extend(others);
        done.iter_mut().take(1).for_each(|step| step.worked = since(before));
        self.steps.append(&mut done);
    }

    /// Tests, plus every step that holds none; a step that fails with no failed test counts as one failure.
    pub(crate) fn total(&self) -> Counts {
        let mut total = Counts::default();
        for step in &self.steps {
            let silent = step.counts == Counts::default();
            total.passed += step.counts.passed + u64::from(silent && step.outcome == Outcome::Passed);
            total.failed +=
                step.counts.failed + u64::from(step.counts.failed == 0 && step.outcome == Outcome::Failed);
        }
        total
    }

    /// What failed steps printed last.
    pub(crate) fn failures(&self) -> String {
        let failed = self.steps.iter().filter(|step| step.outcome == Outcome::Failed);
        failed.map(|step| format!("\n== failed: {}\n{}", step.name, step.told)).collect()
    }

    /// The closing table; its last line is `N passed, M failed`.
    pub(crate) fn table(&self) -> String {
        let width = self.steps.iter().map(|step| step.name.chars().count()).max().unwrap_or(0);
        let mut table = String::new();
        for Step { name, outcome, counts, time, worked, .. } in &self.steps {
            let state = match outcome {
                Outcome::Passed => "ok",
                Outcome::Failed => "FAILED",
                Outcome::Skipped(_) => "skipped",
            };
            let note = match outcome {
                Outcome::Skipped(reason) => reason.clone(),
                _ if *counts == Counts::default() => String::new(),
                _ => format!("{} passed, {} failed", counts.passed, counts.failed),
            };
            let worked = worked.map_or(String::new(), |worked| format!("{worked:6.0} cpu s"));
            let line = format!("{name:width$}  {state:7}  {:6.1} s {worked:12}  {note}", time.as_secs_f64());
            let _ = writeln!(table, "{}", line.trim_end());
        }
        let total = self.total();
        let _ = writeln!(table, "{} passed, {} failed", total.passed, total.failed);
        table
    }
}

/// Runs a step.
fn carry_out(name: String, step: impl FnOnce() -> (Outcome, Counts)) -> Step {
    eprintln!("\n== {name}");
    let start = Instant::now();
    process::take_unsuccessful();
    let (outcome, counts) = step();
    let told = if outcome == Outcome::Failed { process::take_unsuccessful() } else { String::new() };
    if let Outcome::Skipped(reason) = &outcome {
        eprintln!("skipped: {reason}");
    }
    Step { name, outcome, counts, time: start.elapsed(), worked: None, told }
}

/// What commands that have ended have worked since `before`.
fn since(before: Option<f64>) -> Option<f64> {
    children_seconds().zip(before).map(|(after, before)| after - before)
}

/// Processor time of all commands that have ended, with theirs.
fn children_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name, which may hold anything: fields 3 and on; times of children are 16 and 17, in hundredths.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    Some((ticks(16)? + ticks(17)?) / 100.0)
}

/// Adds up the counts in the output of cargo test, cargo nextest and the golden runner.
pub(crate) fn counts(output: &str) -> Counts {
    let mut total = Counts::default();
    for line in output.lines().map(str::trim) {
        let numbers = if let Some(rest) = line.strip_prefix("test result:") {
            rest
        } else if let Some((head, rest)) = line.split_once(" run: ")
            && head.starts_with("Summary")
        {
            rest
        } else if is_golden_line(line) {
            line
        } else {
            continue;
        };
        total.passed += number_before(numbers, "passed");
        total.failed += ["failed", "exec failed", "timed out"]
            .iter()
            .map(|word| number_before(numbers, word))
            .sum::<u64>();
    }
    total
}

fn is_golden_line(line: &str) -> bool {
    let mut words = line.split(' ');
    words.next().is_some_and(|n| n.parse::<u64>().is_ok())
        && words.next() == Some("passed,")
        && words.next().is_some_and(|n| n.parse::<u64>().is_ok())
        && words.next() == Some("failed")
        && words.next().is_none()
}

/// The number that stands right before `label` in a list separated by `,`, `;` or `.`.
fn number_before(list: &str, label: &str) -> u64 {
    let item = |item: &str| {
        item.trim().split_once(' ').filter(|(_, rest)| *rest == label).and_then(|(n, _)| n.parse().ok())
    };
    list.split([',', ';', '.', '(']).find_map(item).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_every_runner() {
        let cases = [
            (
                "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.01s",
                12,
                0,
            ),
            ("test result: FAILED. 1 passed; 2 failed; 0 ignored", 1, 2),
            ("     Summary [   0.023s] 5 tests run: 3 passed, 1 failed, 1 timed out, 0 skipped", 3, 2),
            ("     Summary [   1.2s] 1 test run: 1 passed (1 slow), 0 skipped", 1, 0),
            ("4885 passed, 0 failed", 4885, 0),
            ("7 passed, 0 failed in case 3", 0, 0),
            ("running 3 tests", 0, 0),
        ];
        for (line, passed, failed) in cases {
            assert_eq!(counts(line), Counts { passed, failed }, "{line}");
        }
        assert_eq!(counts("1 passed, 0 failed\n2 passed, 3 failed\n"), Counts { passed: 3, failed: 3 });
    }

    #[test]
    fn additional_steps_are_skipped_and_said_to_be_once_time_is_up() {
        let passed = || (Outcome::Passed, Counts::default());
        let mut late = Summary::within(Duration::ZERO);
        late.step("tests", passed);
        late.more("more", || unreachable!("there is no time for it"));
        assert!(late.table().contains("more   skipped"), "{}", late.table());
        assert!(late.table().ends_with("1 passed, 0 failed\n"));
        let mut whole = Summary::within(Duration::MAX);
        whole.more("more", passed);
        assert!(whole.table().ends_with("1 passed, 0 failed\n"));
    }

    #[test]
    fn the_table_ends_with_the_total() {
        let mut summary = Summary::default();
        summary.step("format", || (Outcome::Passed, Counts::default()));
        summary.step("lints", || (Outcome::Failed, Counts::default()));
        summary.step("tests", || (Outcome::Failed, Counts { passed: 10, failed: 2 }));
        summary.step("docs", || (Outcome::Failed, Counts { passed: 4, failed: 0 }));
        summary.step("asan", || (Outcome::Skipped("no runtime".into()), Counts::default()));
        assert_eq!(summary.total(), Counts { passed: 15, failed: 4 });
        let table = summary.table();
        assert_eq!(table.lines().last(), Some("15 passed, 4 failed"));
        assert!(table.lines().any(|line| line.starts_with("asan    skipped     0.0 s ")), "{table}");
        assert!(table.contains("  no runtime\n"), "{table}");
    }

    fn speak(text: &str, code: u8) -> (Outcome, Counts) {
        let script = format!("echo {text}; exit {code}");
        match process::run(std::process::Command::new("sh").args(["-c", &script])).success {
            true => (Outcome::Passed, Counts::default()),
            false => (Outcome::Failed, Counts::default()),
        }
    }

    #[test]
    fn steps_beside_each_other_keep_their_order_and_what_they_told() {
        let mut summary = Summary::default();
        let step = |name: &'static str, code| -> Planned<'static> {
            (name, Box::new(move || speak(&format!("{name} spoke"), code)))
        };
        summary.beside(vec![step("a", 0), step("b", 1)], vec![step("c", 1), step("d", 0)]);
        assert_eq!(summary.steps.iter().map(|step| &*step.name).collect::<String>(), "abcd");
        let [a, b, c, d] = &summary.steps[..] else { panic!("{:?}", summary.steps) };
        assert_eq!([&a.told, &d.told], ["", ""]);
        assert!(b.told.ends_with("b spoke\n") && c.told.ends_with("c spoke\n"), "{b:?} {c:?}");
        assert_eq!((a.worked.is_some(), b.worked), (cfg!(target_os = "linux"), None));
    }

    #[test]
    fn a_failed_step_is_told_again() {
        let mut summary = Summary::default();
        summary.step("one", || speak("fine", 0));
        assert_eq!(summary.steps[0].worked.is_some(), cfg!(target_os = "linux"));
        summary.step("two", || speak("broken", 3));
        let told = summary.failures();
        assert!(told.contains("== failed: two\n") && told.contains("broken\n"), "{told}");
        assert!(!told.contains("fine"), "{told}");
    }
}
