//! Data among processes: those that need it open it, text is tokenised once, and the others are told what there is.

use super::Job;
use super::setup::Position;
use crate::data::{Data, Description};
use crate::error::{Error, Result};
use crate::pretrained::together;
use planaria_comm::{Comm, CommExt as _, Value, value};
use std::sync::Arc;

/// The folder of tokenised text, in a run's folder.
const TOKENS: &str = "tokens";

/// The data of a rank that shares no memory with the others. Rank 0 comes first and leaves what it tokenised in the run's
/// folder, unless `data.cache` names another; the ranks that read data map it. Collective.
pub(super) fn open(job: &Job, comm: &Arc<dyn Comm>) -> Result<Data> {
    let (config, tokenizer) = (&job.config, &job.tokenizer);
    if comm.size() == 1 {
        return job.objective.open(&config.data, tokenizer);
    }
    let place = Position::of(config.mesh.on(comm.size())?, comm.world_rank())?;
    let cache = config.data.cache.clone().unwrap_or_else(|| config.run_dir().join(TOKENS));
    let mut data = config.data.clone();
    data.cache = Some(cache);
    let read = || job.objective.open(&data, tokenizer).map(Some);
    let first = if comm.rank() == 0 { read() } else { Ok(None) };
    let first = together(&**comm, first)?;
    let mine = if first.is_none() && place.reads(job) { read() } else { Ok(first) };
    let mine = together(&**comm, mine)?;
    let bug = |e: &dyn std::fmt::Display| Error::Bug { what: format!("data has no description: {e}") };
    let told = match (&mine, comm.rank()) {
        (Some(data), 0) => serde_json::to_string(&Description::of(data)).map_err(|e| bug(&e)),
        _ => Ok(String::new()),
    };
    let told = value::broadcast(&**comm, &Value::Text(together(&**comm, told)?), 0)?;
    match (mine, told) {
        (Some(data), _) => Ok(data),
        (None, Value::Text(text)) => {
            Ok(serde_json::from_str::<Description>(&text).map_err(|e| bug(&e))?.into_data())
        }
        (None, other) => Err(bug(&format!("{other:?}"))),
    }
}
