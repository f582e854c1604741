//! Optimizer steps in place, and norms and scaling of gradients.
//!
//! Every step is one pass over memory. Arrays whose bytes a snapshot holds move to fresh memory in that same
//! pass. All arrays of a call are checked before the first is changed.

mod adamw;
mod scale;
mod sgd;

pub use adamw::{AdamW, AdamWArrays};
pub use scale::{
    EXACT_PIECE, EXACT_WORDS, check_finite_and_unscale, clip_coefficient, exact_piece, exact_squares,
    scale_in_place, squared_norm,
};
pub use sgd::{Momentum, Sgd, SgdArrays};

use super::fused::{all_meta, check_shape, real_dtype};
use crate::array::{Array, Update};
use crate::cpu::optim::Updating;
use crate::element::Element;
use crate::error::{Error, Result};
use planaria_cpu::pool;
use planaria_layout::DType;
use std::sync::{Mutex, PoisonError};

/// An array to be changed: itself, or a contiguous copy that is written back.
struct Staged<'a> {
    target: &'a Array,
    work: Array,
}

impl<'a> Staged<'a> {
    /// `others` are staged already; an array that shares storage with one of them cannot be locked beside it.
    fn new(target: &'a Array, others: &[&Staged<'_>]) -> Result<Staged<'a>> {
        let direct = target.is_contiguous() && !others.iter().any(|o| o.work.shares_storage(target));
        Ok(Staged { target, work: if direct { target.clone() } else { target.copy()? } })
    }

    fn begin(&self, op: &'static str) -> Result<Update<'_>> {
        self.work.begin_update(op)
    }

    fn finish(self) -> Result<()> {
        if self.work.shares_storage(self.target) {
            return Ok(());
        }
        self.target.copy_from(&self.work)
    }
}

/// The arrays of one parameter's step.
trait StepArrays: Sync {
    /// Those that are changed.
    fn changed(&self) -> impl Iterator<Item = &Array>;
    /// The one that is only read.
    fn grad(&self) -> &Array;
}

/// Runs `step` for each item: on the pool all at once, so that many small arrays do not wait for threads one by one,
/// or one after the other where some share storage and would wait for each other.
fn for_each<A: StepArrays>(list: &[A], step: impl Fn(&A) -> Result<()> + Sync) -> Result<()> {
    if list.len() < 2 || rayon::current_num_threads() == 1 || !apart(list) {
        return list.iter().try_for_each(step);
    }
    let failed = Mutex::new(None);
    pool::spread(list.len(), &|i| {
        if let Err(error) = step(&list[i]) {
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// True when no storage is changed twice, or changed and read.
fn apart<A: StepArrays>(list: &[A]) -> bool {
    all_apart(&list.iter().collect::<Vec<_>>())
}

fn all_apart<A: StepArrays>(list: &[&A]) -> bool {
    let mut changed: Vec<usize> =
        list.iter().flat_map(|item| item.changed()).map(Array::storage_key).collect();
    changed.sort_unstable();
    let twice = changed.windows(2).any(|pair| pair[0] == pair[1]);
    !twice && list.iter().all(|item| changed.binary_search(&item.grad().storage_key()).is_err())
}

/// True when no element is changed twice, and nothing is read that shares storage with what is changed.
fn disjoint<A: StepArrays>(list: &[&A]) -> bool {
    let range = |x: &Array| {
        let from = x.offset() * x.dtype().size();
        (x.storage_key(), from, from + x.numel() * x.dtype().size())
    };
    let plain = list.iter().flat_map(|item| item.changed()).all(Array::is_contiguous);
    let mut changed: Vec<_> = list.iter().flat_map(|item| item.changed()).map(range).collect();
    changed.sort_unstable();
    let overlap = changed.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[1].1 < pair[0].2);
    let read = |item: &&A| {
        let key = item.grad().storage_key();
        let at = changed.partition_point(|&(storage, ..)| storage < key);
        changed.get(at).is_some_and(|&(storage, ..)| storage == key)
    };
    plain && !overlap && !list.iter().any(read)
}

/// The elements of an array being changed, for the kernels.
fn state<'a, T: Element>(update: &'a mut Update<'_>) -> Updating<'a, T> {
    let (old, new) = update.slices();
    Updating::new(old, new)
}

/// Checks one array of a step: the parameter's shape, and its dtype or the computing one.
fn check_state(op: &'static str, param: &Array, state: &Array) -> Result<()> {
    check_shape(op, state, param.shape(), "all arrays of a step have the parameter's shape")?;
    if state.dtype() == real_dtype(op, param.dtype())? {
        Ok(())
    } else {
        state.check_dtype(op, param.dtype())
    }
}

/// Checks master weights: only narrow parameters have them, in f32.
fn check_master(op: &'static str, param: &Array, master: Option<&Array>) -> Result<()> {
    let Some(master) = master else { return Ok(()) };
    if matches!(param.dtype(), DType::F32 | DType::F64) {
        let expected = "bf16 or f16 for a parameter with master weights";
        return Err(Error::DType { op, found: param.dtype(), expected });
    }
    master.check_dtype(op, DType::F32)?;
    check_shape(op, master, param.shape(), "all arrays of a step have the parameter's shape")
}

/// A hyperparameter that must be finite and not negative.
fn check_rate(op: &'static str, name: &str, value: f64) -> Result<()> {
    if value >= 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(Error::argument(op, format!("{name} must be finite and not negative, got {value}")))
}

/// True when there is nothing to compute: the arrays have no bytes.
fn skip(op: &'static str, param: &Array, others: &[Option<&Array>]) -> Result<bool> {
    Ok(all_meta(op, param, others)? || param.numel() == 0)
}
