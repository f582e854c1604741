//! What the launcher and the agent of a machine say to each other: a JSON object a line, over the agent's standard input and output.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// To an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub(super) enum Ask {
    /// Starts the ranks of its machine.
    Begin(Begin),
    /// Says where a rank of another machine listens.
    Address { rank: usize, address: String },
    /// Sends a signal to one of its ranks.
    Signal { rank: usize, signal: String },
    /// Asks what a rank that stands still is doing.
    Look { rank: usize },
}

/// What an agent starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Begin {
    pub(super) ranks: Range<u32>,
    /// Ranks of all machines.
    pub(super) size: u32,
    /// The machine's number.
    pub(super) number: usize,
    pub(super) command: Vec<String>,
    /// The folder that the command runs in.
    pub(super) folder: String,
    pub(super) variables: Vec<(String, String)>,
}

/// From an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "told", rename_all = "kebab-case")]
pub(super) enum Told {
    /// It is there: the version and the features of its program.
    Hello { version: String, features: Vec<String> },
    /// A rank has printed a line.
    Line { rank: usize, error: bool, text: String },
    /// Where a rank listens to other machines.
    Address { rank: usize, address: String },
    /// What a rank does.
    Beat { rank: usize, text: String },
    /// A rank has ended.
    Ended { rank: usize, code: Option<i32>, signal: Option<i32>, last: Vec<String> },
    /// What a rank that stands still is doing.
    Inside { rank: usize, text: String },
    /// It cannot do what it was asked.
    Failed { why: String },
}

impl Told {
    /// What this program is.
    pub(super) fn hello() -> Told {
        let features = [
            ("azure", cfg!(feature = "azure")),
            ("gcs", cfg!(feature = "gcs")),
            ("mpi", cfg!(feature = "mpi")),
            ("parquet", cfg!(feature = "parquet")),
            ("s3", cfg!(feature = "s3")),
        ];
        let features = features.into_iter().filter(|(_, has)| *has).map(|(name, _)| name.to_string());
        Told::Hello { version: env!("CARGO_PKG_VERSION").into(), features: features.collect() }
    }
}
