//! What goes into the files: the tensors of the state, less what the options leave out, through a mapping.

use crate::error::{Error, Result};
use crate::manifest::Derive;
use crate::options::{Masters, Optimizer, SaveOptions, Weights};
use crate::state::{Group, Item, Piece, TensorKey, TensorKind};
use crate::strided::Window;
use crate::union::{Together, natural};
use planaria_aoa::{Mapping, Rearrange};
use planaria_array::Array;
use planaria_layout::{DType, Dims, Listed, Rank, Region, Shape, Tile};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// A box that this rank may have to give, in the coordinates of a tensor of the files.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    /// Number of the tensor among those of the files.
    pub(crate) tensor: usize,
    pub(crate) window: Window,
    /// Types that elements pass through, the last being that of the file.
    pub(crate) casts: Vec<DType>,
}

/// The tensors of the files with their holders, and this rank's own boxes.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) tensors: Vec<Together>,
    pub(crate) given: Vec<Given>,
}

/// What is left of the tensors when the options have been followed.
pub(crate) fn select(tensors: &mut Vec<Together>, options: &SaveOptions) -> Result<Option<Derive>> {
    let derive = options.check()?;
    let all = options.weights == Weights::Write && options.masters == Masters::Write;
    let asked = tensors.iter().filter(|_| !all);
    let shapes: HashMap<TensorKey, Shape> = asked.map(|t| (t.key.clone(), t.shape.clone())).collect();
    let has = |kind: TensorKind, tensor: &Together| {
        shapes.get(&TensorKey { kind, name: tensor.key.name.clone() }) == Some(&tensor.shape)
    };
    tensors.retain(|tensor| match tensor.key.kind {
        TensorKind::Slot(_) => options.optimizer == Optimizer::Write,
        TensorKind::Master if options.optimizer == Optimizer::Skip => false,
        TensorKind::Master => options.masters == Masters::Write || !has(TensorKind::Parameter, tensor),
        TensorKind::Parameter => options.weights == Weights::Write || !has(TensorKind::Master, tensor),
        TensorKind::Ema | TensorKind::Buffer => true,
    });
    Ok(derive)
}

/// The files a tensor belongs to: masters that stand for parameters take their place.
pub(crate) fn group_of(kind: &TensorKind, derive: Option<Derive>) -> Group {
    match (kind, derive) {
        (TensorKind::Master, Some(Derive::ParametersFromMasters)) => Group::Model,
        _ => kind.group(),
    }
}

impl Outgoing {
    /// The tensors as they are.
    pub(crate) fn plain(tensors: Vec<Together>, items: &[Item]) -> Result<Outgoing> {
        let numbers: HashMap<TensorKey, usize> =
            tensors.iter().enumerate().map(|(number, tensor)| (tensor.key.clone(), number)).collect();
        let mut given = Vec::new();
        for item in items {
            // Some are not written.
            let Some(&tensor) = numbers.get(&item.key()) else { continue };
            for piece in item.pieces.iter().filter(|piece| !piece.region.is_empty()) {
                let window = Window::new(&piece.array, &piece.region, None)?;
                given.push(Given { tensor, window, casts: Vec::new() });
            }
        }
        Ok(Outgoing { tensors, given })
    }

    /// The tensors that a mapping makes of them.
    pub(crate) fn mapped(
        tensors: Vec<Together>,
        items: &[Item],
        mapping: &Mapping,
        me: usize,
    ) -> Result<Outgoing> {
        check_known(&tensors, mapping)?;
        let mut kinds: BTreeMap<TensorKind, HashMap<&str, &Together>> = BTreeMap::new();
        for tensor in &tensors {
            // Buffers and parameters move together.
            let kind = if tensor.key.kind == TensorKind::Buffer {
                TensorKind::Parameter
            } else {
                tensor.key.kind.clone()
            };
            kinds.entry(kind).or_default().insert(&tensor.key.name, tensor);
        }
        let pieces = items.iter().map(|item| (item.key(), &item.pieces[..])).collect();
        let through = Through { me, pieces };
        let mut made = Vec::new();
        for (kind, named) in &kinds {
            for target in mapping.targets().iter().filter(|target| target.is_loaded()) {
                made.extend(through.target(mapping, target, (kind, named))?);
            }
        }
        made.sort_by(|(a, _), (b, _)| {
            let by_name =
                a.key.kind.group().cmp(&b.key.kind.group()).then_with(|| natural(&a.key.name, &b.key.name));
            by_name.then_with(|| a.key.kind.cmp(&b.key.kind))
        });
        let mut outgoing = Outgoing { tensors: Vec::with_capacity(made.len()), given: Vec::new() };
        for (number, (tensor, given)) in made.into_iter().enumerate() {
            outgoing.tensors.push(tensor);
            outgoing.given.extend(given.into_iter().map(|given| Given { tensor: number, ..given }));
        }
        Ok(outgoing)
    }
}

/// Nothing of the state may be lost without being dropped on purpose.
fn check_known(tensors: &[Together], mapping: &Mapping) -> Result<()> {
    let unread: BTreeSet<&str> = mapping.unread().into_iter().collect();
    let known: BTreeSet<&str> = mapping.sources().map(|(name, _)| name).collect();
    let name = |tensor: &&Together| tensor.key.name.clone();
    let lost = |tensor: &&Together| {
        let name = tensor.key.name.as_str();
        !known.contains(name) || unread.contains(name)
    };
    match tensors.iter().find(lost).as_ref().map(name) {
        None => Ok(()),
        Some(tensor) => Err(Error::NotMapped { tensor }),
    }
}

/// Carries boxes through a mapping.
struct Through<'a> {
    me: usize,
    /// What this rank holds of each tensor.
    pieces: HashMap<TensorKey, &'a [Piece]>,
}

/// A tensor of the files, and what this rank gives to it.
type Made = (Together, Vec<Given>);

/// The boxes of a target so far: of all ranks, and of this one.
#[derive(Default)]
struct Boxes {
    tiles: Vec<Tile<Rank>>,
    given: Vec<Given>,
}

impl Through<'_> {
    /// A tensor of the files, for one kind; none when the state has nothing of this kind for it.
    fn target(
        &self,
        mapping: &Mapping,
        target: &planaria_aoa::Target,
        (kind, named): (&TensorKind, &HashMap<&str, &Together>),
    ) -> Result<Option<Made>> {
        let sources = mapping.sources_of(target.name())?;
        let Some(first) = sources.iter().find_map(|name| named.get(name)) else { return Ok(None) };
        if let Some(missing) = sources.iter().find(|name| !named.contains_key(*name)) {
            let missing = TensorKey { kind: kind.clone(), name: missing.to_string() };
            return Err(Error::NoTensor {
                tensor: format!("{missing}, which '{}' is made of", target.name()),
            });
        }
        let key = TensorKey { kind: first.key.kind.clone(), name: target.name().to_string() };
        let known =
            mapping.sources().find(|(name, _)| *name == first.key.name).map(|(_, tensor)| tensor.shape());
        if first.shape.numel() == 1 && known != Some(&first.shape) && matches!(kind, TensorKind::Slot(_)) {
            // Optimizer state of one element goes along unchanged.
            let given = self.copied(first)?;
            return Ok(Some((Together { key, ..(*first).clone() }, given)));
        }
        let shape = target.tensor().shape().clone();
        let casts_move = matches!(kind, TensorKind::Parameter | TensorKind::Buffer | TensorKind::Ema);
        let (mut boxes, mut dtype) = (Boxes::default(), None);
        for part in mapping.pieces(target.name(), &Region::whole(&shape))? {
            let source = named[part.source];
            let casts = if casts_move { part.casts.to_vec() } else { Vec::new() };
            let found = casts.last().copied().unwrap_or(source.dtype);
            if dtype.is_some_and(|dtype| dtype != found) {
                let expected = dtype.unwrap_or(found);
                return Err(Error::DType { tensor: source.key.to_string(), found, expected });
            }
            dtype = Some(found);
            self.part(source, &part, &casts, &mut boxes)?;
        }
        let held = Listed::new(&shape, boxes.tiles);
        let held = held.map_err(|problem| Error::Tiles { tensor: key.to_string(), problem })?;
        let dtype = dtype.unwrap_or(first.dtype);
        Ok(Some((Together { key, dtype, shape, held: vec![Arc::new(held)] }, boxes.given)))
    }

    /// The boxes of one piece: where each part that ranks hold of its source goes.
    fn part(
        &self,
        source: &Together,
        part: &planaria_aoa::Piece<'_>,
        casts: &[DType],
        boxes: &mut Boxes,
    ) -> Result<()> {
        let order = part.permutation();
        for (region, ranks) in source.boxes() {
            let Some(inner) = region.intersect(&part.from) else { continue };
            let to = match &order {
                Some(order) => carried(&inner, part, order)?,
                None if inner == part.from => part.to.clone(),
                None => {
                    let what =
                        "a box that a reshape takes apart is held by several ranks; save without mapping";
                    return Err(Error::Options { what: format!("tensor '{}': {what}", source.key) });
                }
            };
            if ranks.contains(&self.me) {
                let window = self.window(source, (&inner, &to), (part, order.as_deref()))?;
                boxes.given.push(Given { tensor: 0, window, casts: casts.to_vec() });
            }
            boxes.tiles.extend(ranks.into_iter().map(|holder| Tile { region: to.clone(), holder }));
        }
        Ok(())
    }

    fn window(
        &self,
        source: &Together,
        (inner, to): (&Region, &Region),
        (part, order): (&planaria_aoa::Piece<'_>, Option<&[usize]>),
    ) -> Result<Window> {
        let pieces = self.pieces.get(&source.key).copied().unwrap_or_default();
        let found = pieces.iter().find_map(|piece| Some((piece, inner.relative_to(&piece.region)?)));
        let Some((piece, inside)) = found else {
            let problem = planaria_layout::Error::TileOutside {
                tile: Box::new(inner.clone()),
                shape: source.shape.to_string(),
            };
            return Err(Error::Tiles { tensor: source.key.to_string(), problem });
        };
        let view = piece.array.region(&inside)?;
        match order {
            Some(order) => Window::new(&view, to, Some(order)),
            None => Window::new(&rearranged(&view, &part.steps)?, to, None),
        }
    }

    /// A tensor that goes along as it is.
    fn copied(&self, source: &Together) -> Result<Vec<Given>> {
        let pieces = self.pieces.get(&source.key).copied().unwrap_or_default();
        let given = pieces.iter().filter(|piece| !piece.region.is_empty()).map(|piece| {
            let window = Window::new(&piece.array, &piece.region, None)?;
            Ok(Given { tensor: 0, window, casts: Vec::new() })
        });
        given.collect()
    }
}

/// Where a part of a piece's source box lies in its target.
fn carried(inner: &Region, part: &planaria_aoa::Piece<'_>, order: &[usize]) -> Result<Region> {
    let side = |bounds: &[usize]| -> Dims {
        let moved = |(d, &s): (usize, &usize)| part.to.lo()[d] + bounds[s] - part.from.lo()[s];
        order.iter().enumerate().map(moved).collect()
    };
    Ok(Region::new(&side(inner.lo()), &side(inner.hi()))?)
}

/// A block after the steps of a mapping.
pub(crate) fn rearranged(block: &Array, steps: &[Rearrange]) -> Result<Array> {
    let mut array = block.clone();
    for step in steps {
        array = match step {
            Rearrange::Permute(order) => {
                array.permute(&order.iter().map(|&d| d as i64).collect::<Vec<_>>())?
            }
            Rearrange::Reshape(to) => array.reshape(to)?,
        };
    }
    Ok(array)
}
