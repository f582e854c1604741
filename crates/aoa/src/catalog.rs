//! Catalogs: the tensors on one side of a mapping, by name.

use planaria_layout::{DType, Dims, Layout, Placement, Shape};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// What a mapping has to know about one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    shape: Shape,
    dtype: Option<DType>,
    /// Parts along each dim.
    cuts: Dims,
    /// Distinct shard offsets, as the reference counts them.
    shards: usize,
}

impl Tensor {
    /// A tensor held whole.
    pub fn new(shape: Shape, dtype: DType) -> Tensor {
        let cuts = Dims::from_elem(1, shape.ndim());
        Tensor { shape, dtype: Some(dtype), cuts, shards: 1 }
    }

    /// A whole tensor, whose element type may be unknown.
    pub(crate) fn made(shape: Shape, dtype: Option<DType>) -> Tensor {
        let cuts = Dims::from_elem(1, shape.ndim());
        Tensor { shape, dtype, cuts, shards: 1 }
    }

    /// A tensor held as this layout says. A dim cut in sections (`S1x2`) keeps the plain order of a
    /// fused weight whatever the number of ranks, so it counts as whole.
    pub fn of(layout: &Layout, dtype: DType) -> Tensor {
        let mut tensor = Tensor::new(layout.shape().clone(), dtype);
        for (axis, placement) in layout.placements().iter().enumerate() {
            if let Placement::Shard(shard) = placement
                && shard.sections == 1
            {
                let cut = &mut tensor.cuts[shard.dim];
                *cut = cut.saturating_mul(layout.mesh().axes()[axis].size);
            }
        }
        tensor.shards = tensor.cuts.iter().fold(1, |all: usize, cut| all.saturating_mul(*cut));
        tensor
    }

    /// The same tensor held in shards that start at these offsets; equal ones are copies.
    #[must_use]
    pub fn with_offsets<'a>(mut self, offsets: impl IntoIterator<Item = &'a [usize]>) -> Tensor {
        let all: BTreeSet<&[usize]> = offsets.into_iter().collect();
        self.shards = all.len().max(1);
        for (dim, cut) in self.cuts.iter_mut().enumerate() {
            let starts: BTreeSet<usize> = all.iter().filter_map(|o| o.get(dim).copied()).collect();
            *cut = starts.len().max(1);
        }
        self
    }

    /// The same tensor, whose element type is not known and not checked.
    #[must_use]
    pub fn without_dtype(mut self) -> Tensor {
        self.dtype = None;
        self
    }

    /// The global shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The element type, when it is known.
    pub fn dtype(&self) -> Option<DType> {
        self.dtype
    }

    /// Into how many parts a dim is cut.
    pub fn cuts(&self, dim: usize) -> usize {
        self.cuts.get(dim).copied().unwrap_or(1)
    }

    /// Number of distinct shards.
    pub(crate) fn shards(&self) -> usize {
        self.shards
    }
}

/// The tensors on one side of a mapping.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    names: Vec<Arc<str>>,
    tensors: Vec<Tensor>,
    by_name: HashMap<Arc<str>, usize>,
}

impl Catalog {
    /// An empty catalog.
    pub fn new() -> Catalog {
        Catalog::default()
    }

    /// Adds a tensor; one of the same name is replaced and returned.
    pub fn insert(&mut self, name: impl Into<Arc<str>>, tensor: Tensor) -> Option<Tensor> {
        let name = name.into();
        if let Some(&index) = self.by_name.get(&name) {
            return Some(std::mem::replace(&mut self.tensors[index], tensor));
        }
        self.by_name.insert(name.clone(), self.names.len());
        self.names.push(name);
        self.tensors.push(tensor);
        None
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    /// All names and tensors, in the order they were added.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, &Tensor)> {
        self.names.iter().zip(&self.tensors)
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// True when there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(crate) fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn at(&self, index: usize) -> &Tensor {
        &self.tensors[index]
    }
}

impl<N: Into<Arc<str>>> FromIterator<(N, Tensor)> for Catalog {
    fn from_iter<I: IntoIterator<Item = (N, Tensor)>>(tensors: I) -> Catalog {
        let mut catalog = Catalog::new();
        for (name, tensor) in tensors {
            catalog.insert(name, tensor);
        }
        catalog
    }
}

/// Endings under which Paddle keeps the optimizer state of a tensor.
const SLOTS: [&str; 5] = [".w_0", ".moment1_0", ".moment2_0", ".beta1_pow_acc_0", ".beta2_pow_acc_0"];

/// Divides a Paddle key into the tensor and the optimizer slot it belongs to. A mapping speaks of
/// tensors; their slots move the same way, without the casts.
pub fn split_slot(key: &str) -> (&str, Option<&'static str>) {
    let slot = SLOTS.iter().find_map(|slot| Some((key.strip_suffix(slot)?, *slot)));
    slot.map_or((key, None), |(name, slot)| (name, Some(slot)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_counted_by_dim_and_sections_are_whole() {
        let of = |text: &str| Tensor::of(&text.parse().unwrap(), DType::F32);
        let both = of("[8,6] @ dp:S0 tp:S1 on dp=2 tp=3");
        assert_eq!((both.cuts(0), both.cuts(1), both.shards()), (2, 3, 6));
        assert_eq!(of("[8,6] @ tp:S1x2 on tp=3").cuts(1), 1);
        let listed = Tensor::new(Shape::new(&[4, 8]).unwrap(), DType::F32)
            .with_offsets([[0, 0], [0, 4], [0, 0]].iter().map(|o| &o[..]));
        assert_eq!((listed.cuts(0), listed.cuts(1), listed.shards()), (1, 2, 2));
    }

    #[test]
    fn slots_are_split_off() {
        assert_eq!(split_slot("a.w.moment1_0"), ("a.w", Some(".moment1_0")));
        assert_eq!(split_slot("a.velocity_0"), ("a.velocity_0", None));
    }
}
