//! Rows of any length into samples of one: cutting, packing, and putting rows side by side or one after the other.

use super::error::Refusal;
use crate::pack::IGNORED;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What becomes of a row that is longer than a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Overlong {
    /// Its end is cut off.
    #[default]
    KeepStart,
    /// Its beginning is cut off.
    KeepEnd,
    /// It is left out.
    Drop,
    /// It becomes several pieces, each read without those before it.
    Split,
}

/// A row as it is trained on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fitted {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The tokens again where they are trained, else -100.
    pub labels: Vec<i64>,
}

impl Fitted {
    /// Labels that are predicted from something: those after the first.
    pub fn predicted(&self) -> usize {
        self.labels.iter().skip(1).filter(|&&label| label != IGNORED).count()
    }

    /// Refuses a row that nothing is learnt from.
    pub fn check(self) -> Result<Fitted, Refusal> {
        if self.predicted() == 0 { Err(Refusal::NoTrainedToken) } else { Ok(self) }
    }

    /// At most `longest` tokens; nothing where a longer row is left out. A row that is to be split stays whole.
    pub fn cut(mut self, longest: usize, overlong: Overlong) -> Option<Fitted> {
        let more = self.tokens.len().saturating_sub(longest);
        if more > 0 {
            match overlong {
                Overlong::KeepStart => {
                    self.tokens.truncate(longest);
                    self.labels.truncate(longest);
                }
                Overlong::KeepEnd => {
                    self.tokens.drain(..more);
                    self.labels.drain(..more);
                }
                Overlong::Drop => return None,
                Overlong::Split => {}
            }
        }
        Some(self)
    }
}

/// Tokens `start..end` of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The number of the row.
    pub row: usize,
    /// Its first token.
    pub start: usize,
    /// The token after its last.
    pub end: usize,
}

/// Pieces of at most `capacity` tokens: the beginnings of rows, or with [`Overlong::Split`] all of them.
fn pieces(lengths: &[usize], capacity: usize, overlong: Overlong) -> Vec<Piece> {
    let mut out = Vec::with_capacity(lengths.len());
    for (row, &length) in lengths.iter().enumerate() {
        let end = if overlong == Overlong::Split { length } else { length.min(capacity) };
        let starts = (0..end).step_by(capacity.max(1));
        out.extend(starts.map(|start| Piece { row, start, end: end.min(start + capacity) }));
    }
    out
}

/// Best fit, longest first: each piece goes into the fullest bin that still has room for it. Equal pieces keep their order, and
/// of equally full bins the first one is taken, so the result is one for everybody.
pub fn best_fit(lengths: &[usize], capacity: usize, overlong: Overlong) -> Vec<Vec<Piece>> {
    let mut pieces = pieces(lengths, capacity, overlong);
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.end - piece.start));
    let mut bins: Vec<Vec<Piece>> = Vec::new();
    // Room left and number of every bin with any.
    let mut open: BTreeSet<(usize, usize)> = BTreeSet::new();
    for piece in pieces {
        let length = piece.end - piece.start;
        let (room, bin) = match open.range((length, 0)..).next().copied() {
            Some(found) => {
                open.remove(&found);
                found
            }
            None => {
                bins.push(Vec::new());
                (capacity, bins.len() - 1)
            }
        };
        bins[bin].push(piece);
        if room > length {
            open.insert((room - length, bin));
        }
    }
    bins
}

/// Every row in a bin of its own.
pub fn one_each(lengths: &[usize], capacity: usize, overlong: Overlong) -> Vec<Vec<Piece>> {
    pieces(lengths, capacity, overlong).into_iter().map(|piece| vec![piece]).collect()
}

/// Rows one after the other, cut wherever a bin is full.
pub fn wrapped(lengths: &[usize], capacity: usize) -> Vec<Vec<Piece>> {
    let mut bins: Vec<Vec<Piece>> = Vec::new();
    let mut room = 0;
    for (row, &length) in lengths.iter().enumerate() {
        let mut start = 0;
        while start < length && capacity > 0 {
            if room == 0 {
                bins.push(Vec::new());
                room = capacity;
            }
            let end = length.min(start + room);
            if let Some(bin) = bins.last_mut() {
                bin.push(Piece { row, start, end });
            }
            room -= end - start;
            start = end;
        }
    }
    bins
}

/// The side that is filled up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Before the tokens: the last ones stand in one column, for generation.
    Left,
    /// After the tokens, for training.
    Right,
}

/// Rows side by side, `[rows, width]` in row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Padded {
    /// Tokens, with the padding token where there is none.
    pub tokens: Vec<u32>,
    /// Labels, -100 in the padding.
    pub labels: Vec<i64>,
    /// Whether there is a token.
    pub mask: Vec<bool>,
    /// Position of each token in its row, 0 in the padding.
    pub positions: Vec<usize>,
    /// Tokens per row with padding.
    pub width: usize,
}

/// Puts rows side by side, filled up to the longest and then to a multiple of a number.
pub fn pad(rows: &[Fitted], token: u32, side: Side, multiple: usize) -> Padded {
    let longest = rows.iter().map(|row| row.tokens.len()).max().unwrap_or(0);
    let width = longest.next_multiple_of(multiple.max(1));
    let mut out = Padded { tokens: vec![], labels: vec![], mask: vec![], positions: vec![], width };
    for row in rows {
        let missing = width - row.tokens.len();
        let before = if side == Side::Left { missing } else { 0 };
        let fill = |out: &mut Padded, count: usize| {
            out.tokens.extend(std::iter::repeat_n(token, count));
            out.labels.extend(std::iter::repeat_n(IGNORED, count));
            out.mask.extend(std::iter::repeat_n(false, count));
            out.positions.extend(std::iter::repeat_n(0, count));
        };
        fill(&mut out, before);
        out.tokens.extend_from_slice(&row.tokens);
        out.labels.extend_from_slice(&row.labels);
        out.mask.extend(std::iter::repeat_n(true, row.tokens.len()));
        out.positions.extend(0..row.tokens.len());
        fill(&mut out, missing - before);
    }
    out
}

/// Rows one after the other, none of which sees another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Joined {
    /// Tokens of all rows.
    pub tokens: Vec<u32>,
    /// Labels; the first of a row is -100: it would be predicted from the row before.
    pub labels: Vec<i64>,
    /// Position of each token in its row.
    pub positions: Vec<usize>,
    /// Where rows begin, and the end of the last.
    pub borders: Vec<usize>,
}

impl Joined {
    /// Adds a row.
    pub fn push(&mut self, tokens: &[u32], labels: &[i64]) {
        if self.borders.is_empty() {
            self.borders.push(0);
        }
        if tokens.is_empty() {
            return;
        }
        self.tokens.extend_from_slice(tokens);
        self.labels.push(IGNORED);
        self.labels.extend_from_slice(&labels[1..]);
        self.positions.extend(0..tokens.len());
        self.borders.push(self.tokens.len());
    }

    /// Tokens of the longest row.
    pub fn longest(&self) -> usize {
        self.borders.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }
}
