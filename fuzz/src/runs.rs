//! What each target of runs does with its bytes: what a run leaves in its folder, and what a plan is told.

use planaria_board::{Board, export};
use planaria_telemetry::{History, RankNow, RankSteps, read_samples};
use planaria_train::beat::Beat;
use planaria_train::simulate::Costs;

/// Every file of a run's folder alike, as the page of runs and the healer of a job read them.
pub(crate) fn run(bytes: &[u8]) {
    const FILES: [&str; 6] = [
        "metrics.jsonl",
        "samples.jsonl",
        "log/rank-00000.jsonl",
        "ranks/rank-00000.now",
        "ranks/rank-00000.steps",
        "rank-00000.beat",
    ];
    crate::with_files(&FILES.map(|name| (name, bytes)), |run| {
        if let Ok(history) = History::read(run) {
            let _ = history.metrics();
        }
        let _ = read_samples(run, u64::MAX);
        RankNow::read_all(run).iter().for_each(|now| {
            let _ = now.sent_a_step();
        });
        let _ = (RankSteps::read_all(run), Beat::read_all(run));
        let board = Board::new(&[run.to_path_buf()]);
        let _ = (board.summaries(), export(&board));
    });
}

/// What work costs, as TOML and as JSON.
pub(crate) fn costs(bytes: &[u8]) {
    const FILES: [&str; 2] = ["costs.toml", "costs.json"];
    crate::with_files(&FILES.map(|name| (name, bytes)), |folder| {
        for name in FILES {
            let _ = Costs::read(&folder.join(name));
        }
    });
}
