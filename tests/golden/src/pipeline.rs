//! Kind `pipeline`: pipeline schedules of Paddle 3.3.1 and torch 2.15.
//!
//! A job list of the reference must pass our validation and simulate to the recorded time, bubbles and activations; a
//! list that the reference itself could not follow must be refused. For every schedule, with or without its list, ours
//! of the same kind must be valid and no worse: neither longer, nor with more activations on any rank.

use crate::cases::{Outcome, Verdict, each_entry};
use anyhow::{Context, Result, bail, ensure};
use planaria_pipeline::{Action, Costs, Limit, Schedule, ScheduleKind, Simulation, Stages, Step};
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// One entry of a file.
#[derive(Deserialize)]
struct Case {
    schedule: String,
    p: usize,
    m: usize,
    v: Option<usize>,
    jobs: Option<Vec<Vec<String>>>,
    sim: Option<Told>,
}

/// What the reference's list simulates to.
#[derive(Deserialize)]
struct Told {
    makespan: f64,
    bubble: Vec<f64>,
    peak_live: Vec<usize>,
}

pub(crate) fn run(path: &Path) -> Result<Outcome> {
    each_entry(path, |case| check(case).unwrap_or_else(|error| Verdict::Failed(format!("{error:#}"))))
}

fn check(case: &Value) -> Result<Verdict> {
    let case = Case::deserialize(case).context("reading the case")?;
    let (kind, chunks) = kind_of(&case)?;
    if let Some(jobs) = &case.jobs {
        let theirs = parse(&case, kind, jobs)?;
        match (&case.sim, theirs.simulate(&Costs::unit())) {
            (Some(expected), found) => same(expected, &found.context("their list is refused")?)?,
            (None, Ok(_)) => bail!("their list could not be followed, but passes our validation"),
            (None, Err(_)) => {}
        }
    }
    let limit = match &case.sim {
        // Time can be traded for memory here, so the same memory is given.
        Some(told) if kind == ScheduleKind::ZeroBubbleV => Limit::Ranks(told.peak_live.clone()),
        _ => Limit::Usual,
    };
    let ours = kind.build_within(case.p, case.m, chunks, &limit)?;
    ensure!(ours.keeps_order(), "ours does not keep the order of micro-batches");
    let ours = ours.simulate(&Costs::unit()).context("ours is refused")?;
    let Some(told) = &case.sim else { return Ok(Verdict::PassedAlone("has no figures from the reference")) };
    let name = format!("{} p={} m={}", case.schedule, case.p, case.m);
    ensure!(ours.makespan <= told.makespan, "{name}: ours takes {}, theirs {}", ours.makespan, told.makespan);
    let more = ours.live.iter().zip(&told.peak_live).any(|(ours, theirs)| ours > theirs);
    ensure!(!more, "{name}: ours keeps {:?}, theirs {:?}", ours.live, told.peak_live);
    Ok(Verdict::Passed)
}

/// Our kind for one of theirs, and the chunks per rank.
fn kind_of(case: &Case) -> Result<(ScheduleKind, usize)> {
    let (name, named) = case.schedule.split_once(" v=").unwrap_or((&case.schedule, ""));
    let chunks = named.trim().parse().ok().or(case.v);
    let kind = match name.trim().trim_start_matches("torch.").trim_start_matches("Schedule") {
        "FThenB" | "GPipe" => ScheduleKind::ForwardThenBackward,
        "1F1B" => ScheduleKind::OneForwardOneBackward,
        "VPP" | "1F1B-int" | "Interleaved1F1B" | "LoopedBFS" => ScheduleKind::Interleaved,
        "ZBH1" | "ZB1P" | "VPP_split" | "InterleavedZeroBubble" => ScheduleKind::ZeroBubble,
        "ZBV" | "ZBVPP" | "DualPipeV" | "ZBVZeroBubble" => ScheduleKind::ZeroBubbleV,
        other => bail!("unknown schedule '{other}'"),
    };
    let (least, most) = kind.chunks();
    Ok((kind, chunks.unwrap_or(least).clamp(least, most)))
}

/// Their jobs as our actions. Jobs name a chunk and a micro-batch; messages that have no job of their own are put next to
/// the work they belong to.
fn parse(case: &Case, kind: ScheduleKind, jobs: &[Vec<String>]) -> Result<Schedule> {
    let stages = kind.stages(case.p, case.v.unwrap_or(1).clamp(kind.chunks().0, kind.chunks().1))?;
    ensure!(jobs.len() == case.p, "{} lists for {} ranks", jobs.len(), case.p);
    let mut lists = Vec::with_capacity(jobs.len());
    for (rank, jobs) in jobs.iter().enumerate() {
        let actions: Vec<Action> = jobs
            .iter()
            .filter(|job| !job.starts_with("optimizer"))
            .map(|job| action(&stages, rank, job).with_context(|| format!("job '{job}'")))
            .collect::<Result<_>>()?;
        lists.push(with_messages(&stages, &actions));
    }
    Ok(Schedule::new(stages, case.m, lists))
}

/// `forward1:3` is forward of the rank's chunk 1 on micro-batch 3.
fn action(stages: &Stages, rank: usize, job: &str) -> Result<Action> {
    let (name, micro) = job.split_once(':').context("expected 'name:micro-batch'")?;
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (name, chunk) = name.split_at(name.len() - digits);
    let chunk: usize = if chunk.is_empty() { 0 } else { chunk.parse()? };
    let step = match name {
        "forward" | "F" => Step::Forward,
        "backward" | "B" => Step::Backward,
        "backward_b" | "I" => Step::Input,
        "backward_w" | "W" => Step::Weight,
        "recv_forward" => Step::ReceiveInput,
        "send_forward" => Step::SendOutput,
        "recv_backward" => Step::ReceiveGradient,
        "send_backward" => Step::SendGradient,
        _ => bail!("unknown job"),
    };
    let stage = stages.of(rank).nth(chunk).with_context(|| format!("rank {rank} has no chunk {chunk}"))?;
    Ok(Action::new(step, stage, micro.parse()?))
}

fn with_messages(stages: &Stages, actions: &[Action]) -> Vec<Action> {
    let named: std::collections::HashSet<&Action> = actions.iter().collect();
    let mut list = Vec::with_capacity(2 * actions.len());
    for action in actions {
        let (before, after) = (stages.before(action.stage), stages.after(action.stage));
        let needed = |step, peer: Option<usize>| {
            let message = Action { step, ..*action };
            peer.filter(|_| !named.contains(&message)).map(|_| message)
        };
        match action.step {
            Step::Forward => {
                list.extend(needed(Step::ReceiveInput, before));
                list.push(*action);
                list.extend(needed(Step::SendOutput, after));
            }
            Step::Backward | Step::Input => {
                list.extend(needed(Step::ReceiveGradient, after));
                list.push(*action);
                list.extend(needed(Step::SendGradient, before));
            }
            // Their first and last stages have jobs for messages that nobody sends.
            Step::ReceiveInput | Step::SendGradient if before.is_none() => {}
            Step::SendOutput | Step::ReceiveGradient if after.is_none() => {}
            _ => list.push(*action),
        }
    }
    list
}

fn same(expected: &Told, found: &Simulation) -> Result<()> {
    ensure!(found.makespan == expected.makespan, "takes {} instead of {}", found.makespan, expected.makespan);
    ensure!(found.live == expected.peak_live, "keeps {:?} instead of {:?}", found.live, expected.peak_live);
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 5.1e-5;
    let alike =
        found.bubble.len() == expected.bubble.len() && found.bubble.iter().zip(&expected.bubble).all(near);
    ensure!(alike, "bubbles are {:?} instead of {:?}", found.bubble, expected.bubble);
    Ok(())
}
