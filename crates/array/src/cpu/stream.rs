//! Reading and writing what is larger than the caches: memory is asked for lines before they are read, and before they are
//! written. Stores that bypass the caches save that second question, a third of the traffic of an addition; whether a core can
//! keep enough of them under way to gain by that depends on the CPU, so it is tried once.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use super::simd::{Level, level};
use bytemuck::Pod;
use planaria_cpu::{caches, pool, prefetch};
use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Results of at least this many bytes may be streamed.
const LARGE: usize = 32 << 20;

/// Where results go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// To the caches.
    Cached,
    /// Past them; whoever stores ends with [`fence`].
    Streamed,
}

/// The better way to store a result in `out`, which will be written in full: what is in it may be lost here.
pub(crate) fn store_for<T: Pod>(out: &mut [T]) -> Store {
    static FASTER: OnceLock<Store> = OnceLock::new();
    if size_of_val(out) < LARGE {
        return Store::Cached;
    }
    *FASTER.get_or_init(|| faster(&mut bytemuck::cast_slice_mut::<T, u8>(out)[..LARGE]))
}

/// Copies one half of `space` to the other both ways, a few times in turn, and compares the best times. A fraction of
/// the time that filling a large result for the first time takes.
fn faster(space: &mut [u8]) -> Store {
    let (to, from) = space.split_at_mut(LARGE / 2);
    from.fill(1);
    let mut best = [Duration::MAX; 2];
    for _ in 0..4 {
        for (best, store) in best.iter_mut().zip([Store::Streamed, Store::Cached]) {
            let start = Instant::now();
            copy_piece(store, from, 0, to);
            *best = start.elapsed().min(*best);
        }
    }
    if best[0] < best[1] { Store::Streamed } else { Store::Cached }
}

/// Whether arrays of this many bytes are past the second-level cache.
pub(crate) fn is_far(bytes: usize) -> bool {
    bytes > caches().second / 2
}

/// Bytes computed or copied at a time: while they are stored, the next ones are on their way from memory.
pub(crate) const PIECE: usize = 1024;

/// How many pieces ahead memory is asked: with one, it would be late.
pub(crate) const AHEAD: usize = 2;

/// `dst.copy_from_slice(src)` on the pool; lengths must be equal.
pub(crate) fn copy_all<T: Pod + Send + Sync>(src: &[T], dst: &mut [T]) {
    let store = store_for(dst);
    let piece = (PIECE / size_of::<T>()).max(1);
    pool::for_chunks_mut(dst, piece, 2 * size_of::<T>(), |first, part| copy_piece(store, src, first, part));
}

/// `dst.copy_from_slice(src)` on this thread past the caches, for a part of something far larger that all threads copy at once: there it is
/// the memory that they wait for, whatever one core alone does better.
pub(crate) fn copy_part(src: &[u8], dst: &mut [u8]) {
    copy_piece(Store::Streamed, src, 0, dst);
}

/// Copies the elements of `src` from `first` on to `dst`.
fn copy_piece<T: Pod>(store: Store, src: &[T], first: usize, dst: &mut [T]) {
    let far = is_far(size_of_val(dst));
    if store == Store::Cached && !far {
        return dst.copy_from_slice(&src[first..first + dst.len()]);
    }
    let piece = (PIECE / size_of::<T>()).max(1);
    for (i, to) in dst.chunks_mut(piece).enumerate() {
        let at = first + i * piece;
        ask(src, at + AHEAD * piece..at + (AHEAD + 1) * piece);
        if store == Store::Cached {
            claim(to, AHEAD * piece);
            to.copy_from_slice(&src[at..at + to.len()]);
        } else {
            copy(&src[at..at + to.len()], to);
        }
    }
    if store == Store::Streamed {
        fence();
    }
}

/// Asks memory for `data[range]`, which may reach past the end.
#[inline(always)]
pub(crate) fn ask<T>(data: &[T], range: Range<usize>) {
    for at in range.step_by((64 / size_of::<T>().max(1)).max(1)) {
        prefetch(data, at);
    }
}

/// Asks memory for as many elements as `out` has, `ahead` elements behind its beginning, to write them; they may reach past the
/// end of all.
#[inline(always)]
pub(crate) fn claim<T>(out: &[T], ahead: usize) {
    let start = out.as_ptr().wrapping_add(ahead);
    for at in (0..out.len()).step_by((64 / size_of::<T>().max(1)).max(1)) {
        planaria_cpu::claim(start.wrapping_add(at));
    }
}

/// Row `row` of `cols` elements, asking memory for the next one: the CPU's own prefetching stops at each page.
#[inline(always)]
pub(crate) fn row_ahead<T>(data: &[T], row: usize, cols: usize) -> &[T] {
    ask(data, (row + 1) * cols..(row + 2) * cols);
    &data[row * cols..(row + 1) * cols]
}

/// Copies `src` to `dst` (of equal length) past the caches. Call [`fence`] before another thread may look.
#[cfg(target_arch = "x86_64")]
pub(crate) fn copy<T: Pod>(src: &[T], dst: &mut [T]) {
    let (src, dst): (&[u8], &mut [u8]) = (bytemuck::cast_slice(src), bytemuck::cast_slice_mut(dst));
    assert_eq!(src.len(), dst.len());
    let head = dst.as_ptr().align_offset(64).min(dst.len());
    let lines = (dst.len() - head) / 64;
    dst[..head].copy_from_slice(&src[..head]);
    let (from, to) = (src[head..].as_ptr(), dst[head..].as_mut_ptr());
    // SAFETY: `head` brought the destination to a multiple of 64, and `lines` lines follow on both sides; the level
    // says that the CPU has AVX-512.
    unsafe {
        match level() {
            Level::V4 => x86::lines_512(from, to, lines),
            _ => x86::lines_128(from, to, lines),
        }
    }
    let rest = head + lines * 64;
    dst[rest..].copy_from_slice(&src[rest..]);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The loops over whole cache lines.
    use std::arch::x86_64::*;

    /// # Safety
    /// The CPU has AVX-512; `lines` lines are valid on both sides; `to` is a multiple of 64.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn lines_512(from: *const u8, to: *mut u8, lines: usize) {
        for i in 0..lines {
            // SAFETY: line i is valid on both sides.
            unsafe {
                _mm512_stream_si512(to.add(64 * i).cast(), _mm512_loadu_si512(from.add(64 * i).cast()))
            };
        }
    }

    /// # Safety
    /// As for [`lines_512`], with SSE2, which every x86-64 CPU has.
    pub(super) unsafe fn lines_128(from: *const u8, to: *mut u8, lines: usize) {
        for i in 0..4 * lines {
            // SAFETY: quarter i of the lines is valid on both sides.
            unsafe { _mm_stream_si128(to.add(16 * i).cast(), _mm_loadu_si128(from.add(16 * i).cast())) };
        }
    }
}

/// Makes streamed stores of this thread visible before any later store.
#[cfg(target_arch = "x86_64")]
pub(crate) fn fence() {
    // SAFETY: part of SSE, which every x86-64 CPU has; orders memory, touches none.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

/// Copies `src` to `dst` (of equal length).
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn copy<T: Pod>(src: &[T], dst: &mut [T]) {
    dst.copy_from_slice(src);
}

/// Nothing to wait for.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn fence() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_copy_the_same() {
        let far = caches().second as u32;
        let src: Vec<u32> = (0..far).collect();
        for store in [Store::Cached, Store::Streamed] {
            for (first, len) in [(0, src.len()), (3, 4097), (src.len() - 1, 1), (7, 0)] {
                let mut dst = vec![0u32; len];
                copy_piece(store, &src, first, &mut dst);
                assert_eq!(dst, src[first..first + len], "{store:?} from {first}");
            }
        }
    }

    #[test]
    fn every_alignment_and_length_is_copied_whole() {
        let src: Vec<u16> = (0..300).collect();
        for start in 0..40 {
            for len in [0, 1, 7, 31, 32, 33, 64, 100, 200] {
                let mut dst = vec![9u16; 300];
                super::copy(&src[start..start + len], &mut dst[start + 3..start + 3 + len]);
                super::fence();
                assert_eq!(dst[start + 3..start + 3 + len], src[start..start + len]);
                assert!(dst[..start + 3].iter().chain(&dst[start + 3 + len..]).all(|&v| v == 9));
            }
        }
    }
}
