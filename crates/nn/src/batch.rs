//! Several texts that grow together: one step makes a token of each, on one device, and nothing between two tokens waits for
//! the host. After the first step the work of one is recorded, where a device can do that, and later ones are a single call.

use crate::error::{Error, Result};
use crate::models::{Cache, Decode, Network, Run};
use planaria_array::ops::{Rows, look_up, take_best};
use planaria_array::{Array, DType, Device, Replay};
use planaria_tensor::{Tensor, no_grad};
use std::fmt;

/// What a row is given and how far it may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prompt<'a> {
    /// Its first tokens, at least one.
    pub tokens: &'a [i64],
    /// Most tokens to make.
    pub limit: usize,
}

/// What a row has become so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// The tokens made, with the one that ended it.
    pub tokens: Vec<i64>,
    /// Whether it takes no more: at its limit, or behind a token that ends texts.
    pub ended: bool,
}

/// Rows under way, and the memory they stand in. What a row becomes does not depend on the others, up to the rounding of products of other sizes.
pub struct Batch<'a> {
    model: &'a dyn Network,
    decode: &'a dyn Decode,
    weights: Vec<Array>,
    cache: Cache,
    room: Room,
    rows: Rows,
    /// Scores of the next tokens, where they are there already.
    scores: Option<Array>,
    /// A step that takes the best token.
    best: Recorded,
    /// One that makes scores for the host.
    judged: Recorded,
    /// The scores that the latter writes.
    told: Option<Array>,
}

impl std::fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch({:?})", self.room)
    }
}

/// A step by its number of runs: the first shows what it needs, the second is recorded.
#[derive(Debug, Default)]
struct Recorded {
    runs: usize,
    replay: Option<Replay>,
}

impl Recorded {
    /// Does the work, or queues what was recorded of it.
    fn run(&mut self, weights: &[Array], device: Device, mut work: impl FnMut() -> Result<()>) -> Result<()> {
        if self.runs == 1 {
            self.replay = Replay::record(device, weights, &mut work)?;
        }
        self.runs += 1;
        match &self.replay {
            Some(replay) => Ok(replay.run()?),
            None => work(),
        }
    }

    /// Forgets a recording of weights that have moved since.
    fn renew(&mut self) {
        if self.replay.as_ref().is_some_and(|replay| !replay.holds()) {
            *self = Recorded::default();
        }
    }
}

fn refuse(message: String) -> Error {
    Error::Argument { what: "batch", message }
}

/// How much a batch has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Rows side by side.
    pub rows: usize,
    /// Tokens of the longest prompt.
    pub prompt: usize,
    /// Most new tokens of a row.
    pub tokens: usize,
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Room { rows, prompt, tokens } = self;
        write!(f, "{rows} rows with prompts of {prompt} and {tokens} new tokens")
    }
}

impl Room {
    /// What these prompts need.
    pub fn of(prompts: &[Prompt<'_>]) -> Room {
        let most = |of: fn(&Prompt<'_>) -> usize| prompts.iter().map(of).max().unwrap_or(0);
        let (prompt, tokens) = (most(|prompt| prompt.tokens.len()), most(|prompt| prompt.limit));
        Room { rows: prompts.len(), prompt, tokens }
    }

    fn holds(&self, other: &Room) -> bool {
        other.rows <= self.rows && other.prompt <= self.prompt && other.tokens <= self.tokens
    }
}

impl<'a> Batch<'a> {
    /// An empty batch; any of `stops` ends a row. `None` for a model that has no [`Decode`] here.
    pub fn new(model: &'a dyn Network, room: Room, stops: &[i64]) -> Result<Option<Batch<'a>>> {
        let Some(decode) = model.decoding() else { return Ok(None) };
        let weights: Vec<Array> = model.params().iter().map(|param| param.leaf().local().clone()).collect();
        let device = weights.first().map_or(Device::Cpu, Array::device);
        let limits = vec![room.tokens; room.rows];
        let rows = Rows::new(&vec![1; room.rows], &limits, stops, device)?;
        let (best, judged) = (Recorded::default(), Recorded::default());
        let cache = model.cache(room.prompt.saturating_add(room.tokens));
        Ok(Some(Batch { model, decode, weights, cache, room, rows, scores: None, best, judged, told: None }))
    }

    /// Begins with these prompts, of any lengths, in the memory and with the recorded steps of those before. Rows that no
    /// prompt is there for stay empty.
    pub fn begin(&mut self, prompts: &[Prompt<'_>]) -> Result<()> {
        if let Some(row) = prompts.iter().position(|prompt| prompt.tokens.is_empty()) {
            return Err(refuse(format!("prompt {row} has no token; begin it with one")));
        }
        let asked = Room::of(prompts);
        let Some(first) = prompts.first().filter(|_| self.room.holds(&asked)) else {
            let message =
                format!("there is room for {}, but {asked} are needed; make a larger batch", self.room);
            return Err(refuse(message));
        };
        let none = Prompt { tokens: &first.tokens[..1], limit: 0 };
        let mut prompts = prompts.to_vec();
        prompts.resize(self.room.rows, none);
        let lengths: Vec<usize> = prompts.iter().map(|prompt| prompt.tokens.len()).collect();
        let limits: Vec<usize> = prompts.iter().map(|prompt| prompt.limit).collect();
        let fresh = Rows::new(&lengths, &limits, &[], self.device())?;
        let (to, from) = (&self.rows, &fresh);
        let pairs = [(&to.lengths, &from.lengths), (&to.limits, &from.limits), (&to.next, &from.next)];
        for (to, from) in
            pairs.into_iter().chain([(&to.positions, &from.positions), (&to.ended, &from.ended)])
        {
            to.copy_from(from)?;
        }
        self.cache.clear();
        self.best.renew();
        self.judged.renew();
        self.prefill(&prompts)
    }

    fn device(&self) -> Device {
        self.rows.next.device()
    }

    /// Shorter prompts are filled up behind their end: no token of theirs sees what stands there, and new ones take its place.
    fn prefill(&mut self, prompts: &[Prompt<'_>]) -> Result<()> {
        let longest = Room::of(prompts).prompt;
        let mut tokens = vec![0; prompts.len() * longest];
        for (row, prompt) in tokens.chunks_mut(longest).zip(prompts) {
            row[..prompt.tokens.len()].copy_from_slice(prompt.tokens);
        }
        let last = |(row, prompt): (usize, &Prompt<'_>)| (row * longest + prompt.tokens.len() - 1) as i64;
        let last: Vec<i64> = prompts.iter().enumerate().map(last).collect();
        let last = Array::from_slice(&last, &[prompts.len()])?.to(self.device())?;
        let tokens = Tensor::from_slice(&tokens, &[prompts.len(), longest])?;
        let scores = no_grad(|| {
            let run = Run { cache: Some(&self.cache), ..Run::default() };
            let hidden = self.model.forward(tokens.into(), &run)?.hidden;
            let width = hidden.shape()[2];
            let states = hidden.local().contiguous()?.reshape(&[prompts.len() * longest, width])?;
            let states = look_up(&states, &last)?.reshape(&[prompts.len(), 1, width])?;
            let scores = self.model.logits(&Tensor::new(states))?;
            Ok::<Array, Error>(scores.local().reshape(&[prompts.len(), scores.shape()[2]])?)
        })?;
        self.scores = Some(scores);
        Ok(())
    }

    /// Gives every row that has not ended its next `count` tokens, each the likeliest, of equals the first. On a device the
    /// steps are queued; this does not wait for them.
    pub fn take_best(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            if let Some(scores) = self.scores.take() {
                take_best(&scores, &self.rows)?;
                continue;
            }
            let (decode, rows, cache) = (self.decode, &self.rows, &self.cache);
            self.best.run(&self.weights, rows.next.device(), || {
                let scores = no_grad(|| decode.decode(&rows.next, &rows.positions, cache))?;
                Ok(take_best(&scores, rows)?)
            })?;
        }
        Ok(())
    }

    /// The scores of each row's next token, for a choice by the host. Waits.
    pub fn scores(&mut self) -> Result<Vec<Vec<f32>>> {
        if self.scores.is_none() {
            let (decode, rows, cache, told) = (self.decode, &self.rows, &self.cache, &mut self.told);
            self.judged.run(&self.weights, rows.next.device(), || {
                *told = Some(no_grad(|| decode.decode(&rows.next, &rows.positions, cache))?);
                Ok(())
            })?;
            self.scores = self.told.clone();
        }
        let Some(scores) = &self.scores else { return Err(refuse("no step made scores".to_string())) };
        let values = scores.cast(DType::F32)?.to_vec::<f32>()?;
        Ok(values.chunks(scores.shape()[1].max(1)).map(<[f32]>::to_vec).collect())
    }

    /// Gives every row that has not ended its next token, as the host has chosen it.
    pub fn take(&mut self, tokens: &[i64]) -> Result<()> {
        self.rows.take(tokens)?;
        self.scores = None;
        Ok(())
    }

    /// What the rows have become. Waits for the device.
    pub fn texts(&self) -> Result<Vec<Text>> {
        let text = |(tokens, ended)| Text { tokens, ended };
        Ok(self.rows.read()?.into_iter().map(text).collect())
    }
}
