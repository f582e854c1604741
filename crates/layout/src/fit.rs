//! Choosing placements when axes compete for dims or do not divide them.

use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::mesh::Mesh;
use crate::placement::{Placement, Shard};
use crate::shape::Shape;
use std::cmp::Reverse;

/// What one mesh axis would like to cut.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// Name of the axis.
    pub axis: &'a str,
    /// The dims it may cut, the best first.
    pub dims: &'a [usize],
}

/// How many axes may cut one dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerDim {
    /// Any number.
    Many,
    /// At most one: the largest that fits.
    One,
}

/// Grants wishes so that every cut is even.
///
/// The largest axis chooses first, then the next; axes of one size choose in the order of the
/// wishes. An axis gets the first of its dims that all axes granted there so far and itself divide
/// evenly. An axis that fits nowhere, or is not wished for, holds copies. Axes on one dim stand in
/// the order of the wishes, the first being the major one.
///
/// ```
/// use planaria_layout::{PerDim, Wish, fit};
/// let mesh = "dp=2 tp=4".parse()?;
/// let shape = "[12,6]".parse()?;
/// let wishes = [Wish { axis: "dp", dims: &[0, 1] }, Wish { axis: "tp", dims: &[0] }];
/// // tp is larger and takes dim 0; 12 is not a multiple of 8, so dp goes to dim 1.
/// let layout = fit(&mesh, &shape, &wishes, PerDim::Many)?;
/// assert_eq!(layout.to_string(), "[12,6] @ dp:S1 tp:S0 on dp=2 tp=4");
/// # Ok::<(), planaria_layout::Error>(())
/// ```
pub fn fit(mesh: &Mesh, shape: &Shape, wishes: &[Wish<'_>], per_dim: PerDim) -> Result<Layout> {
    let mut order = Vec::new();
    for (place, wish) in wishes.iter().enumerate() {
        let axis = mesh.axis(wish.axis)?;
        if order.iter().any(|&(_, other)| other == axis) {
            return Err(Error::DuplicateAxis { axis: wish.axis.to_string() });
        }
        if let Some(&dim) = wish.dims.iter().find(|&&dim| dim >= shape.ndim()) {
            return Err(Error::DimOutOfRange { axis: wish.axis.to_string(), dim, ndim: shape.ndim() });
        }
        order.push((place, axis));
    }
    order.sort_by_key(|&(_, axis)| Reverse(mesh.axis_size(axis)));
    let mut placements = vec![Placement::Replicate; mesh.naxes()];
    // How many parts each dim is in so far; `None` until an axis cuts it.
    let mut parts: Vec<Option<usize>> = vec![None; shape.ndim()];
    for (place, axis) in order {
        let cut = |dim: usize| parts[dim].unwrap_or(1).checked_mul(mesh.axis_size(axis));
        let free = |dim: usize| per_dim == PerDim::Many || parts[dim].is_none();
        let fits = |&dim: &usize| free(dim) && cut(dim).is_some_and(|parts| shape[dim].is_multiple_of(parts));
        if let Some(dim) = wishes[place].dims.iter().copied().find(fits) {
            parts[dim] = cut(dim);
            placements[axis] = Placement::Shard(Shard { dim, sections: 1, order: place });
        }
    }
    Layout::new(mesh, shape, &placements)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(mesh: &str, shape: &str, wishes: &[(&str, &[usize])], per_dim: PerDim) -> String {
        let wishes: Vec<Wish<'_>> = wishes.iter().map(|&(axis, dims)| Wish { axis, dims }).collect();
        let layout = fit(&mesh.parse().unwrap(), &shape.parse().unwrap(), &wishes, per_dim).unwrap();
        let text = layout.to_string();
        text[text.find('@').unwrap() + 2..text.find(" on ").unwrap()].to_string()
    }

    #[test]
    fn one_axis_per_dim_is_the_largest_and_the_first_of_equals() {
        let one = |mesh, wishes| granted(mesh, "[96]", wishes, PerDim::One);
        let (ab, ba): (&[_], &[_]) = (&[("a", &[0][..]), ("b", &[0])], &[("b", &[0][..]), ("a", &[0])]);
        assert_eq!(one("a=2 b=4", ab), "a:R b:S0");
        assert_eq!(one("a=2 b=4", ba), "a:R b:S0");
        assert_eq!(one("a=4 b=2", ab), "a:S0 b:R");
        assert_eq!(one("a=2 b=2", ab), "a:S0 b:R");
        assert_eq!(one("a=2 b=2", ba), "a:R b:S0");
        let (up, down): (&[_], &[_]) =
            (&[("a", &[0][..]), ("b", &[0]), ("c", &[0])], &[("c", &[0][..]), ("b", &[0]), ("a", &[0])]);
        assert_eq!(one("a=2 b=4 c=4", up), "a:R b:S0 c:R");
        assert_eq!(one("a=2 b=4 c=4", down), "a:R b:R c:S0");
    }

    #[test]
    fn the_largest_that_fits_wins_and_then_the_next() {
        let many = |mesh, shape, wishes| granted(mesh, shape, wishes, PerDim::Many);
        let both: &[(&str, &[usize])] = &[("a", &[0]), ("b", &[0])];
        assert_eq!(many("a=2 b=4", "[8]", both), "a:S0 b:S0");
        assert_eq!(many("a=2 b=4", "[12]", both), "a:R b:S0", "12 does not divide by 8");
        assert_eq!(many("a=2 b=4", "[6]", both), "a:S0 b:R", "4 does not fit, 2 does");
        assert_eq!(many("a=2 b=4", "[7]", both), "a:R b:R");
        let second: &[(&str, &[usize])] = &[("b", &[0, 1]), ("a", &[0, 1])];
        assert_eq!(many("a=2 b=4", "[6,8]", second), "a:S0 b:S1");
        assert_eq!(many("a=2 b=4", "[8,8]", second), "a:S0.1 b:S0", "the wish list gives the order");
    }

    #[test]
    fn wishes_are_checked() {
        let (mesh, shape) = ("a=2".parse().unwrap(), "[4]".parse().unwrap());
        let wish = |axis, dims| Wish { axis, dims };
        let fit = |wishes: &[Wish<'_>]| fit(&mesh, &shape, wishes, PerDim::Many).unwrap_err();
        assert!(matches!(fit(&[wish("b", &[0])]), Error::UnknownAxis { .. }));
        assert!(matches!(fit(&[wish("a", &[1])]), Error::DimOutOfRange { dim: 1, ndim: 1, .. }));
        assert!(matches!(fit(&[wish("a", &[0]), wish("a", &[0])]), Error::DuplicateAxis { .. }));
    }
}
