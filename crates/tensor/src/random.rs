//! Random numbers of a program: a seed and a count of draws, the same on every rank.
//!
//! A draw is keyed by the seed, its number and the global index of each element, so values do not depend on how a
//! tensor is cut.

use planaria_array::random::Key;
use std::cell::Cell;

/// Where a sequence of draws stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawState {
    /// The seed.
    pub seed: u64,
    /// Draws so far.
    pub draws: u64,
}

thread_local! {
    static STATE: Cell<DrawState> = const { Cell::new(DrawState { seed: 0, draws: 0 }) };
}

/// Starts the sequence of this rank anew; all ranks of a run use the same seed.
pub fn seed(seed: u64) {
    STATE.set(DrawState { seed, draws: 0 });
}

/// Where the sequence of this rank stands.
pub fn state() -> DrawState {
    STATE.get()
}

/// Goes on from a state.
pub fn set_state(state: DrawState) {
    STATE.set(state);
}

/// The key of the next draw.
pub fn next_key() -> Key {
    let now = STATE.get();
    STATE.set(DrawState { draws: now.draws + 1, ..now });
    Key::new(now.seed, now.draws)
}

/// Runs `work` with the draws it had at `state`; the sequence outside goes on as if nothing happened.
pub(crate) fn replay<R>(state: &DrawState, work: impl FnOnce() -> R) -> R {
    struct Restore(DrawState);
    impl Drop for Restore {
        fn drop(&mut self) {
            STATE.set(self.0);
        }
    }
    let _restore = Restore(STATE.replace(*state));
    work()
}
