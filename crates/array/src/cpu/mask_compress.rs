//! Packing the elements a mask keeps, and spreading them out again: sixteen at a time with AVX-512, one set bit
//! at a time elsewhere.
#![allow(unsafe_code)]

use crate::element::Bool;
use bytemuck::Pod;

/// Moves the elements of `data` where `mask` is true to the front of `out`; returns how many there are.
/// `out` must have room for them.
pub(crate) fn compress<T: Pod>(data: &[T], mask: &[Bool], out: &mut [T]) -> usize {
    assert_eq!(data.len(), mask.len());
    #[cfg(target_arch = "x86_64")]
    if super::simd::level() == super::simd::Level::V4 {
        match size_of::<T>() {
            // SAFETY: level V4 was detected, which includes every feature the function enables.
            4 => return unsafe { x86::compress_4(cast(data), cast(mask), cast_mut(out)) },
            // SAFETY: level V4 was detected, which includes every feature the function enables.
            8 => return unsafe { x86::compress_8(cast(data), cast(mask), cast_mut(out)) },
            _ => {}
        }
    }
    compress_bits(data, mask, out)
}

/// Overwrites the elements of `data` where `mask` is true with those of `src`, in order; returns how many.
/// `src` must have enough of them.
pub(crate) fn expand<T: Pod>(data: &mut [T], mask: &[Bool], src: &[T]) -> usize {
    assert_eq!(data.len(), mask.len());
    #[cfg(target_arch = "x86_64")]
    if super::simd::level() == super::simd::Level::V4 {
        match size_of::<T>() {
            // SAFETY: level V4 was detected, which includes every feature the function enables.
            4 => return unsafe { x86::expand_4(cast_mut(data), cast(mask), cast(src)) },
            // SAFETY: level V4 was detected, which includes every feature the function enables.
            8 => return unsafe { x86::expand_8(cast_mut(data), cast(mask), cast(src)) },
            _ => {}
        }
    }
    expand_bits(data, mask, src)
}

#[cfg(target_arch = "x86_64")]
fn cast<A: Pod, B: Pod>(slice: &[A]) -> &[B] {
    bytemuck::cast_slice(slice)
}

#[cfg(target_arch = "x86_64")]
fn cast_mut<A: Pod, B: Pod>(slice: &mut [A]) -> &mut [B] {
    bytemuck::cast_slice_mut(slice)
}

/// Up to 64 mask values as bits.
#[inline(always)]
fn bits(mask: &[Bool]) -> u64 {
    mask.iter().enumerate().fold(0, |bits, (i, m)| bits | u64::from(m.get()) << i)
}

fn compress_bits<T: Pod>(data: &[T], mask: &[Bool], out: &mut [T]) -> usize {
    let mut count = 0;
    for (data, mask) in data.chunks(64).zip(mask.chunks(64)) {
        let mut left = bits(mask);
        if left == u64::MAX {
            out[count..count + 64].copy_from_slice(data);
            count += 64;
            continue;
        }
        while left != 0 {
            out[count] = data[left.trailing_zeros() as usize];
            count += 1;
            left &= left - 1;
        }
    }
    count
}

fn expand_bits<T: Pod>(data: &mut [T], mask: &[Bool], src: &[T]) -> usize {
    let mut count = 0;
    for (data, mask) in data.chunks_mut(64).zip(mask.chunks(64)) {
        let mut left = bits(mask);
        while left != 0 {
            data[left.trailing_zeros() as usize] = src[count];
            count += 1;
            left &= left - 1;
        }
    }
    count
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::element::Bool;
    use std::arch::x86_64::*;

    macro_rules! kernels {
        ($t:ty, $lanes:literal, $compress:ident, $expand:ident, $mask:expr, $pack:ident, $spread:ident) => {
            /// See [`super::compress`]; slices of equal length, elements of this width.
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
            pub(super) fn $compress(data: &[$t], mask: &[u8], out: &mut [$t]) -> usize {
                let (mut at, mut count) = (0, 0);
                while at + $lanes <= data.len() && count + $lanes <= out.len() {
                    // SAFETY: the loop condition keeps both vectors inside their slices, and the mask is as
                    // long as the data.
                    unsafe {
                        let keep = $mask(mask.as_ptr().add(at));
                        let packed = $pack(keep, _mm512_loadu_si512(data.as_ptr().add(at).cast()));
                        _mm512_storeu_si512(out.as_mut_ptr().add(count).cast(), packed);
                        count += keep.count_ones() as usize;
                    }
                    at += $lanes;
                }
                let rest = bytemuck::cast_slice::<u8, Bool>(&mask[at..]);
                count + super::compress_bits(&data[at..], rest, &mut out[count..])
            }

            /// See [`super::expand`]; slices of equal length, elements of this width.
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
            pub(super) fn $expand(data: &mut [$t], mask: &[u8], src: &[$t]) -> usize {
                let (mut at, mut count) = (0, 0);
                while at + $lanes <= data.len() && count + $lanes <= src.len() {
                    // SAFETY: as in the packing loop.
                    unsafe {
                        let keep = $mask(mask.as_ptr().add(at));
                        let cell = data.as_mut_ptr().add(at);
                        let (old, new) = (
                            _mm512_loadu_si512(cell.cast()),
                            _mm512_loadu_si512(src.as_ptr().add(count).cast()),
                        );
                        _mm512_storeu_si512(cell.cast(), $spread(old, keep, new));
                        count += keep.count_ones() as usize;
                    }
                    at += $lanes;
                }
                let rest = bytemuck::cast_slice::<u8, Bool>(&mask[at..]);
                count + super::expand_bits(&mut data[at..], rest, &src[count..])
            }
        };
    }

    /// # Safety
    /// Sixteen bytes must be readable.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn mask_16(bytes: *const u8) -> u16 {
        // SAFETY: the caller's promise.
        let v = unsafe { _mm_loadu_si128(bytes.cast()) };
        _mm_test_epi8_mask(v, v)
    }

    /// # Safety
    /// Eight bytes must be readable.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn mask_8(bytes: *const u8) -> u8 {
        // SAFETY: the caller's promise.
        let v = unsafe { _mm_loadl_epi64(bytes.cast()) };
        _mm_test_epi8_mask(v, v) as u8
    }

    kernels!(u32, 16, compress_4, expand_4, mask_16, _mm512_maskz_compress_epi32, _mm512_mask_expand_epi32);
    kernels!(u64, 8, compress_8, expand_8, mask_8, _mm512_maskz_compress_epi64, _mm512_mask_expand_epi64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check<T: Pod + PartialEq + std::fmt::Debug>(data: &[T], mask: &[Bool]) {
        let want: Vec<T> = data.iter().zip(mask).filter(|(_, m)| m.get()).map(|(&v, _)| v).collect();
        for f in [compress::<T>, compress_bits::<T>] {
            let mut out = vec![T::zeroed(); want.len()];
            assert_eq!(f(data, mask, &mut out), want.len());
            assert_eq!(out, want);
        }
        for f in [expand::<T>, expand_bits::<T>] {
            let mut back = vec![T::zeroed(); data.len()];
            assert_eq!(f(&mut back, mask, &want), want.len());
            for ((b, d), m) in back.iter().zip(data).zip(mask) {
                assert_eq!(*b, if m.get() { *d } else { T::zeroed() });
            }
        }
    }

    proptest! {
        #[test]
        fn packing_and_spreading_agree_with_filters(mask in proptest::collection::vec(0u8..2, 0..300)) {
            let mask: Vec<Bool> = mask.into_iter().map(|m| Bool::new(m > 0)).collect();
            let n = mask.len();
            check(&(1..=n as u64).collect::<Vec<_>>(), &mask);
            check(&(1..=n as u32).collect::<Vec<_>>(), &mask);
            check(&(1..=n as u16).collect::<Vec<_>>(), &mask);
            check(&(0..n).map(|i| i as u8 | 1).collect::<Vec<_>>(), &mask);
        }
    }
}
