//! The page as one file to send to someone: its parts and the data of all runs in it.

use crate::answer::numbers;
use crate::runs::{Board, RunSummary, checkpoints, config};
use crate::{log, thin};
use planaria_telemetry::{RankNow, smoothed};
use serde_json::{Map, Value, json};

/// Points of a curve in the file.
const POINTS: usize = 2000;

/// Weight of the past in the average of a curve in the file, as the page begins.
const SMOOTH: f64 = 0.9;

/// Lines of a rank's log in the file.
const LINES: usize = 200;

/// Ranks whose logs are in the file.
const RANKS: usize = 8;

const PAGE: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/board.css");
const CHART: &str = include_str!("page/chart.js");
const SCRIPT: &str = include_str!("page/board.js");

/// One HTML file that shows what the page shows now, without a server.
pub fn export(board: &Board) -> String {
    let summaries = board.summaries();
    let mut details = Map::new();
    for run in &summaries {
        if let Some(detail) = detail(board, run) {
            details.insert(run.id.clone(), detail);
        }
    }
    let data = json!({ "runs": summaries, "details": details }).to_string();
    // Inside a script nothing may look like its end.
    let data = data.replace('<', "\\u003c");
    let inside = |text: &str| text.replace("</script", "<\\/script");
    PAGE.replace("<link rel=\"stylesheet\" href=\"board.css\">", &format!("<style>{STYLE}</style>"))
        .replace("<script src=\"chart.js\"></script>", &format!("<script>{}</script>", inside(CHART)))
        .replace(
            "<script src=\"board.js\"></script>",
            &format!("<script>window.BOARD = {data};</script>\n<script>{}</script>", inside(SCRIPT)),
        )
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
    }))
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
