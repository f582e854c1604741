//! Responses of a policy: token by token, some prompts side by side, drawn from random numbers that the caller names.

use super::{Response, TokenSampling};
use crate::error::Result;
use crate::generate::next_scores;
use crate::opened::Opened;
use planaria_comm::alone;
use planaria_nn::Init;
use planaria_nn::batch::{Batch, Prompt, Room};
use planaria_nn::models::{Models, Network, Run};
use planaria_tensor::no_grad;
use std::path::Path;

/// How responses are made.
#[derive(Clone, Debug, PartialEq)]
pub struct Roll {
    /// How tokens are drawn.
    pub sampling: TokenSampling,
    /// Tokens that end a response.
    pub ends: Vec<i64>,
    /// Most tokens of a response.
    pub most: usize,
    /// Most tokens of a prompt with its response.
    pub context: usize,
    /// Prompts side by side.
    pub rows: usize,
}

impl Roll {
    /// Most tokens of a response to a prompt of so many.
    fn limit(&self, prompt: usize) -> usize {
        self.most.min(self.context.saturating_sub(prompt))
    }
}

/// A response and what the policy thought of its tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Rolled {
    /// The response.
    pub response: Response,
    /// Log-probabilities at the sampling temperature.
    pub logprobs: Vec<f64>,
}

/// A response under way.
struct Row<'a> {
    /// Prompt and response so far.
    tokens: Vec<i64>,
    given: usize,
    number: usize,
    logprobs: Vec<f64>,
    finished: bool,
    roll: &'a Roll,
}

impl Row<'_> {
    fn new<'a>(number: usize, prompt: &[i64], roll: &'a Roll) -> Row<'a> {
        Row {
            tokens: prompt.to_vec(),
            given: prompt.len(),
            number,
            logprobs: Vec::new(),
            finished: false,
            roll,
        }
    }

    fn made(&self) -> usize {
        self.tokens.len() - self.given
    }

    fn is_done(&self) -> bool {
        self.finished || self.made() >= self.roll.limit(self.given)
    }

    /// Takes the next token from its scores.
    fn take(&mut self, logits: &[f32], draw: &dyn Fn(usize, usize) -> f64) -> i64 {
        let logits: Vec<f64> = logits.iter().map(|&logit| f64::from(logit)).collect();
        let Roll { sampling, ends, .. } = self.roll;
        let scores = sampling.scores(&logits, &self.tokens, self.made(), ends);
        let token = sampling.draw(&scores, draw(self.number, self.made()));
        self.logprobs.push(sampling.policy(&logits)[token]);
        self.tokens.push(token as i64);
        self.finished = ends.contains(&(token as i64));
        token as i64
    }

    fn end(self) -> Rolled {
        let response = Response { tokens: self.tokens[self.given..].to_vec(), finished: self.finished };
        Rolled { response, logprobs: self.logprobs }
    }
}

/// A response to every prompt. `draw` gives the random number in [0, 1) of a prompt, by its number, and a place in its response.
/// What a prompt gets does not depend on the others.
pub fn roll(
    model: &dyn Network,
    prompts: &[Vec<i64>],
    options: &Roll,
    draw: &dyn Fn(usize, usize) -> f64,
) -> Result<Vec<Rolled>> {
    let mut out = Vec::with_capacity(prompts.len());
    let limits: Vec<Prompt<'_>> =
        prompts.iter().map(|tokens| Prompt { tokens, limit: options.limit(tokens.len()) }).collect();
    let room = Room { rows: options.rows.clamp(1, prompts.len().max(1)), ..Room::of(&limits) };
    let Some(mut batch) = Batch::new(model, room, &options.ends)? else {
        let rows = prompts
            .iter()
            .enumerate()
            .map(|(number, prompt)| alone_in(model, Row::new(number, prompt, options), draw));
        return rows.collect();
    };
    for (chunk, given) in limits.chunks(room.rows).enumerate() {
        let first = chunk * room.rows;
        let mut rows: Vec<Row<'_>> = given
            .iter()
            .enumerate()
            .map(|(at, prompt)| Row::new(first + at, prompt.tokens, options))
            .collect();
        batch.begin(given)?;
        while rows.iter().any(|row| !row.is_done()) {
            let scores = batch.scores()?;
            let mut tokens = vec![0; room.rows];
            for (at, row) in rows.iter_mut().enumerate().filter(|(_, row)| !row.is_done()) {
                tokens[at] = row.take(&scores[at], draw);
            }
            batch.take(&tokens)?;
        }
        out.extend(rows.into_iter().map(Row::end));
    }
    Ok(out)
}

/// One response with a cache of its own: for models that do not make several side by side.
fn alone_in(model: &dyn Network, mut row: Row<'_>, draw: &dyn Fn(usize, usize) -> f64) -> Result<Rolled> {
    let cache = model.cache(row.given + row.roll.most);
    let mut fresh: Vec<u32> = row.tokens.iter().map(|&id| id as u32).collect();
    while !row.is_done() {
        let run = Run { cache: Some(&cache), ..Run::default() };
        let scores = no_grad(|| next_scores(model, &fresh, &run))?;
        fresh = vec![row.take(&scores.to_vec::<f32>()?, draw) as u32];
    }
    Ok(row.end())
}

/// The same by the model of a folder.
pub fn roll_folder(
    folder: &Path,
    prompts: &[Vec<i64>],
    options: &Roll,
    draw: &dyn Fn(usize, usize) -> f64,
) -> Result<Vec<Rolled>> {
    let opened = Opened::open(folder, &[], &Models::default())?;
    let network = opened.load(&alone(), &Init::default())?;
    roll(&*network, prompts, options, draw)
}
