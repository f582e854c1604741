//! Stores that bypass the caches, for results too large to be read from them again: they save the read of each
//! line before it is overwritten, a third of the traffic of an addition.
#![allow(unsafe_code)]

use bytemuck::Pod;

/// Results of at least this many bytes are streamed.
pub(crate) const LARGE: usize = 32 << 20;

/// Elements computed into scratch before they are streamed out: small enough for the first-level cache.
pub(crate) const SCRATCH: usize = 4096;

/// Copies `src` to `dst` (of equal length) past the caches. Call [`fence`] before another thread may look.
#[cfg(target_arch = "x86_64")]
pub(crate) fn copy<T: Pod>(src: &[T], dst: &mut [T]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    let (src, dst): (&[u8], &mut [u8]) = (bytemuck::cast_slice(src), bytemuck::cast_slice_mut(dst));
    assert_eq!(src.len(), dst.len());
    let head = dst.as_ptr().align_offset(64).min(dst.len());
    let lines = (dst.len() - head) / 64 * 64;
    dst[..head].copy_from_slice(&src[..head]);
    for at in (head..head + lines).step_by(64) {
        for part in (at..at + 64).step_by(16) {
            // SAFETY: `part + 16 <= head + lines <= len` of both slices; the destination is 16-byte aligned because
            // `head` brought it to a multiple of 64. SSE2 is part of every x86-64 CPU.
            unsafe {
                let value = _mm_loadu_si128(src.as_ptr().add(part).cast::<__m128i>());
                _mm_stream_si128(dst.as_mut_ptr().add(part).cast::<__m128i>(), value);
            }
        }
    }
    dst[head + lines..].copy_from_slice(&src[head + lines..]);
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
