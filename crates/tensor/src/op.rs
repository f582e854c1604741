//! What an op is: its rule, its local kernel and its gradient, in one trait that everything else reads.

use crate::attributes::Attributes;
use crate::error::{Error, Result};
use crate::grad::Backward;
use crate::tensor::Tensor;
use crate::world::World;
use planaria_array::{Array, DType, Shape};
use planaria_comm::{AllReduce, CommExt};
use planaria_layout::rule::Rule;
use planaria_layout::{AxisSet, Layout, Piece, Reduce};
use smallvec::SmallVec;
use std::fmt::Debug;
use std::sync::Arc;

/// The local results of an op.
pub type Arrays = SmallVec<[Array; 1]>;

/// The gradients of an op's inputs; absent where none is wanted or there is none.
pub type Grads = SmallVec<[Option<Tensor>; 2]>;

/// Shape and dtype of a global value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// The global shape.
    pub shape: Shape,
    /// The dtype.
    pub dtype: DType,
}

impl Spec {
    /// Of an array that is whole.
    pub fn of(array: &Array) -> Spec {
        Spec { shape: array.shape().clone(), dtype: array.dtype() }
    }
}

/// Which inputs or outputs of an op are meant, by place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places(SmallVec<[bool; 8]>);

impl Places {
    /// These.
    pub fn of(places: &[usize]) -> Places {
        let mut set = SmallVec::from_elem(false, places.iter().max().map_or(0, |&last| last + 1));
        places.iter().for_each(|&place| set[place] = true);
        Places(set)
    }

    /// True when the place is meant.
    pub fn has(&self, place: usize) -> bool {
        self.0.get(place).copied().unwrap_or(false)
    }

    /// True when no place is meant.
    pub fn is_empty(&self) -> bool {
        !self.0.contains(&true)
    }
}

impl FromIterator<bool> for Places {
    fn from_iter<I: IntoIterator<Item = bool>>(places: I) -> Places {
        Places(places.into_iter().collect())
    }
}

/// The values an op keeps for its gradient.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saves {
    /// Inputs.
    pub inputs: Places,
    /// Outputs.
    pub outputs: Places,
}

impl Saves {
    /// Nothing but shapes.
    pub fn nothing() -> Saves {
        Saves::default()
    }

    /// These inputs.
    pub fn inputs(places: &[usize]) -> Saves {
        Saves { inputs: Places::of(places), outputs: Places::default() }
    }

    /// These outputs.
    pub fn outputs(places: &[usize]) -> Saves {
        Saves { inputs: Places::default(), outputs: Places::of(places) }
    }

    /// And these outputs.
    pub fn and_outputs(self, places: &[usize]) -> Saves {
        Saves { outputs: Places::of(places), ..self }
    }
}

/// One operation on tensors. Its fields are its attributes.
///
/// An op knows nothing of ranks: the rule says how it may be cut, and the kernel runs on pieces.
pub trait Op: Debug + Send + Sync + 'static {
    /// The name it is written down with.
    fn name(&self) -> &'static str;

    /// What it is besides its inputs.
    fn attributes(&self) -> Attributes {
        Attributes::new()
    }

    /// The attributes that decide shapes and layouts; all of them, unless some change on every call.
    fn layout_attributes(&self) -> Attributes {
        self.attributes()
    }

    /// How the dims of inputs and outputs hang together.
    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule>;

    /// The kernel, on the pieces of one rank. On arrays of the meta device it gives shapes and dtypes.
    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays>;

    /// True when output shapes follow from values: inputs are then made whole.
    fn shapes_follow_values(&self) -> bool {
        false
    }

    /// True when the output is another view of input 0's storage.
    fn is_view(&self) -> bool {
        false
    }

    /// The view op that gives one output alone, where a view op has several.
    fn view_alone(&self, _output: usize) -> Option<Arc<dyn Op>> {
        None
    }

    /// For a view op, the op that gives input 0 with input 1 in the part that is shown, if that can be cut.
    fn put_back(&self) -> Option<Arc<dyn Op>> {
        None
    }

    /// True when the results take little time beside the ops around it, so that backward may rather compute them again than
    /// keep them.
    fn is_cheap(&self) -> bool {
        false
    }

    /// True when the gradient of input 0 may take up what has come to that input by other ways (`Backward::carried`).
    fn adds_carried(&self) -> bool {
        false
    }

    /// What the gradient needs, given the inputs whose gradient is wanted.
    fn saves(&self, needs: &Places) -> Saves;

    /// The gradients of the inputs from those of the outputs (absent: zero), written with other ops.
    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads>;
}

/// What a kernel may know of the place where it runs.
#[derive(Clone, Copy, Debug)]
pub enum Local<'a> {
    /// Inputs and outputs are whole.
    Whole,
    /// Inputs and outputs are pieces.
    Piece(Here<'a>),
}

/// The layouts around a kernel call, and the rank.
#[derive(Clone, Copy, Debug)]
pub struct Here<'a> {
    pub(crate) inputs: &'a [Arc<Layout>],
    pub(crate) outputs: &'a [Arc<Layout>],
    pub(crate) world: &'a World,
}

impl Local<'_> {
    /// Global shape of an input, given the local array.
    pub fn input_shape(&self, input: usize, local: &Array) -> Shape {
        match self {
            Local::Whole => local.shape().clone(),
            Local::Piece(here) => here.inputs[input].shape().clone(),
        }
    }

    /// This rank's piece of an input; absent when it is whole.
    pub fn input_piece(&self, input: usize) -> Result<Option<Piece>> {
        match self {
            Local::Whole => Ok(None),
            Local::Piece(here) => Ok(Some(here.inputs[input].piece(here.world.rank())?)),
        }
    }

    /// This rank's piece of an output; absent when it is whole.
    pub fn output_piece(&self, output: usize) -> Result<Option<Piece>> {
        match self {
            Local::Whole => Ok(None),
            Local::Piece(here) => Ok(Some(here.outputs[output].piece(here.world.rank())?)),
        }
    }

    /// The local extents of an output whose global shape the op states itself.
    pub fn extents(&self, output: usize, global: &[usize]) -> Result<planaria_layout::Dims> {
        Ok(self.output_piece(output)?.map_or_else(|| global.into(), |piece| piece.extents()))
    }

    /// First global index of this rank's window of one dim of an input; 0 when it is whole.
    pub fn input_start(&self, input: usize, dim: usize) -> Result<usize> {
        Ok(self.input_piece(input)?.map_or(0, |piece| start_of(&piece, dim)))
    }

    /// First global index of this rank's window of one dim of an output; 0 when it is whole.
    pub fn output_start(&self, output: usize, dim: usize) -> Result<usize> {
        Ok(self.output_piece(output)?.map_or(0, |piece| start_of(&piece, dim)))
    }

    /// True when some of these dims of an input are in pieces on several ranks. All ranks know the same.
    pub fn is_cut(&self, input: usize, dims: &[usize]) -> bool {
        let Local::Piece(here) = self else { return false };
        let layout = &here.inputs[input];
        layout.mesh().span(dims.iter().flat_map(|&d| layout.axes_on(d)).collect()) > 1
    }

    /// Combines what the ranks that cut `dims` of an input have; for kernels that must know all of a cut factor.
    pub fn reduce_over(&self, input: usize, dims: &[usize], array: &Array, op: Reduce) -> Result<Array> {
        let Local::Piece(here) = self else { return Ok(array.clone()) };
        let layout = &here.inputs[input];
        let axes: AxisSet = dims.iter().flat_map(|&d| layout.axes_on(d)).collect();
        if layout.mesh().span(axes) == 1 {
            return Ok(array.clone());
        }
        crate::trace::note_joint(array, here, axes);
        if array.is_meta() {
            return Ok(array.clone());
        }
        let group = here.world.group(&layout.mesh().group(here.world.rank(), axes)?)?;
        let send = array.contiguous()?;
        let recv = Array::empty_on(send.shape(), send.dtype(), send.device())?;
        group.all_reduce(AllReduce { send, recv: recv.clone(), op })?;
        Ok(recv)
    }
}

fn start_of(piece: &Piece, dim: usize) -> usize {
    piece.boxes().first().map_or(0, |region| region.lo()[dim])
}

/// The one output of an op that has one.
pub(crate) fn only<T>(outputs: SmallVec<[T; 1]>) -> Result<T> {
    outputs.into_iter().next().ok_or(Error::Bug("an op gave no output"))
}
