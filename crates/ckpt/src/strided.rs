//! Where boxes lie in memory, and arrays as boxes of tensors. Copies are `array`'s.

use crate::error::Result;
use planaria_array::{Array, Bytes, Place};
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

    fn place(&self) -> Place<'_> {
        Place { start: self.start, steps: &self.steps }
    }

    /// Where a part of a box lies, if this is where the box lies.
    pub(crate) fn of_part(&self, whole: &Region, part: &Region) -> At<'_> {
        let offsets = part.lo().iter().zip(whole.lo()).zip(&*self.steps);
        let ahead: isize = offsets.map(|((lo, origin), step)| (lo - origin) as isize * step).sum();
        At { start: self.start.wrapping_add_signed(ahead), steps: Cow::Borrowed(&self.steps) }
    }
}

/// What copies go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Along {
    /// The caches of a core.
    Caches,
    /// Past them: all that is copied is far larger.
    Memory,
}

/// Byte steps of a row-major box without gaps.
pub(crate) fn dense_steps(extents: &[usize], size: usize) -> Steps {
    let mut steps = vec![size as isize; extents.len()];
    for d in (1..extents.len()).rev() {
        steps[d - 1] = steps[d] * extents[d] as isize;
    }
    steps
}

/// Copies a box of `extents` elements of `size` bytes. Both places must lie inside their memories.
pub(crate) fn copy_box(
    extents: &[usize],
    size: usize,
    (from, from_at): (&[u8], &At<'_>),
    (to, to_at): (&mut [u8], &At<'_>),
) -> Result<()> {
    Ok(planaria_array::copy_box(extents, size, (from, from_at.place()), (to, to_at.place()))?)
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
    pub(crate) fn fill(&self, part: &Region, source: (&[u8], &At<'_>), along: Along) -> Result<()> {
        let extents = part.extents();
        let size = self.dtype.size();
        let at = self.at(part);
        self.span.write_bytes(0..self.span.numel() * size, |out| match along {
            Along::Caches => copy_box(&extents, size, source, (out, &at)),
            Along::Memory => {
                let (from, to) = (source.1.place(), at.place());
                Ok(planaria_array::stream_box(&extents, size, (source.0, from), (out, to))?)
            }
        })?
    }
}

/// A box of other memory as a row-major array.
pub(crate) fn packed(extents: &Dims, dtype: DType, source: (&[u8], &At<'_>)) -> Result<Array> {
    let array = Array::empty(extents, dtype)?;
    let dense = At::dense(extents, dtype.size(), 0);
    let len = array.numel() * dtype.size();
    array.write_bytes(0..len, |out| copy_box(extents, dtype.size(), source, (out, &dense)))??;
    Ok(array)
}

/// The same through other element types, the last of them being that of the result.
pub(crate) fn cast(
    extents: &Dims,
    stored: DType,
    source: (&[u8], &At<'_>),
    casts: &[DType],
) -> Result<Array> {
    let mut array = packed(extents, stored, source)?;
    for dtype in casts {
        array = array.cast(*dtype)?;
    }
    Ok(array)
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
            let source = want.bytes().unwrap();
            for along in [Along::Caches, Along::Memory] {
                y.fill(0).unwrap();
                let dense = At::dense(&part.extents(), dtype.size(), 0);
                window.fill(&part, (&source, &dense), along).unwrap();
                let held = window.bytes().unwrap();
                let again = packed(&part.extents(), dtype, (&held, &window.at(&part))).unwrap();
                prop_assert_eq!(&*again.bytes().unwrap(), &*source);
            }
        }
    }
}
