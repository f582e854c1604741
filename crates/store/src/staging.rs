//! Staging memory: block-aligned, touched once when made, used again and again.

use crate::BLOCK;
use bytemuck::{Pod, Zeroable};
use std::fmt;

/// One block, aligned as direct I/O needs it.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK]);

/// Aligned memory whose pages exist already: copying into fresh pages runs several times slower.
pub struct Staging(Vec<Block>);

impl Staging {
    /// At least `len` bytes.
    pub fn new(len: usize) -> Staging {
        let mut blocks = vec![Block::zeroed(); len.div_ceil(BLOCK)];
        for block in &mut blocks {
            // Without a write the page would be mapped only at its first use.
            block.0[0] = std::hint::black_box(1);
        }
        Staging(blocks)
    }

    /// The memory.
    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }

    /// The memory, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Staging({} bytes)", self.0.len() * BLOCK)
    }
}
