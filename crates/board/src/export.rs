//! The page as one file to send to someone: its parts and the data of all runs in it.

use crate::answer::numbers;
use crate::cluster::RunGlance;
use crate::page::{PAGE, SCRIPTS, STYLE};
use crate::runs::{Board, RunSummary, checkpoints, config};
use crate::{log, pipeline, thin};
use planaria_telemetry::{RankNow, Sampled, read_samples, smoothed};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Points of a curve in the file.
const POINTS: usize = 2000;

/// Weight of the past in the average of a curve in the file, as the page begins.
const SMOOTH: f64 = 0.9;

/// Lines of a rank's log in the file.
const LINES: usize = 200;

/// Ranks whose logs are in the file.
const RANKS: usize = 8;

/// Steps whose samples are in the file, the newest ones.
const SAMPLED: usize = 20;

/// Runs with all their data in the file, the newest ones; of others it has what a list shows.
const RUNS: usize = 100;

/// One HTML file that shows what the page shows now, without a server.
pub fn export(board: &Board) -> String {
    let glances = board.glances();
    let mut newest: Vec<&RunGlance> = glances.iter().collect();
    newest.sort_by(|a, b| b.time.unwrap_or(0.0).total_cmp(&a.time.unwrap_or(0.0)));
    let ids: Vec<&str> = newest.iter().take(RUNS).map(|run| run.id.as_str()).collect();
    let summaries = board.summaries_of(&ids);
    let mut details = Map::new();
    for run in &summaries {
        if let Some(detail) = detail(board, run) {
            details.insert(run.id.clone(), detail);
        }
    }
    let data = json!({ "glances": glances, "runs": summaries, "details": details }).to_string();
    // Inside a script nothing may look like its end.
    let data = data.replace('<', "\\u003c");
    let inside = |text: &str| text.replace("</script", "<\\/script");
    let mut page =
        PAGE.replace("<link rel=\"stylesheet\" href=\"board.css\">", &format!("<style>{STYLE}</style>"));
    for (name, text) in SCRIPTS {
        let loads = format!("<script src=\"{name}\"></script>");
        page = page.replace(&loads, &format!("<script>{}</script>", inside(text)));
    }
    page.replace("<!-- data -->", &format!("<script>window.BOARD = {data};</script>"))
}

fn detail(board: &Board, run: &RunSummary) -> Option<Value> {
    let path = board.path(&run.id)?;
    let curves = |weight: f64| {
        board.with_history(&path, |history| {
            let all = history.metrics().into_iter().filter_map(|name| {
                let points = history.series(&name).ok()?;
                let points = if weight > 0.0 { &smoothed(points, weight)[..] } else { points };
                Some((name, numbers(&thin(points, 0, u64::MAX, POINTS))))
            });
            all.collect::<Map<String, Value>>()
        })
    };
    let (series, smooth) = (curves(0.0).ok()?, curves(SMOOTH).ok()?);
    let ranks: Vec<usize> = log::ranks(&path).into_iter().take(RANKS).collect();
    let logs: Map<String, Value> =
        ranks.iter().map(|rank| (rank.to_string(), log::lines(&path, *rank, "", LINES).into())).collect();
    Some(json!({
        "config": config(&path), "checkpoints": checkpoints(&path), "ranks": ranks, "logs": logs,
        "series": series, "smooth": smooth, "now": RankNow::read_all(&path),
        "pipeline": pipeline::step(&path, None), "samples": sampled(&path),
    }))
}

/// What was generated in the newest steps, by step.
fn sampled(run: &Path) -> Vec<Sampled> {
    let (steps, _) = read_samples(run, 0);
    let newest = steps.iter().skip(steps.len().saturating_sub(SAMPLED));
    newest.filter_map(|&step| read_samples(run, step).1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_telemetry::{METRICS, MetricsWriter, Record, Session};

    #[test]
    fn the_file_stands_alone_and_nothing_in_it_ends_a_script() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("one");
        std::fs::create_dir_all(run.join("log")).unwrap();
        let mut writer = MetricsWriter::open(&run.join(METRICS), &Session::default()).unwrap();
        writer.write(&Record::new(1).with("loss", 4.25)).unwrap();
        let hostile = "{\"message\":\"</script><script>alert(1)</script>\"}\n";
        std::fs::write(run.join("log/rank-00000.jsonl"), hostile).unwrap();
        let page = export(&Board::new(&[folder.path().to_path_buf()]));
        assert!(page.contains("[1,4.25]") && page.contains("window.BOARD = "));
        assert!(
            !page.contains("<script>alert") && !page.contains("src=\"") && !page.contains("href=\"board.css")
        );
        assert_eq!(page.matches("<script>").count(), page.matches("</script>").count());
    }
}
