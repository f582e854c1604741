//! Shuffles of registers that the compiler does not find by itself.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

/// Rows of a block, and elements of a row.
const SIDE: usize = 16;

/// Transposes 16 by 16: pairs, then quads, then 128-bit quarters in two steps.
///
/// # Safety
/// The CPU has AVX-512.
#[inline(always)]
pub unsafe fn transpose(block: &mut [__m512; SIDE]) {
    let mut t = *block;
    // SAFETY: register shuffles only; the caller's CPU has AVX-512.
    unsafe {
        for i in 0..8 {
            t[2 * i] = _mm512_unpacklo_ps(block[2 * i], block[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_ps(block[2 * i], block[2 * i + 1]);
        }
        let mut q = t;
        for i in 0..4 {
            for (half, (lo, hi)) in [(4 * i, 4 * i + 2), (4 * i + 1, 4 * i + 3)].into_iter().enumerate() {
                let (a, b) = (_mm512_castps_pd(t[lo]), _mm512_castps_pd(t[hi]));
                q[4 * i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                q[4 * i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
            }
        }
        for c in 0..4 {
            let [x, y, z, w] = [q[c], q[4 + c], q[8 + c], q[12 + c]];
            let (xy_even, xy_odd) = (_mm512_shuffle_f32x4::<0x88>(x, y), _mm512_shuffle_f32x4::<0xdd>(x, y));
            let (zw_even, zw_odd) = (_mm512_shuffle_f32x4::<0x88>(z, w), _mm512_shuffle_f32x4::<0xdd>(z, w));
            block[c] = _mm512_shuffle_f32x4::<0x88>(xy_even, zw_even);
            block[4 + c] = _mm512_shuffle_f32x4::<0x88>(xy_odd, zw_odd);
            block[8 + c] = _mm512_shuffle_f32x4::<0xdd>(xy_even, zw_even);
            block[12 + c] = _mm512_shuffle_f32x4::<0xdd>(xy_odd, zw_odd);
        }
    }
}
