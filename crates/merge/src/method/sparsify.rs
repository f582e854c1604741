//! Which elements of a difference stay.

use super::deltas::Source;
use super::ranks::Ranks;
use crate::error::Result;
use crate::passes::Inputs;
use crate::select::{self, Channel, Place};
use planaria_array::random::{Key, Window, bits};

/// A sequence of random words that belongs to one input of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream(pub(crate) u64);

impl Stream {
    /// The sequence of a seed, an input as the recipe writes it, and a tensor of the result.
    pub(crate) fn new(seed: u64, input: &str, tensor: &str) -> Stream {
        // FNV-1a over all three, each ended by a byte that no text has, then mixed as by splitmix64.
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let parts = [&seed.to_le_bytes()[..], input.as_bytes(), tensor.as_bytes()];
        for byte in parts.iter().flat_map(|part| part.iter().chain(&[0xff])) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Stream(hash ^ (hash >> 31))
    }

    /// The words of the elements from `first` on.
    pub(crate) fn words(self, first: usize, len: usize) -> Result<Vec<u32>> {
        let mut words = vec![0; len];
        bits(&mut words, Key::new(self.0, 0), &Window::flat(first as u64, len))?;
        Ok(words)
    }
}

/// A way to thin out a difference.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Sparsify {
    /// Everything stays.
    Nothing,
    /// The largest; of equal ones those that come first.
    Magnitude { density: f64 },
    /// Neither the largest nor the smallest.
    Outliers { density: f64, top: f64 },
    /// Each with the same probability.
    Random { density: f64, stream: Stream },
    /// Each with a probability that grows with its rank in its row.
    Ranked { density: f64, epsilon: f64, stream: Stream },
    /// Those at or above a quantile that is interpolated.
    Quantile { density: f64 },
    /// Each with a probability that falls with its rank in the tensor; what stays may be divided by it.
    Pruned { density: f64, epsilon: f64, divided: bool, stream: Stream },
}

/// A [`Sparsify`] that has seen all elements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kept {
    All,
    Nothing,
    /// Larger than the cut, or equal to it and before the index.
    Largest {
        cut: u64,
        before: usize,
    },
    /// From one place of the ascending order to another.
    Between {
        from: (u64, usize),
        to: (u64, usize),
    },
    AtLeast {
        cut: u64,
    },
    Random {
        density: f64,
        stream: Stream,
    },
    Ranked {
        density: f64,
        epsilon: f64,
        stream: Stream,
    },
    /// By rank in the whole tensor, the largest being the likeliest to stay.
    Pruned {
        ranks: std::sync::Arc<Ranks>,
        chances: Falling,
        divided: bool,
        stream: Stream,
    },
}

impl Sparsify {
    /// The part that stays.
    fn density(&self) -> f64 {
        match self {
            Sparsify::Nothing => 1.0,
            Sparsify::Magnitude { density }
            | Sparsify::Outliers { density, .. }
            | Sparsify::Random { density, .. }
            | Sparsify::Ranked { density, .. }
            | Sparsify::Quantile { density }
            | Sparsify::Pruned { density, .. } => *density,
        }
    }

    /// Whether it compares the elements of a row.
    pub(crate) fn compares_rows(&self) -> bool {
        matches!(self, Sparsify::Ranked { density, .. } if *density < 1.0)
    }
}

/// The places that must be known of one input.
fn places(sparsify: &Sparsify, channel: usize, numel: usize) -> Vec<Place> {
    let part = |part: f64| ((part * numel as f64).floor().max(0.0) as usize).min(numel);
    let place = |position: usize| Place { channel, position };
    match sparsify {
        Sparsify::Magnitude { density } => vec![place(numel - part(*density).max(1))],
        Sparsify::Outliers { density, top } => {
            let (from, to) = between(*density, *top, numel);
            [from, to].into_iter().filter(|at| *at < numel).map(place).collect()
        }
        Sparsify::Quantile { density } => {
            let at = (1.0 - density) * (numel - 1) as f64;
            vec![place(at.floor() as usize), place(at.ceil() as usize)]
        }
        _ => Vec::new(),
    }
}

/// First and one past the last place that stays.
fn between(density: f64, top: f64, numel: usize) -> (usize, usize) {
    let part = |part: f64| ((part * numel as f64).floor().max(0.0) as usize).min(numel);
    let (keep, top) = (part(density), part(top));
    let from = numel.saturating_sub(keep + top);
    (from, (from + keep).min(numel))
}

/// Looks at all elements as far as needed.
pub(crate) fn prepare(sparsify: &[Sparsify], source: &Source, inputs: &Inputs) -> Result<Vec<Kept>> {
    let numel = inputs.numel();
    let active: Vec<bool> =
        sparsify.iter().map(|one| one.density() < 1.0 && one.density() > 0.0 && numel > 0).collect();
    let wanted: Vec<Vec<Place>> = sparsify
        .iter()
        .enumerate()
        .map(|(number, one)| if active[number] { places(one, number, numel) } else { Vec::new() })
        .collect();
    let channel =
        |number: usize, _: usize, read: &[Vec<f64>], out: &mut Vec<f64>| source.fill(number, read, out);
    let flat: Vec<Place> = wanted.iter().flatten().copied().collect();
    let mut found = select::find(inputs, &channel, &flat)?.into_iter();
    let found: Vec<Cuts> =
        wanted.iter().map(|places| places.iter().copied().zip(found.by_ref()).collect()).collect();
    // Where equal elements are divided, one pass finds all borders.
    let borders: Vec<Vec<Border>> =
        sparsify.iter().zip(&found).map(|(one, found)| one.borders(found)).collect();
    let split = |border: &&Border| border.2 < border.3;
    let nth = |border: &Border| select::Nth { channel: border.0, key: border.1, nth: border.2 };
    let asked: Vec<select::Nth> = borders.iter().flatten().filter(split).map(nth).collect();
    let mut indices = select::indices(inputs, &channel, &asked)?.into_iter();
    let mut kept = Vec::new();
    for (number, one) in sparsify.iter().enumerate() {
        let index = |border: &Border| if split(&border) { indices.next().unwrap_or(numel) } else { numel };
        let borders: Vec<usize> = borders[number].iter().map(index).collect();
        kept.push(match (one, active[number]) {
            (_, true) => one.kept(number, (&found[number], &borders), inputs, &channel)?,
            (one, false) if one.density() >= 1.0 => Kept::All,
            _ => Kept::Nothing,
        });
    }
    Ok(kept)
}

/// What stands at the places of one input.
type Cuts = Vec<(Place, select::Found)>;

/// An element among equal ones: channel, key, its number, and how many there are.
type Border = (usize, u64, usize, usize);

impl Sparsify {
    /// The elements whose indices must be known.
    fn borders(&self, found: &Cuts) -> Vec<Border> {
        let border = |(place, cut): &(Place, select::Found)| {
            let nth = match self {
                // The largest stay: as many of the equal ones as are not above them.
                Sparsify::Magnitude { .. } => cut.below + cut.equal - place.position,
                _ => place.position - cut.below,
            };
            (place.channel, cut.key, nth, cut.equal)
        };
        match self {
            Sparsify::Magnitude { .. } | Sparsify::Outliers { .. } => found.iter().map(border).collect(),
            _ => Vec::new(),
        }
    }

    fn kept(
        &self,
        number: usize,
        (found, borders): (&Cuts, &[usize]),
        inputs: &Inputs,
        channel: &Channel<'_>,
    ) -> Result<Kept> {
        let numel = inputs.numel();
        Ok(match self {
            Sparsify::Nothing => Kept::All,
            Sparsify::Magnitude { .. } => Kept::Largest { cut: found[0].1.key, before: borders[0] },
            Sparsify::Outliers { density, top } => {
                let (from, to) = between(*density, *top, numel);
                let place = |at: usize| match found.iter().position(|(place, _)| place.position == at) {
                    Some(found_at) => (found[found_at].1.key, borders[found_at]),
                    None => (u64::MAX, 0),
                };
                Kept::Between { from: place(from), to: place(to) }
            }
            Sparsify::Quantile { density } => {
                let at = (1.0 - density) * (numel - 1) as f64;
                let value = |at: usize| select::magnitude(found[at].1.key, inputs.wide);
                let part = at - at.floor();
                let cut = value(0) + part * (value(1) - value(0));
                Kept::AtLeast { cut: select::key(cut, inputs.wide) }
            }
            Sparsify::Random { density, stream } => Kept::Random { density: *density, stream: *stream },
            Sparsify::Ranked { density, epsilon, stream } => {
                Kept::Ranked { density: *density, epsilon: *epsilon, stream: *stream }
            }
            Sparsify::Pruned { density, epsilon, divided, stream } => {
                let chances = Falling { density: *density, epsilon: *epsilon, numel };
                let ranks = Ranks::of(number, inputs, channel)?.into();
                Kept::Pruned { ranks, chances, divided: *divided, stream: *stream }
            }
        })
    }
}

impl Kept {
    /// Puts zeros where elements go. `row` is the length of a row.
    pub(crate) fn apply(&self, first: usize, row: usize, wide: bool, values: &mut [f64]) -> Result<()> {
        match self {
            Kept::All => {}
            Kept::Nothing => values.fill(0.0),
            Kept::Largest { cut, before } => {
                let cut = select::magnitude(*cut, wide);
                let (early, late) = values.split_at_mut(before.saturating_sub(first).min(values.len()));
                let size = |value: f64| if wide { value.abs() } else { f64::from(value.abs() as f32) };
                early.iter_mut().for_each(|value| *value = if size(*value) >= cut { *value } else { 0.0 });
                late.iter_mut().for_each(|value| *value = if size(*value) > cut { *value } else { 0.0 });
            }
            Kept::Between { from, to } => retain(values, first, |value, at| {
                let place = (select::key(value, wide), at);
                place >= *from && place < *to
            }),
            Kept::AtLeast { cut } => retain(values, first, |value, _| select::key(value, wide) >= *cut),
            Kept::Random { density, stream } => {
                let words = stream.words(first, values.len())?;
                retain(values, first, |_, at| below(words[at - first], *density));
            }
            Kept::Ranked { density, epsilon, stream } => {
                let words = stream.words(first, values.len())?;
                let chances: Vec<f64> =
                    values.chunks(row.max(1)).flat_map(|row| chances(row, *density, *epsilon)).collect();
                retain(values, first, |_, at| below(words[at - first], chances[at - first]));
            }
            Kept::Pruned { ranks, chances, divided, stream } => {
                let words = stream.words(first, values.len())?;
                for (value, word) in values.iter_mut().zip(words) {
                    let chance = chances.at(ranks.rank(*value));
                    // Each is divided by the chance that it had.
                    let factor = if *divided { f64::from((1.0 / chance) as f32) } else { 1.0 };
                    *value = if below(word, chance) { *value * factor } else { 0.0 };
                }
            }
        }
        Ok(())
    }
}

/// Whether a random word falls below a probability.
fn below(word: u32, chance: f64) -> bool {
    f64::from(word) / 4_294_967_296.0 < chance
}

fn retain(values: &mut [f64], first: usize, stays: impl Fn(f64, usize) -> bool) {
    for (at, value) in values.iter_mut().enumerate() {
        if !stays(*value, first + at) {
            *value = 0.0;
        }
    }
}

/// The probability of every element of a row to stay: the larger, the likelier.
fn chances(row: &[f64], density: f64, epsilon: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[a].abs().total_cmp(&row[b].abs()).then(a.cmp(&b)));
    let mut chances = vec![density; row.len()];
    if row.len() > 1 {
        let step = 2.0 * epsilon / (row.len() - 1) as f64;
        order.iter().enumerate().for_each(|(rank, &at)| chances[at] = density - epsilon + step * rank as f64);
    }
    chances
}

/// Paddle's probability to stay, which falls with the rank in the whole tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Falling {
    density: f64,
    epsilon: f64,
    numel: usize,
}

impl Falling {
    fn at(self, rank: f64) -> f64 {
        let drop = (1.0 - self.density) - self.epsilon / 2.0 + self.epsilon * rank / self.numel as f64;
        (1.0 - drop).clamp(0.0, 1.0)
    }
}
