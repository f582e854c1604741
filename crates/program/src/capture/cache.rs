//! Programs kept by what they depend on, captured again when that changes.

use super::{Captured, Function, ProgramKey, capture};
use crate::error::Result;
use planaria_tensor::Tensor;
use planaria_tensor::random::{self, DrawState};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Captured programs of one function.
#[derive(Debug, Default)]
pub struct Captures {
    known: HashMap<ProgramKey, Kept>,
    last: Option<ProgramKey>,
}

#[derive(Debug)]
struct Kept {
    captured: Arc<Captured>,
    /// Where the random numbers stood, of a program that has drawn some: they are constants of it.
    drawn: Option<DrawState>,
}

/// Why a program was captured, or that it was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It was known.
    Known,
    /// It is the first.
    First,
    /// Something is different from the last call.
    Changed(Vec<String>),
    /// It has random numbers in it, and these have gone on.
    Draws,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Known => f.write_str("the program is known"),
            Why::First => f.write_str("captured for the first time"),
            Why::Changed(changes) => write!(f, "captured again: {}", changes.join("; ")),
            Why::Draws => f.write_str("captured again: it draws random numbers, which have advanced"),
        }
    }
}

impl Captures {
    /// No programs yet.
    pub fn new() -> Captures {
        Captures::default()
    }

    /// The program of a function of these inputs, parameters and settings, captured if it is not known, and why.
    ///
    /// # Errors
    /// Those of [`capture`].
    pub fn get<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        &mut self,
        function: &Function,
        work: impl FnOnce(&[Tensor]) -> Result<Vec<(String, Tensor)>, E>,
    ) -> Result<(Arc<Captured>, Why)> {
        let key = ProgramKey::of(function);
        let stands = random::state();
        let why = match self.known.get(&key) {
            Some(kept) if kept.drawn.is_none_or(|drawn| drawn == stands) => Why::Known,
            Some(_) => Why::Draws,
            None => match &self.last {
                None => Why::First,
                Some(last) => Why::Changed(last.changes(&key)),
            },
        };
        self.last = Some(key.clone());
        if let (Why::Known, Some(kept)) = (&why, self.known.get(&key)) {
            return Ok((kept.captured.clone(), why));
        }
        let captured = Arc::new(capture(function, work)?);
        let drawn = Some(stands).filter(|before| *before != random::state());
        self.known.insert(key, Kept { captured: captured.clone(), drawn });
        Ok((captured, why))
    }
}
