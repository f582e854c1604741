//! The parameters a rank holds, and its share of what the optimizer keeps for each of them.
//!
//! ZeRO is a tiling here, [`FlatShards`]. A parameter's local piece is a flat row of elements; data rank `r` owns one
//! contiguous range of it, which may be empty. Stage 0 keeps optimizer state for the whole row, stages 1 and 2 for the
//! own range, stage 3 keeps also the weights themselves only there and brings the rest together when a block needs them.

use crate::bundle::DATA;
use crate::config::Average;
use crate::error::{Error, Result};
use crate::freeze::Frozen;
use crate::reduce::Lane;
use planaria_array::{Array, DType};
use planaria_ckpt::{Item, TensorKind};
use planaria_layout::{FlatShards, Layout, Mesh, Piece, Rank, Region, Shape, Share};
use planaria_nn::lora::narrow::{Narrow, Width};
use planaria_nn::models::BESIDE;
use planaria_nn::optim::{OptimState, Rule};
use planaria_nn::{Param, ParamSpec, Role};
use std::ops::Range;

/// What is divided over data ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Zero {
    /// Nothing.
    Off,
    /// Optimizer state.
    States,
    /// Also gradients.
    Gradients,
    /// Also weights.
    Weights,
}

impl From<u8> for Zero {
    fn from(stage: u8) -> Zero {
        match stage {
            0 => Zero::Off,
            1 => Zero::States,
            2 => Zero::Gradients,
            _ => Zero::Weights,
        }
    }
}

/// Where the other leaf of a tied value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tie {
    /// There is none.
    None,
    /// This one's sum is added to that of another weight of this rank, which is the one that is updated.
    Into(usize),
    /// The other leaf is on another stage: both add `embedding + head` and update alike.
    Across {
        /// The rank that has it.
        peer: Rank,
        /// True where this is the embedding, whose sum comes first.
        first: bool,
    },
}

/// One parameter of this rank.
#[derive(Debug)]
pub(crate) struct Weight {
    pub(crate) spec: ParamSpec,
    /// What of the global tensor this rank of the inner mesh has.
    pub(crate) within: Piece,
    pub(crate) dtype: DType,
    pub(crate) trainable: bool,
    /// How it lies on the mesh of this stage; the data ranks hold copies.
    pub(crate) layout: Layout,
    /// How this rank's piece is shared out over the data ranks.
    pub(crate) share: Share,
    /// The own range.
    pub(crate) own: Range<usize>,
    /// The local piece as one row; absent where only the own range is kept.
    pub(crate) full: Option<Array>,
    /// The own range of it.
    pub(crate) part: Array,
    pub(crate) tie: Tie,
    /// This rank adds the gradient to the global norm: exactly one holder of each element does.
    pub(crate) counted: bool,
    pub(crate) state: Option<WeightState>,
}

/// The elements that a rank keeps of a parameter.
#[derive(Debug)]
pub(crate) enum Elements {
    /// All of the local piece.
    All(Array),
    /// The own range.
    Own(Array),
}

/// Which files a parameter is looked for in, and by which names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Files {
    /// Those of the model: what an adapter adds is not in them.
    Model,
    /// Those of the run's checkpoints: the model, or an adapter alone.
    Run,
}

impl Files {
    /// The names of a parameter's tensors; none where it is not in the files.
    pub(crate) fn names(self, spec: &ParamSpec) -> Option<Vec<String>> {
        let own = || match &spec.tied {
            Some(twin) => vec![twin.clone()],
            None => spec.files(),
        };
        match (self, &spec.role) {
            (_, Role::Own) => Some(own()),
            (Files::Model, role) => role.is_of_model().then(own),
            (Files::Run, _) => spec.adapter_files(),
        }
    }
}

/// Takes one array of a parameter: what it is, and the range of the local piece it covers.
type Each<'a> = dyn FnMut(TensorKind, &Array, Range<usize>) -> Result<()> + 'a;

/// What the optimizer keeps for a range of a parameter.
#[derive(Debug)]
pub(crate) struct WeightState {
    /// The range, of the local piece.
    pub(crate) range: Range<usize>,
    /// Masters and moments.
    pub(crate) optim: OptimState,
    /// Running averages of the weights.
    pub(crate) averages: Vec<Array>,
}

/// What a checkpoint calls average `number`: the first is the one that others know too.
pub(crate) fn average_kind(number: usize) -> TensorKind {
    match number {
        0 => TensorKind::Ema,
        number => TensorKind::Slot(format!("ema_{number}")),
    }
}

/// What a rank keeps for each parameter.
#[derive(Clone, Debug)]
pub(crate) struct Keeping {
    pub(crate) zero: Zero,
    pub(crate) rule: Rule,
    pub(crate) averages: Vec<Average>,
    /// Parameters that stay as they are.
    pub(crate) frozen: Frozen,
    /// Position among the data ranks.
    pub(crate) rank: usize,
    /// This rank in the world.
    pub(crate) world: Rank,
    /// The ranks of this stage, data ranks included.
    pub(crate) mesh: Mesh,
}

impl Weight {
    pub(crate) fn new(param: &Param, keeping: &Keeping) -> Result<Weight> {
        let leaf = param.leaf();
        let (within, counted) = match leaf.layout() {
            None => (Piece::from(&Region::whole(&param.spec().shape)), true),
            Some(layout) => {
                let coords = layout.mesh().require(keeping.world)?;
                let first = layout.replicated_axes().iter().all(|axis| coords[axis] == 0);
                (layout.piece(keeping.world)?, first)
            }
        };
        let numel = leaf.local().numel();
        let full = leaf.local().reshape(&[numel])?;
        let layout = param.spec().layout(&keeping.mesh)?;
        let share = FlatShards::even(&layout, DATA)?.share(keeping.world)?;
        if share.numel() != numel {
            let what = format!("{param:?} has {numel} elements here, its layout says {}", share.numel());
            return Err(Error::Bug { what });
        }
        let own = share.range(keeping.rank);
        let part = full.narrow(0, own.start, own.len())?;
        Ok(Weight {
            spec: param.spec().clone(),
            within,
            dtype: leaf.dtype(),
            trainable: param.is_trainable(),
            layout,
            share,
            own,
            part,
            full: Some(full),
            tie: Tie::None,
            counted,
            state: None,
        })
    }

    /// Shares it out, and takes all its elements, or the own ones, from elsewhere.
    pub(crate) fn settle(
        &mut self,
        shards: &FlatShards,
        keeping: &Keeping,
        elements: Elements,
    ) -> Result<()> {
        (self.share, self.own) = (shards.share(keeping.world)?, shards.range(keeping.world)?);
        (self.part, self.full) = match elements {
            Elements::All(full) => (full.narrow(0, self.own.start, self.own.len())?, Some(full)),
            Elements::Own(part) => (part, None),
        };
        Ok(())
    }

    /// Makes the optimizer's arrays from the weights of now.
    pub(crate) fn begin_state(&mut self, keeping: &Keeping) -> Result<()> {
        let whole = keeping.zero == Zero::Off;
        let range = if whole { 0..self.share.numel() } else { self.own.clone() };
        let values = self.values(&range)?;
        let optim = keeping.rule.state(&values)?;
        let start = |average: &Average| Ok(average.profile.start(&values)?);
        let averages = keeping.averages.iter().map(start).collect::<Result<_>>()?;
        self.state = Some(WeightState { range, optim, averages });
        Ok(())
    }

    /// The weights of a range that is the own one or, where it is there, any.
    pub(crate) fn values(&self, range: &Range<usize>) -> Result<Array> {
        match &self.full {
            Some(full) => Ok(full.narrow(0, range.start, range.len())?),
            None if *range == self.own => Ok(self.part.clone()),
            None => {
                Err(Error::Bug { what: format!("`{}` is asked for weights of other ranks", self.spec.name) })
            }
        }
    }

    /// Takes other values for the local piece, or for as much of it as is kept here.
    pub(crate) fn set_values(&self, piece: &Array) -> Result<()> {
        let flat = piece.reshape(&[piece.numel()])?;
        match &self.full {
            Some(full) => full.copy_from(&flat)?,
            None => self.part.copy_from(&flat.narrow(0, self.own.start, self.own.len())?)?,
        }
        Ok(())
    }

    /// Its piece, of which these are all elements, in few bits; the piece itself is let go of.
    pub(crate) fn narrow(&mut self, full: &Array, width: Width) -> Result<Narrow> {
        self.full = None;
        let piece = full.reshape(&self.within.extents())?;
        let first = self.within.boxes().first().and_then(|region| region.lo().last().copied());
        let narrow = Narrow::new(&piece, first.unwrap_or(0), width)?;
        self.part = Array::zeros_on(&[0], self.dtype, full.device())?;
        Ok(narrow)
    }

    /// Takes a copy of its piece, apart from those it shared memory with.
    pub(crate) fn keep_alone(&mut self) -> Result<()> {
        if let Some(full) = &self.full {
            let own = full.copy()?;
            self.part = own.narrow(0, self.own.start, self.own.len())?;
            self.full = Some(own);
        }
        Ok(())
    }

    /// Whether it is of a second model beside the one that is trained.
    pub(crate) fn is_second(&self) -> bool {
        self.spec.name.starts_with(BESIDE)
    }

    /// Whether the files of an adapter have a copy of it.
    pub(crate) fn is_copied(&self) -> bool {
        matches!(self.spec.role, Role::Copied(_))
    }

    pub(crate) fn lane(&self) -> Lane {
        Lane { share: self.share.clone(), dtype: self.dtype }
    }

    /// What a checkpoint has of this parameter, as far as this rank holds it.
    pub(crate) fn items(&self, each: &mut Each<'_>) -> Result<()> {
        match &self.full {
            Some(full) => each(TensorKind::Parameter, full, 0..self.share.numel())?,
            None => each(TensorKind::Parameter, &self.part, self.own.clone())?,
        }
        let Some(state) = &self.state else { return Ok(()) };
        if let Some(master) = &state.optim.master {
            each(TensorKind::Master, master, state.range.clone())?;
        }
        for (slot, array) in &state.optim.slots {
            each(TensorKind::Slot(slot.to_string()), array, state.range.clone())?;
        }
        let mut averages = state.averages.iter().enumerate();
        averages.try_for_each(|(number, mean)| each(average_kind(number), mean, state.range.clone()))
    }

    /// One array over a range of the local piece as items of these files: one, or one for each expert; nothing where it is in
    /// none of them.
    pub(crate) fn item(
        &self,
        kind: &TensorKind,
        array: &Array,
        range: Range<usize>,
        files: Files,
    ) -> Result<Vec<Item>> {
        let Some(files) = files.names(&self.spec) else { return Ok(Vec::new()) };
        let shape = &self.spec.shape;
        if !self.spec.is_stacked() {
            return Ok(vec![Item::flat(kind.clone(), &files[0], shape, &self.within, range, array)?]);
        }
        let boxes = self.within.boxes();
        let held = match &boxes[..] {
            [held] => held,
            [] => return Ok(Vec::new()),
            _ => {
                return Err(Error::Bug {
                    what: format!("experts of `{}` are cut in sections", self.spec.name),
                });
            }
        };
        let inner = Piece::from(&Region::new(&held.lo()[1..], &held.hi()[1..])?);
        let (shape, each) = (Shape::new(&shape[1..])?, inner.numel());
        let mut items = Vec::new();
        for (j, index) in (held.lo()[0]..held.hi()[0]).enumerate() {
            let (lo, hi) = ((j * each).max(range.start), ((j + 1) * each).min(range.end));
            if lo < hi {
                let part = array.narrow(0, lo - range.start, hi - lo)?;
                let within = lo - j * each..hi - j * each;
                items.push(Item::flat(kind.clone(), &files[index], &shape, &inner, within, &part)?);
            }
        }
        Ok(items)
    }
}
