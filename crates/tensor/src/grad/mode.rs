//! Whether ops on this thread record history.

use crate::op::Places;
use crate::tensor::Tensor;
use std::cell::Cell;

thread_local! {
    static RECORDING: Cell<bool> = const { Cell::new(true) };
    /// Set when an op that was not recorded had an input with history.
    static TOUCHED: Cell<bool> = const { Cell::new(false) };
    static SELECTIVE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` so that history does not keep what ops like norms and gated activations give, where their inputs are kept anyway:
/// backward computes it again, to the same bits.
pub fn selective<R>(work: impl FnOnce() -> R) -> R {
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            SELECTIVE.set(self.0);
        }
    }
    let _back = Back(SELECTIVE.replace(true));
    work()
}

/// True inside [`selective`].
pub(super) fn is_selective() -> bool {
    SELECTIVE.get()
}

/// True when ops on this thread record history.
pub fn is_recording() -> bool {
    RECORDING.get()
}

/// Puts the mode back also when the work panics.
struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        RECORDING.set(self.0);
    }
}

fn with_mode<R>(recording: bool, work: impl FnOnce() -> R) -> R {
    let _restore = Restore(RECORDING.replace(recording));
    work()
}

/// Runs `work` without recording history.
pub fn no_grad<R>(work: impl FnOnce() -> R) -> R {
    with_mode(false, work)
}

/// Runs `work` recording history, also inside [`no_grad`].
pub fn with_grad<R>(work: impl FnOnce() -> R) -> R {
    with_mode(true, work)
}

/// Runs `work` without recording, and tells whether recording it would have made history.
pub(crate) fn watch<R>(work: impl FnOnce() -> R) -> (R, bool) {
    let before = TOUCHED.replace(false);
    let result = no_grad(work);
    let touched = TOUCHED.replace(before);
    TOUCHED.set(before || touched);
    (result, touched)
}

/// The inputs whose gradient is wanted; absent when nothing is to be recorded.
pub(crate) fn wanted(inputs: &[&Tensor]) -> Option<Places> {
    let differentiable = |t: &&Tensor| t.dtype().is_float() && t.has_history();
    if !is_recording() {
        if !TOUCHED.get() && inputs.iter().any(differentiable) {
            TOUCHED.set(true);
        }
        return None;
    }
    let needs: Places = inputs.iter().map(differentiable).collect();
    (!needs.is_empty()).then_some(needs)
}
