//! One rank's plan to go from one layout to another, pending reductions included.

use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::mesh::{AxisSet, Coords, Rank};
use crate::placement::{Neutral, Reduce};
use crate::plan::{check_shapes, deliver_fixed, fetch_fixed, fixed_at};
use crate::region::Region;
use crate::tile::{Fixed, Owned, Tile, Tiling};
use smallvec::{SmallVec, smallvec};

/// A box of the destination and the ranks it is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The box.
    pub region: Region,
    /// One rank: its value is copied. Several: their values are combined in this order (the mesh
    /// order of the group). None: the box is filled with the neutral element.
    pub from: SmallVec<[Rank; 1]>,
}

/// How several contributions become one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combine {
    /// What folds contributions together; never [`Reduce::Avg`].
    pub reduce: Reduce,
    /// The folded value is divided by this; 1 unless averages are involved.
    pub divisor: usize,
}

impl Combine {
    /// What makes one value of `count` contributions that are all under one reduction.
    pub fn of(reduce: Reduce, count: usize) -> Combine {
        match reduce {
            Reduce::Avg => Combine { reduce: Reduce::Sum, divisor: count },
            reduce => Combine { reduce, divisor: 1 },
        }
    }
}

/// What one rank does to have its piece of a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Boxes that together are exactly the rank's piece, sorted.
    pub parts: Vec<Part>,
    /// How contributions are combined; `None` when every part is a copy or neutral.
    pub combine: Option<Combine>,
    /// What parts without a source are filled with.
    pub neutral: Neutral,
}

/// What happens to the pending reductions of a reshard.
struct Partials {
    /// Both sides are on one mesh.
    same_mesh: bool,
    /// Same pending reduction on both sides of one mesh: nothing is reduced.
    kept: AxisSet,
    /// Reduced on the way.
    reduced: AxisSet,
    /// Only coordinate 0 of these destination axes gets the value.
    at_origin: AxisSet,
    combine: Option<Combine>,
    neutral: Neutral,
}

impl Partials {
    fn new(from: &Layout, to: &Layout) -> Partials {
        let same_mesh = from.mesh() == to.mesh();
        let keep = |&a: &usize| same_mesh && from.reduce(a) == to.reduce(a);
        let kept: AxisSet = from.partial_axes().iter().filter(keep).collect();
        let reduced: AxisSet = from.partial_axes().iter().filter(|&a| !kept.contains(a)).collect();
        let has_neutral =
            |&a: &usize| !kept.contains(a) && to.reduce(a).is_some_and(|r| r.neutral().is_some());
        let at_origin: AxisSet = to.partial_axes().iter().filter(has_neutral).collect();
        let neutral = at_origin.iter().find_map(|a| to.reduce(a)?.neutral()).unwrap_or(Neutral::Zero);
        Partials { same_mesh, kept, reduced, at_origin, combine: combine(from, reduced), neutral }
    }

    /// Axes of the source decided by the coordinates of the reader, on one mesh.
    fn peers(&self, from: &Layout) -> AxisSet {
        if !self.same_mesh {
            return AxisSet::EMPTY;
        }
        from.replicated_axes().iter().chain(self.kept.iter()).collect()
    }
}

/// How the values along `axes` become one.
pub(crate) fn combine(from: &Layout, axes: AxisSet) -> Option<Combine> {
    let averaged: AxisSet = axes.iter().filter(|&a| from.reduce(a) == Some(Reduce::Avg)).collect();
    let reduce = from.reduce(axes.iter().next()?)?;
    let reduce = if reduce == Reduce::Avg { Reduce::Sum } else { reduce };
    Some(Combine { reduce, divisor: from.mesh().span(averaged) })
}

impl Plan {
    /// What `rank` of `to` needs from the ranks of `from`. A value that becomes partial stays at
    /// coordinate 0 of the axis for sums and products (others get the neutral element), and
    /// everywhere for the reductions that do not change equal contributions.
    pub fn receive(from: &Layout, to: &Layout, rank: Rank) -> Result<Plan> {
        check_shapes(from, to)?;
        let coords = to.mesh().require(rank)?;
        let partials = Partials::new(from, to);
        let origin = fixed_at(partials.at_origin, &Coords::from_elem(0, to.mesh().naxes()));
        let owned = to.owned(&rank, &origin)?;
        let mut parts = Vec::new();
        if partials.at_origin.iter().any(|a| coords[a] != 0) {
            parts.extend(owned.into_iter().map(|o| Part { region: o.region, from: SmallVec::new() }));
        } else {
            for owned in owned {
                gather_parts(from, &partials, &owned, rank, &coords, &mut parts)?;
            }
        }
        parts.sort_by(|a, b| a.region.cmp(&b.region));
        Ok(Plan { parts, combine: partials.combine, neutral: partials.neutral })
    }

    /// What `rank` of `from` gives to the ranks of `to`: the exact mirror of [`Plan::receive`].
    pub fn send(from: &Layout, to: &Layout, rank: Rank) -> Result<Vec<Tile<Rank>>> {
        check_shapes(from, to)?;
        let coords = from.mesh().require(rank)?;
        let partials = Partials::new(from, to);
        let peers = partials.peers(from);
        if partials.at_origin.iter().any(|a| peers.contains(a) && coords[a] != 0) {
            return Ok(Vec::new());
        }
        let from_fixed = fixed_at(peers.iter().chain(from.partial_axes().iter()).collect(), &coords);
        let mut at = Coords::from_elem(0, to.mesh().naxes());
        peers.iter().for_each(|a| at[a] = coords[a]);
        let to_fixed = fixed_at(peers.iter().chain(partials.at_origin.iter()).collect(), &at);
        deliver_fixed(from, to, &rank, &from_fixed, &to_fixed)
    }
}

/// The parts of one box: one lookup for each contribution, which all find the same boxes.
fn gather_parts(
    from: &Layout,
    partials: &Partials,
    want: &Owned,
    rank: Rank,
    coords: &Coords,
    parts: &mut Vec<Part>,
) -> Result<()> {
    let peers = partials.peers(from);
    let mut at = Coords::from_elem(0, from.mesh().naxes());
    peers.iter().for_each(|a| at[a] = coords[a]);
    let decided: AxisSet = peers.iter().chain(partials.reduced.iter()).collect();
    let first = parts.len();
    let mut tiles = Vec::new();
    for contribution in 0..from.mesh().span(partials.reduced) {
        from.mesh().spread(contribution, partials.reduced, &mut at);
        let fixed: Fixed = fixed_at(decided, &at);
        tiles.clear();
        fetch_fixed(from, want, Some(rank), &fixed, &mut tiles);
        if contribution == 0 {
            parts.extend(tiles.drain(..).map(|t| Part { region: t.region, from: smallvec![t.holder] }));
            continue;
        }
        if tiles.len() != parts.len() - first {
            return Err(Error::Bug("contributions to one box differ in shape"));
        }
        parts[first..].iter_mut().zip(&tiles).for_each(|(part, tile)| part.from.push(tile.holder));
    }
    Ok(())
}

/// How much one reader takes from others.
pub(crate) struct Demand {
    pub(crate) elements: usize,
    pub(crate) messages: usize,
}

/// What the reader at these coordinates of `to` takes from other ranks, without listing the boxes.
pub(crate) fn demand(from: &Layout, to: &Layout, coords: &Coords) -> Demand {
    let partials = Partials::new(from, to);
    let piece = to.piece_at(coords);
    if partials.at_origin.iter().any(|a| coords[a] != 0) || piece.numel() == 0 {
        return Demand { elements: 0, messages: 0 };
    }
    let contributions = from.mesh().span(partials.reduced);
    let own =
        from.mesh().coords(to.mesh().rank_at(coords)).map_or(0, |at| from.piece_at(&at).overlap(&piece));
    let sources: usize = (0..from.shape().ndim()).map(|dim| from.sources(dim, &piece)).product();
    Demand {
        elements: (piece.numel().saturating_mul(contributions)).saturating_sub(own),
        messages: sources.saturating_mul(contributions) - usize::from(own > 0),
    }
}
