//! How sizes of a program follow from the extents of its inputs, found from several programs that differ in sizes.

use crate::program::{Program, ValueId};
use crate::types::tensor_type;

/// An extent of an input.
type Extent = (ValueId, usize);

/// A size of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// The same always.
    Is(i64),
    /// A product of one or two extents of inputs and a number, and a number more.
    Product { of: [Option<Extent>; 2], times: i64, plus: i64 },
}

/// The extents of inputs that differ between programs, with their values in each.
pub(super) struct Sizes {
    sources: Vec<(Extent, Vec<i64>)>,
}

impl Sizes {
    pub(super) fn of<'a>(programs: impl Iterator<Item = &'a Program>) -> Sizes {
        let mut sources: Vec<(Extent, Vec<i64>)> = Vec::new();
        for program in programs {
            for input in program.inputs() {
                let dims = tensor_type(&input.value.ty).map(|ty| ty.dims).unwrap_or_default();
                for (dim, size) in dims.into_iter().enumerate() {
                    let extent = (input.value.id, dim);
                    match sources.iter_mut().find(|(known, _)| *known == extent) {
                        Some((_, values)) => values.push(size),
                        None => sources.push((extent, vec![size])),
                    }
                }
            }
        }
        let mut different: Vec<(Extent, Vec<i64>)> = Vec::new();
        for (extent, values) in sources {
            let constant = values.iter().all(|value| *value == values[0]);
            // Of extents that are always equal, the first stands for all.
            if !constant && different.iter().all(|(_, known)| *known != values) {
                different.push((extent, values));
            }
        }
        Sizes { sources: different }
    }

    /// What a size is that has these values in the programs; none where it follows from no extents.
    pub(super) fn solve(&self, values: &[i64]) -> Option<Size> {
        if values.iter().all(|value| *value == values[0]) {
            return Some(Size::Is(values[0]));
        }
        let one = |plain: bool| {
            self.sources.iter().find_map(|(extent, sizes)| {
                let (times, plus) = line(sizes, values)?;
                let found = Size::Product { of: [Some(*extent), None], times, plus };
                (!plain || plus == 0).then_some(found)
            })
        };
        let two = |plain: bool| {
            let pairs = self
                .sources
                .iter()
                .enumerate()
                .flat_map(|(at, first)| self.sources[at..].iter().map(move |second| (first, second)));
            pairs.into_iter().find_map(|((a, x), (b, y))| {
                let product: Vec<i64> = x.iter().zip(y).map(|(x, y)| x * y).collect();
                let (times, plus) = line(&product, values)?;
                let found = Size::Product { of: [Some(*a), Some(*b)], times, plus };
                (!plain || plus == 0).then_some(found)
            })
        };
        one(true).or_else(|| two(true)).or_else(|| one(false)).or_else(|| two(false))
    }
}

/// `times` and `plus` that make all of `to` from `from`.
fn line(from: &[i64], to: &[i64]) -> Option<(i64, i64)> {
    let other = (1..from.len()).find(|at| from[*at] != from[0])?;
    let (rise, run) = (to[other] - to[0], from[other] - from[0]);
    let times = (rise % run == 0).then_some(rise / run).filter(|times| *times != 0)?;
    let plus = to[0] - times * from[0];
    from.iter().zip(to).all(|(x, y)| times * x + plus == *y).then_some((times, plus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_from_extents_in_all_examples_or_from_none() {
        let (batch, length) = ((ValueId(1), 0), (ValueId(1), 1));
        let sizes = Sizes { sources: vec![(batch, vec![2, 5, 3]), (length, vec![7, 18, 11])] };
        let product = |of, times, plus| Some(Size::Product { of, times, plus });
        assert_eq!(sizes.solve(&[4, 4, 4]), Some(Size::Is(4)));
        assert_eq!(sizes.solve(&[7, 18, 11]), product([Some(length), None], 1, 0));
        assert_eq!(sizes.solve(&[8, 20, 12]), product([Some(batch), None], 4, 0));
        assert_eq!(sizes.solve(&[6, 17, 10]), product([Some(length), None], 1, -1));
        assert_eq!(sizes.solve(&[28, 180, 66]), product([Some(batch), Some(length)], 2, 0));
        assert_eq!(sizes.solve(&[49, 324, 121]), product([Some(length), Some(length)], 1, 0));
        assert_eq!(sizes.solve(&[13, 89, 32]), product([Some(batch), Some(length)], 1, -1));
        assert_eq!(sizes.solve(&[7, 18, 12]), None, "true for two examples alone");
    }
}
