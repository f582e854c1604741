//! What ranks tell each other besides tensors: small structures as JSON, and common failure.

use crate::error::{Error, Result, Trouble};
use planaria_comm::{Comm, CommExt, Value, value};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// All ranks go on, or all fail with the error of the first that failed: its rank, its kind and what it said. A rank alone
/// keeps its own error.
pub(crate) fn agree<T>(world: &dyn Comm, mine: Result<T>) -> Result<T> {
    if world.size() == 1 {
        return mine;
    }
    let told = mine.map_err(|error| {
        let (rank, message) = match &error {
            // It went through here before.
            Error::Rank { rank, message, .. } => (*rank, message.clone()),
            other => (world.world_rank(), other.to_string()),
        };
        format!("{}{rank} {message}", mark(error.trouble()))
    });
    world.agree(told).map_err(|error| match &error {
        planaria_comm::Error::Remote { message, .. } => heard(message).unwrap_or_else(|| error.into()),
        _ => error.into(),
    })
}

/// Kinds on their way between ranks.
const MARKS: [(char, Trouble); 4] =
    [('D', Trouble::Damage), ('S', Trouble::Storage), ('C', Trouble::Ranks), ('R', Trouble::Request)];

fn mark(kind: Trouble) -> char {
    MARKS.iter().find(|(_, other)| *other == kind).map_or('R', |(mark, _)| *mark)
}

/// The error behind a message of [`agree`].
fn heard(message: &str) -> Option<Error> {
    let mut chars = message.chars();
    let mark = chars.next()?;
    let kind = MARKS.iter().find(|(other, _)| *other == mark)?.1;
    let (rank, message) = chars.as_str().split_once(' ')?;
    Some(Error::Rank { rank: rank.parse().ok()?, kind, message: message.to_string() })
}

/// Every rank's structure, in rank order.
pub(crate) fn all_gather<T: Serialize + DeserializeOwned>(world: &dyn Comm, mine: T) -> Result<Vec<T>> {
    if world.size() == 1 {
        return Ok(vec![mine]);
    }
    let text = agree(world, serde_json::to_vec(&mine).map_err(internal))?;
    let all = value::all_gather(world, &Value::Bytes(text))?;
    all.iter().map(parse).collect()
}

/// Every rank's bytes, in rank order, on rank 0.
pub(crate) fn gather_bytes(world: &dyn Comm, mine: Vec<u8>) -> Result<Option<Vec<Vec<u8>>>> {
    if world.size() == 1 {
        return Ok(Some(vec![mine]));
    }
    let all = value::gather(world, &Value::Bytes(mine), 0)?;
    Ok(all.map(|all| all.into_iter().map(bytes).collect()))
}

/// Rank 0's answer on every rank, or its error.
pub(crate) fn from_first<T: Serialize + DeserializeOwned>(
    world: &dyn Comm,
    ask: impl FnOnce() -> Result<T>,
) -> Result<T> {
    if world.size() == 1 {
        return ask();
    }
    // A list, because JSON cannot tell an answer of nothing from none.
    let mine = if world.rank() == 0 { ask().map(|answer| vec![answer]) } else { Ok(Vec::new()) };
    let mut mine = agree(world, mine)?;
    let text = agree(world, serde_json::to_vec(&mine).map_err(internal))?;
    let sent = value::broadcast(world, &Value::Bytes(text), 0)?;
    let mut told: Vec<T> = parse(&sent)?;
    mine.pop().or_else(|| told.pop()).ok_or_else(|| internal("rank 0 gave no answer"))
}

/// Rank 0's bytes on every rank, or its error.
pub(crate) fn bytes_from_first(world: &dyn Comm, ask: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
    let mine = if world.rank() == 0 { ask() } else { Ok(Vec::new()) };
    let mine = agree(world, mine)?;
    if world.size() == 1 {
        return Ok(mine);
    }
    Ok(bytes(value::broadcast(world, &Value::Bytes(mine), 0)?))
}

fn bytes(value: Value) -> Vec<u8> {
    if let Value::Bytes(bytes) = value { bytes } else { Vec::new() }
}

fn parse<T: DeserializeOwned>(value: &Value) -> Result<T> {
    match value {
        Value::Bytes(text) => serde_json::from_slice(text).map_err(internal),
        other => Err(internal(format!("{other:?} where JSON was expected"))),
    }
}

/// Ranks speak the same language, so this is a mistake of ours or of the network.
fn internal(what: impl std::fmt::Display) -> Error {
    Error::Malformed { file: "a message between ranks".into(), what: what.to_string() }
}
