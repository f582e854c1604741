//! How kernels walk over views: dims merged, at most eight, strides by operand. The words of `Walk` in `walk.cuh`.

use smallvec::SmallVec;

/// Dims a kernel takes.
pub(crate) const MAX_DIMS: usize = 8;

/// A walk over one common shape: the words a kernel takes, and what to add to each operand's position.
pub(crate) struct Walk {
    /// `numel`, `ndim`, extents, then strides by operand.
    pub(crate) words: Vec<u64>,
    /// Elements to add to each operand's start.
    pub(crate) skip: SmallVec<[isize; 4]>,
    /// Positions.
    pub(crate) numel: usize,
}

/// A dim of the common shape and its step in each operand.
#[derive(Clone)]
struct Dim {
    len: usize,
    steps: SmallVec<[isize; 4]>,
}

/// The merged dims of operands with the given strides, outermost first.
fn merged(shape: &[usize], strides: &[&[isize]]) -> Vec<Dim> {
    let mut dims: Vec<Dim> = Vec::new();
    for (d, &len) in shape.iter().enumerate().filter(|&(_, &len)| len != 1) {
        let steps: SmallVec<[isize; 4]> = strides.iter().map(|s| s[d]).collect();
        match dims.last_mut() {
            Some(outer) if outer.steps.iter().zip(&steps).all(|(o, s)| *o == s * len as isize) => {
                outer.len *= len;
                outer.steps = steps;
            }
            _ => dims.push(Dim { len, steps }),
        }
    }
    dims
}

/// The walks that cover all positions: one, unless more dims remain than a kernel takes.
pub(crate) fn walks(shape: &[usize], strides: &[&[isize]]) -> Vec<Walk> {
    if shape.contains(&0) {
        return Vec::new();
    }
    let dims = merged(shape, strides);
    let outer = dims.len().saturating_sub(MAX_DIMS);
    let count: usize = dims[..outer].iter().map(|dim| dim.len).product();
    (0..count).map(|piece| walk(&dims, outer, piece, strides.len())).collect()
}

fn walk(dims: &[Dim], outer: usize, piece: usize, operands: usize) -> Walk {
    let mut skip: SmallVec<[isize; 4]> = SmallVec::from_elem(0, operands);
    let mut rest = piece;
    for dim in dims[..outer].iter().rev() {
        let at = (rest % dim.len) as isize;
        rest /= dim.len;
        skip.iter_mut().zip(&dim.steps).for_each(|(skip, step)| *skip += at * step);
    }
    let inner = &dims[outer..];
    let numel = inner.iter().map(|dim| dim.len).product();
    let mut words = vec![0u64; 2 + MAX_DIMS * (1 + operands)];
    words[0] = numel as u64;
    words[1] = inner.len().max(1) as u64;
    words[2] = 1;
    for (d, dim) in inner.iter().enumerate() {
        words[2 + d] = dim.len as u64;
        for (k, &step) in dim.steps.iter().enumerate() {
            words[2 + MAX_DIMS * (1 + k) + d] = step as i64 as u64;
        }
    }
    if inner.is_empty() {
        // One element is a dense run of length one.
        words[2 + MAX_DIMS] = 1;
    }
    Walk { words, skip, numel }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The positions of each operand in walking order, as a kernel computes them.
    fn visit(walks: &[Walk], operands: usize) -> Vec<Vec<isize>> {
        let mut out = vec![Vec::new(); operands];
        for walk in walks {
            for i in 0..walk.numel {
                for (k, out) in out.iter_mut().enumerate() {
                    let (mut at, mut rest) = (walk.skip[k], i);
                    for d in (0..walk.words[1] as usize).rev() {
                        let len = if d == 0 { usize::MAX } else { walk.words[2 + d] as usize };
                        at += (rest % len) as isize * walk.words[2 + MAX_DIMS * (1 + k) + d] as i64 as isize;
                        rest /= len;
                    }
                    out.push(at);
                }
            }
        }
        out
    }

    fn plain(shape: &[usize], strides: &[isize]) -> Vec<isize> {
        let mut out = vec![0];
        for (&len, &stride) in shape.iter().zip(strides) {
            out = out.iter().flat_map(|at| (0..len as isize).map(move |i| at + i * stride)).collect();
        }
        out
    }

    #[test]
    fn every_operand_is_visited_in_row_major_order() {
        let many = [2usize; 12];
        let odd: Vec<isize> = (0..12).map(|d| [1, 5, 7][d % 3] * (1 << d)).collect();
        let cases: [(&[usize], Vec<isize>, Vec<isize>); 6] = [
            (&[3, 4], vec![4, 1], vec![1, 3]),
            (&[2, 3, 4], vec![12, 4, 1], vec![0, 1, 0]),
            (&[], vec![], vec![]),
            (&[5, 1, 6], vec![6, 6, 1], vec![-6, 3, 2]),
            (&[4, 0], vec![0, 1], vec![1, 1]),
            (&many, (0..12).rev().map(|d| 1 << d).collect(), odd),
        ];
        for (shape, a, b) in cases {
            let walks = walks(shape, &[&a, &b]);
            let empty = shape.contains(&0);
            let want = |s: &[isize]| if empty { vec![] } else { plain(shape, s) };
            assert_eq!(visit(&walks, 2), [want(&a), want(&b)], "{shape:?}");
        }
    }

    #[test]
    fn dense_operands_become_one_run() {
        let walks = walks(&[2, 3, 4], &[&[12, 4, 1], &[0, 0, 0]]);
        assert_eq!((walks.len(), walks[0].words[1], walks[0].words[2]), (1, 1, 24));
        assert_eq!((walks[0].words[2 + MAX_DIMS], walks[0].words[2 + 2 * MAX_DIMS]), (1, 0));
    }
}
