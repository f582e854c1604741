//! Meshes: ranks arranged along named axes.

use crate::error::{Error, Result};
use crate::text::Scan;
use smallvec::SmallVec;
use std::{fmt, str::FromStr, sync::Arc};

/// One process of the whole run.
pub type Rank = usize;

/// One coordinate per mesh axis.
pub type Coords = SmallVec<[usize; 4]>;

/// A mesh has at most this many axes, so that a set of axes is one machine word.
pub const MAX_AXES: usize = 32;

/// Largest number of ranks of one mesh.
const MAX_RANKS: usize = 1 << 32;

/// A set of mesh axes, by position.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct AxisSet(u32);

impl AxisSet {
    /// No axis.
    pub const EMPTY: AxisSet = AxisSet(0);

    /// The set with one more axis; positions past [`MAX_AXES`] are ignored.
    pub fn with(self, axis: usize) -> AxisSet {
        if axis < MAX_AXES { AxisSet(self.0 | 1 << axis) } else { self }
    }

    /// The set with one axis fewer.
    pub fn without(self, axis: usize) -> AxisSet {
        if axis < MAX_AXES { AxisSet(self.0 & !(1 << axis)) } else { self }
    }

    /// True when the axis is in the set.
    pub fn contains(self, axis: usize) -> bool {
        axis < MAX_AXES && self.0 >> axis & 1 == 1
    }

    /// True when no axis is in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The axes in mesh order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let axis = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(axis)
        })
    }
}

impl FromIterator<usize> for AxisSet {
    fn from_iter<I: IntoIterator<Item = usize>>(axes: I) -> AxisSet {
        axes.into_iter().fold(AxisSet::EMPTY, AxisSet::with)
    }
}

impl fmt::Debug for AxisSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// A named direction of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    /// Letters, digits and underscores, not starting with a digit.
    pub name: String,
    /// Number of coordinates, at least 1.
    pub size: usize,
}

/// Ranks arranged along named axes, the first axis outermost. Cheap to clone.
///
/// Text form: `dp=2 tp=4` numbers the ranks from 0 in row-major order. Any other numbering is
/// written out after the axes: `dp=2 tp=2 ranks=4..8`, or `dp=2 tp=2 ranks=[0,2,1,3]` in row-major
/// order of the coordinates.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Mesh(Arc<Inner>);

#[derive(PartialEq, Eq, Hash)]
struct Inner {
    axes: Vec<Axis>,
    size: usize,
    numbering: Numbering,
}

/// How coordinates become ranks. A numbering that can be `Strided` always is, so that equal meshes
/// compare equal.
#[derive(PartialEq, Eq, Hash)]
enum Numbering {
    /// `start + sum(coord * stride)`. Sorted by stride, each stride spans all smaller ones
    /// (axes of size 1 have stride 0), so ranks are turned back by division.
    Strided {
        start: Rank,
        strides: Coords,
        /// Axes with a stride, the longest first.
        order: Coords,
    },
    /// Row-major list, and the same sorted by rank with its position.
    Listed { ranks: Vec<Rank>, sorted: Vec<(Rank, usize)> },
}

impl Numbering {
    fn strided(start: Rank, strides: Coords) -> Numbering {
        let mut order: Coords = (0..strides.len()).filter(|&a| strides[a] > 0).collect();
        order.sort_by_key(|&a| std::cmp::Reverse(strides[a]));
        Numbering::Strided { start, strides, order }
    }
}

impl Mesh {
    /// A mesh with ranks `0..size` in row-major order.
    pub fn new(axes: &[(&str, usize)]) -> Result<Mesh> {
        Mesh::starting_at(axes, 0)
    }

    /// A mesh with ranks `start..start + size` in row-major order.
    pub fn starting_at(axes: &[(&str, usize)], start: Rank) -> Result<Mesh> {
        let (axes, size) = check_axes(axes.iter().copied())?;
        start.checked_add(size).ok_or(Error::MeshTooLarge { ranks: u128::from(u64::MAX) })?;
        let strides = row_major(&axes);
        Ok(Mesh(Arc::new(Inner { axes, size, numbering: Numbering::strided(start, strides) })))
    }

    /// A mesh with the given ranks, listed in row-major order of the coordinates.
    pub fn with_ranks(axes: &[(&str, usize)], ranks: &[Rank]) -> Result<Mesh> {
        let (axes, size) = check_axes(axes.iter().copied())?;
        if ranks.len() != size {
            return Err(Error::RankCount { ranks: ranks.len(), mesh: size });
        }
        let mut sorted: Vec<(Rank, usize)> = ranks.iter().copied().zip(0..).collect();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Error::DuplicateRank { rank: pair[0].0 });
        }
        let numbering = match find_strides(&axes, ranks) {
            Some(strides) => Numbering::strided(ranks[0], strides),
            None => Numbering::Listed { ranks: ranks.to_vec(), sorted },
        };
        Ok(Mesh(Arc::new(Inner { axes, size, numbering })))
    }

    /// The axes, outermost first.
    pub fn axes(&self) -> &[Axis] {
        &self.0.axes
    }

    /// Number of axes.
    pub fn naxes(&self) -> usize {
        self.0.axes.len()
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Size of one axis, by position.
    pub fn axis_size(&self, axis: usize) -> usize {
        self.0.axes[axis].size
    }

    /// Position of the axis with this name.
    pub fn axis(&self, name: &str) -> Result<usize> {
        let unknown = || Error::UnknownAxis { axis: name.to_string(), mesh: self.to_string() };
        self.0.axes.iter().position(|a| a.name == name).ok_or_else(unknown)
    }

    /// The set of the axes with these names.
    pub fn axis_set(&self, names: &[&str]) -> Result<AxisSet> {
        names.iter().map(|name| self.axis(name)).collect()
    }

    /// Product of the sizes of some axes.
    pub fn span(&self, axes: AxisSet) -> usize {
        axes.iter().take_while(|&a| a < self.naxes()).map(|a| self.axis_size(a)).product()
    }

    /// The rank at these coordinates; `None` when they are out of range.
    pub fn rank(&self, coords: &[usize]) -> Option<Rank> {
        let fits = coords.len() == self.naxes() && coords.iter().zip(self.axes()).all(|(c, a)| *c < a.size);
        fits.then(|| self.rank_at(coords))
    }

    /// The rank at coordinates known to be in range.
    pub(crate) fn rank_at(&self, coords: &[usize]) -> Rank {
        match &self.0.numbering {
            Numbering::Strided { start, strides, .. } => {
                start + coords.iter().zip(strides).map(|(c, s)| c * s).sum::<usize>()
            }
            Numbering::Listed { ranks, .. } => {
                ranks[coords.iter().zip(self.axes()).fold(0, |at, (c, a)| at * a.size + c)]
            }
        }
    }

    /// The coordinates of a rank; `None` when it is not in this mesh.
    pub fn coords(&self, rank: Rank) -> Option<Coords> {
        match &self.0.numbering {
            Numbering::Strided { start, strides, order } => {
                let mut rest = rank.checked_sub(*start)?;
                let mut coords = Coords::from_elem(0, self.naxes());
                for &a in order {
                    (coords[a], rest) = (rest / strides[a], rest % strides[a]);
                    if coords[a] >= self.axis_size(a) {
                        return None;
                    }
                }
                (rest == 0).then_some(coords)
            }
            Numbering::Listed { sorted, .. } => {
                let found = sorted.binary_search_by_key(&rank, |entry| entry.0).ok()?;
                Some(self.coords_at(sorted[found].1))
            }
        }
    }

    /// The first rank and the distance between neighbours along each axis (0 for axes of size 1),
    /// when the numbering has one.
    pub(crate) fn strides(&self) -> Option<(Rank, &[usize])> {
        match &self.0.numbering {
            Numbering::Strided { start, strides, .. } => Some((*start, strides)),
            Numbering::Listed { .. } => None,
        }
    }

    /// The coordinates of a rank, or the error that it is not in this mesh.
    pub fn require(&self, rank: Rank) -> Result<Coords> {
        self.coords(rank).ok_or_else(|| Error::RankNotInMesh { rank, mesh: self.to_string() })
    }

    /// The coordinates at a row-major position below [`Mesh::size`].
    pub fn coords_at(&self, position: usize) -> Coords {
        let all = (0..self.naxes()).collect();
        let mut coords = Coords::from_elem(0, self.naxes());
        self.spread(position, all, &mut coords);
        coords
    }

    /// All ranks in row-major order of the coordinates.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..self.size()).map(|position| self.rank_at(&self.coords_at(position)))
    }

    /// The ranks that differ from `rank` only along `axes`, itself included, in row-major order.
    pub fn group(&self, rank: Rank, axes: AxisSet) -> Result<Vec<Rank>> {
        let mut coords = self.require(rank)?;
        let ranks = (0..self.span(axes)).map(|i| {
            self.spread(i, axes, &mut coords);
            self.rank_at(&coords)
        });
        Ok(ranks.collect())
    }

    /// Every group of ranks along `axes`; the groups divide the mesh.
    pub fn groups(&self, axes: AxisSet) -> impl Iterator<Item = Vec<Rank>> + '_ {
        let others: AxisSet = (0..self.naxes()).filter(|&a| !axes.contains(a)).collect();
        (0..self.span(others)).filter_map(move |i| {
            let mut coords = Coords::from_elem(0, self.naxes());
            self.spread(i, others, &mut coords);
            self.group(self.rank_at(&coords), axes).ok()
        })
    }

    /// The sub-mesh where some axes are fixed; they disappear from the axes.
    pub fn fix(&self, fixed: &[(&str, usize)]) -> Result<Mesh> {
        let mut coords = Coords::from_elem(0, self.naxes());
        let mut gone = AxisSet::EMPTY;
        for &(name, coord) in fixed {
            let axis = self.axis(name)?;
            if coord >= self.axis_size(axis) {
                return Err(Error::CoordOutOfRange {
                    axis: name.to_string(),
                    coord,
                    size: self.axis_size(axis),
                });
            }
            if gone.contains(axis) {
                return Err(Error::DuplicateAxis { axis: name.to_string() });
            }
            gone = gone.with(axis);
            coords[axis] = coord;
        }
        self.sub_mesh(&coords, (0..self.naxes()).filter(|&a| !gone.contains(a)).collect())
    }

    /// The sub-mesh along the named axes that contains `rank`.
    pub fn keep(&self, axes: &[&str], rank: Rank) -> Result<Mesh> {
        let coords = self.require(rank)?;
        self.sub_mesh(&coords, self.axis_set(axes)?)
    }

    fn sub_mesh(&self, at: &[usize], kept: AxisSet) -> Result<Mesh> {
        let axes: Vec<(&str, usize)> =
            kept.iter().map(|a| (self.0.axes[a].name.as_str(), self.axis_size(a))).collect();
        if let Numbering::Strided { strides, .. } = &self.0.numbering {
            // Some of the strides of a numbering that division turns back do so as well.
            let mut at = Coords::from_slice(at);
            kept.iter().for_each(|a| at[a] = 0);
            let numbering = Numbering::strided(self.rank_at(&at), kept.iter().map(|a| strides[a]).collect());
            let (axes, size) = check_axes(axes.into_iter())?;
            return Ok(Mesh(Arc::new(Inner { axes, size, numbering })));
        }
        let ranks = self.group(self.rank_at(at), kept)?;
        Mesh::with_ranks(&axes, &ranks)
    }

    /// Writes the digits of `position` (row-major over `axes`) into those coordinates.
    pub(crate) fn spread(&self, mut position: usize, axes: AxisSet, coords: &mut [usize]) {
        for axis in (0..self.naxes()).rev().filter(|&a| axes.contains(a)) {
            coords[axis] = position % self.axis_size(axis);
            position /= self.axis_size(axis);
        }
    }

    /// The inverse of [`Mesh::spread`].
    pub(crate) fn position(&self, axes: AxisSet, coords: &[usize]) -> usize {
        let inside = (0..self.naxes()).filter(|&a| axes.contains(a));
        inside.fold(0, |position, a| position * self.axis_size(a) + coords[a])
    }
}

fn check_axes<'a>(axes: impl Iterator<Item = (&'a str, usize)>) -> Result<(Vec<Axis>, usize)> {
    let mut checked: Vec<Axis> = Vec::new();
    let mut ranks: u128 = 1;
    for (name, size) in axes {
        let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !starts_well || name == "ranks" || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(Error::BadAxisName { axis: name.to_string() });
        }
        if checked.iter().any(|a| a.name == name) {
            return Err(Error::DuplicateAxis { axis: name.to_string() });
        }
        ranks = ranks.saturating_mul(size as u128);
        if size == 0 || checked.len() == MAX_AXES {
            return Err(Error::BadAxisSize { axis: name.to_string(), size });
        }
        if ranks > MAX_RANKS as u128 {
            return Err(Error::MeshTooLarge { ranks });
        }
        checked.push(Axis { name: name.to_string(), size });
    }
    Ok((checked, ranks as usize))
}

/// Strides of the row-major numbering; 0 for axes of size 1.
fn row_major(axes: &[Axis]) -> Coords {
    let mut stride = 1;
    let mut strides = Coords::from_elem(0, axes.len());
    for (a, axis) in axes.iter().enumerate().rev() {
        if axis.size > 1 {
            strides[a] = stride;
        }
        stride *= axis.size;
    }
    strides
}

/// The strides of a listed numbering, if it has any that division can turn back.
fn find_strides(axes: &[Axis], ranks: &[Rank]) -> Option<Coords> {
    let unit = row_major(axes);
    let mut strides = Coords::from_elem(0, axes.len());
    for a in 0..axes.len() {
        if axes[a].size > 1 {
            strides[a] = ranks[unit[a]].checked_sub(ranks[0])?;
        }
    }
    let mut order: Vec<usize> = (0..axes.len()).filter(|&a| strides[a] > 0).collect();
    order.sort_unstable_by_key(|&a| strides[a]);
    let mut reach = 0;
    for &a in &order {
        if strides[a] <= reach {
            return None;
        }
        reach = strides[a].checked_mul(axes[a].size - 1)?.checked_add(reach)?;
    }
    let value = |position: usize| {
        (0..axes.len()).map(|a| (position / unit[a].max(1) % axes[a].size) * strides[a]).sum::<usize>()
            + ranks[0]
    };
    ranks.iter().enumerate().all(|(position, &rank)| value(position) == rank).then_some(strides)
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut space = "";
        for axis in self.axes() {
            write!(f, "{space}{}={}", axis.name, axis.size)?;
            space = " ";
        }
        match &self.0.numbering {
            Numbering::Strided { start, strides, .. } if *strides == row_major(self.axes()) => {
                if *start != 0 || self.naxes() == 0 {
                    write!(f, "{space}ranks={start}..{}", start + self.size())?;
                }
            }
            _ => {
                write!(f, "{space}ranks=[")?;
                for (i, rank) in self.ranks().enumerate() {
                    write!(f, "{}{rank}", if i == 0 { "" } else { "," })?;
                }
                f.write_str("]")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Mesh {
    type Err = Error;

    fn from_str(text: &str) -> Result<Mesh> {
        let mut scan = Scan::new("mesh", text);
        let mut axes: Vec<(&str, usize)> = Vec::new();
        scan.spaces();
        if scan.is_done() {
            return Err(scan.error("expected 'axis=size'"));
        }
        while !scan.is_done() {
            let name = scan.word();
            scan.expect("=")?;
            if name == "ranks" {
                return parse_ranks(&mut scan, &axes);
            }
            axes.push((name, scan.number()?));
            scan.gap()?;
        }
        Mesh::new(&axes)
    }
}

fn parse_ranks(scan: &mut Scan<'_>, axes: &[(&str, usize)]) -> Result<Mesh> {
    let mut ranks = Vec::new();
    if scan.looking_at("[") {
        scan.list(|scan| {
            ranks.push(scan.number()?);
            Ok(())
        })?;
        scan.end()?;
        return Mesh::with_ranks(axes, &ranks);
    }
    let start = scan.number()?;
    scan.expect("..")?;
    let end = scan.number()?;
    scan.end()?;
    let mesh = Mesh::starting_at(axes, start)?;
    match end.checked_sub(start) {
        Some(count) if count == mesh.size() => Ok(mesh),
        count => Err(Error::RankCount { ranks: count.unwrap_or(0), mesh: mesh.size() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh(text: &str) -> Mesh {
        text.parse().unwrap()
    }

    #[test]
    fn ranks_and_coordinates_are_inverse_under_any_numbering() {
        for text in [
            "dp=2 tp=3",
            "dp=2 tp=3 ranks=7..13",
            "dp=2 tp=3 ranks=[0,2,4,1,3,5]",
            "a=2 b=3 ranks=[9,1,8,0,7,3]",
        ] {
            let mesh = mesh(text);
            for (position, rank) in mesh.ranks().enumerate() {
                assert_eq!(mesh.coords(rank).unwrap(), mesh.coords_at(position), "{text}");
                assert_eq!(mesh.rank(&mesh.coords_at(position)), Some(rank));
            }
            assert_eq!((0..20).filter(|&r| mesh.coords(r).is_some()).count(), 6, "{text}");
            assert_eq!(mesh.rank(&[2, 0]), None);
        }
        // Strides 3 and 2 overlap: division could not turn 4 = 2 + 2 back.
        assert_eq!(mesh("a=2 b=3 ranks=[0,2,4,3,5,7]").coords(4).unwrap().as_slice(), [0, 2]);
    }

    #[test]
    fn sub_meshes_and_groups_follow_the_axes() {
        let mesh = mesh("pp=2 dp=2 tp=3");
        let stage = mesh.fix(&[("pp", 1)]).unwrap();
        assert_eq!(stage.to_string(), "dp=2 tp=3 ranks=6..12");
        assert_eq!(stage.fix(&[("tp", 2)]).unwrap().to_string(), "dp=2 ranks=[8,11]");
        assert_eq!(stage, Mesh::with_ranks(&[("dp", 2), ("tp", 3)], &[6, 7, 8, 9, 10, 11]).unwrap());
        assert_eq!(mesh.keep(&["tp", "pp"], 4).unwrap().to_string(), "pp=2 tp=3 ranks=[3,4,5,9,10,11]");
        assert_eq!(mesh.keep(&[], 4).unwrap().to_string(), "ranks=4..5");
        let axes = mesh.axis_set(&["pp", "tp"]).unwrap();
        assert_eq!(mesh.group(4, axes).unwrap(), [3, 4, 5, 9, 10, 11]);
        assert_eq!(mesh.groups(axes).map(|g| g[0]).collect::<Vec<_>>(), [0, 3]);
        assert!(matches!(mesh.fix(&[("tp", 3)]), Err(Error::CoordOutOfRange { coord: 3, size: 3, .. })));
        assert!(matches!(mesh.group(12, axes), Err(Error::RankNotInMesh { rank: 12, .. })));
    }

    #[test]
    fn equal_meshes_compare_equal_and_huge_ones_cost_nothing() {
        let listed = Mesh::with_ranks(&[("a", 2), ("b", 2)], &[0, 1, 2, 3]).unwrap();
        assert_eq!(listed, mesh("a=2 b=2"));
        let huge = mesh("a=65536 b=65536");
        assert_eq!(huge.fix(&[("a", 9)]).unwrap().coords(9 * 65536 + 5).unwrap().as_slice(), [5]);
        assert!("a=65536 b=65537".parse::<Mesh>().is_err());
    }
}
