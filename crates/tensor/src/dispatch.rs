//! Running an op: layouts are decided, inputs brought there, the local kernel runs, history is recorded.

use crate::attributes::Attributes;
use crate::error::{Error, Result};
use crate::grad;
use crate::op::{Arrays, Here, Local, Op, Places, Spec, only};
use crate::reshard;
use crate::steps;
use crate::tensor::{Place, Tensor};
use crate::trace::{self, Moved, Ran};
use crate::world::World;
use planaria_array::{Array, Shape};
use planaria_layout::Layout;
use planaria_layout::rule::{Operand, Policy, Rule, Terms, decide, weigh};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The results of an op.
pub type Outputs = SmallVec<[Tensor; 1]>;

/// Runs an op with one output.
pub fn apply1<O: Op>(op: O, inputs: &[&Tensor]) -> Result<Tensor> {
    only(apply(op, inputs)?)
}

/// Runs an op.
pub fn apply<O: Op>(op: O, inputs: &[&Tensor]) -> Result<Outputs> {
    if steps::is_listing() {
        return apply_shared(Arc::new(op), inputs);
    }
    match compute(&op, inputs)? {
        (inputs, results, None) if op.is_view() => {
            Ok(grad::unrecorded(Arc::new(op), &by_ref(&inputs), results))
        }
        (_, results, None) => Ok(without_history(results)),
        (inputs, results, Some(needs)) => grad::record(Arc::new(op), &by_ref(&inputs), results, needs),
    }
}

/// Runs an op that others have a handle on too.
pub fn apply_shared(op: Arc<dyn Op>, inputs: &[&Tensor]) -> Result<Outputs> {
    let (inputs, results, needs) = compute(op.as_ref(), inputs)?;
    let inputs = by_ref(&inputs);
    let outputs = match needs {
        None if op.is_view() => grad::unrecorded(op.clone(), &inputs, results),
        None => without_history(results),
        Some(needs) => grad::record(op.clone(), &inputs, results, needs)?,
    };
    steps::ran(&op, &inputs, &outputs);
    Ok(outputs)
}

/// Two ops by one kernel: the second takes the first's one result, which is like the first's inputs, and then its `others`.
/// The kernel gives the first's result, then the second's; history has both ops. Absent where they have to run apart: an
/// input does not lie as its op takes it, the kernel declines for the place where the second op runs, or someone lists what
/// runs.
pub(crate) fn apply_both<A: Op, B: Op>(
    (first, inputs): (A, &[&Tensor]),
    (second, others): (B, &[&Tensor]),
    kernel: impl FnOnce(&Local<'_>) -> Result<Option<Arrays>>,
) -> Result<Option<(Tensor, Outputs)>> {
    if steps::is_listing() || trace::is_listing() {
        return Ok(None);
    }
    let places = inputs.iter().chain(others).find_map(|t| t.0.place.clone());
    let (arrays, between, layouts) = match &places {
        None => (kernel(&Local::Whole)?, None, Vec::new()),
        Some(at) if at.world.is_supposed() => return Ok(None),
        Some(at) => {
            let minded = minded(&at.world);
            let taken: Inputs<'_> = inputs.iter().map(|&t| Cow::Borrowed(t)).collect();
            let Some(one) = in_place(&first, &taken, at, &minded)? else { return Ok(None) };
            let between = Place { layout: one.outputs[0].clone(), world: at.world.clone() };
            let like = Tensor::raw(inputs[0].0.array.to_meta(), Some(between.clone()), None, None);
            let taken: Inputs<'_> =
                std::iter::once(&like).chain(others.iter().copied()).map(Cow::Borrowed).collect();
            let Some(two) = in_place(&second, &taken, at, &minded)? else { return Ok(None) };
            let here = Here { inputs: &two.inputs, outputs: &two.outputs, world: &at.world };
            (kernel(&Local::Piece(here))?, Some(between), two.outputs.clone())
        }
    };
    let Some(arrays) = arrays else { return Ok(None) };
    let mut arrays = arrays.into_iter();
    let sum = arrays.next().ok_or(Error::Bug("a kernel of two ops gave nothing"))?;
    let sum = only(recorded(first, inputs, SmallVec::from_iter([(sum, between)]))?)?;
    let rest: Arrays = arrays.collect();
    let results = match &places {
        Some(at) => placed(rest, &layouts, at),
        None => rest.into_iter().map(|array| (array, None)).collect(),
    };
    let taken: Vec<&Tensor> = std::iter::once(&sum).chain(others.iter().copied()).collect();
    let outputs = recorded(second, &taken, results)?;
    Ok(Some((sum, outputs)))
}

/// What an op takes and gives, if its inputs lie as it takes them.
fn in_place(
    op: &dyn Op,
    inputs: &[Cow<'_, Tensor>],
    at: &Place,
    minded: &Minded,
) -> Result<Option<Arc<Decided>>> {
    let layouts = layouts_of(op, inputs, at)?;
    let decided = decision(op, inputs, &layouts, minded)?;
    Ok((decided.inputs[..] == layouts[..]).then_some(decided))
}

/// Tensors for the results of an op, with history where that is recorded.
fn recorded<O: Op>(op: O, inputs: &[&Tensor], results: Results) -> Result<Outputs> {
    match grad::wanted(inputs) {
        None => Ok(without_history(results)),
        Some(needs) => grad::record(Arc::new(op), inputs, results, needs),
    }
}

type Inputs<'a> = SmallVec<[Cow<'a, Tensor>; 4]>;

fn by_ref<'a>(inputs: &'a Inputs<'_>) -> SmallVec<[&'a Tensor; 4]> {
    inputs.iter().map(|t| t.as_ref()).collect()
}

fn without_history(results: Results) -> Outputs {
    results.into_iter().map(|(array, place)| Tensor::raw(array, place, None, None)).collect()
}

/// The inputs as the op took them, its results, and which inputs want a gradient when history is recorded.
fn compute<'a>(op: &dyn Op, inputs: &[&'a Tensor]) -> Result<(Inputs<'a>, Results, Option<Places>)> {
    let mut moved: Inputs<'a> = inputs.iter().map(|&t| Cow::Borrowed(t)).collect();
    let results = execute(op, &mut moved)?;
    let needs = grad::wanted(&by_ref(&moved));
    Ok((moved, results, needs))
}

pub(crate) type Results = SmallVec<[(Array, Option<Place>); 1]>;

/// Runs the kernel, after bringing the inputs into the layouts it takes.
fn execute(op: &dyn Op, inputs: &mut [Cow<'_, Tensor>]) -> Result<Results> {
    let Some(first) = inputs.iter().find_map(|t| t.0.place.clone()) else {
        let arrays: SmallVec<[&Array; 4]> = inputs.iter().map(|t| &t.0.array).collect();
        return Ok(op.forward(&arrays, &Local::Whole)?.into_iter().map(|array| (array, None)).collect());
    };
    let layouts = layouts_of(op, inputs, &first)?;
    if op.shapes_follow_values() {
        return on_whole_values(op, inputs, &layouts, &first);
    }
    let terms = minded(&first.world);
    let decision = decision(op, inputs, &layouts, &terms)?;
    trace::note_run(|| ran(op, inputs, &layouts, &terms))?;
    for (place, wanted) in decision.inputs.iter().enumerate() {
        if layouts[place] != *wanted {
            bring(op, place, &mut inputs[place], &first, wanted)?;
        }
    }
    let here = Here { inputs: &decision.inputs, outputs: &decision.outputs, world: &first.world };
    trace::enter(op.name());
    let results = if first.world.is_supposed() {
        // Values without a mesh have bytes, but nothing is computed with them.
        let planned: SmallVec<[Array; 4]> = inputs.iter().map(|t| t.0.array.to_meta()).collect();
        op.forward(&planned.iter().collect::<SmallVec<[&Array; 4]>>(), &Local::Piece(here))?
    } else {
        let arrays: SmallVec<[&Array; 4]> = inputs.iter().map(|t| &t.0.array).collect();
        let result = op.forward(&arrays, &Local::Piece(here));
        result.map_err(|error| refused(op, &arrays, &decision.inputs, error, &first.world))?
    };
    Ok(placed(results, &decision.outputs, &first))
}

/// Runs the kernel on inputs as the op took them before, for results that lie as they did.
pub(crate) fn run_placed(op: &dyn Op, inputs: &[Tensor], outputs: &[Option<Place>]) -> Result<Arrays> {
    let arrays: SmallVec<[&Array; 4]> = inputs.iter().map(|t| &t.0.array).collect();
    let Some(first) = outputs.iter().find_map(Option::as_ref) else {
        return op.forward(&arrays, &Local::Whole);
    };
    let mesh = first.layout.mesh();
    let layout = |input: &Tensor| match &input.0.place {
        Some(place) => place.layout.clone(),
        None => Arc::new(Layout::replicated(mesh, input.0.array.shape())),
    };
    let taken: Vec<Arc<Layout>> = inputs.iter().map(layout).collect();
    let given: Vec<Arc<Layout>> = outputs.iter().flatten().map(|place| place.layout.clone()).collect();
    let here = Here { inputs: &taken, outputs: &given, world: &first.world };
    if first.world.is_supposed() {
        let planned: SmallVec<[Array; 4]> = arrays.iter().map(|array| array.to_meta()).collect();
        return op.forward(&planned.iter().collect::<SmallVec<[&Array; 4]>>(), &Local::Piece(here));
    }
    op.forward(&arrays, &Local::Piece(here))
}

/// What a kernel said about its pieces. Where positions differ between ranks the others do not know, and must not wait.
fn refused(op: &dyn Op, arrays: &[&Array], inputs: &[Arc<Layout>], error: Error, world: &World) -> Error {
    let cut = |at: &Layout| at.mesh().span(at.sharded_axes()) > 1;
    let own = arrays.iter().zip(inputs).any(|(array, at)| !array.dtype().is_float() && cut(at));
    if !own || !matches!(error, Error::Array(_) | Error::Argument { .. }) {
        return error;
    }
    let texts: Vec<String> = inputs.iter().map(|at| format!("`{at}`")).collect();
    let (rank, source) = (world.rank(), Box::new(error));
    let told = Error::Values { op: op.name(), rank, inputs: texts.join(", "), source };
    if let Some(comm) = world.comm() {
        comm.abort(&told.to_string());
    }
    told
}

fn placed(results: Arrays, layouts: &[Arc<Layout>], first: &Place) -> Results {
    let place = |layout: &Arc<Layout>| Some(Place { layout: layout.clone(), world: first.world.clone() });
    results.into_iter().zip(layouts).map(|(array, layout)| (array, place(layout))).collect()
}

type Layouts = SmallVec<[Arc<Layout>; 4]>;

/// The inputs' layouts; a value without one is the same on every rank.
fn layouts_of(op: &dyn Op, inputs: &[Cow<'_, Tensor>], first: &Place) -> Result<Layouts> {
    let mesh = first.layout.mesh();
    let layout_of = |input: &Cow<'_, Tensor>| match &input.0.place {
        Some(place) if place.layout.mesh() == mesh => Ok(place.layout.clone()),
        Some(place) => {
            let (first, second) = (mesh.to_string(), place.layout.mesh().to_string());
            Err(Error::Meshes { op: op.name(), first, second })
        }
        None => Ok(Arc::new(Layout::replicated(mesh, input.0.array.shape()))),
    };
    inputs.iter().map(layout_of).collect()
}

/// Reshards one input for an op, unless that is forbidden.
fn bring(
    op: &dyn Op,
    place: usize,
    input: &mut Cow<'_, Tensor>,
    first: &Place,
    wanted: &Arc<Layout>,
) -> Result<()> {
    let from = match &input.0.place {
        Some(place) => place.layout.clone(),
        None => {
            let whole = Arc::new(Layout::replicated(first.layout.mesh(), input.0.array.shape()));
            *input = Cow::Owned(input.on(&Place { layout: whole.clone(), world: first.world.clone() })?);
            whole
        }
    };
    let bytes = reshard::route(&from, wanted, input.dtype().size())?.cost().bytes;
    if trace::is_strict() && bytes > 0 {
        let (from, to) = (Box::new(from.as_ref().clone()), Box::new(wanted.as_ref().clone()));
        return Err(Error::Strict { op: op.name(), input: place, from, to, bytes });
    }
    trace::note(|| {
        let (from, to) = (from.as_ref().clone(), wanted.as_ref().clone());
        Moved { op: op.name(), input: place, from, to, bytes }
    });
    *input = Cow::Owned(trace::for_an_op(|| input.reshard_shared(wanted))?);
    Ok(())
}

/// Ops whose output shapes follow from values get whole inputs and give whole outputs.
fn on_whole_values(
    op: &dyn Op,
    inputs: &mut [Cow<'_, Tensor>],
    layouts: &[Arc<Layout>],
    first: &Place,
) -> Result<Results> {
    for (place, layout) in layouts.iter().enumerate() {
        let whole = Arc::new(Layout::replicated(layout.mesh(), layout.shape()));
        if *layout != whole {
            bring(op, place, &mut inputs[place], first, &whole)?;
        }
    }
    let arrays: SmallVec<[&Array; 4]> = inputs.iter().map(|t| &t.0.array).collect();
    let results = op.forward(&arrays, &Local::Whole)?;
    let whole = |array: &Array| Arc::new(Layout::replicated(first.layout.mesh(), array.shape()));
    let layouts: Vec<Arc<Layout>> = results.iter().map(whole).collect();
    Ok(placed(results, &layouts, first))
}

/// What is minded besides the inputs.
#[derive(Clone, PartialEq)]
struct Minded {
    policy: Policy,
    /// Where the outputs are wanted; those of ops with other outputs are not meant.
    wishes: Option<Arc<[Layout]>>,
}

fn minded(world: &World) -> Minded {
    Minded { policy: world.policy(), wishes: WISHES.with_borrow(Clone::clone) }
}

/// What a decision depends on.
struct Question {
    op: &'static str,
    attributes: Attributes,
    minded: Minded,
    inputs: SmallVec<[(Arc<Layout>, planaria_array::DType); 3]>,
}

/// Decisions kept per thread before they are thrown away.
const MAX_DECISIONS: usize = 1 << 14;

/// A decision whose layouts are shared by the tensors that get them.
struct Decided {
    inputs: Vec<Arc<Layout>>,
    outputs: Vec<Arc<Layout>>,
}

type Known = HashMap<u64, Vec<(Question, Arc<Decided>)>>;

/// A quick hash for keys that no stranger chooses; a collision only costs a comparison.
#[derive(Default)]
struct Quick(u64);

impl Hasher for Quick {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(byte.into());
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::default();
    static WISHES: RefCell<Option<Arc<[Layout]>>> = RefCell::default();
}

/// The layouts for one op, looked up or decided.
fn decision(
    op: &dyn Op,
    inputs: &[Cow<'_, Tensor>],
    layouts: &[Arc<Layout>],
    minded: &Minded,
) -> Result<Arc<Decided>> {
    let attributes = op.layout_attributes();
    let mut hasher = Quick::default();
    (op.name(), &attributes).hash(&mut hasher);
    layouts.iter().zip(inputs).for_each(|(layout, input)| (layout, input.dtype()).hash(&mut hasher));
    let hash = hasher.finish();
    let same = |q: &Question| {
        let mut inputs = q.inputs.iter().zip(layouts.iter().zip(inputs));
        q.op == op.name()
            && q.attributes == attributes
            && q.minded == *minded
            && q.inputs.len() == layouts.len()
            && inputs.all(|((layout, dtype), (l, t))| layout == l && *dtype == t.dtype())
    };
    let known = KNOWN.with_borrow(|known| {
        let (_, decided) = known.get(&hash)?.iter().find(|(question, _)| same(question))?;
        Some(decided.clone())
    });
    if let Some(decided) = known {
        return Ok(decided);
    }
    let decision = asked(op, inputs, layouts, minded, decide)?;
    let shared = |list: Vec<Layout>| list.into_iter().map(Arc::new).collect();
    let decided = Arc::new(Decided { inputs: shared(decision.inputs), outputs: shared(decision.outputs) });
    let inputs = layouts.iter().zip(inputs).map(|(l, t)| (l.clone(), t.dtype())).collect();
    KNOWN.with_borrow_mut(|known| {
        if known.len() >= MAX_DECISIONS {
            known.clear();
        }
        let question = Question { op: op.name(), attributes, minded: minded.clone(), inputs };
        known.entry(hash).or_default().push((question, decided.clone()));
    });
    Ok(decided)
}

type Ask<R> = fn(&Rule, &[Operand<'_>], &[(&Shape, usize)], &Terms<'_>) -> planaria_layout::Result<R>;

/// What deciding or weighing answers about an op.
fn asked<R>(
    op: &dyn Op,
    inputs: &[Cow<'_, Tensor>],
    layouts: &[Arc<Layout>],
    minded: &Minded,
    ask: Ask<R>,
) -> Result<R> {
    let specs: Vec<Spec> = inputs.iter().map(|t| t.spec()).collect();
    let outputs = infer(op, &specs)?;
    let rule = op.rule(&specs, &outputs)?;
    let operands: Vec<Operand<'_>> = layouts
        .iter()
        .zip(&specs)
        .map(|(layout, spec)| Operand { layout, size: spec.dtype.size() })
        .collect();
    let results: Vec<_> = outputs.iter().map(|spec| (&spec.shape, spec.dtype.size())).collect();
    let mesh = layouts[0].mesh();
    let meant = |wishes: &&[Layout]| {
        let mut pairs = wishes.iter().zip(&outputs);
        wishes.len() == outputs.len() && pairs.all(|(w, o)| w.mesh() == mesh && *w.shape() == o.shape)
    };
    let wishes = minded.wishes.as_deref().filter(meant).unwrap_or(&[]);
    let wishes: Vec<Option<&Layout>> = wishes.iter().map(Some).collect();
    Ok(ask(&rule, &operands, &results, &Terms { policy: minded.policy, wishes: &wishes })?)
}

/// Runs `work` with ops that know where their outputs are wanted: those with as many outputs, of these shapes, count
/// the way there into their price. They may still come out elsewhere.
pub fn toward<R>(wishes: &[Layout], work: impl FnOnce() -> R) -> R {
    let before = WISHES.with_borrow_mut(|s| s.replace(wishes.into()));
    let result = work();
    WISHES.with_borrow_mut(|s| *s = before);
    result
}

/// An op for the list of those that ran.
fn ran(op: &dyn Op, inputs: &[Cow<'_, Tensor>], layouts: &[Arc<Layout>], minded: &Minded) -> Result<Ran> {
    let weighed = asked(op, inputs, layouts, minded, weigh)?;
    let given = layouts.iter().map(|layout| layout.as_ref().clone()).collect();
    let dtypes = inputs.iter().map(|input| input.dtype()).collect();
    Ok(Ran { op: op.name(), dtypes, given, weighed, exchanged: 0 })
}

/// Global shapes and dtypes of the outputs: the kernel on arrays without bytes.
pub fn infer(op: &dyn Op, inputs: &[Spec]) -> Result<Vec<Spec>> {
    let arrays = inputs
        .iter()
        .map(|spec| Ok(Array::meta(&spec.shape, spec.dtype)?))
        .collect::<Result<SmallVec<[Array; 4]>>>()?;
    let arrays: SmallVec<[&Array; 4]> = arrays.iter().collect();
    Ok(op.forward(&arrays, &Local::Whole)?.iter().map(Spec::of).collect())
}
