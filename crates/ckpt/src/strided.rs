//! Copying boxes between memories that lie differently: the one loop under save and load.

use crate::error::Result;
use planaria_array::{Array, Bytes};
use planaria_layout::{DType, Dims, Region};
use std::borrow::Cow;

/// Byte steps along the dims of a box.
pub(crate) type Steps = Vec<isize>;

/// A box in some memory: where its first element is, and the byte steps between neighbours.
#[derive(Clone, Debug)]
pub(crate) struct At<'a> {
    pub(crate) start: usize,
    pub(crate) steps: Cow<'a, [isize]>,
}

impl At<'_> {
    /// A box that lies row-major without gaps from `start` on.
    pub(crate) fn dense(extents: &[usize], size: usize, start: usize) -> At<'static> {
        At { start, steps: Cow::Owned(dense_steps(extents, size)) }
    }
}

/// Byte steps of a row-major box without gaps.
pub(crate) fn dense_steps(extents: &[usize], size: usize) -> Steps {
    let mut steps = vec![size as isize; extents.len()];
    for d in (1..extents.len()).rev() {
        steps[d - 1] = steps[d] * extents[d] as isize;
    }
    steps
}

/// One dim of a copy.
#[derive(Clone, Copy)]
struct Loop {
    len: usize,
    from: isize,
    to: isize,
}

/// Copies a box of `extents` elements of `size` bytes. Both places must lie inside their memories.
pub(crate) fn copy_box(
    extents: &[usize],
    size: usize,
    source: (&[u8], &At<'_>),
    target: (&mut [u8], &At<'_>),
) {
    if extents.contains(&0) {
        return;
    }
    let ((from, from_at), (to, to_at)) = (source, target);
    let mut loops: Vec<Loop> = Vec::with_capacity(extents.len() + 1);
    for (d, &len) in extents.iter().enumerate().filter(|(_, len)| **len != 1) {
        loops.push(Loop { len, from: from_at.steps[d], to: to_at.steps[d] });
    }
    // Dims that follow each other without a gap on both sides are one.
    for d in (1..loops.len()).rev() {
        let (outer, inner) = (loops[d - 1], loops[d]);
        let reach = inner.len as isize;
        if outer.from == inner.from * reach && outer.to == inner.to * reach {
            loops[d - 1] = Loop { len: outer.len * inner.len, ..inner };
            loops.remove(d);
        }
    }
    let run = match loops.last() {
        Some(last) if last.from == size as isize && last.to == size as isize => {
            let len = last.len * size;
            loops.pop();
            len
        }
        _ => size,
    };
    match (run == size, size) {
        (true, 1) => walk::<1>(&loops, (from, from_at.start), (to, to_at.start)),
        (true, 2) => walk::<2>(&loops, (from, from_at.start), (to, to_at.start)),
        (true, 4) => walk::<4>(&loops, (from, from_at.start), (to, to_at.start)),
        (true, 8) => walk::<8>(&loops, (from, from_at.start), (to, to_at.start)),
        _ => each(&loops, from_at.start, to_at.start, &mut |a, b| {
            to[b..b + run].copy_from_slice(&from[a..a + run]);
        }),
    }
}

/// Single elements. The two innermost dims go in squares, so that a transpose stays in the cache.
fn walk<const N: usize>(loops: &[Loop], (from, a): (&[u8], usize), (to, b): (&mut [u8], usize)) {
    const SIDE: usize = 32;
    let [outer @ .., rows, columns] = loops else {
        return each(loops, a, b, &mut |a, b| to[b..b + N].copy_from_slice(&from[a..a + N]));
    };
    each(outer, a, b, &mut |a, b| {
        for row in (0..rows.len).step_by(SIDE) {
            for column in (0..columns.len).step_by(SIDE) {
                for i in row..rows.len.min(row + SIDE) {
                    for j in column..columns.len.min(column + SIDE) {
                        let a = moved(moved(a, i, rows.from), j, columns.from);
                        let b = moved(moved(b, i, rows.to), j, columns.to);
                        to[b..b + N].copy_from_slice(&from[a..a + N]);
                    }
                }
            }
        }
    });
}

fn moved(at: usize, count: usize, step: isize) -> usize {
    at.wrapping_add_signed(step.wrapping_mul(count as isize))
}

/// Calls `found` with both places for every index of the loops.
fn each(loops: &[Loop], a: usize, b: usize, found: &mut dyn FnMut(usize, usize)) {
    let Some((first, rest)) = loops.split_first() else { return found(a, b) };
    for i in 0..first.len {
        each(rest, moved(a, i, first.from), moved(b, i, first.to), found);
    }
}

/// A box of a tensor in an array, in the tensor's coordinates.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// The memory from the box's first to its last element.
    span: Array,
    steps: Steps,
    /// The box.
    pub(crate) region: Region,
    dtype: DType,
}

impl Window {
    /// The window of an array that holds `region`, its dim `order[d]` being dim `d` of the region.
    pub(crate) fn new(array: &Array, region: &Region, order: Option<&[usize]>) -> Result<Window> {
        let size = array.dtype().size() as isize;
        let array = match array.strides().iter().zip(&**array.shape()).any(|(s, &len)| *s < 0 && len > 1) {
            true => array.contiguous()?,
            false => array.clone(),
        };
        let pairs = array.strides().iter().zip(&**array.shape());
        let reach: usize = pairs.map(|(s, len)| s.unsigned_abs() * len.saturating_sub(1)).sum();
        let len = if array.numel() == 0 { 0 } else { reach + 1 };
        let span = array.as_strided(&[len], &[1], array.offset())?;
        let step = |d: usize| array.strides()[order.map_or(d, |order| order[d])] * size;
        let steps = (0..array.ndim()).map(step).collect();
        Ok(Window { span, steps, region: region.clone(), dtype: array.dtype() })
    }

    /// Element type.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// The bytes, held for reading.
    pub(crate) fn bytes(&self) -> Result<Bytes> {
        Ok(self.span.bytes()?)
    }

    /// Where a part of the box lies in the window's bytes.
    pub(crate) fn at(&self, part: &Region) -> At<'_> {
        let offsets = part.lo().iter().zip(self.region.lo()).zip(&self.steps);
        let start: isize = offsets.map(|((lo, origin), step)| (lo - origin) as isize * step).sum();
        At { start: start as usize, steps: Cow::Borrowed(&self.steps) }
    }

    /// Fills a part of the box from other memory that has its dtype.
    pub(crate) fn fill(&self, part: &Region, source: (&[u8], &At<'_>)) -> Result<()> {
        let extents = part.extents();
        let len = self.span.numel() * self.dtype.size();
        let at = self.at(part);
        self.span.write_bytes(0..len, |out| copy_box(&extents, self.dtype.size(), source, (out, &at)))?;
        Ok(())
    }
}

/// A box of other memory as a row-major array.
pub(crate) fn packed(extents: &Dims, dtype: DType, source: (&[u8], &At<'_>)) -> Result<Array> {
    let mut bytes = vec![0; extents.iter().product::<usize>() * dtype.size()];
    let dense = At::dense(extents, dtype.size(), 0);
    copy_box(extents, dtype.size(), source, (&mut bytes, &dense));
    Ok(Array::from_bytes(&bytes, extents, dtype)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn boxes_are_copied_whatever_the_strides(
            shape in prop::collection::vec(1usize..6, 0..4), order in any::<prop::sample::Index>(),
            dtype in prop::sample::select(vec![DType::U8, DType::BF16, DType::F32, DType::I64]), lo in any::<u64>(),
        ) {
            let n: usize = shape.iter().product();
            let bytes: Vec<u8> = (0..n * dtype.size()).map(|i| i as u8).collect();
            let x = Array::from_bytes(&bytes, &shape, dtype).unwrap();
            let rolled: Vec<i64> = (0..shape.len()).map(|d| ((d + order.index(4)) % shape.len()) as i64).collect();
            let y = x.permute(&rolled).unwrap().copy().unwrap();
            // Back to the order of x, as a window over y.
            let mut back = vec![0; shape.len()];
            rolled.iter().enumerate().for_each(|(to, from)| back[*from as usize] = to);
            let whole = Region::whole(x.shape());
            let window = Window::new(&y, &whole, Some(&back)).unwrap();
            let lo: Vec<usize> = shape.iter().enumerate().map(|(d, len)| (lo >> d) as usize % len).collect();
            let part = Region::new(&lo, &shape).unwrap();
            let held = window.bytes().unwrap();
            let got = packed(&part.extents(), dtype, (&held, &window.at(&part))).unwrap();
            let want = x.region(&part).unwrap().copy().unwrap();
            prop_assert_eq!(&*got.bytes().unwrap(), &*want.bytes().unwrap());
            drop(held);
            y.fill(0).unwrap();
            let source = want.bytes().unwrap();
            window.fill(&part, (&source, &At::dense(&part.extents(), dtype.size(), 0))).unwrap();
            let held = window.bytes().unwrap();
            let again = packed(&part.extents(), dtype, (&held, &window.at(&part))).unwrap();
            prop_assert_eq!(&*again.bytes().unwrap(), &*source);
        }
    }
}
