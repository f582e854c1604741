//! Parameter updates in one pass over memory, and norms and scaling of gradients.

pub(crate) mod adamw;
pub(crate) mod scale;
pub(crate) mod sgd;

use super::real::{Float, Real};
use crate::convert::convert;
use half::{bf16, f16};
use planaria_cpu::pool;

/// Elements updated at a time: the blocks of all arrays together fit the first-level cache.
pub(crate) const BLOCK: usize = 1024;

/// Slices of equal length that are cut together.
pub(crate) trait Cut: Sized + Send {
    /// Elements of each.
    fn len(&self) -> usize;
    /// Cuts off the first `len` elements.
    fn front(&mut self, len: usize) -> Self;
}

/// Runs `work` on blocks of at most `block` elements, on the pool; `item` is the memory an element touches. Each
/// thread keeps a scratch of its own.
fn for_blocks<U: Cut, S: Default>(
    mut all: U,
    block: usize,
    item: usize,
    work: impl Fn(U, &mut S) + Sync + Send,
) {
    let count = all.len();
    let len = pool::piece_len(count, BLOCK, item);
    let parts = (0..count).step_by(len).map(|at| all.front(len.min(count - at))).collect();
    pool::for_parts(parts, count * item, |mut part: U| {
        let mut scratch = S::default();
        while part.len() > 0 {
            work(part.front(block.min(part.len())), &mut scratch);
        }
    });
}

/// An array being updated: in place, or from `old` to fresh memory.
pub(crate) struct Updating<'a, T> {
    old: Option<&'a [T]>,
    new: &'a mut [T],
}

impl<'a, T> Updating<'a, T> {
    pub(crate) fn new(old: Option<&'a [T]>, new: &'a mut [T]) -> Updating<'a, T> {
        Updating { old, new }
    }
}

impl<T: Send + Sync> Cut for Updating<'_, T> {
    fn len(&self) -> usize {
        self.new.len()
    }

    fn front(&mut self, len: usize) -> Self {
        let (new, rest) = std::mem::take(&mut self.new).split_at_mut(len);
        self.new = rest;
        let old = self.old.map(|old| old.split_at(len));
        self.old = old.map(|(_, rest)| rest);
        Updating { old: old.map(|(front, _)| front), new }
    }
}

/// A float type whose arrays optimizers can change.
pub(crate) trait Stored: Float {
    /// Lets `change` edit a block's values in the computing type; narrow types round once at the end.
    fn modify<R>(
        state: Updating<'_, Self>,
        scratch: &mut Vec<Self::Real>,
        change: impl FnOnce(&mut [Self::Real]) -> R,
    ) -> R;
}

macro_rules! stored {
    (wide $($t:ty),*) => {$(
        impl Stored for $t {
            #[inline(always)]
            fn modify<R>(state: Updating<'_, $t>, _: &mut Vec<$t>, change: impl FnOnce(&mut [$t]) -> R) -> R {
                if let Some(old) = state.old {
                    state.new.copy_from_slice(old);
                }
                change(state.new)
            }
        }
    )*};
    (narrow $($t:ty),*) => {$(
        impl Stored for $t {
            fn modify<R>(state: Updating<'_, $t>, scratch: &mut Vec<f32>, change: impl FnOnce(&mut [f32]) -> R) -> R {
                scratch.resize(state.new.len(), 0.0);
                convert(state.old.unwrap_or(state.new), scratch);
                let result = change(scratch);
                convert(scratch, state.new);
                result
            }
        }
    )*};
}
stored!(wide f32, f64);
stored!(narrow f16, bf16);

/// A parameter and, for narrow types, the wide copy that holds its true value.
pub(crate) struct Param<'a, T: Float> {
    pub(crate) param: Updating<'a, T>,
    pub(crate) master: Option<Updating<'a, T::Real>>,
}

impl<T: Stored> Cut for Param<'_, T> {
    fn len(&self) -> usize {
        self.param.len()
    }

    fn front(&mut self, len: usize) -> Self {
        Param { param: self.param.front(len), master: self.master.as_mut().map(|m| m.front(len)) }
    }
}

impl<T: Stored> Param<'_, T> {
    fn modify(self, scratch: &mut Vec<T::Real>, change: impl FnOnce(&mut [T::Real]))
    where
        T::Real: Stored<Real = T::Real>,
    {
        match self.master {
            None => T::modify(self.param, scratch, change),
            Some(master) => <T::Real as Stored>::modify(master, &mut Vec::new(), |master| {
                change(master);
                T::narrow(self.param.new, scratch, |out| out.copy_from_slice(master));
            }),
        }
    }
}

/// `R` for constants given in f64.
pub(crate) fn constants<R: Real, const N: usize>(values: [f64; N]) -> [R; N] {
    values.map(R::of)
}
