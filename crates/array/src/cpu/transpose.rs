//! Square tiles transposed in registers: the inner step of copies whose source runs along another dim.
#![allow(unsafe_code)]

use super::simd::simd;
use super::stream::Store;
use bytemuck::Pod;

/// Side of a tile.
pub(crate) const SIDE: usize = 16;

/// `dst[i * dst_step + j] = src[j * src_step + i]` for a square of [`SIDE`]. Only rows that lie on cache lines are
/// streamed.
pub(crate) fn tile<T: Pod>(src: &[T], src_step: usize, dst: &mut [T], dst_step: usize, store: Store) {
    #[cfg(target_arch = "x86_64")]
    if size_of::<T>() == 4 && super::simd::level() == super::simd::Level::V4 {
        let reach = |step: usize| step.saturating_mul(SIDE - 1).saturating_add(SIDE);
        assert!(src.len() >= reach(src_step) && dst.len() >= reach(dst_step), "a tile leaves its slice");
        let (from, to) = (src.as_ptr().cast::<f32>(), dst.as_mut_ptr().cast::<f32>());
        // SAFETY: the level says that the CPU has AVX-512; all rows lie inside the slices, whose elements are four
        // bytes that may hold anything.
        return unsafe { x86::tile_of_words(from, src_step, to, dst_step, store) };
    }
    let _ = store;
    any_tile(src, src_step, dst, dst_step);
}

simd! {
    /// Four rounds that exchange halves, for any element.
    fn any_tile<T: Pod>(src: &[T], src_step: usize, dst: &mut [T], dst_step: usize) {
        let mut rows = [[T::zeroed(); SIDE]; SIDE];
        for (j, row) in rows.iter_mut().enumerate() {
            row.copy_from_slice(&src[j * src_step..j * src_step + SIDE]);
        }
        exchange::<T, 8>(&mut rows);
        exchange::<T, 4>(&mut rows);
        exchange::<T, 2>(&mut rows);
        exchange::<T, 1>(&mut rows);
        for (i, row) in rows.iter().enumerate() {
            dst[i * dst_step..i * dst_step + SIDE].copy_from_slice(row);
        }
    }
}

/// Swaps the upper right with the lower left of every block of side `2 * S`.
#[inline(always)]
fn exchange<T: Pod, const S: usize>(rows: &mut [[T; SIDE]; SIDE]) {
    for i in (0..SIDE).filter(|i| i & S == 0) {
        let (a, b) = (rows[i], rows[i + S]);
        for k in 0..SIDE {
            rows[i][k] = if k & S == 0 { a[k] } else { b[k ^ S] };
            rows[i + S][k] = if k & S == 0 { a[k ^ S] } else { b[k] };
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! Shuffles the compiler does not find by itself.
    use super::{SIDE, Store};
    use planaria_cpu::registers::transpose;
    use std::arch::x86_64::*;

    /// One tile of four-byte elements.
    ///
    /// # Safety
    /// The CPU has AVX-512; `SIDE` rows of `SIDE` elements, the steps apart, are valid on both sides.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn tile_of_words(
        src: *const f32,
        src_step: usize,
        dst: *mut f32,
        dst_step: usize,
        store: Store,
    ) {
        let on_lines = (dst as usize | (dst_step * size_of::<f32>())).is_multiple_of(64);
        // SAFETY: the caller's promise; streamed stores go to whole lines.
        unsafe {
            let mut rows = [_mm512_setzero_ps(); SIDE];
            for j in 0..SIDE {
                rows[j] = _mm512_loadu_ps(src.add(j * src_step));
            }
            transpose(&mut rows);
            for i in 0..SIDE {
                let to = dst.add(i * dst_step);
                if store == Store::Streamed && on_lines {
                    _mm512_stream_ps(to, rows[i]);
                } else {
                    _mm512_storeu_ps(to, rows[i]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Pod + PartialEq + std::fmt::Debug>(value: impl Fn(usize) -> T) {
        for (src_step, dst_step, start) in [(16, 16, 0), (17, 32, 0), (64, 48, 3), (31, 21, 1)] {
            for store in [Store::Cached, Store::Streamed] {
                let src: Vec<T> = (0..start + 15 * src_step + SIDE).map(&value).collect();
                let mut dst = vec![value(200); start + 15 * dst_step + SIDE + 5];
                tile(&src[start..], src_step, &mut dst[start..], dst_step, store);
                crate::cpu::stream::fence();
                for (at, got) in dst.iter().enumerate() {
                    let (i, j) = (at.wrapping_sub(start) / dst_step, at.wrapping_sub(start) % dst_step);
                    let want = if at >= start && i < SIDE && j < SIDE {
                        value(start + j * src_step + i)
                    } else {
                        value(200)
                    };
                    assert_eq!(*got, want, "element {at} of steps {src_step} and {dst_step}");
                }
            }
        }
    }

    #[test]
    fn tiles_of_every_size_move_each_element_once() {
        check(|i| (i % 251) as u8);
        check(|i| i as u16);
        check(|i| i as u32);
        check(|i| i as u64);
    }
}
