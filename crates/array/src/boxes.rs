//! Boxes of elements in any host memory: files on their way, messages, arrays of others.

use crate::cpu::copy::{Geometry, strided};
use crate::cpu::stream;
use crate::error::{Error, Result};
use bytemuck::Pod;
use planaria_cpu::pool;
use smallvec::SmallVec;

/// Where a box lies in memory: its first byte, and the bytes between neighbours along each dim.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// First byte of the first element.
    pub start: usize,
    /// Byte steps, multiples of the element's size.
    pub steps: &'a [isize],
}

/// Copies a box of `extents` elements of `size` bytes from one memory to another, on this thread alone. Refuses boxes that
/// leave their memory, and targets of which elements overlap.
///
/// ```
/// use planaria_array::{Place, copy_box};
/// let rows = [1u8, 2, 3, 4, 5, 6];
/// let mut columns = [0; 6];
/// let (from, to) = (Place { start: 0, steps: &[3, 1] }, Place { start: 0, steps: &[1, 2] });
/// copy_box(&[2, 3], 1, (&rows, from), (&mut columns, to))?;
/// assert_eq!(columns, [1, 4, 2, 5, 3, 6]);
/// # Ok::<(), planaria_array::Error>(())
/// ```
pub fn copy_box(
    extents: &[usize],
    size: usize,
    (from, from_at): (&[u8], Place<'_>),
    (to, to_at): (&mut [u8], Place<'_>),
) -> Result<()> {
    check(extents, size, from.len(), from_at)?;
    check(extents, size, to.len(), to_at)?;
    if size == 0 || extents.contains(&0) {
        return Ok(());
    }
    let (source, target) = ((from, from_at), (to, to_at));
    let copied = pool::alone(|| match size {
        1 => copy::<[u8; 1]>(extents, source, target),
        2 => copy::<[u8; 2]>(extents, source, target),
        4 => copy::<[u8; 4]>(extents, source, target),
        8 => copy::<[u8; 8]>(extents, source, target),
        _ => {
            // Bytes along one more dim.
            let longer =
                |steps: &[isize]| -> SmallVec<[isize; 8]> { steps.iter().copied().chain([1]).collect() };
            let extents: SmallVec<[usize; 8]> = extents.iter().copied().chain([size]).collect();
            let (from_steps, to_steps) = (longer(from_at.steps), longer(to_at.steps));
            let source = (source.0, Place { steps: &from_steps, ..from_at });
            let target = (target.0, Place { steps: &to_steps, ..to_at });
            copy::<[u8; 1]>(&extents, source, target)
        }
    });
    if copied { Ok(()) } else { Err(Error::argument("copy_box", "elements of the target overlap")) }
}

/// As [`copy_box`], for boxes that together are far larger than the caches, such as all tensors of a state: where a box lies without gaps on
/// both sides, it goes past them, which spares a read of what is overwritten.
pub fn stream_box(
    extents: &[usize],
    size: usize,
    (from, from_at): (&[u8], Place<'_>),
    (to, to_at): (&mut [u8], Place<'_>),
) -> Result<()> {
    let dense = |steps: &[isize]| {
        let mut step = size as isize;
        extents.iter().zip(steps).rev().all(|(&extent, &found)| {
            let fits = extent == 1 || found == step;
            step = step.wrapping_mul(extent as isize);
            fits
        })
    };
    if !dense(from_at.steps) || !dense(to_at.steps) {
        return copy_box(extents, size, (from, from_at), (to, to_at));
    }
    check(extents, size, from.len(), from_at)?;
    check(extents, size, to.len(), to_at)?;
    let len = extents.iter().product::<usize>() * size;
    if len > 0 {
        let (from, to) = (&from[from_at.start..], &mut to[to_at.start..]);
        stream::copy_part(&from[..len], &mut to[..len]);
    }
    Ok(())
}

/// Every element lies inside the memory, whole elements after the first.
fn check(extents: &[usize], size: usize, len: usize, Place { start, steps }: Place<'_>) -> Result<()> {
    let wrong = |what: String| Err(Error::argument("copy_box", what));
    if steps.len() != extents.len() {
        return wrong(format!("{} steps for {} dims", steps.len(), extents.len()));
    }
    if extents.contains(&0) {
        return Ok(());
    }
    let (mut low, mut high) = (start as i128, start as i128 + size as i128);
    for (&extent, &step) in extents.iter().zip(steps).filter(|(extent, _)| **extent > 1) {
        if size > 0 && step % size as isize != 0 {
            return wrong(format!("a step of {step} bytes between elements of {size}"));
        }
        let reach = (extent as i128 - 1) * step as i128;
        if reach < 0 { low += reach } else { high += reach }
    }
    if low < 0 || high > len as i128 {
        return wrong(format!("a box from byte {low} to {high} is outside a memory of {len}"));
    }
    Ok(())
}

fn copy<T: Pod + Send + Sync>(
    extents: &[usize],
    (from, from_at): (&[u8], Place<'_>),
    (to, to_at): (&mut [u8], Place<'_>),
) -> bool {
    let size = size_of::<T>();
    // Elements of bytes have no alignment: they may be counted from any byte on.
    let whole = |len: usize, at: Place<'_>| at.start % size..len - (len - at.start % size) % size;
    let steps = |at: Place<'_>| -> SmallVec<[isize; 8]> {
        at.steps.iter().map(|step| step / size as isize).collect()
    };
    let (from_steps, to_steps) = (steps(from_at), steps(to_at));
    let view = |at: Place<'_>, strides| Geometry { offset: at.start / size, shape: extents, strides };
    let src = bytemuck::cast_slice::<u8, T>(&from[whole(from.len(), from_at)]);
    let range = whole(to.len(), to_at);
    let dst = bytemuck::cast_slice_mut::<u8, T>(&mut to[range]);
    strided(dst, view(to_at, &to_steps), src, view(from_at, &from_steps))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Where element `flat` of a box lies.
    fn byte(extents: &[usize], at: Place<'_>, flat: usize) -> usize {
        let (mut rest, mut byte) = (flat, at.start as isize);
        for d in (0..extents.len()).rev() {
            byte += (rest % extents[d]) as isize * at.steps[d];
            rest /= extents[d];
        }
        byte as usize
    }

    /// Steps in any order of dims, with gaps, and the bytes they reach over.
    fn steps(extents: &[usize], size: usize, order: u64, gap: usize) -> (Vec<isize>, usize) {
        let mut by: Vec<usize> = (0..extents.len()).collect();
        by.sort_by_key(|d| order.rotate_left(*d as u32 * 7) % 11);
        let (mut steps, mut step) = (vec![0; extents.len()], size);
        for d in by {
            steps[d] = step as isize;
            step = step * extents[d] + gap * size;
        }
        (steps, step)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn every_element_goes_to_its_place(
            extents in prop::collection::vec(1usize..20, 0..4), size in prop::sample::select(vec![1usize, 2, 3, 4, 8, 16]),
            orders in any::<[u64; 2]>(), gaps in [0usize..3, 0usize..3], starts in [0usize..9, 0usize..9],
        ) {
            let (from_steps, from_len) = steps(&extents, size, orders[0], gaps[0]);
            let (to_steps, to_len) = steps(&extents, size, orders[1], gaps[1]);
            let from: Vec<u8> = (0..from_len + starts[0]).map(|i| (i * 31 % 251) as u8).collect();
            let mut to = vec![0u8; to_len + starts[1]];
            let from_at = Place { start: starts[0], steps: &from_steps };
            let to_at = Place { start: starts[1], steps: &to_steps };
            let mut want = to.clone();
            for flat in 0..extents.iter().product() {
                let (a, b) = (byte(&extents, from_at, flat), byte(&extents, to_at, flat));
                want[b..b + size].copy_from_slice(&from[a..a + size]);
            }
            let mut streamed = to.clone();
            copy_box(&extents, size, (&from, from_at), (&mut to, to_at)).unwrap();
            prop_assert_eq!(&to, &want);
            stream_box(&extents, size, (&from, from_at), (&mut streamed, to_at)).unwrap();
            prop_assert_eq!(streamed, want);
        }
    }

    #[test]
    fn what_leaves_its_memory_is_refused() {
        let (from, mut to) = ([0u8; 8], [0u8; 8]);
        let at = |start, steps| Place { start, steps };
        let mut copy = |a, b| copy_box(&[2, 2], 2, (&from, a), (&mut to, b)).is_ok();
        assert!(copy(at(0, &[4, 2]), at(0, &[2, 4])));
        assert!(!copy(at(2, &[4, 2]), at(0, &[2, 4])), "past the end");
        assert!(!copy(at(0, &[4, 2]), at(0, &[-2, 4])), "before the start");
        assert!(!copy(at(0, &[3, 2]), at(0, &[2, 4])), "half an element");
        assert!(!copy(at(0, &[4]), at(0, &[2, 4])), "a dim without a step");
        assert!(!copy(at(0, &[4, 2]), at(0, &[2, 2])), "one on top of another");
        let mut stream = |a, b| stream_box(&[2, 2], 2, (&from, a), (&mut to, b)).is_ok();
        assert!(
            stream(at(0, &[4, 2]), at(0, &[4, 2])) && !stream(at(2, &[4, 2]), at(0, &[4, 2])),
            "past the end"
        );
        assert!(
            !stream(at(0, &[4, 2]), at(2, &[4, 2])) && !stream(at(0, &[2]), at(0, &[2])),
            "a dim without a step"
        );
    }
}
