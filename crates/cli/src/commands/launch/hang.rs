//! Ranks that stand still: who keeps whom waiting in which call, and what the one that did not come is doing.

use planaria::train::beat::{Beat, Waiting};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time between two looks at the ranks.
const LOOK: Duration = Duration::from_millis(100);

/// Watches whether any rank gets on.
#[derive(Debug)]
pub(super) struct Watch {
    limit: Option<Duration>,
    looked: Instant,
    moved: Instant,
    last: Vec<Beat>,
    /// Whether ranks that have told nothing yet count.
    tells: bool,
}

impl Watch {
    /// A job that stands still for longer than `limit` hangs. One that tells nothing may be of any kind, unless it `tells`.
    pub(super) fn new(limit: Option<Duration>, tells: bool) -> Watch {
        let now = Instant::now();
        Watch { limit, looked: now, moved: now, last: Vec::new(), tells }
    }

    /// What the ranks last told.
    pub(super) fn beats(&self) -> &[Beat] {
        &self.last
    }

    /// Looks at what ranks tell; a report once nothing has moved for too long.
    /// `about` says what a rank is doing.
    pub(super) fn look(&mut self, folder: &Path, about: &mut dyn FnMut(&Beat) -> String) -> Option<Hang> {
        if self.looked.elapsed() < LOOK {
            return None;
        }
        self.looked = Instant::now();
        let beats = Beat::read_all(folder);
        // A file that was read while it was written is left out once.
        if beats.len() >= self.last.len() && beats != self.last {
            self.last = beats;
            self.moved = Instant::now();
        }
        let stood = self.moved.elapsed();
        let counts = self.tells || !self.last.is_empty();
        (counts && self.limit.is_some_and(|limit| stood > limit)).then(|| Hang::of(&self.last, stood, about))
    }

    /// The last look, at the end of a job.
    pub(super) fn end(&mut self, folder: &Path) {
        let beats = Beat::read_all(folder);
        if beats.len() >= self.last.len() {
            self.last = beats;
        }
    }
}

/// Why a job stands still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hang {
    pub(super) text: String,
    /// Ranks that others wait for and that wait for nobody.
    pub(super) stuck: Vec<usize>,
}

impl Hang {
    fn of(beats: &[Beat], stood: Duration, about: &mut dyn FnMut(&Beat) -> String) -> Hang {
        let mut came: BTreeMap<&Waiting, BTreeSet<usize>> = BTreeMap::new();
        for beat in beats {
            for waiting in &beat.waiting {
                came.entry(waiting).or_default().insert(beat.rank);
            }
        }
        let calm: BTreeSet<usize> = beats.iter().filter(|b| b.waiting.is_empty()).map(|b| b.rank).collect();
        let mut stuck = BTreeSet::new();
        let mut text = format!("no rank has made progress for {:.1} s", stood.as_secs_f64());
        if beats.is_empty() {
            text.push_str("; none has reported yet");
        }
        for (waiting, came) in &came {
            let missing: Vec<usize> =
                waiting.ranks.iter().copied().filter(|rank| !came.contains(rank)).collect();
            let told: BTreeSet<usize> = beats.iter().map(|beat| beat.rank).collect();
            stuck.extend(missing.iter().filter(|rank| calm.contains(rank) || !told.contains(rank)));
            let came: Vec<usize> = came.iter().copied().collect();
            let Waiting { call, number, lane, .. } = waiting;
            let kind = if lane.starts_with("world/") { " of a save" } else { "" };
            let numbered = if call == "recv" || call == "send" { "with tag" } else { "number" };
            let _ = write!(text, "\n  {call} {numbered} {number}{kind}: {} came, ", ranks(&came));
            let _ = match missing.is_empty() {
                true => write!(text, "none is missing"),
                false => write!(text, "{} did not", ranks(&missing)),
            };
        }
        if came.is_empty() {
            stuck.extend(calm);
        }
        for beat in beats.iter().filter(|beat| stuck.contains(&beat.rank)) {
            let Beat { rank, process, step, .. } = beat;
            let _ = write!(
                text,
                "\n  rank {rank} (process {process}) is in step {step}, in no call to other ranks"
            );
            text.push_str(&about(beat));
        }
        Hang { text, stuck: stuck.into_iter().collect() }
    }
}

fn ranks(list: &[usize]) -> String {
    let shown: Vec<String> = list.iter().take(16).map(ToString::to_string).collect();
    let more = if list.len() > 16 { format!(" and {} more", list.len() - 16) } else { String::new() };
    format!("rank{} {}{more}", if list.len() == 1 { "" } else { "s" }, shown.join(", "))
}

/// What a process of this machine is doing: where its threads are, and in which functions.
pub(super) fn inside(process: u32) -> String {
    stack(process) + &frames(process)
}

/// Where the threads of a process are, as far as the system tells: their state, the call they sleep in, and their kernel stacks where
/// one may read them.
fn stack(process: u32) -> String {
    let mut text = String::new();
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let mut tasks: Vec<_> = tasks.map(|task| task.path()).collect();
    tasks.sort();
    for task in tasks.iter().take(24) {
        let read = |name: &str| std::fs::read_to_string(task.join(name)).unwrap_or_default();
        let status = read("status");
        let state =
            status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or("").trim().to_string();
        let place = Some(read("wchan"))
            .filter(|place| !place.is_empty() && place != "0")
            .unwrap_or("user code".into());
        let id = task.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let _ = write!(text, "\n    thread {id} {}: {state}, in {place}", read("comm").trim());
        for line in read("stack").lines().take(6) {
            let _ = write!(text, "\n      {}", line.rsplit(' ').next().unwrap_or(line));
        }
    }
    text
}

/// Programs that print the stacks of a process's threads, with what they are told before its number.
const TRACERS: [(&str, &[&str]); 2] =
    [("eu-stack", &["-p"]), ("gdb", &["--batch", "-nx", "-ex", "thread apply all backtrace 24", "-p"])];

/// How long one may take: ranks stand still meanwhile.
const TRACE: Duration = Duration::from_secs(10);

/// Lines of it that are told.
const FRAMES: usize = 60;

/// The functions that a process is in, where a program that can tell is installed and may.
fn frames(process: u32) -> String {
    let found = TRACERS.iter().find_map(|(program, args)| trace(program, args, process));
    found
        .unwrap_or_else(|| "\n    its functions: install elfutils (eu-stack) or gdb to have them here".into())
}

fn trace(program: &str, args: &[&str], process: u32) -> Option<String> {
    let mut command = Command::new(program);
    command.args(args).arg(process.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut out = child.stdout.take()?;
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = out.read_to_end(&mut bytes);
        bytes
    });
    let until = Instant::now() + TRACE;
    while child.try_wait().ok()?.is_none() {
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let bytes = reader.join().ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let is_frame =
        |line: &&str| line.starts_with('#') || line.starts_with("TID") || line.starts_with("Thread");
    let lines: Vec<&str> = text.lines().map(str::trim).filter(is_frame).take(FRAMES).collect();
    let told = lines.iter().map(|line| format!("\n    {line}")).collect::<String>();
    lines.iter().any(|line| line.starts_with('#')).then_some(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(call: &str, number: u64, ranks: &[usize]) -> Waiting {
        Waiting { call: call.into(), number, ranks: ranks.to_vec(), lane: "world".into() }
    }

    #[test]
    fn the_report_names_the_call_who_came_and_who_did_not() {
        let all = [0, 1, 2];
        let beat =
            |rank, waiting| Beat { rank, process: std::process::id(), step: 7, waiting, ..Beat::default() };
        let beats = [
            beat(0, vec![waiting("all_reduce", 41, &all)]),
            beat(1, vec![]),
            beat(2, vec![waiting("all_reduce", 41, &all)]),
        ];
        let hang = Hang::of(&beats, Duration::from_secs(5), &mut |beat| inside(beat.process));
        assert_eq!(hang.stuck, [1]);
        assert!(hang.text.contains("all_reduce number 41: ranks 0, 2 came, rank 1 did not"), "{}", hang.text);
        assert!(hang.text.contains("rank 1 (process") && hang.text.contains("in step 7"), "{}", hang.text);
        assert!(hang.text.contains("\n    thread "), "{}", hang.text);
        assert!(
            hang.text.contains("\n    its functions: install") || hang.text.contains("\n    #0 "),
            "{}",
            hang.text
        );
    }

    #[test]
    fn functions_are_those_that_a_tracer_prints() {
        // The number of the process comes last: `$0` of the script.
        let frames = "echo 'TID 7:'; echo \"#0  0x01 of $0\"; echo other; echo '#1  0x02 main'";
        assert_eq!(
            trace("sh", &["-c", frames], 5).unwrap(),
            "\n    TID 7:\n    #0  0x01 of 5\n    #1  0x02 main"
        );
        assert_eq!(trace("sh", &["-c", "echo nothing"], 5), None);
        assert_eq!(trace("no-such-tracer", &[], 5), None);
    }

    #[test]
    fn a_rank_that_waits_for_another_is_not_the_stuck_one() {
        let beat = |rank, waiting| Beat { rank, step: 1, waiting, ..Beat::default() };
        let beats = [
            beat(0, vec![waiting("all_reduce", 3, &[0, 1])]),
            beat(1, vec![waiting("recv", 5, &[1, 2])]),
            beat(2, vec![]),
        ];
        assert_eq!(Hang::of(&beats, Duration::ZERO, &mut |_| String::new()).stuck, [2]);
        // A rank that never told anything is missing too.
        let gone = Hang::of(&[beat(0, vec![waiting("barrier", 0, &[0, 1])])], Duration::ZERO, &mut |_| {
            String::new()
        });
        assert_eq!(gone.stuck, [1]);
        assert!(Hang::of(&[], Duration::ZERO, &mut |_| String::new()).text.contains("none has reported yet"));
    }
}
