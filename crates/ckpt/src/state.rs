//! A training state as one rank sees it: named tensors of which it holds some boxes, and what goes with them.

use crate::error::{Error, Result};
use crate::known::Known;
use planaria_array::Array;
use planaria_layout::{DType, Layout, Piece as Held, Rank, Region, Shape, Tiling, flat_boxes};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// What a tensor is to the training.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TensorKind {
    /// A parameter of the model.
    Parameter,
    /// The full-precision copy of a parameter.
    Master,
    /// Optimizer state of a parameter, as in `moment1_0`.
    Slot(String),
    /// Moving average of a parameter.
    Ema,
    /// State of the model that is not trained.
    Buffer,
}

/// Files that belong together, by the start of their name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Group {
    Model,
    Masters,
    Optimizer,
    Ema,
}

impl Group {
    pub(crate) const ALL: [Group; 4] = [Group::Model, Group::Masters, Group::Optimizer, Group::Ema];

    /// `model` in `model-00001-of-00002.safetensors`.
    pub(crate) fn stem(self) -> &'static str {
        match self {
            Group::Model => "model",
            Group::Masters => "master_weights",
            Group::Optimizer => "optimizer",
            Group::Ema => "ema",
        }
    }
}

impl TensorKind {
    /// Whether it counts the steps of a weight: one value, whatever the shape of the weight.
    pub(crate) fn is_count(&self) -> bool {
        matches!(self, TensorKind::Slot(slot) if slot == "step" || slot.ends_with("_pow_acc_0"))
    }

    pub(crate) fn group(&self) -> Group {
        match self {
            TensorKind::Parameter | TensorKind::Buffer => Group::Model,
            TensorKind::Master => Group::Masters,
            TensorKind::Slot(_) => Group::Optimizer,
            TensorKind::Ema => Group::Ema,
        }
    }
}

/// Names a tensor of a state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorKey {
    /// What it is.
    pub kind: TensorKind,
    /// The parameter or buffer it belongs to.
    pub name: String,
}

impl TensorKey {
    /// A parameter.
    pub fn parameter(name: impl Into<String>) -> TensorKey {
        TensorKey { kind: TensorKind::Parameter, name: name.into() }
    }

    /// The key under which a file holds it: the name, and for optimizer state `name/slot`.
    pub fn in_file(&self) -> String {
        match &self.kind {
            TensorKind::Slot(slot) => format!("{}/{slot}", self.name),
            _ => self.name.clone(),
        }
    }

    /// Whether files hold both in the same place.
    pub(crate) fn same_place(&self, other: &TensorKey) -> bool {
        match (&self.kind, &other.kind) {
            (TensorKind::Slot(a), TensorKind::Slot(b)) if self.name == other.name => a == b,
            (TensorKind::Slot(_), TensorKind::Slot(_)) => self.in_file() == other.in_file(),
            (a, b) => a.group() == b.group() && self.name == other.name,
        }
    }
}

/// As in messages and patterns: `name`, `master_weights:name`, `optimizer:name/moment1_0`, `ema:name`.
impl fmt::Display for TensorKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind.group() {
            Group::Model => f.write_str(&self.name),
            group => write!(f, "{}:{}", group.stem(), self.in_file()),
        }
    }
}

/// A box of a tensor that this rank holds.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The box, in the coordinates of the global tensor.
    pub region: Region,
    /// Its elements: a view of the box's extents, with any strides.
    pub array: Array,
}

/// A tensor of the state, and the boxes of it that this rank holds. Several ranks may hold the same box.
#[derive(Clone, Debug)]
pub struct Item {
    /// What it is.
    pub kind: TensorKind,
    /// Its name, or that of the parameter it belongs to.
    pub name: String,
    /// Global shape.
    pub shape: Shape,
    /// Element type.
    pub dtype: DType,
    /// What this rank holds; nothing is fine.
    pub pieces: Vec<Piece>,
}

impl Item {
    /// A tensor that this rank holds whole.
    pub fn whole(kind: TensorKind, name: impl Into<String>, array: &Array) -> Item {
        let (shape, dtype) = (array.shape().clone(), array.dtype());
        let pieces = vec![Piece { region: Region::whole(&shape), array: array.clone() }];
        Item { kind, name: name.into(), shape, dtype, pieces }
    }

    /// The piece of a layout that `rank` holds. A piece that is one summand of the value is refused.
    pub fn placed(
        kind: TensorKind,
        name: impl Into<String>,
        layout: &Layout,
        rank: Rank,
        array: &Array,
    ) -> Result<Item> {
        layout.check_plain()?;
        let name = name.into();
        let held = layout.piece(rank)?;
        if held.extents()[..] != array.shape()[..] {
            let expected = Shape::from_dims(held.extents())?;
            return Err(Error::Piece { tensor: name, found: array.shape().clone(), expected });
        }
        let mut pieces = Vec::new();
        for region in held.boxes() {
            let Some(inner) = held.locate(&region) else { continue };
            pieces.push(Piece { array: array.region(&inner)?, region });
        }
        Ok(Item { kind, name, shape: layout.shape().clone(), dtype: array.dtype(), pieces })
    }

    /// The elements `range` of a flattened piece, as ZeRO optimizers hold them. `array` has as many elements, one after the
    /// other; those past the end of the piece are padding.
    pub fn flat(
        kind: TensorKind,
        name: impl Into<String>,
        shape: &Shape,
        within: &Held,
        range: Range<usize>,
        array: &Array,
    ) -> Result<Item> {
        let name = name.into();
        if array.numel() != range.len() || !array.is_contiguous() {
            let expected = Shape::new(&[range.len()])?;
            return Err(Error::Piece { tensor: name, found: array.shape().clone(), expected });
        }
        let extents = within.extents();
        // The whole box, as it mostly is: a save is called for while training waits.
        if let ([region], true) = (&within.boxes()[..], range == (0..within.numel()) && !range.is_empty()) {
            let piece = Piece { region: region.clone(), array: array.reshape(&extents)? };
            return Ok(Item { kind, name, shape: shape.clone(), dtype: array.dtype(), pieces: vec![piece] });
        }
        let flat = array.reshape(&[range.len()])?;
        let mut at = 0;
        let mut pieces = Vec::new();
        for inner in flat_boxes(&extents, range) {
            let part = flat.narrow(0, at, inner.numel())?.reshape(&inner.extents())?;
            at += inner.numel();
            for (local, region) in within.boxes_of(&inner) {
                let Some(local) = local.relative_to(&inner) else { continue };
                pieces.push(Piece { region, array: part.region(&local)? });
            }
        }
        Ok(Item { kind, name, shape: shape.clone(), dtype: array.dtype(), pieces })
    }

    /// Its key.
    pub fn key(&self) -> TensorKey {
        TensorKey { kind: self.kind.clone(), name: self.name.clone() }
    }

    /// Every piece lies inside the shape and has the extents of its box.
    pub(crate) fn check(&self) -> Result<()> {
        let whole = Region::whole(&self.shape);
        for Piece { region, array } in &self.pieces {
            if region.ndim() != self.shape.ndim() || !whole.contains(region) {
                let problem = planaria_layout::Error::TileOutside {
                    tile: Box::new(region.clone()),
                    shape: self.shape.to_string(),
                };
                return Err(Error::Tiles { tensor: self.key().to_string(), problem });
            }
            if array.shape()[..] != region.extents()[..] {
                let (tensor, found) = (self.key().to_string(), array.shape().clone());
                return Err(Error::Piece { tensor, found, expected: Shape::from_dims(region.extents())? });
            }
            if array.dtype() != self.dtype {
                let (tensor, found) = (self.key().to_string(), array.dtype());
                return Err(Error::DType { tensor, found, expected: self.dtype });
            }
        }
        Ok(())
    }
}

/// What is saved and loaded. Tensors may differ from rank to rank; everything else is the same on all.
#[derive(Clone, Debug, Default)]
pub struct TrainState {
    /// The tensors.
    pub items: Vec<Item>,
    /// Optimizer steps done.
    pub step: u64,
    /// Samples consumed.
    pub samples: u64,
    /// Tokens consumed.
    pub tokens: u64,
    /// Random generators.
    pub random: Value,
    /// Learning-rate schedule.
    pub schedule: Value,
    /// Configuration of the run.
    pub config: Value,
    /// Anything else.
    pub extra: Value,
    /// Small files kept beside the tensors: `config.json`, `tokenizer.json`, ...
    pub files: BTreeMap<String, Arc<[u8]>>,
    /// Names that stand for the value of another tensor of the same kind; they are not stored.
    pub tied: BTreeMap<String, String>,
    /// The tensors of all ranks, where each of them knows who holds what; else they tell each other.
    pub known: Option<Known>,
}

impl TrainState {
    /// A state of these tensors and nothing else.
    pub fn new(items: Vec<Item>) -> TrainState {
        TrainState { items, ..TrainState::default() }
    }

    /// Gives every tensor another name, in what all ranks know too.
    pub fn rename(&mut self, name: impl Fn(&str) -> String) -> Result<()> {
        self.items.iter_mut().for_each(|item| item.name = name(&item.name));
        self.known = self.known.as_ref().map(|known| known.renamed(&name)).transpose()?;
        Ok(())
    }
}
