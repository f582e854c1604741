//! A look at a run as lines: what it does, then a table of its ranks.

use super::look::Seen;
use crate::printable::printable;
use crate::quantity::{Bytes, count as counted};
use crate::table::Table;
use crate::terminal::{Style, Terminal};
use planaria::telemetry::{RankNow, count};
use std::collections::BTreeSet;

/// Which ranks come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    #[default]
    Rank,
    Behind,
    Memory,
    Sent,
}

/// How much is shown, and in which order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct View {
    pub(super) width: usize,
    pub(super) height: usize,
    /// Rows of ranks that are above the first shown one.
    pub(super) first: usize,
    pub(super) order: Order,
}

/// The lines that fit.
pub(super) fn lines(seen: &Seen, view: &View, terminal: &Terminal) -> Vec<String> {
    let cut = |line: &str| printable(line, &[]).chars().take(view.width).collect::<String>();
    let state = if seen.running { Style::Good } else { Style::Warn };
    let mut out = vec![terminal.paint(state, &cut(&head(seen))), cut(&second(seen)), String::new()];
    if seen.ranks.is_empty() {
        out.push(cut("no rank has told anything yet"));
        out.truncate(view.height);
        return out;
    }
    let (table, behind) = table(seen, view.order);
    let room = view.height.saturating_sub(out.len() + 2);
    let rows = table.len() - 1;
    for (number, line) in table.iter().enumerate() {
        let shown = number == 0 || (view.first..view.first.saturating_add(room)).contains(&(number - 1));
        let style = match (number, behind.get(number.wrapping_sub(1))) {
            (0, _) => Some(Style::Name),
            (_, Some(true)) => Some(Style::Warn),
            _ => None,
        };
        if shown {
            let line = cut(line);
            out.push(style.map_or(line.clone(), |style| terminal.paint(style, &line)));
        }
    }
    if rows > room {
        let last = (view.first + room).min(rows);
        out.push(cut(&format!("{} to {last} of {}; j and k scroll", view.first + 1, counted(rows, "rank"))));
    }
    out.truncate(view.height);
    out
}

fn head(seen: &Seen) -> String {
    let state = if seen.running { "running" } else { "not running" };
    let steps = seen.steps.map_or(String::new(), |steps| format!(" of {steps}"));
    let mesh = seen.mesh.as_ref().map_or(String::new(), |mesh| format!(", {mesh}"));
    format!("{}: {state}{mesh}, step {}{steps}", seen.name, seen.step)
}

fn second(seen: &Seen) -> String {
    let parts = [
        seen.loss.map(|loss| format!("loss {loss:.4}")),
        seen.tokens_per_second.map(|rate| format!("{} tokens/s", count(rate))),
        seen.seconds.map(|seconds| format!("{seconds:.3} s a step")),
        seen.saved.map(|step| format!("saved step {step}")),
        (seen.restarts > 0).then(|| counted(seen.restarts, "restart")),
        seen.age.filter(|_| seen.running).map(|age| format!("told {age:.0} s ago")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// A line of names, one for each rank, and which ranks are behind.
fn table(seen: &Seen, order: Order) -> (Vec<String>, Vec<bool>) {
    let axes: BTreeSet<&String> = seen.ranks.iter().flat_map(|now| now.sent_each.keys()).collect();
    let newest = seen.ranks.iter().map(|now| now.step).max().unwrap_or(0);
    let mut ranks: Vec<&RankNow> = seen.ranks.iter().collect();
    match order {
        Order::Rank => {}
        Order::Behind => ranks.sort_by_key(|now| now.step),
        Order::Memory => ranks.sort_by_key(|now| std::cmp::Reverse(now.bytes)),
        Order::Sent => ranks.sort_by_key(|now| std::cmp::Reverse(now.sent_a_step())),
    }
    let columns = 6 + axes.len();
    let right: Vec<usize> = (0..columns).filter(|&column| column != 1).collect();
    let mut table = Table::new(&right);
    let links = axes.iter().map(|axis| format!("sent on {axis}"));
    let names = ["rank", "host", "step", "seconds", "memory", "peak"].map(String::from);
    table.row(names.into_iter().chain(links));
    for now in &ranks {
        let own = [
            now.rank.to_string(),
            now.host.clone(),
            now.step.to_string(),
            format!("{:.3}", now.seconds),
            Bytes(now.bytes).to_string(),
            Bytes(now.peak_bytes).to_string(),
        ];
        let sent =
            axes.iter().map(|axis| now.sent_each.get(*axis).map_or(String::new(), |b| Bytes(*b).to_string()));
        table.row(own.into_iter().chain(sent));
    }
    (table.lines().collect(), ranks.iter().map(|now| now.step < newest).collect())
}
