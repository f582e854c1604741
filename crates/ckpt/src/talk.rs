//! What ranks tell each other besides tensors: small structures as JSON, and common failure.

use crate::error::{Error, Result, Trouble};
use planaria_comm::{Comm, CommExt, Value, value};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// All ranks continue, or all fail with the error of the first that failed: its rank, its kind and what it said. A rank alone
/// keeps its own error.
pub(crate) fn agree<T>(world: &dyn Comm, mine: Result<T>) -> Result<T> {
    if world.size() == 1 {
        return mine;
    }
    world.agree(mine.map_err(|error| told(world, &error))).map_err(|error| match &error {
        planaria_comm::Error::Remote { message, .. } => heard(message).unwrap_or_else(|| error.into()),
        _ => error.into(),
    })
}

/// An error in the form that [`heard`] understands.
fn told(world: &dyn Comm, error: &Error) -> String {
    let (rank, message) = match error {
        // It went through here before.
        Error::Rank { rank, message, .. } => (*rank, message.clone()),
        other => (world.world_rank(), other.to_string()),
    };
    format!("{}{rank} {message}", mark(error.trouble()))
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
    // Nothing is not JSON: all ranks refuse it together.
    let text = serde_json::to_vec(&mine).unwrap_or_default();
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
    let mut mine = None;
    let sent = bytes_from_first(world, || {
        let answer = mine.insert(ask()?);
        serde_json::to_vec(answer).map_err(internal)
    })?;
    mine.map_or_else(|| parse(&Value::Bytes(sent)), Ok)
}

/// Rank 0's bytes on every rank, or its error: one broadcast of either.
pub(crate) fn bytes_from_first(world: &dyn Comm, ask: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
    if world.size() == 1 {
        return ask();
    }
    let mine = if world.rank() == 0 { Some(ask()) } else { None };
    let (told, mine) = match mine {
        Some(Ok(answer)) => (Value::Bytes(answer), None),
        Some(Err(error)) => (Value::Text(told(world, &error)), Some(error)),
        None => (Value::None, None),
    };
    match value::broadcast(world, &told, 0)? {
        Value::Bytes(answer) => Ok(answer),
        Value::Text(message) => Err(mine
            .or_else(|| heard(&message))
            .unwrap_or_else(|| internal(format!("'{message}' where an error was expected")))),
        other => Err(internal(format!("{other:?} where rank 0's answer was expected"))),
    }
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
