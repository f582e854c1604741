//! A list of every reshard that ops asked for by themselves, and a mode that forbids them.

use crate::op::Here;
use planaria_array::Array;
use planaria_layout::{AxisSet, Layout};
use std::cell::RefCell;
use std::fmt;

/// One movement of data that no line of the program asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The op that needed it.
    pub op: &'static str,
    /// Which of its inputs.
    pub input: usize,
    /// How the input lay.
    pub from: Layout,
    /// How the op takes it.
    pub to: Layout,
    /// Bytes that leave each rank.
    pub bytes: u64,
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: input {} from `{}` to `{}`, {} bytes",
            self.op, self.input, self.from, self.to, self.bytes
        )
    }
}

/// What this thread does about implicit reshards.
#[derive(Default)]
struct State {
    list: Option<Vec<Moved>>,
    strict: bool,
    /// The op whose kernel runs, for what kernels send themselves.
    running: &'static str,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

/// Runs `work` and lists the implicit reshards of this rank meanwhile.
pub fn implicit_reshards<R>(work: impl FnOnce() -> R) -> (R, Vec<Moved>) {
    let before = STATE.with_borrow_mut(|s| s.list.replace(Vec::new()));
    let result = work();
    let list = STATE.with_borrow_mut(|s| std::mem::replace(&mut s.list, before)).unwrap_or_default();
    STATE.with_borrow_mut(|s| s.list.iter_mut().for_each(|outer| outer.extend(list.iter().cloned())));
    (result, list)
}

/// Runs `work`; an op that would reshard an input by itself is an error meanwhile.
pub fn strict<R>(work: impl FnOnce() -> R) -> R {
    let before = STATE.with_borrow_mut(|s| std::mem::replace(&mut s.strict, true));
    let result = work();
    STATE.with_borrow_mut(|s| s.strict = before);
    result
}

pub(crate) fn is_strict() -> bool {
    STATE.with_borrow(|s| s.strict)
}

/// Lists a move, when anyone wants the list.
pub(crate) fn note(moved: impl FnOnce() -> Moved) {
    STATE.with_borrow_mut(|s| s.list.as_mut().map(|list| list.push(moved())));
}

/// Remembers which op's kernel runs.
pub(crate) fn enter(op: &'static str) {
    STATE.with_borrow_mut(|s| s.running = op);
}

/// What a kernel sends itself is listed like a reshard of the pending value it reduces.
pub(crate) fn note_joint(array: &Array, here: &Here<'_>, axes: AxisSet) {
    STATE.with_borrow_mut(|s| {
        let op = s.running;
        let Some(list) = &mut s.list else { return };
        let whole = Layout::replicated(here.inputs[0].mesh(), array.shape());
        let others = (here.inputs[0].mesh().span(axes) - 1) as u64;
        let bytes = 2 * others * (array.numel() * array.dtype().size()) as u64 / (others + 1);
        list.push(Moved { op, input: 0, from: whole.clone(), to: whole, bytes });
    });
}
