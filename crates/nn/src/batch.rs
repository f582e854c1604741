//! Several texts that grow together: one step makes a token of each. A plain model on one device does nothing between two
//! tokens that waits for the host, and after the first step the work of one is recorded, where a device can do that, and later ones
//! are a single call. Others, and those of several ranks, run as in training, with each row at its own place.

use crate::error::{Error, Result};
use crate::layers::{Moved, Positions};
use crate::models::{Cache, Decode, Network, Run};
use crate::parallel::Lanes;
use planaria_array::ops::{BegunRow, Rows, take_best};
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

/// How a step computes the scores of the next tokens.
#[derive(Clone, Copy)]
enum Way<'a> {
    /// By ops that one device has in a row.
    Ops(&'a dyn Decode),
    /// As in training, on all ranks that share the model.
    Forward(&'a Lanes),
}

/// Rows under way, and the memory they stand in. Of a model that several ranks share, all of them do the same. What a row becomes does not depend on the others, up to the rounding of products of other sizes.
pub struct Batch<'a> {
    model: &'a dyn Network,
    way: Way<'a>,
    /// Rows of the cache that this rank has: all of them, unless experts cut the batch.
    here: Vec<usize>,
    /// Rows of the cache on all ranks.
    width: usize,
    weights: Vec<Array>,
    cache: Cache,
    room: Room,
    rows: Rows,
    /// A prompt that was read by itself: the next row often has the same.
    latest: Option<(Vec<i64>, Cache)>,
    /// Scores of the next tokens, where the host has asked for them.
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
    /// An empty batch; any of `stops` ends a row. `None` for a model whose rows cannot stand at places of their own.
    pub fn new(model: &'a dyn Network, room: Room, stops: &[i64]) -> Result<Option<Batch<'a>>> {
        let positions = room.prompt.saturating_add(room.tokens);
        let (way, here, width) = match (model.decoding(), model.rows_apart(positions)) {
            (Some(decode), _) => (Way::Ops(decode), (0..room.rows).collect(), room.rows),
            (None, Some(lanes)) => {
                let width = room.rows.next_multiple_of(lanes.ep());
                (Way::Forward(lanes), lanes.rows_here(width)?, width)
            }
            (None, None) => return Ok(None),
        };
        let weights: Vec<Array> = model.params().iter().map(|param| param.leaf().local().clone()).collect();
        let device = weights.first().map_or(Device::Cpu, Array::device);
        let limits = vec![room.tokens; room.rows];
        let rows = Rows::new(&vec![1; room.rows], &limits, stops, device)?;
        let (best, judged) = (Recorded::default(), Recorded::default());
        let cache = model.cache(positions);
        let (latest, scores, told) = (None, None, None);
        Ok(Some(Batch {
            model,
            way,
            here,
            width,
            weights,
            cache,
            room,
            rows,
            latest,
            scores,
            best,
            judged,
            told,
        }))
    }

    /// Begins with these prompts, of any lengths, in the memory and with the recorded steps of those before. Rows that no
    /// prompt is there for stay empty.
    pub fn begin(&mut self, prompts: &[Prompt<'_>]) -> Result<()> {
        let all: Vec<(usize, Prompt<'_>)> = prompts.iter().copied().enumerate().collect();
        self.check(&all)?;
        let empty = |row| BegunRow { row, length: 1, limit: 0, last: 0 };
        self.rows.begin(&(0..self.room.rows).map(empty).collect::<Vec<_>>())?;
        self.best.renew();
        self.judged.renew();
        self.latest = None;
        self.put(&all)
    }

    /// Begins rows anew with these prompts, while the others go on. What a prompt has before its last token is read here, that of
    /// equal prompts once; the last token is taken by the next step, as those of the rows under way are.
    pub fn put(&mut self, begun: &[(usize, Prompt<'_>)]) -> Result<()> {
        self.check(begun)?;
        let mut read: Vec<&[i64]> = Vec::new();
        let mut moves = Vec::new();
        let mut rows = Vec::new();
        for &(row, Prompt { tokens, limit }) in begun {
            let (before, last) = (&tokens[..(tokens.len() - 1).max(1)], tokens[tokens.len() - 1]);
            let from = read.iter().position(|known| *known == before).unwrap_or_else(|| {
                read.push(before);
                read.len() - 1
            });
            let place = self.here.iter().position(|&here| here == row);
            moves.extend(place.map(|to| Moved { from, to, len: before.len() }));
            rows.push(BegunRow { row, length: tokens.len(), limit, last });
        }
        if !rows.is_empty() {
            let known = self.latest.take().filter(|(text, _)| read == [&text[..]]);
            let latest = known.map_or_else(|| Ok((read[0].to_vec(), self.read(&read)?)), Ok::<_, Error>)?;
            self.cache.take_rows(&latest.1, self.width, &moves)?;
            self.latest = (read.len() == 1).then_some(latest);
            self.rows.begin(&rows)?;
        }
        self.scores = None;
        Ok(())
    }

    fn check(&self, begun: &[(usize, Prompt<'_>)]) -> Result<()> {
        if let Some((row, _)) = begun.iter().find(|(_, prompt)| prompt.tokens.is_empty()) {
            return Err(refuse(format!("prompt {row} has no token; begin it with one")));
        }
        let most = |of: fn(&Prompt<'_>) -> usize| begun.iter().map(|(_, prompt)| of(prompt)).max();
        let rows = begun.iter().map(|(row, _)| row + 1).max().unwrap_or(0);
        let prompt = most(|prompt| prompt.tokens.len()).unwrap_or(0);
        let asked = Room { rows, prompt, tokens: most(|prompt| prompt.limit).unwrap_or(0) };
        if !self.room.holds(&asked) {
            let room = self.room;
            return Err(refuse(format!(
                "there is room for {room}, but {asked} are needed; make a larger batch"
            )));
        }
        Ok(())
    }

    /// Keys and values of texts, which every rank of those that cut batches has. Shorter ones are filled up behind their end: no token of theirs sees what stands there.
    fn read(&self, texts: &[&[i64]]) -> Result<Cache> {
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        let times = if let Way::Forward(lanes) = self.way { lanes.ep() } else { 1 };
        let texts = texts.repeat(times);
        let mut tokens = vec![0; texts.len() * longest];
        for (row, text) in tokens.chunks_mut(longest.max(1)).zip(&texts) {
            row[..text.len()].copy_from_slice(text);
        }
        let tokens = Tensor::from_slice(&tokens, &[texts.len(), longest])?;
        let cache = self.model.cache(longest);
        no_grad(|| self.model.forward(tokens.into(), &Run { cache: Some(&cache), ..Run::default() }))?;
        Ok(cache)
    }

    /// Gives every row that has not ended its next `count` tokens, each the likeliest, of equals the first. On a device the
    /// steps are queued; this does not wait for them.
    pub fn take_best(&mut self, count: usize) -> Result<()> {
        self.scores = None;
        for _ in 0..count {
            let Way::Ops(decode) = self.way else {
                take_best(&self.forward()?, &self.rows)?;
                continue;
            };
            let (rows, cache) = (&self.rows, &self.cache);
            self.best.run(&self.weights, rows.next.device(), || {
                let scores = no_grad(|| decode.decode(&rows.next, &rows.positions, cache))?;
                Ok(take_best(&scores, rows)?)
            })?;
        }
        Ok(())
    }

    /// The scores of each row's next token, for a choice by the host. Waits.
    pub fn scores(&mut self) -> Result<Vec<Vec<f32>>> {
        let scores = self.next_scores()?;
        rows_of(&scores)
    }

    /// The probabilities of each row's next token at a temperature, for a draw by the host. Waits.
    pub fn probabilities(&mut self, temperature: f64) -> Result<Vec<Vec<f32>>> {
        let scores = Tensor::new(self.next_scores()?.cast(DType::F32)?);
        rows_of(no_grad(|| scores.mul_scalar(1.0 / temperature)?.softmax(-1))?.local())
    }

    fn next_scores(&mut self) -> Result<Array> {
        if self.scores.is_none() {
            let Way::Ops(decode) = self.way else {
                let scores = self.forward()?;
                self.scores = Some(scores.clone());
                return Ok(scores);
            };
            let (rows, cache, told) = (&self.rows, &self.cache, &mut self.told);
            self.judged.run(&self.weights, rows.next.device(), || {
                *told = Some(no_grad(|| decode.decode(&rows.next, &rows.positions, cache))?);
                Ok(())
            })?;
            self.scores = self.told.clone();
        }
        self.scores.clone().ok_or_else(|| refuse("no step made scores".to_string()))
    }

    /// Scores of each row's next token, as in training. Collective.
    fn forward(&self) -> Result<Array> {
        let (mut tokens, mut places) =
            (self.rows.next.to_vec::<i64>()?, self.rows.positions.to_vec::<i64>()?);
        tokens.resize(self.width, 0);
        places.resize(self.width, 0);
        let tokens = Tensor::from_slice(&tokens, &[self.width, 1])?;
        let places = places.into_iter().map(|place| place as usize).collect();
        let run = Run { cache: Some(&self.cache), positions: Positions::Each(places), ..Run::default() };
        let scores = no_grad(|| {
            let hidden = self.model.forward(tokens.into(), &run)?.hidden;
            Ok::<_, Error>(self.model.logits(&hidden)?.whole()?)
        })?;
        let vocabulary = scores.shape()[2];
        Ok(scores.narrow(0, 0, self.room.rows)?.reshape(&[self.room.rows, vocabulary])?)
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

/// Each row of `[rows, numbers]`.
fn rows_of(array: &Array) -> Result<Vec<Vec<f32>>> {
    let values = array.cast(DType::F32)?.contiguous()?.to_vec::<f32>()?;
    Ok(values.chunks(array.shape()[1].max(1)).map(<[f32]>::to_vec).collect())
}
