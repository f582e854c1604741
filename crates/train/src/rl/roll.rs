//! Responses of a policy: token by token, some prompts side by side, drawn from random numbers that the caller names.

use super::sampling::pick;
use super::{Response, TokenSampling};
use crate::error::Result;
use crate::generate::next_scores;
use crate::opened::Opened;
use planaria_comm::alone;
use planaria_nn::Init;
use planaria_nn::batch::{Batch, Prompt, Room};
use planaria_nn::models::{Models, Network, Run};
use planaria_tensor::no_grad;
use rayon::prelude::*;
use std::path::Path;

/// Gives the random number in [0, 1) of a prompt, by its number, and a place in its response.
pub type Draw<'a> = dyn Fn(usize, usize) -> f64 + Sync + 'a;

/// Probabilities from which on rows are drawn by several threads.
const APART: usize = 1 << 17;

/// What the next tokens of rows are drawn from.
enum Given {
    Scores(Vec<Vec<f32>>),
    Probabilities(Vec<Vec<f32>>),
}

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
    /// Responses under way at once.
    pub rows: usize,
    /// Whether log-probabilities are told.
    pub logprobs: bool,
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
    /// Log-probabilities at the sampling temperature, where they are asked for.
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

    /// Takes the next token from its scores, or from its probabilities where nothing changes those.
    fn take(&mut self, given: &Given, at: usize, draw: &Draw<'_>) -> i64 {
        match given {
            Given::Scores(scores) => self.choose(&scores[at], draw),
            Given::Probabilities(all) => {
                let uniform = draw(self.number, self.made());
                let likely = pick(all[at].iter().map(|&p| f64::from(p)), uniform);
                self.push(likely.unwrap_or(0))
            }
        }
    }

    fn choose(&mut self, logits: &[f32], draw: &Draw<'_>) -> i64 {
        let logits: Vec<f64> = logits.iter().map(|&logit| f64::from(logit)).collect();
        let Roll { sampling, ends, logprobs, .. } = self.roll;
        let scores = sampling.scores(&logits, &self.tokens, self.made(), ends);
        let token = sampling.draw(&scores, draw(self.number, self.made()));
        if *logprobs {
            self.logprobs.push(sampling.policy(&logits)[token]);
        }
        self.push(token)
    }

    fn push(&mut self, token: usize) -> i64 {
        let token = token as i64;
        self.tokens.push(token);
        self.finished = self.roll.ends.contains(&token);
        token
    }

    fn end(self) -> Rolled {
        let response = Response { tokens: self.tokens[self.given..].to_vec(), finished: self.finished };
        Rolled { response, logprobs: self.logprobs }
    }
}

/// A response to every prompt. `draw` gives the random number in [0, 1) of a prompt, by its number, and a place in its response.
/// A row whose response has ended is given the next prompt at once; what a prompt gets does not depend on the others.
pub fn roll(
    model: &dyn Network,
    prompts: &[Vec<i64>],
    options: &Roll,
    draw: &Draw<'_>,
) -> Result<Vec<Rolled>> {
    let limits: Vec<Prompt<'_>> =
        prompts.iter().map(|tokens| Prompt { tokens, limit: options.limit(tokens.len()) }).collect();
    let all = || prompts.iter().enumerate().map(|(number, prompt)| Row::new(number, prompt, options));
    let room = Room { rows: options.rows.clamp(1, prompts.len().max(1)), ..Room::of(&limits) };
    let Some(mut batch) = Batch::new(model, room, &options.ends)? else {
        return all().map(|row| alone_in(model, row, draw)).collect();
    };
    batch.begin(&[])?;
    let mut out: Vec<Option<Rolled>> = vec![None; prompts.len()];
    let mut rows: Vec<Option<Row<'_>>> = std::iter::repeat_with(|| None).take(room.rows).collect();
    let mut waiting = all();
    loop {
        for row in &mut rows {
            if let Some(done) = row.take_if(|row| row.is_done()) {
                let number = done.number;
                out[number] = Some(done.end());
            }
        }
        let mut begun = Vec::new();
        for (at, row) in rows.iter_mut().enumerate().filter(|(_, row)| row.is_none()) {
            let Some(next) = waiting.next() else { break };
            begun.push((at, limits[next.number]));
            *row = Some(next);
        }
        // Each prompt by itself, so that who else begins with it changes nothing.
        for same in begun.chunk_by(|(_, one), (_, other)| one.tokens == other.tokens) {
            batch.put(same)?;
        }
        if rows.iter().all(Option::is_none) {
            break;
        }
        if rows.iter().flatten().all(Row::is_done) {
            continue;
        }
        let tokens = next_tokens(&mut batch, &mut rows, options, draw)?;
        batch.take(&tokens)?;
    }
    Ok(out.into_iter().flatten().collect())
}

/// The next token of each row that has a response under way; any for the others.
fn next_tokens(
    batch: &mut Batch<'_>,
    rows: &mut [Option<Row<'_>>],
    options: &Roll,
    draw: &Draw<'_>,
) -> Result<Vec<i64>> {
    let plain = options.sampling.is_plain() && !options.logprobs;
    let (given, numbers) = match plain {
        true => {
            let all = batch.probabilities(options.sampling.temperature)?;
            let numbers = all.iter().map(Vec::len).sum::<usize>();
            (Given::Probabilities(all), numbers)
        }
        false => {
            let all = batch.scores()?;
            // Filters cost many times what a draw does.
            let numbers = 16 * all.iter().map(Vec::len).sum::<usize>();
            (Given::Scores(all), numbers)
        }
    };
    let mut tokens = vec![0; rows.len()];
    let all = rows.iter_mut().zip(&mut tokens).enumerate();
    let under =
        all.filter_map(|(at, (row, token))| Some((at, row.as_mut().filter(|row| !row.is_done())?, token)));
    let mut under: Vec<(usize, &mut Row<'_>, &mut i64)> = under.collect();
    let take = |(at, row, token): &mut (usize, &mut Row<'_>, &mut i64)| {
        **token = row.take(&given, *at, draw);
    };
    if numbers < APART {
        under.iter_mut().for_each(take);
    } else {
        under.par_iter_mut().for_each(take);
    }
    Ok(tokens)
}

/// One response with a cache of its own: for models that do not make several side by side.
fn alone_in(model: &dyn Network, mut row: Row<'_>, draw: &Draw<'_>) -> Result<Rolled> {
    let cache = model.cache(row.given + row.roll.most);
    let mut fresh: Vec<u32> = row.tokens.iter().map(|&id| id as u32).collect();
    while !row.is_done() {
        let run = Run { cache: Some(&cache), ..Run::default() };
        let scores = no_grad(|| next_scores(model, &fresh, &run))?;
        fresh = vec![row.choose(&scores.to_vec::<f32>()?, draw) as u32];
    }
    Ok(row.end())
}

/// The same by the model of a folder.
pub fn roll_folder(
    folder: &Path,
    prompts: &[Vec<i64>],
    options: &Roll,
    draw: &Draw<'_>,
) -> Result<Vec<Rolled>> {
    let opened = Opened::open(folder, &[], &Models::default())?;
    let network = opened.load(&alone(), &Init::default())?;
    roll(&*network, prompts, options, draw)
}
