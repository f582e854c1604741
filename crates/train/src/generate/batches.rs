//! Texts continued side by side: as many as there are rows, and a row whose text has ended takes the next one.

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
    /// How long they took; not known where texts were continued one after the other.
    pub time: Option<BatchTime>,
}

/// How long texts side by side took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchTime {
    /// Texts.
    pub texts: usize,
    /// Tokens made for them.
    pub tokens: usize,
    /// Seconds until each of the first rows had its first.
    pub first: f64,
    /// Seconds for the others.
    pub rest: f64,
}

/// The texts, how tokens of each are chosen, and who is told what comes after.
struct Texts<'a> {
    given: &'a [Vec<u32>],
    fits: &'a [Sampling],
    each: &'a dyn Fn(usize, &str),
}

/// A text under way in a row.
#[derive(Clone, Debug, Default)]
struct Under {
    number: usize,
    ids: Vec<u32>,
    /// Bytes of its text that were told.
    said: usize,
    ended: bool,
}

impl Generator {
    /// All texts; `None` where the model makes one text after the other.
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
        let texts = Texts { given: &given, fits, each };
        let begun = Instant::now();
        let (ids, early) = self.run(&mut batch, room.rows, &all, &texts)?;
        let (first, rest) = ((early - begun).as_secs_f64(), early.elapsed().as_secs_f64());
        let tokens = ids.iter().map(Vec::len).sum();
        let made = ids.into_iter().zip(&given).map(|(ids, given)| {
            let kept = self.without_end(&ids).to_vec();
            let (text, ended) = (self.tokenizer.decode(&kept)?, kept.len() < ids.len());
            Ok(Continuation { text, prompt_ids: given.clone(), ids: kept, ended })
        });
        let time = Some(BatchTime { texts: all.len(), tokens, first, rest });
        Ok(Some(Continued { texts: made.collect::<Result<_>>()?, time }))
    }

    /// The tokens of each text, with the one that ended it, and when the first rows had their first.
    fn run(
        &self,
        batch: &mut Batch<'_>,
        rows: usize,
        all: &[Prompt<'_>],
        texts: &Texts<'_>,
    ) -> Result<(Vec<Vec<u32>>, Instant)> {
        let greedy = texts.fits.iter().all(Sampling::takes_the_best);
        let ahead = if greedy && self.device != Device::Cpu { AHEAD } else { 1 };
        let mut made: Vec<Option<Vec<u32>>> = vec![None; all.len()];
        let mut under: Vec<Option<Under>> = vec![None; rows];
        let (mut waiting, mut told, mut early) = (0..all.len(), 0, None);
        batch.begin(&[])?;
        loop {
            let mut begun = Vec::new();
            for (row, text) in under.iter_mut().enumerate().filter(|(_, text)| text.is_none()) {
                let Some(number) = waiting.next() else { break };
                begun.push((row, all[number]));
                *text = Some(Under { number, ended: all[number].limit == 0, ..Under::default() });
            }
            batch.put(&begun)?;
            let left = |text: &Under| if text.ended { 0 } else { all[text.number].limit - text.ids.len() };
            let most = under.iter().flatten().map(left).max().unwrap_or(0);
            if most > 0 {
                let count = if early.is_none() { 1 } else { ahead.min(most) };
                if greedy {
                    batch.take_best(count)?;
                } else {
                    let tokens = chosen(batch, &under, texts)?;
                    batch.take(&tokens)?;
                }
                for (text, now) in under.iter_mut().zip(batch.texts()?) {
                    let Some(text) = text else { continue };
                    text.ids = now.tokens.iter().map(|&id| id as u32).collect();
                    text.ended = now.ended;
                    if rows == 1 {
                        let tell = |piece: &str| (texts.each)(text.number, piece);
                        self.tell(self.without_end(&text.ids), &mut text.said, &tell)?;
                    }
                }
            }
            early.get_or_insert_with(Instant::now);
            for text in &mut under {
                if let Some(done) = text.take_if(|text| text.ended) {
                    made[done.number] = Some(done.ids);
                }
            }
            // In their order, whichever ended first.
            while let Some(Some(ids)) = made.get(told) {
                if rows > 1 {
                    (texts.each)(told, &self.tokenizer.decode(self.without_end(ids))?);
                }
                told += 1;
            }
            if told == all.len() {
                break;
            }
        }
        Ok((made.into_iter().flatten().collect(), early.unwrap_or_else(Instant::now)))
    }

    /// Tokens without the one that ends a text.
    fn without_end<'a>(&self, ids: &'a [u32]) -> &'a [u32] {
        match ids.split_last() {
            Some((last, before)) if self.ends.contains(last) => before,
            _ => ids,
        }
    }
}

/// The next token of each row as the host chooses it; of rows that no text is in, any.
fn chosen(batch: &mut Batch<'_>, under: &[Option<Under>], texts: &Texts<'_>) -> Result<Vec<i64>> {
    let choose = |(text, scores): (&Option<Under>, Vec<f32>)| match text {
        Some(Under { number, ids, .. }) => {
            let before = [&texts.given[*number][..], ids].concat();
            Ok(i64::from(texts.fits[*number].choose(&scores, &before, ids.len())?))
        }
        None => Ok(0),
    };
    under.iter().zip(batch.scores()?).map(choose).collect()
}
