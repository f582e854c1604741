//! Counter-based random numbers: every element of a global tensor has its own place in the sequence.
//!
//! The generator is Philox4x32-10. The seed is its key, the stream fills the upper half of its counter, and the
//! row-major index of an element in the *global* tensor fills the lower half. A rank that holds any box of the
//! tensor therefore draws the same bits for it as a single process would. Only IEEE operations that round in
//! one way are used (no libm, no fused multiply-add), so the bits are also the same on every machine.
//!
//! Draws with the same key overlap: two tensors, or two distributions, need two streams ([`Key::fold`]).

mod dist;
mod math;
mod window;

pub(crate) use dist::{BitsDraw, Truncated, threshold};
pub use dist::{
    Normal, TruncatedNormal, bernoulli, bits, normal, normal_f64, randint, truncated_normal,
    truncated_normal_f64, uniform, uniform_f64,
};
pub use window::Window;

use crate::cpu::simd::simd;
use crate::error::{Error, Result};
use planaria_cpu::pool;

/// Names one sequence of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Chosen once per run.
    pub seed: u64,
    /// Tells apart the tensors and steps of a run.
    pub stream: u64,
}

impl Key {
    /// The sequence of this seed and stream.
    pub const fn new(seed: u64, stream: u64) -> Key {
        Key { seed, stream }
    }

    /// A key for something inside what this key names, such as a layer number or a step.
    pub fn fold(self, data: u64) -> Key {
        // Mixing in another seed keeps derived streams apart from the draws themselves.
        let parent = Key::new(self.seed ^ 0x9e37_79b9_7f4a_7c15, self.stream);
        let words = philox::<1>(parent, data);
        Key { seed: self.seed, stream: u64::from(words[1][0]) << 32 | u64::from(words[0][0]) }
    }
}

/// The four words of `L` consecutive blocks, word by word.
type Words<const L: usize> = [[u32; L]; 4];

const ROUNDS: u32 = 10;
const MULTIPLIERS: [u64; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Blocks `first..first + L` of a sequence.
#[inline(always)]
fn philox<const L: usize>(key: Key, first: u64) -> Words<L> {
    let mut out = [[0; L]; 4];
    let stream = [key.stream as u32, (key.stream >> 32) as u32];
    for l in 0..L {
        let block = first.wrapping_add(l as u64);
        let words = rounds([block as u32, (block >> 32) as u32, stream[0], stream[1]], key.seed);
        for w in 0..4 {
            out[w][l] = words[w];
        }
    }
    out
}

/// One block. Words travel in 64-bit lanes, which is the form the widening product wants.
#[inline(always)]
fn rounds(counter: [u32; 4], seed: u64) -> [u32; 4] {
    const LOW: u64 = 0xffff_ffff;
    let mut c = counter.map(u64::from);
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..ROUNDS {
        let (p0, p1) = (MULTIPLIERS[0] * c[0], MULTIPLIERS[1] * c[2]);
        c = [
            (p1 >> 32) ^ c[1] ^ u64::from(key[0]),
            p1 & LOW,
            (p0 >> 32) ^ c[3] ^ u64::from(key[1]),
            p0 & LOW,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    c.map(|word| word as u32)
}

/// A way to turn blocks of random words into values.
pub(crate) trait Draw: Copy + Sync {
    /// The values drawn.
    type Out: Copy + Send + Default;
    /// Values per block: element i belongs to block `i / PER_BLOCK`.
    const PER_BLOCK: usize;

    /// Writes the `L * PER_BLOCK` values of `L` blocks.
    fn draw<const L: usize>(self, words: &Words<L>, out: &mut [Self::Out]);
}

/// Blocks drawn together: enough for the widest vectors.
const LANES: usize = 16;
/// Blocks drawn together at the ragged ends of a range.
const FEW: usize = 4;
/// Elements handed to a thread at once are a multiple of this.
const UNIT: usize = 16 * 1024;
/// Work per element, in bytes of memory traffic that take as long: 64K elements are worth a second thread.
const COST: usize = 4;

simd! {
    /// Fills `out` with the values of elements `start..start + out.len()`.
    pub(crate) fn fill_run<D: Draw>(draw: D, key: Key, start: u64, out: &mut [D::Out]) {
        let (many, few) = (LANES * D::PER_BLOCK, (FEW * D::PER_BLOCK) as u64);
        let mut at = start;
        let mut rest = out;
        while !rest.is_empty() {
            let taken = if at.is_multiple_of(few) && rest.len() >= many {
                draw.draw(&philox::<LANES>(key, at / D::PER_BLOCK as u64), &mut rest[..many]);
                many
            } else {
                fill_few(draw, key, at, rest)
            };
            at = at.wrapping_add(taken as u64);
            rest = &mut rest[taken..];
        }
    }
}

/// Fills the front of `out` up to the next boundary of [`FEW`] blocks; gives the number of values.
#[inline(never)]
fn fill_few<D: Draw>(draw: D, key: Key, start: u64, out: &mut [D::Out]) -> usize {
    let few = FEW * D::PER_BLOCK;
    let skip = (start % few as u64) as usize;
    let mut scratch = [D::Out::default(); FEW * 4];
    let scratch = &mut scratch[..few];
    draw.draw(&philox::<FEW>(key, (start - skip as u64) / D::PER_BLOCK as u64), scratch);
    let taken = out.len().min(few - skip);
    out[..taken].copy_from_slice(&scratch[skip..skip + taken]);
    taken
}

/// Fills `out`, which holds the elements of `window` in row-major order.
pub(crate) fn fill<D: Draw>(
    op: &'static str,
    draw: D,
    key: Key,
    window: &Window,
    out: &mut [D::Out],
) -> Result<()> {
    if out.len() != window.len() {
        let what = format!("{} values do not fill a window of {} elements", out.len(), window.len());
        return Err(Error::argument(op, what));
    }
    pool::for_chunks_mut(out, UNIT, COST, |first, piece| {
        window.for_runs(first..first + piece.len(), |at, start, len| {
            fill_run(draw, key, start, &mut piece[at - first..at - first + len]);
        });
    });
    Ok(())
}

#[cfg(test)]
mod tests;
