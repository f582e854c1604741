//! What goes into the files: the tensors of the state, less what the options leave out, through a mapping.

use crate::error::{Error, Result};
use crate::geometry::Claim;
use crate::manifest::Derive;
use crate::options::{Masters, Optimizer, SaveOptions, Weights};
use crate::state::{Group, Item, Kind, Piece, TensorKey};
use crate::strided::Window;
use crate::union::{Together, natural};
use planaria_aoa::{Mapping, Rearrange};
use planaria_array::Array;
use planaria_layout::{DType, Dims, Listed, Rank, Region, Shape, Tile};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A box that this rank may have to give, in the coordinates of a tensor of the files.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) window: Window,
    /// Types that elements pass through, the last being that of the file.
    pub(crate) casts: Vec<DType>,
}

/// The tensors of the files with the boxes of all ranks, and this rank's own boxes by slot.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) tensors: Vec<Together>,
    pub(crate) given: Vec<Given>,
}

/// What is left of the tensors when the options have been followed.
pub(crate) fn select(tensors: &mut Vec<Together>, options: &SaveOptions) -> Result<Option<Derive>> {
    let derive = options.check()?;
    let shapes: HashMap<TensorKey, Shape> =
        tensors.iter().map(|t| (t.key.clone(), t.shape.clone())).collect();
    let has = |kind: Kind, tensor: &Together| {
        shapes.get(&TensorKey { kind, name: tensor.key.name.clone() }) == Some(&tensor.shape)
    };
    tensors.retain(|tensor| match tensor.key.kind {
        Kind::Slot(_) => options.optimizer == Optimizer::Write,
        Kind::Master if options.optimizer == Optimizer::Skip => false,
        Kind::Master => options.masters == Masters::Write || !has(Kind::Parameter, tensor),
        Kind::Parameter => options.weights == Weights::Write || !has(Kind::Master, tensor),
        Kind::Ema | Kind::Buffer => true,
    });
    Ok(derive)
}

/// The files a tensor belongs to: masters that stand for parameters take their place.
pub(crate) fn group_of(kind: &Kind, derive: Option<Derive>) -> Group {
    match (kind, derive) {
        (Kind::Master, Some(Derive::ParametersFromMasters)) => Group::Model,
        _ => kind.group(),
    }
}

impl Outgoing {
    /// The tensors as they are.
    pub(crate) fn plain(tensors: Vec<Together>, items: &[Item]) -> Result<Outgoing> {
        let pieces = items.iter().flat_map(|item| &item.pieces);
        let given = pieces.map(|piece| {
            let window = Window::new(&piece.array, &piece.region, None)?;
            Ok(Given { window, casts: Vec::new() })
        });
        Ok(Outgoing { tensors, given: given.collect::<Result<_>>()? })
    }

    /// The tensors that a mapping makes of them. All ranks number all boxes alike.
    pub(crate) fn mapped(
        tensors: Vec<Together>,
        items: &[Item],
        mapping: &Mapping,
        (me, ranks): (usize, usize),
    ) -> Result<Outgoing> {
        check_known(&tensors, mapping)?;
        let pieces: Vec<&Piece> = items.iter().flat_map(|item| &item.pieces).collect();
        let mut kinds: BTreeMap<Kind, HashMap<&str, &Together>> = BTreeMap::new();
        for tensor in &tensors {
            // Buffers and parameters move together.
            let kind =
                if tensor.key.kind == Kind::Buffer { Kind::Parameter } else { tensor.key.kind.clone() };
            kinds.entry(kind).or_default().insert(&tensor.key.name, tensor);
        }
        let mut through = Through { me, counts: vec![0; ranks], pieces, given: Vec::new() };
        let mut made = Vec::new();
        for (kind, named) in &kinds {
            for target in mapping.targets().iter().filter(|target| target.is_loaded()) {
                made.extend(through.target(mapping, target, (kind, named))?);
            }
        }
        made.sort_by(|a, b| {
            let by_name =
                a.key.kind.group().cmp(&b.key.kind.group()).then_with(|| natural(&a.key.name, &b.key.name));
            by_name.then_with(|| a.key.kind.cmp(&b.key.kind))
        });
        Ok(Outgoing { tensors: made, given: through.given })
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
    /// Boxes of each rank so far.
    counts: Vec<usize>,
    pieces: Vec<&'a Piece>,
    given: Vec<Given>,
}

impl Through<'_> {
    /// A tensor of the files, for one kind; none when the state has nothing of this kind for it.
    fn target(
        &mut self,
        mapping: &Mapping,
        target: &planaria_aoa::Target,
        (kind, named): (&Kind, &HashMap<&str, &Together>),
    ) -> Result<Option<Together>> {
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
        if first.shape.numel() == 1 && known != Some(&first.shape) && matches!(kind, Kind::Slot(_)) {
            // Optimizer state of one element goes along unchanged.
            let claims = self.copied(first)?;
            return Ok(Some(Together { key, dtype: first.dtype, shape: first.shape.clone(), claims }));
        }
        let shape = target.tensor().shape().clone();
        let casts_move = matches!(kind, Kind::Parameter | Kind::Buffer | Kind::Ema);
        let (mut claims, mut dtype) = (Vec::new(), None);
        for part in mapping.pieces(target.name(), &Region::whole(&shape))? {
            let source = named[part.source];
            let casts = if casts_move { part.casts.to_vec() } else { Vec::new() };
            let found = casts.last().copied().unwrap_or(source.dtype);
            if dtype.is_some_and(|dtype| dtype != found) {
                let expected = dtype.unwrap_or(found);
                return Err(Error::DType { tensor: source.key.to_string(), found, expected });
            }
            dtype = Some(found);
            self.part(source, &part, &casts, &mut claims)?;
        }
        let tiles = claims.iter().flat_map(|claim: &Claim| {
            claim.holders.iter().map(|(rank, _)| Tile { region: claim.region.clone(), holder: *rank as Rank })
        });
        Listed::new(&shape, tiles).map_err(|problem| Error::Tiles { tensor: key.to_string(), problem })?;
        claims.sort_by(|a, b| a.region.cmp(&b.region));
        Ok(Some(Together { key, dtype: dtype.unwrap_or(first.dtype), shape, claims }))
    }

    /// The boxes of one piece: where each part that ranks hold of its source goes.
    fn part(
        &mut self,
        source: &Together,
        part: &planaria_aoa::Piece<'_>,
        casts: &[DType],
        claims: &mut Vec<Claim>,
    ) -> Result<()> {
        let order = part.permutation();
        for claim in &source.claims {
            let Some(inner) = claim.region.intersect(&part.from) else { continue };
            let to = match &order {
                Some(order) => carried(&inner, part, order)?,
                None if inner == part.from => part.to.clone(),
                None => {
                    let what =
                        "a box that a reshape takes apart is held by several ranks; save without mapping";
                    return Err(Error::Options { what: format!("tensor '{}': {what}", source.key) });
                }
            };
            let mut holders = Vec::with_capacity(claim.holders.len());
            for &(rank, slot) in &claim.holders {
                if rank == self.me {
                    let window = self.window(slot, (&inner, &to), (part, order.as_deref()))?;
                    self.given.push(Given { window, casts: casts.to_vec() });
                }
                holders.push((rank, self.counts[rank]));
                self.counts[rank] += 1;
            }
            claims.push(Claim { region: to, holders });
        }
        Ok(())
    }

    fn window(
        &self,
        slot: usize,
        (inner, to): (&Region, &Region),
        (part, order): (&planaria_aoa::Piece<'_>, Option<&[usize]>),
    ) -> Result<Window> {
        let piece = self.pieces[slot];
        let inside = inner.relative_to(&piece.region);
        let view = inside.map_or(Ok(piece.array.clone()), |inside| piece.array.region(&inside))?;
        match order {
            Some(order) => Window::new(&view, to, Some(order)),
            None => Window::new(&rearranged(&view, &part.steps)?, to, None),
        }
    }

    /// A tensor that goes along as it is.
    fn copied(&mut self, source: &Together) -> Result<Vec<Claim>> {
        let mut claims = source.claims.clone();
        for claim in &mut claims {
            for (rank, slot) in &mut claim.holders {
                if *rank == self.me {
                    let piece = self.pieces[*slot];
                    let window = Window::new(&piece.array, &piece.region, None)?;
                    self.given.push(Given { window, casts: Vec::new() });
                }
                *slot = self.counts[*rank];
                self.counts[*rank] += 1;
            }
        }
        Ok(claims)
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
