//! From samples to Markdown: one table for each group, the fastest peer beside ours, and the bars that are missed.

use crate::rows::{Group, Row};
use std::fmt::Write as _;

/// Most bytes read from storage for each byte of the model.
const READ_BAR: f64 = 1.05;
/// Most memory beyond the state itself.
const EXTRA_BAR_MIB: f64 = 256.0;

/// The tables of all groups.
pub(crate) fn tables(rows: &[Row], bytes: u64) -> String {
    let mut text = String::new();
    for group in Group::ALL {
        let held: Vec<&Row> = rows.iter().filter(|row| row.group == group).collect();
        if held.is_empty() {
            continue;
        }
        let _ = writeln!(text, "## {}\n", group.title());
        text.push_str("| | s | GiB/s | CPU s | against | ratio | least..most | bar | read | extra MiB |\n");
        text.push_str("|---|---|---|---|---|---|---|---|---|---|\n");
        for row in &held {
            text.push_str(&line(row, rows, bytes));
        }
        if let Some(said) = beside(&held) {
            let _ = write!(text, "\n{said}\n");
        }
        text.push('\n');
    }
    text
}

/// The figures of a row that have bars.
struct Figures {
    ratio: Option<(f64, f64, f64)>,
    read: Option<f64>,
    extra_mib: Option<f64>,
}

impl Figures {
    fn of(row: &Row, rows: &[Row], bytes: u64) -> Figures {
        let against = row.against.as_ref().and_then(|name| rows.iter().find(|row| row.name == *name));
        // The most of all rounds: later ones may find memory that an earlier one left resident.
        let extra = row.samples.iter().filter_map(|(_, sample)| sample.extra).max();
        Figures {
            ratio: against.and_then(|against| row.ratio(against)),
            read: row.median(|sample| sample.read.map(|read| read as f64 / bytes as f64)),
            extra_mib: extra.map(|bytes| bytes as f64 / f64::from(1 << 20)),
        }
    }
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or(String::new(), |value| format!("{value:.digits$}"))
}

fn line(row: &Row, rows: &[Row], bytes: u64) -> String {
    let figures = Figures::of(row, rows, bytes);
    let gib = bytes as f64 / f64::from(1 << 30);
    let cells = [
        row.name.clone(),
        number(row.seconds(), 3),
        number(row.seconds().map(|seconds| gib / seconds), 2),
        number(row.median(|sample| sample.cpu), 2),
        row.against.clone().unwrap_or_default(),
        number(figures.ratio.map(|ratio| ratio.0), 2),
        figures.ratio.map_or(String::new(), |(_, least, most)| format!("{least:.2}..{most:.2}")),
        number(row.bar, 2),
        number(figures.read, 3),
        number(figures.extra_mib, 0),
    ];
    format!("| {} |\n", cells.join(" | "))
}

/// Our fastest row of a group against the fastest peer's.
fn beside(group: &[&Row]) -> Option<String> {
    let fastest = |peers: bool| {
        let rows =
            group.iter().filter(|row| !row.is_raw() && row.is_peer() == peers && !row.samples.is_empty());
        rows.min_by(|a, b| f64::total_cmp(&a.seconds().unwrap_or(f64::MAX), &b.seconds().unwrap_or(f64::MAX)))
    };
    let (ours, peer) = (fastest(false)?, fastest(true)?);
    let (ratio, least, most) = ours.ratio(peer)?;
    Some(format!(
        "The fastest of ours ({}) takes {ratio:.2} ({least:.2}..{most:.2}) times what the fastest peer takes ({}).",
        ours.name, peer.name
    ))
}

/// The bars that are missed, each with how much of the time was computing.
pub(crate) fn missed(rows: &[Row], bytes: u64) -> Vec<String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut missed = Vec::new();
    for row in rows.iter().filter(|row| !row.is_raw() && !row.is_peer()) {
        let figures = Figures::of(row, rows, bytes);
        let found = [
            ("time", figures.ratio.map(|ratio| ratio.0), row.bar),
            ("bytes read", figures.read, Some(READ_BAR)),
            ("extra MiB", figures.extra_mib, Some(EXTRA_BAR_MIB)),
        ];
        for (what, found, bar) in found {
            let (Some(found), Some(bar)) = (found, bar) else { continue };
            if found > bar {
                let busy = row.median(|sample| Some(100.0 * sample.cpu? / sample.seconds / cores as f64));
                missed.push(format!(
                    "{}: {what} {found:.2}, the bar is {bar:.2}; it computed for {} % of the time of {cores} processors",
                    row.name,
                    number(busy, 0)
                ));
            }
        }
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::busy::Beside;
    use crate::meter::Sample;
    use crate::peers::Case;
    use crate::rows;

    fn measured() -> Vec<Row> {
        let case = Case { name: "X save".into(), group: Group::Save, loaded: false };
        let mut rows =
            rows::choose(rows::all(&[case], Beside::Nothing), &["X save".into(), "save, 1 rank".into()]);
        rows.retain(|row| row.group == Group::Save);
        for (row, seconds) in rows.iter_mut().zip([[1.0, 2.0], [1.5, 2.0], [3.0, 3.0]]) {
            let sample = |seconds| Sample { seconds, cpu: Some(0.5), extra: Some(1 << 20), read: None };
            row.samples = seconds.map(sample).into_iter().enumerate().collect();
        }
        rows
    }

    #[test]
    fn ours_and_the_peers_have_the_same_columns() {
        let text = tables(&measured(), 3 << 30);
        assert!(text.contains("| raw write | 1.500 | 2.00 | 0.50 |  |  |  |  |  | 1 |\n"), "{text}");
        assert!(text.contains(
            "| save, 1 rank | 1.750 | 1.71 | 0.50 | raw write | 1.25 | 1.00..1.50 | 1.15 |  | 1 |\n"
        ));
        assert!(
            text.contains("| X save | 3.000 | 1.00 | 0.50 | raw write | 2.25 | 1.50..3.00 |  |  | 1 |\n"),
            "{text}"
        );
        assert!(
            text.contains(
                "(save, 1 rank) takes 0.58 (0.50..0.67) times what the fastest peer takes (X save)."
            )
        );
    }

    #[test]
    fn only_our_rows_miss_bars() {
        let missed = missed(&measured(), 3 << 30);
        assert_eq!(missed.len(), 1, "{missed:?}");
        assert!(
            missed[0].starts_with("save, 1 rank: time 1.25, the bar is 1.15; it computed for "),
            "{missed:?}"
        );
    }
}
