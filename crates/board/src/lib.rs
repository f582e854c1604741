//! A page to watch runs: curves, checkpoints, configurations and logs, served by [`Server`] or written as one file by
//! [`export`]. Everything is read from the folders of runs and nothing is written to them.
//!
//! ```
//! use planaria_board::{Access, Board, Server};
//! use planaria_telemetry::{MetricsWriter, Record, Session};
//!
//! # let runs = tempfile::tempdir().unwrap();
//! # let run = runs.path().join("first");
//! # std::fs::create_dir(&run).unwrap();
//! let mut writer = MetricsWriter::open(&run.join("metrics.jsonl"), &Session::default()).unwrap();
//! writer.write(&Record::new(1).with("loss", 4.0)).unwrap();
//! let board = Board::new(&[runs.path().to_path_buf()]);
//! assert_eq!(board.summaries()[0].id, "first");
//! let server = Server::start(board, "127.0.0.1:0", Access::Loopback)?;
//! assert!(server.address().starts_with("127.0.0.1:"));
//! # Ok::<(), planaria_board::Error>(())
//! ```

mod answer;
mod cluster;
mod error;
mod export;
mod log;
mod page;
mod pipeline;
mod runs;
mod server;
mod thin;

pub use cluster::{RunGlance, RunState};
pub use error::{Error, Result};
pub use export::export;
pub use runs::{Board, Checkpoint, RunSummary};
pub use server::{Access, Server};
pub use thin::thin;
