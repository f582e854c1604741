//! The tensor: one global value, of which this rank holds a piece, with its gradient history.

use crate::error::{Error, Result};
use crate::grad::{Edge, Fetch, View};
use crate::op::Spec;
use crate::world::World;
use planaria_array::{Array, DType, Device, Element, Scalar, Shape};
use planaria_layout::{Layout, Mesh, Placement};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// One global value. Cloning gives another handle on the same tensor.
#[derive(Clone)]
pub struct Tensor(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    /// This rank's piece.
    pub(crate) array: Array,
    /// Where the pieces are; absent for a value that this rank has whole and nobody else takes part in.
    pub(crate) place: Option<Place>,
    pub(crate) history: Mutex<Option<Edge>>,
    /// Counts changes of the history by writes in place, so that views know when to look again.
    pub(crate) rewrites: AtomicU64,
    pub(crate) view: Option<View>,
    /// Where the history takes the elements from, if it is not to keep them.
    pub(crate) fetch: Option<Fetch>,
}

/// A layout and the ranks it speaks of.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Who has what; shared by all tensors that lie alike.
    pub layout: Arc<Layout>,
    /// The ranks.
    pub world: World,
}

impl Place {
    /// This rank's extents.
    pub fn extents(&self) -> Result<planaria_layout::Dims> {
        Ok(self.layout.piece(self.world.rank())?.extents())
    }
}

impl Tensor {
    pub(crate) fn raw(array: Array, place: Option<Place>, edge: Option<Edge>, view: Option<View>) -> Tensor {
        let history = Mutex::new(edge);
        Tensor(Arc::new(Inner { array, place, history, rewrites: AtomicU64::new(0), view, fetch: None }))
    }

    /// The same tensor, of which the history keeps no elements: where backward needs them it calls `fetch`, once for
    /// each use, which must give the same elements. For values that are brought together only while they are used.
    #[must_use]
    pub fn fetched_by(&self, fetch: Fetch) -> Tensor {
        let (array, place, history) = (self.0.array.clone(), self.0.place.clone(), Mutex::new(self.edge()));
        let (rewrites, fetch) = (AtomicU64::new(0), Some(fetch));
        Tensor(Arc::new(Inner { array, place, history, rewrites, view: None, fetch }))
    }

    /// A value that this rank has whole.
    pub fn new(array: Array) -> Tensor {
        Tensor::raw(array, None, None, None)
    }

    /// The elements of a slice, as a value that this rank has whole.
    pub fn from_slice<T: Element>(data: &[T], shape: &[usize]) -> Result<Tensor> {
        Ok(Tensor::new(Array::from_slice(data, shape)?))
    }

    /// A value of which this rank has the piece that the layout gives it. A rank that is not on the layout's mesh has
    /// an array of shape `[0]`, with which it takes part in a reshard to a mesh that it is on.
    pub fn from_piece(array: Array, layout: &Layout, world: &World) -> Result<Tensor> {
        let place = Place { layout: Arc::new(layout.clone()), world: world.clone() };
        let expected = match layout.mesh().coords(world.rank()) {
            Some(_) => place.extents()?,
            None => planaria_layout::Dims::from_slice(&[0]),
        };
        if array.shape()[..] != expected[..] {
            let (rank, found) = (world.rank(), array.shape().clone());
            return Err(Error::Piece {
                rank,
                found,
                expected: expected.to_vec(),
                layout: Box::new(layout.clone()),
            });
        }
        Ok(Tensor::raw(array, Some(place), None, None))
    }

    /// A value that every rank of the mesh has whole, placed as given: nothing is sent.
    pub fn place(array: &Array, mesh: &Mesh, placements: &[Placement], world: &World) -> Result<Tensor> {
        let whole = Layout::replicated(mesh, array.shape());
        let wanted = Layout::new(mesh, array.shape(), placements)?;
        Tensor::from_piece(array.clone(), &whole, world)?.reshard(&wanted)
    }

    /// This rank's piece. It is a handle on the tensor's own storage.
    pub fn local(&self) -> &Array {
        &self.0.array
    }

    /// A whole tensor of other elements, in the memory that has this one's.
    pub(crate) fn near(&self, elements: &Array) -> Result<Tensor> {
        Ok(match self.local().device() {
            Device::Meta => Tensor::new(elements.clone()),
            device => Tensor::new(elements.to(device)?),
        })
    }

    /// The layout, of a value that lies on a mesh.
    pub fn layout(&self) -> Option<&Layout> {
        self.0.place.as_ref().map(|place| place.layout.as_ref())
    }

    /// The ranks, of a value that lies on a mesh.
    pub fn world(&self) -> Option<&World> {
        self.0.place.as_ref().map(|place| &place.world)
    }

    /// The global shape.
    pub fn shape(&self) -> &Shape {
        self.layout().map_or(self.0.array.shape(), Layout::shape)
    }

    /// Number of dims.
    pub fn ndim(&self) -> usize {
        self.shape().ndim()
    }

    /// Elements of the global value.
    pub fn numel(&self) -> usize {
        self.shape().numel()
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.0.array.dtype()
    }

    /// Shape and dtype.
    pub fn spec(&self) -> Spec {
        Spec { shape: self.shape().clone(), dtype: self.dtype() }
    }

    /// The whole value on every rank of the mesh. Collective.
    pub fn whole(&self) -> Result<Array> {
        match self.layout() {
            None => Ok(self.0.array.clone()),
            Some(layout) => {
                let everywhere = Layout::replicated(layout.mesh(), layout.shape());
                Ok(self.detach().reshard(&everywhere)?.0.array.clone())
            }
        }
    }

    /// The single element of a value that this rank has whole.
    pub fn item(&self) -> Result<Scalar> {
        self.require_settled("item")?;
        Ok(self.0.array.item()?)
    }

    /// The elements in row-major order, of a value that this rank has whole.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.require_settled("to_vec")?;
        Ok(self.0.array.to_vec()?)
    }

    /// Values are read from tensors that hold them: not pending, and whole here.
    fn require_settled(&self, what: &'static str) -> Result<()> {
        match self.layout() {
            Some(layout) if !layout.partial_axes().is_empty() => {
                Err(Error::Pending { what, layout: Box::new(layout.clone()) })
            }
            Some(layout) if self.0.array.shape() != layout.shape() => Err(Error::Argument {
                op: what,
                message: format!("`{layout}` is in pieces; take `whole()` of it first"),
            }),
            _ => Ok(()),
        }
    }

    /// The same value and storage without history.
    pub fn detach(&self) -> Tensor {
        Tensor::raw(self.0.array.clone(), self.0.place.clone(), None, None)
    }

    /// The same value, without history, with this rank's piece on another device.
    pub fn to(&self, device: Device) -> Result<Tensor> {
        Ok(Tensor::raw(self.0.array.to(device)?, self.0.place.clone(), None, None))
    }

    /// True when the two are one tensor.
    pub fn is(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, Option<Edge>> {
        self.0.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn rewrites(&self) -> u64 {
        self.0.rewrites.load(Ordering::Acquire)
    }
}

impl From<Array> for Tensor {
    fn from(array: Array) -> Tensor {
        Tensor::new(array)
    }
}

/// Layout, mesh and the values that this rank holds; a value that no mesh has prints like its array.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layout() {
            Some(layout) => {
                write!(f, "{} on {}, here {}", layout.to_spec(self.dtype()), layout.mesh(), self.0.array)
            }
            None => write!(f, "{}", self.0.array),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layout() {
            Some(layout) => write!(f, "Tensor({})", layout.to_spec(self.dtype())),
            None => write!(f, "Tensor({}{})", self.dtype(), self.shape()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_prints_its_layout_and_what_this_rank_holds() {
        let whole = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
        assert_eq!(Tensor::new(whole.clone()).to_string(), whole.to_string());
        let mesh: Mesh = "tp=2".parse().unwrap();
        let texts = planaria_comm::threads::run(2, |comm| {
            Tensor::place(&whole, &mesh, &[Placement::shard(1)], &World::new(comm)).unwrap().to_string()
        });
        assert_eq!(texts[1], "f32[2,2] @ tp:S1 on tp=2, here f32[2,1] [[2], [4]]");
    }
}
