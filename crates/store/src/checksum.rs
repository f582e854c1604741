//! CRC-32C of blocks: computed while bytes pass by, checked while they are read.

use crate::error::{Error, Result};
use crc_fast::{CrcAlgorithm, Digest};

/// Block size used where nothing else is said: small enough to locate damage, large enough to cost nothing.
pub const SUM_BLOCK: usize = 4 << 20;

/// The CRC-32C of some bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The CRC-32C of bytes that follow others with the CRC-32C `before`.
pub fn append(before: u32, bytes: &[u8]) -> u32 {
    // A sum is the state turned round.
    let mut sum = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!before));
    sum.update(bytes);
    sum.finalize() as u32
}

/// The CRC-32C of two pieces one after the other, from the sums of each and the length of the second.
///
/// Bytes behind others multiply their sum, as a polynomial, by a power of x; with the powers at hand this takes about
/// a microsecond, which counts when thousands of sums are joined.
pub fn combine(first: u32, second: u32, second_len: usize) -> u32 {
    let mut shifted = first;
    // A byte is eight powers of x.
    for (bit, power) in POWERS.iter().skip(3).enumerate().take(usize::BITS as usize) {
        if second_len >> bit & 1 == 1 {
            shifted = product(shifted, *power);
        }
    }
    shifted ^ second
}

/// The polynomial of CRC-32C; the highest bit stands for the lowest power.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// x to the power of 1, 2, 4, 8 and so on, modulo the polynomial.
const POWERS: [u32; 67] = {
    let mut powers = [1 << 30; 67];
    let mut at = 1;
    while at < powers.len() {
        powers[at] = product(powers[at - 1], powers[at - 1]);
        at += 1;
    }
    powers
};

/// The product of two polynomials modulo that of CRC-32C.
const fn product(a: u32, b: u32) -> u32 {
    let (mut left, mut shifted, mut sum) = (a, b, 0);
    while left != 0 {
        if left >> 31 == 1 {
            sum ^= shifted;
        }
        left <<= 1;
        shifted = (shifted >> 1) ^ (POLYNOMIAL & (shifted & 1).wrapping_neg());
    }
    sum
}

/// The checksums of consecutive blocks of `block` bytes; the last may be shorter.
pub fn block_sums(bytes: &[u8], block: usize) -> Vec<u32> {
    bytes.chunks(block.max(1)).map(crc32c).collect()
}

/// Checks a block of the file `name` that starts at `start`.
pub fn check(name: &str, start: u64, bytes: &[u8], expected: u32) -> Result<()> {
    let found = crc32c(bytes);
    if found == expected {
        return Ok(());
    }
    let end = start + bytes.len() as u64;
    Err(Error::Checksum { name: name.to_string(), start, end, found, expected })
}

/// Block checksums of a stream.
#[derive(Clone, Debug)]
pub struct BlockSums {
    block: usize,
    filled: usize,
    current: u32,
    sums: Vec<u32>,
}

impl BlockSums {
    /// An empty stream cut into blocks of `block` bytes.
    pub fn new(block: usize) -> BlockSums {
        BlockSums { block: block.max(1), filled: 0, current: 0, sums: Vec::new() }
    }

    /// The next bytes of the stream.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.block - self.filled));
            self.current = append(self.current, now);
            self.filled += now.len();
            if self.filled == self.block {
                self.sums.push(std::mem::take(&mut self.current));
                self.filled = 0;
            }
            bytes = later;
        }
    }

    /// One sum per block.
    pub fn finish(mut self) -> Vec<u32> {
        if self.filled > 0 {
            self.sums.push(self.current);
        }
        self.sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_answer() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(combine(crc32c(b"12345"), crc32c(b"6789"), 4), 0xe306_9283);
        let long = vec![7; 3 << 20];
        let (first, second) = long.split_at(12345);
        assert_eq!(combine(crc32c(first), crc32c(second), second.len()), crc32c(&long));
        assert!(check("f", 10, b"abc", 0).unwrap_err().to_string().contains("bytes 10..13 of 'f'"));
    }

    proptest! {
        #[test]
        fn any_cutting_gives_the_same_sums(
            bytes in prop::collection::vec(any::<u8>(), 0..200), cuts in prop::collection::vec(0usize..200, 0..6),
            block in 1usize..40,
        ) {
            let mut stream = BlockSums::new(block);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut at = 0;
            for cut in cuts.into_iter().chain([bytes.len()]) {
                stream.push(&bytes[at..cut]);
                at = cut;
            }
            prop_assert_eq!(stream.finish(), block_sums(&bytes, block));
            let half = bytes.len() / 2;
            let both = combine(crc32c(&bytes[..half]), crc32c(&bytes[half..]), bytes.len() - half);
            prop_assert_eq!(both, crc32c(&bytes));
        }
    }
}
