//! The planner: which boxes come from which holder, and which go to whom, for one holder alone.
//!
//! Every choice among equal copies is a pure function of the reader, so that holders that plan alone
//! agree. A reader takes its own copy if it has one. On one mesh, other boxes come from the copy that
//! shares the reader's coordinates; otherwise copies take turns over the readers.

use crate::error::{Error, Result};
use crate::layout::Pins;
use crate::mesh::{AxisSet, Rank};
use crate::region::Region;
use crate::tile::{Fixed, Holder, Owned, Replicas, Tile, Tiling};

/// The boxes of `want`, each with the holder that serves it. `turn` spreads readers over copies;
/// a reader that is a rank is served from its own copies first.
pub fn fetch<F: Tiling>(
    from: &F,
    want: &Region,
    reader: Option<Rank>,
    turn: usize,
) -> Result<Vec<Tile<F::Holder>>> {
    from.check_plain()?;
    if want.ndim() != from.shape().ndim() || !Region::whole(from.shape()).contains(want) {
        return Err(Error::TileOutside { tile: Box::new(want.clone()), shape: from.shape().to_string() });
    }
    let mut tiles = Vec::new();
    fetch_fixed(from, &Owned { region: want.clone(), turn }, reader, &Fixed::default(), &mut tiles);
    Ok(tiles)
}

/// What a holder of `to` needs: boxes that together are exactly its own, each with the holder of
/// `from` that serves it. Sorted by box.
pub fn receive<F: Tiling, T: Tiling>(from: &F, to: &T, me: &T::Holder) -> Result<Vec<Tile<F::Holder>>> {
    check(from, to)?;
    let fixed = peer_coords(from, to, me.as_rank())?;
    let mut tiles = Vec::new();
    for owned in to.owned(me, &Fixed::default())? {
        fetch_fixed(from, &owned, me.as_rank(), &fixed, &mut tiles);
    }
    tiles.sort_by(|a, b| a.region.cmp(&b.region));
    Ok(tiles)
}

/// What a holder of `from` gives: boxes of its own, each with the holder of `to` that gets it.
/// It is the exact mirror of [`receive`]. Sorted by box.
pub fn deliver<F: Tiling, T: Tiling>(from: &F, to: &T, me: &F::Holder) -> Result<Vec<Tile<T::Holder>>> {
    check(from, to)?;
    let fixed = peer_coords(from, to, me.as_rank())?;
    deliver_fixed(from, to, me, &fixed, &fixed)
}

fn check<F: Tiling, T: Tiling>(from: &F, to: &T) -> Result<()> {
    from.check_plain()?;
    to.check_plain()?;
    check_shapes(from, to)
}

pub(crate) fn check_shapes<F: Tiling, T: Tiling>(from: &F, to: &T) -> Result<()> {
    if from.shape() == to.shape() {
        return Ok(());
    }
    Err(Error::ShapeMismatch { from: from.shape().to_string(), to: to.shape().to_string() })
}

/// On one mesh, copies are chosen by the coordinates of `me` along the axes where `from` has copies.
fn peer_coords<F: Tiling, T: Tiling>(from: &F, to: &T, me: Option<Rank>) -> Result<Fixed> {
    match (from.copies(), to.copies(), me) {
        (Some((mesh, copies)), Some((other, _)), Some(rank)) if mesh == other => {
            Ok(Fixed(Pins::new(copies, &mesh.require(rank)?)))
        }
        _ => Ok(Fixed::default()),
    }
}

pub(crate) fn fetch_fixed<F: Tiling>(
    from: &F,
    want: &Owned,
    reader: Option<Rank>,
    fixed: &Fixed,
    tiles: &mut Vec<Tile<F::Holder>>,
) {
    from.lookup(&want.region, fixed, &mut |region, copies| {
        let own = reader.and_then(|rank| copies.find_rank(rank));
        let holder = copies.get(own.unwrap_or_else(|| want.turn % copies.count()));
        tiles.push(Tile { region, holder });
    });
}

/// `from_fixed` and `to_fixed` are the axes decided on each side.
pub(crate) fn deliver_fixed<F: Tiling, T: Tiling>(
    from: &F,
    to: &T,
    me: &F::Holder,
    from_fixed: &Fixed,
    to_fixed: &Fixed,
) -> Result<Vec<Tile<T::Holder>>> {
    let mut tiles = Vec::new();
    for owned in from.owned(me, &Fixed::default())? {
        from.lookup(&owned.region, from_fixed, &mut |region, copies| {
            let Some(mine) = copies.find(me) else { return };
            to.lookup(&region, to_fixed, &mut |part, readers| {
                let served = Served { copies, mine, me: me.as_rank() };
                served.each(readers, |holder| tiles.push(Tile { region: part.clone(), holder }));
            });
        });
    }
    tiles.sort_by(|a, b| a.region.cmp(&b.region));
    Ok(tiles)
}

/// One copy of a box, seen from its holder.
struct Served<'a, H> {
    copies: &'a dyn Replicas<H>,
    mine: usize,
    me: Option<Rank>,
}

impl<H: Holder> Served<'_, H> {
    /// The readers that this copy serves: itself, and every `count`-th of those without a copy.
    fn each<D: Holder>(&self, readers: &dyn Replicas<D>, mut serve: impl FnMut(D)) {
        if let Some(own) = self.me.and_then(|rank| readers.find_rank(rank)) {
            serve(readers.get(own));
        }
        let count = self.copies.count();
        let first_turn = readers.number() * readers.count();
        let first = (self.mine + count - first_turn % count) % count;
        for reader in (first..readers.count()).step_by(count) {
            let holder = readers.get(reader);
            let has_copy = holder.as_rank().is_some_and(|rank| self.copies.find_rank(rank).is_some());
            if !has_copy {
                serve(holder);
            }
        }
    }
}

/// The axes of `set` at these coordinates.
pub(crate) fn fixed_at(set: AxisSet, coords: &[usize]) -> Fixed {
    Fixed(Pins::new(set, coords))
}
