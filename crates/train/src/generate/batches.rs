//! Texts continued side by side: as many as a batch has rows, one batch after the other in the same memory.

use super::{Continuation, Generator, Sampling};
use crate::error::Result;
use planaria_array::Device;
use planaria_nn::batch::{Batch, Prompt, Room};
use planaria_nn::models::Network;
use std::time::Instant;

/// Tokens that a device makes before the host looks at them.
const AHEAD: usize = 32;

/// Several texts that were continued.
#[derive(Clone, Debug, PartialEq)]
pub struct Continued {
    /// What came after each.
    pub texts: Vec<Continuation>,
    /// How long each batch took; none where texts were continued one after the other.
    pub batches: Vec<BatchTime>,
}

/// How long a batch took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchTime {
    /// Texts in it.
    pub texts: usize,
    /// Tokens made for them.
    pub tokens: usize,
    /// Seconds until each had its first.
    pub first: f64,
    /// Seconds for the others.
    pub rest: f64,
}

impl Generator {
    /// All texts, batch by batch; `None` where the model makes one text after the other.
    pub(super) fn in_batches(
        &self,
        model: &dyn Network,
        prompts: &[&str],
        fits: &[Sampling],
        each: &dyn Fn(usize, &str),
    ) -> Result<Option<Continued>> {
        let given: Vec<Vec<u32>> = prompts.iter().map(|text| self.prompt(text)).collect::<Result<_>>()?;
        let wide = |ids: &Vec<u32>| ids.iter().map(|&id| i64::from(id)).collect();
        let tokens: Vec<Vec<i64>> = given.iter().map(wide).collect();
        let pairs = tokens.iter().zip(fits);
        let all: Vec<Prompt<'_>> =
            pairs.map(|(tokens, fits)| Prompt { tokens, limit: fits.tokens }).collect();
        let stops: Vec<i64> = self.ends.iter().map(|&id| i64::from(id)).collect();
        let room = Room { rows: self.batch.min(all.len()), ..Room::of(&all) };
        let Some(mut batch) = Batch::new(model, room, &stops)? else { return Ok(None) };
        let mut made = Continued { texts: Vec::new(), batches: Vec::new() };
        for (chunk, prompts) in all.chunks(room.rows.max(1)).enumerate() {
            let first = chunk * room.rows;
            let begun = Instant::now();
            batch.begin(prompts)?;
            let told = Told { first, given: &given[first..first + prompts.len()], each };
            let (ids, early) = self.run(&mut batch, &fits[first..first + prompts.len()], &told)?;
            let (first, rest) = ((early - begun).as_secs_f64(), early.elapsed().as_secs_f64());
            let tokens = ids.iter().map(Vec::len).sum();
            made.batches.push(BatchTime { texts: prompts.len(), tokens, first, rest });
            made.texts.extend(self.finish(ids, &told)?);
        }
        Ok(Some(made))
    }

    /// The tokens of each text, with the one that ended it, and when all had their first.
    fn run(
        &self,
        batch: &mut Batch<'_>,
        fits: &[Sampling],
        told: &Told<'_>,
    ) -> Result<(Vec<Vec<u32>>, Instant)> {
        let most = fits.iter().map(|fits| fits.tokens).max().unwrap_or(0);
        let greedy = fits.iter().all(Sampling::takes_the_best);
        let ahead = if greedy && self.device != Device::Cpu { AHEAD } else { 1 };
        let (mut ids, mut said, mut early) = (vec![Vec::new(); fits.len()], 0, Instant::now());
        let mut done = 0;
        while done < most {
            let count = if done == 0 { 1 } else { ahead.min(most - done) };
            if greedy {
                batch.take_best(count)?;
            } else {
                let tokens = chosen(batch, fits, told, &ids, done)?;
                batch.take(&tokens)?;
            }
            let texts = batch.texts()?;
            for (ids, text) in ids.iter_mut().zip(&texts) {
                *ids = text.tokens.iter().map(|&id| id as u32).collect();
            }
            if done == 0 {
                early = Instant::now();
            }
            done += count;
            if let [one] = &ids[..] {
                self.tell(self.without_end(one), &mut said, &|piece| (told.each)(told.first, piece))?;
            }
            if texts.iter().all(|text| text.ended) {
                break;
            }
        }
        Ok((ids, early))
    }

    /// Tokens without the one that ends a text.
    fn without_end<'a>(&self, ids: &'a [u32]) -> &'a [u32] {
        match ids.split_last() {
            Some((last, before)) if self.ends.contains(last) => before,
            _ => ids,
        }
    }

    fn finish(&self, ids: Vec<Vec<u32>>, told: &Told<'_>) -> Result<Vec<Continuation>> {
        let alone = ids.len() == 1;
        let mut made = Vec::new();
        for (row, ids) in ids.into_iter().enumerate() {
            let kept = self.without_end(&ids).to_vec();
            let (text, ended) = (self.tokenizer.decode(&kept)?, kept.len() < ids.len());
            if !alone {
                (told.each)(told.first + row, &text);
            }
            made.push(Continuation { text, prompt_ids: told.given[row].clone(), ids: kept, ended });
        }
        Ok(made)
    }
}

/// The texts of a batch: the number of the first, what was given, and who is told what comes after.
struct Told<'a> {
    first: usize,
    given: &'a [Vec<u32>],
    each: &'a dyn Fn(usize, &str),
}

/// The next token of each row as the host chooses it; of rows that no text is in, any.
fn chosen(
    batch: &mut Batch<'_>,
    fits: &[Sampling],
    told: &Told<'_>,
    ids: &[Vec<u32>],
    number: usize,
) -> Result<Vec<i64>> {
    let choose = |(row, scores): (usize, Vec<f32>)| match fits.get(row) {
        Some(fits) => {
            let before = [&told.given[row][..], &ids[row]].concat();
            Ok(i64::from(fits.choose(&scores, &before, number)?))
        }
        None => Ok(0),
    };
    batch.scores()?.into_iter().enumerate().map(choose).collect()
}
