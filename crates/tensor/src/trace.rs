//! Lists of what ops decide and of every reshard that they ask for by themselves, and a mode that forbids these.

use crate::error::Result;
use crate::op::Here;
use planaria_array::{Array, DType};
use planaria_layout::rule::{Decision, Price, exchanged_bytes};
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

/// One op as it ran on a mesh, a reshard (`reshard`) that the program asks for, or rows on their way to experts and back
/// (`moe_dispatch`, `moe_combine`), which have no layouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The op.
    pub op: &'static str,
    /// The dtypes of its inputs.
    pub dtypes: Vec<DType>,
    /// How the inputs lay before.
    pub given: Vec<Layout>,
    /// What was weighed: the layouts that were taken, then the others that came into question, cheapest first.
    pub weighed: Vec<Decision>,
    /// Bytes that this rank's kernel sent itself.
    pub exchanged: u64,
}

/// What this thread does about implicit reshards.
#[derive(Default)]
struct TraceState {
    list: Option<Vec<Moved>>,
    ran: Option<Vec<Ran>>,
    /// True while an op has its inputs brought.
    moving: bool,
    strict: bool,
    /// The op whose kernel runs, for what kernels send themselves.
    running: &'static str,
}

thread_local! {
    static STATE: RefCell<TraceState> = RefCell::default();
}

/// Runs `work` and lists the implicit reshards of this rank meanwhile.
pub fn implicit_reshards<R>(work: impl FnOnce() -> R) -> (R, Vec<Moved>) {
    let before = STATE.with_borrow_mut(|s| s.list.replace(Vec::new()));
    let result = work();
    let list = STATE.with_borrow_mut(|s| std::mem::replace(&mut s.list, before)).unwrap_or_default();
    STATE.with_borrow_mut(|s| s.list.iter_mut().for_each(|outer| outer.extend(list.iter().cloned())));
    (result, list)
}

/// Runs `work` and lists the ops that run on a mesh meanwhile, with what each of them weighed, and the reshards that it
/// asks for.
pub fn decisions<R>(work: impl FnOnce() -> R) -> (R, Vec<Ran>) {
    let before = STATE.with_borrow_mut(|s| s.ran.replace(Vec::new()));
    let result = work();
    let list = STATE.with_borrow_mut(|s| std::mem::replace(&mut s.ran, before)).unwrap_or_default();
    STATE.with_borrow_mut(|s| s.ran.iter_mut().for_each(|outer| outer.extend(list.iter().cloned())));
    (result, list)
}

/// Lists a reshard that the program asks for, when anyone wants the list.
pub(crate) fn note_reshard(from: &Layout, to: &Layout, dtype: DType, bytes: u64) {
    STATE.with_borrow_mut(|s| {
        let Some(list) = s.ran.as_mut().filter(|_| !s.moving) else { return };
        let price = Price { moved: bytes, ..Price::default() };
        let taken = Decision { inputs: vec![from.clone()], outputs: vec![to.clone()], price };
        let (dtypes, given) = (vec![dtype], vec![from.clone()]);
        list.push(Ran { op: "reshard", dtypes, given, weighed: vec![taken], exchanged: 0 });
    });
}

/// Lists rows that an op of no layout sends by their values, when anyone wants the list.
pub(crate) fn note_rows(op: &'static str, bytes: u64) {
    STATE.with_borrow_mut(|s| {
        let Some(list) = s.ran.as_mut() else { return };
        let price = Price { moved: bytes, ..Price::default() };
        let taken = Decision { inputs: Vec::new(), outputs: Vec::new(), price };
        list.push(Ran { op, dtypes: Vec::new(), given: Vec::new(), weighed: vec![taken], exchanged: 0 });
    });
}

/// Runs `work`, whose reshards belong to an op that is listed already.
pub(crate) fn for_an_op<R>(work: impl FnOnce() -> R) -> R {
    let before = STATE.with_borrow_mut(|s| std::mem::replace(&mut s.moving, true));
    let result = work();
    STATE.with_borrow_mut(|s| s.moving = before);
    result
}

/// True while someone wants the list of ops that run.
pub(crate) fn is_listing() -> bool {
    STATE.with_borrow(|s| s.ran.is_some())
}

/// Lists an op, when anyone wants the list.
pub(crate) fn note_run(ran: impl FnOnce() -> Result<Ran>) -> Result<()> {
    if is_listing() {
        let ran = ran()?;
        STATE.with_borrow_mut(|s| s.ran.as_mut().map(|list| list.push(ran)));
    }
    Ok(())
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
        let mesh = here.inputs[0].mesh();
        let bytes = exchanged_bytes(mesh, axes, array.numel(), array.dtype().size());
        if let Some(ran) = s.ran.as_mut().and_then(|ran| ran.last_mut()) {
            ran.exchanged += bytes;
        }
        let Some(list) = &mut s.list else { return };
        let whole = Layout::replicated(mesh, array.shape());
        list.push(Moved { op, input: 0, from: whole.clone(), to: whole, bytes });
    });
}
