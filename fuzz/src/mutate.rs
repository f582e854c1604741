//! Mutations of known inputs, the same for the same seed.

/// Lengths, counts and offsets that parsers stumble over.
const NUMBERS: &[u64] =
    &[0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX];

/// Pieces of the languages at hand.
const WORDS: &[&str] = &[
    "-1",
    "0",
    "18446744073709551616",
    "9223372036854775807",
    "1e999",
    "nan",
    "null",
    "true",
    "\"\"",
    "[]",
    "{}",
    "[[",
    "}}",
    "\\u0000",
    "->",
    "=",
    ",",
    "*",
    "^T",
    "$L",
    "..",
    "/",
    "'",
    "\n",
    "é",
    "\u{1F300}",
    "tp",
    "S0",
    "P(sum)",
    "axis",
    "f32",
    "data_offsets",
];

/// Draws mutated inputs from a corpus.
#[derive(Debug)]
pub(crate) struct Mutator<'a> {
    state: u64,
    corpus: &'a [Vec<u8>],
}

impl<'a> Mutator<'a> {
    pub(crate) fn new(seed: u64, corpus: &'a [Vec<u8>]) -> Mutator<'a> {
        // Never 0, at which the generator would stay.
        Mutator { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, corpus }
    }

    /// A number below `bound`; 0 when there is none.
    fn below(&mut self, bound: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 16) as usize % bound.max(1)
    }

    /// The next input: a file with a few changes, or now and then bytes from nowhere.
    pub(crate) fn draw(&mut self) -> Vec<u8> {
        if self.corpus.is_empty() || self.below(16) == 0 {
            let len = self.below(64);
            return (0..len).map(|_| self.below(256) as u8).collect();
        }
        let mut bytes = self.corpus[self.below(self.corpus.len())].clone();
        for _ in 0..=self.below(4) {
            self.change(&mut bytes);
        }
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len() + 1);
        let len = self.below(bytes.len() - at + 1).min(64);
        match self.below(8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..at + len)),
            2 => {
                let copy = bytes[at..at + len].to_vec();
                let to = self.below(bytes.len() + 1);
                bytes.splice(to..to, copy);
            }
            3 => {
                let word = WORDS[self.below(WORDS.len())].as_bytes();
                bytes.splice(at..at, word.iter().copied());
            }
            4 => self.number(bytes, at),
            5 => {
                let corpus = self.corpus;
                let other = &corpus[self.below(corpus.len())];
                let from = self.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            6 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            _ if at < bytes.len() => bytes[at] = self.below(256) as u8,
            _ => bytes.push(self.below(256) as u8),
        }
    }

    /// Writes a number over what is there, in one of the widths and byte orders of file formats.
    fn number(&mut self, bytes: &mut [u8], at: usize) {
        let number = NUMBERS[self.below(NUMBERS.len())].wrapping_add(self.below(3) as u64);
        let width = [1, 2, 4, 8][self.below(4)];
        let mut text = number.to_le_bytes();
        if self.below(4) == 0 {
            text[..width].reverse();
        }
        for (byte, new) in bytes[at..].iter_mut().zip(&text[..width]) {
            *byte = *new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_inputs_and_another_gives_others() {
        let corpus = [b"a long enough input".to_vec(), b"another one".to_vec()];
        let draw = |seed| {
            let mut mutator = Mutator::new(seed, &corpus);
            (0..200).map(|_| mutator.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let fresh = draw(1).iter().filter(|input| !corpus.contains(input)).count();
        assert!(fresh > 150, "{fresh} of 200 inputs are new");
    }
}
