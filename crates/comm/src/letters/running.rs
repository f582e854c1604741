//! A collective under way: in steps between all ranks, or over hosts.

use super::post::{Letter, Post};
use super::relay::Relay;
use super::step::{Place, Steps, Turn};
use crate::call::{Call, Signature};
use crate::error::{Error, Result};
use planaria_layout::Rank;

/// A collective under way.
#[derive(Debug)]
pub(super) enum Running {
    Steps(Box<Steps>),
    Relay(Box<Relay>),
}

impl Running {
    /// Sends the first letters of a collective.
    pub(super) fn begin(post: &mut Post, place: Place, call: Call) -> Result<Running> {
        let Some(signature) = call.signature() else {
            return Err(Error::argument(call.name(), "a message is between two ranks, not a collective"));
        };
        Ok(match Relay::begin(post, &place, &signature, &call)? {
            Some(relay) => Running::Relay(Box::new(relay)),
            None => Running::Steps(Box::new(Steps::begin(post, place, &signature, call)?)),
        })
    }

    /// A step that only has everyone come.
    pub(super) fn meet(post: &mut Post, place: Place, signature: &Signature) -> Result<Running> {
        Ok(Running::Steps(Box::new(Steps::meet(post, place, signature)?)))
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Running::Steps(steps) => steps.name,
            Running::Relay(relay) => relay.name,
        }
    }

    /// Ranks whose letters have not begun to come.
    pub(super) fn missing(&self, post: &Post) -> Vec<Rank> {
        match self {
            Running::Steps(steps) => steps.missing(post),
            Running::Relay(relay) => relay.missing(post),
        }
    }

    /// What there is to do without the post, once letters have come.
    pub(super) fn turn(&mut self, post: &mut Post) -> Result<Turn> {
        match self {
            Running::Steps(steps) => steps.turn(post),
            Running::Relay(relay) => {
                Ok(if relay.turn(post)? { Turn::Ready(Vec::new()) } else { Turn::Waiting })
            }
        }
    }

    /// Folds and copies without the post. True when more follows, which [`Running::next`] begins.
    pub(super) fn step(&mut self, letters: &[Option<Letter>]) -> Result<bool> {
        match self {
            Running::Steps(steps) => steps.step(letters),
            Running::Relay(relay) => relay.step(),
        }
    }

    /// Sends what the step gave.
    pub(super) fn next(&mut self, post: &mut Post) -> Result<()> {
        match self {
            Running::Steps(steps) => steps.next(post),
            Running::Relay(relay) => relay.next(post),
        }
    }
}
