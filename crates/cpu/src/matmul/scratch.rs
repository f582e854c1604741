//! Packing space kept by each thread, so that a product allocates nothing once warm.

use std::cell::RefCell;

/// One cache line; a vector of them is storage aligned for any register.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

thread_local! {
    /// One for each product that a thread was inside of at once.
    static SPACES: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// Threads keep at most this much between calls.
const KEPT_BYTES: usize = 16 << 20;

/// Space of this thread, given back on drop. A guard rather than a callback: code inside a closure
/// would not be compiled for the instruction set of the function around it.
pub(super) struct Scratch(Vec<Line>);

impl Scratch {
    /// At least `bytes` bytes, aligned to 64; the contents are arbitrary.
    pub(super) fn take(bytes: usize) -> Self {
        // Taken, not borrowed: whoever asks while this one is out gets space of its own.
        let mut space = SPACES.with_borrow_mut(Vec::pop).unwrap_or_default();
        let lines = bytes.div_ceil(64);
        if space.len() < lines {
            space.resize(lines, Line([0; 64]));
        }
        Self(space)
    }

    /// Where the space starts.
    pub(super) fn ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.0.len() * size_of::<Line>() <= KEPT_BYTES {
            // A thread that is ending has no space left to give back to.
            let _ = SPACES.try_with(|kept| kept.borrow_mut().push(std::mem::take(&mut self.0)));
        }
    }
}
