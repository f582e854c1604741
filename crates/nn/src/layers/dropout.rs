//! Dropout whose mask follows from a key and global element indices, so that no layout changes it.

use planaria_array::random::Key;
use planaria_tensor::{Result, Tensor, ops};
use std::cell::Cell;

thread_local! {
    static KEY: Cell<Option<Key>> = const { Cell::new(None) };
}

/// Runs a block with the key of its dropout at hand for the adapters in it, also when it is computed again.
pub(crate) fn with_dropout_key<T>(key: Option<Key>, block: impl FnOnce() -> T) -> T {
    /// Puts the key before it back, also when the block panics.
    struct Before(Option<Key>);
    impl Drop for Before {
        fn drop(&mut self) {
            KEY.set(self.0);
        }
    }
    let _before = Before(KEY.replace(key));
    block()
}

/// The key of the block that runs, in training.
pub(crate) fn dropout_key() -> Option<Key> {
    KEY.get()
}

/// Sets elements to 0 with probability `p` and divides the others by `1 - p`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Probability of a 0.
    pub p: f64,
}

impl Dropout {
    /// Probability and key, where something is dropped: not without a key, which is how models are evaluated.
    pub fn drawn(&self, key: Option<Key>) -> Option<(f64, Key)> {
        key.filter(|_| self.p > 0.0).map(|key| (self.p, key))
    }

    /// `residual + dropout(x)`; plain addition without a key, which is how models are evaluated.
    pub fn add_to(&self, residual: &Tensor, x: &Tensor, key: Option<Key>) -> Result<Tensor> {
        match self.drawn(key) {
            Some((p, key)) => ops::dropout_add_with(x, residual, p, key),
            None => residual.add(x),
        }
    }

    /// `dropout(x)`; `x` itself without a key.
    pub fn forward(&self, x: &Tensor, key: Option<Key>) -> Result<Tensor> {
        match self.drawn(key) {
            Some((p, key)) => ops::dropout_with(x, p, key),
            None => Ok(x.clone()),
        }
    }
}
