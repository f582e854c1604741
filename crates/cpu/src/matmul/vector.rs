//! The few vector operations the matrix kernels are written in, for each instruction set.
#![allow(unsafe_code)]

use half::{bf16, f16};

/// A register of `LANES` accumulator elements.
///
/// # Safety
/// Every method may only be called where the CPU has the instructions of the implementing type;
/// pointers must be valid for the elements named.
pub(super) trait Vector: Copy {
    /// The accumulator type of a lane.
    type Elem: Acc;
    /// Elements in one register.
    const LANES: usize;
    /// All lanes zero.
    unsafe fn zero() -> Self;
    /// All lanes `x`.
    unsafe fn splat(x: Self::Elem) -> Self;
    /// Loads `LANES` elements.
    unsafe fn load(src: *const Self::Elem) -> Self;
    /// Stores `LANES` elements.
    unsafe fn store(self, dst: *mut Self::Elem);
    /// Loads the first `count` lanes, at most all; the others are arbitrary.
    #[inline(always)]
    unsafe fn load_first(src: *const Self::Elem, count: usize) -> Self {
        let mut part = [Self::Elem::default(); MAX_LANES];
        // SAFETY: the caller gives `count` elements, which are at most a register.
        unsafe {
            std::ptr::copy_nonoverlapping(src, part.as_mut_ptr(), count);
            Self::load(part.as_ptr())
        }
    }
    /// Stores the first `count` lanes, at most all.
    #[inline(always)]
    unsafe fn store_first(self, dst: *mut Self::Elem, count: usize) {
        let mut part = [Self::Elem::default(); MAX_LANES];
        // SAFETY: the caller has room for `count` elements, which are at most a register.
        unsafe {
            self.store(part.as_mut_ptr());
            std::ptr::copy_nonoverlapping(part.as_ptr(), dst, count);
        }
    }
    /// `a * b + self`, rounded once where the CPU can.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    /// `self + other`.
    unsafe fn add(self, other: Self) -> Self;
    /// Transposes the `LANES` by `LANES` block held in the first `LANES` registers.
    #[inline(always)]
    unsafe fn transpose(block: &mut [Self; MAX_LANES]) {
        let mut flat = [Self::Elem::default(); MAX_LANES * MAX_LANES];
        for r in 0..Self::LANES {
            // SAFETY: row r of `flat` holds at least LANES elements.
            unsafe { block[r].store(flat.as_mut_ptr().add(r * MAX_LANES)) };
        }
        for c in 0..Self::LANES {
            let mut column = [Self::Elem::default(); MAX_LANES];
            for r in 0..Self::LANES {
                column[r] = flat[r * MAX_LANES + c];
            }
            // SAFETY: `column` holds at least LANES elements.
            block[c] = unsafe { Self::load(column.as_ptr()) };
        }
    }
}

/// Elements of the widest register.
pub(super) const MAX_LANES: usize = 16;

/// An element type that can be loaded as lanes of `V`.
///
/// # Safety
/// As for [`Vector`]; `src` must be valid for `V::LANES` (or `len`) elements.
pub(super) trait Lanes<V: Vector>: Element<Acc = V::Elem> {
    /// Loads and widens `LANES` elements.
    unsafe fn load(src: *const Self) -> V;
    /// Loads and widens the first `count` elements, at most `LANES`; the other lanes are arbitrary.
    #[inline(always)]
    unsafe fn load_first(src: *const Self, count: usize) -> V {
        let mut part = [Self::narrow(V::Elem::default()); MAX_LANES];
        // SAFETY: the caller gives `count` elements, which are at most a register.
        unsafe {
            std::ptr::copy_nonoverlapping(src, part.as_mut_ptr(), count);
            Self::load(part.as_ptr())
        }
    }
}

/// The type sums are kept in.
pub(super) trait Acc: Element<Acc = Self> + Default + std::ops::Add<Output = Self> {
    /// `a * b + self`, rounded once where the CPU can.
    fn fma(self, a: Self, b: Self) -> Self;
}

/// A matrix element.
pub trait Element: Copy + Send + Sync + 'static {
    /// The type sums are kept in.
    #[allow(private_bounds)]
    type Acc: Acc;
    /// Exact conversion to the accumulator type.
    fn widen(self) -> Self::Acc;
    /// Rounds to nearest even.
    fn narrow(acc: Self::Acc) -> Self;
}

macro_rules! accumulators {
    ($($t:ty),*) => {$(
        impl Element for $t {
            type Acc = $t;
            #[inline(always)]
            fn widen(self) -> $t { self }
            #[inline(always)]
            fn narrow(acc: $t) -> $t { acc }
        }
        impl Acc for $t {
            #[inline(always)]
            fn fma(self, a: $t, b: $t) -> $t {
                // Without the instruction `mul_add` is a slow library call.
                if cfg!(any(target_arch = "aarch64", target_feature = "fma")) { a.mul_add(b, self) } else { a * b + self }
            }
        }
    )*};
}
accumulators!(f32, f64);

macro_rules! narrow_elements {
    ($($t:ty),*) => {$(
        impl Element for $t {
            type Acc = f32;
            #[inline(always)]
            fn widen(self) -> f32 { self.to_f32() }
            #[inline(always)]
            fn narrow(acc: f32) -> $t { <$t>::from_f32(acc) }
        }
    )*};
}
narrow_elements!(f16, bf16);

/// A register spelt as an array: the compiler maps it to whatever the target has.
#[derive(Clone, Copy)]
pub(super) struct Plain<T, const N: usize>([T; N]);

impl<T: Acc, const N: usize> Vector for Plain<T, N> {
    type Elem = T;
    const LANES: usize = N;
    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([T::default(); N])
    }
    #[inline(always)]
    unsafe fn splat(x: T) -> Self {
        Self([x; N])
    }
    #[inline(always)]
    unsafe fn load(src: *const T) -> Self {
        // SAFETY: the caller gives N valid elements.
        Self(unsafe { src.cast::<[T; N]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, dst: *mut T) {
        // SAFETY: the caller gives room for N elements.
        unsafe { dst.cast::<[T; N]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].fma(a.0[i], b.0[i])))
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] + other.0[i]))
    }
}

impl<E: Element, const N: usize> Lanes<Plain<E::Acc, N>> for E {
    #[inline(always)]
    unsafe fn load(src: *const E) -> Plain<E::Acc, N> {
        // SAFETY: the caller gives N valid elements.
        Plain(unsafe { src.cast::<[E; N]>().read_unaligned() }.map(E::widen))
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    //! AVX2 and AVX-512 registers.
    use super::{Lanes, Vector};
    use crate::registers::transpose;
    use half::{bf16, f16};
    use std::arch::x86_64::*;

    macro_rules! register {
        ($name:ident, $reg:ty, $elem:ty, $lanes:literal, $zero:ident, $set1:ident, $load:ident, $store:ident, $fma:ident, $add:ident, $first:ident, $load_first:ident, $store_first:ident $(, $transpose:ident)?) => {
            #[derive(Clone, Copy)]
            pub(in super::super) struct $name(pub(in super::super) $reg);

            impl Vector for $name {
                type Elem = $elem;
                const LANES: usize = $lanes;
                #[inline(always)]
                unsafe fn zero() -> Self {
                    // SAFETY: the caller's CPU has the instruction.
                    Self(unsafe { $zero() })
                }
                #[inline(always)]
                unsafe fn splat(x: $elem) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $set1(x) })
                }
                #[inline(always)]
                unsafe fn load(src: *const $elem) -> Self {
                    // SAFETY: as above; the pointer is the caller's promise.
                    Self(unsafe { $load(src) })
                }
                #[inline(always)]
                unsafe fn store(self, dst: *mut $elem) {
                    // SAFETY: as above.
                    unsafe { $store(dst, self.0) }
                }
                #[inline(always)]
                unsafe fn load_first(src: *const $elem, count: usize) -> Self {
                    // SAFETY: as above; lanes past `count` are not read.
                    Self(unsafe { $load_first(src, $first(count)) })
                }
                #[inline(always)]
                unsafe fn store_first(self, dst: *mut $elem, count: usize) {
                    // SAFETY: as above; lanes past `count` are not written.
                    unsafe { $store_first(dst, $first(count), self.0) }
                }
                #[inline(always)]
                unsafe fn fma(self, a: Self, b: Self) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $fma(a.0, b.0, self.0) })
                }
                #[inline(always)]
                unsafe fn add(self, other: Self) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $add(self.0, other.0) })
                }
                $(
                #[inline(always)]
                unsafe fn transpose(block: &mut [Self; super::MAX_LANES]) {
                    // SAFETY: as above.
                    unsafe { $transpose(block) }
                }
                )?
            }

            impl Lanes<$name> for $elem {
                #[inline(always)]
                unsafe fn load(src: *const $elem) -> $name {
                    // SAFETY: the caller's promise.
                    unsafe { <$name as Vector>::load(src) }
                }
                #[inline(always)]
                unsafe fn load_first(src: *const $elem, count: usize) -> $name {
                    // SAFETY: the caller's promise.
                    unsafe { <$name as Vector>::load_first(src, count) }
                }
            }
        };
    }

    /// A mask of the first `count` lanes.
    #[inline(always)]
    unsafe fn first_16(count: usize) -> __mmask16 {
        ((1u32 << count) - 1) as __mmask16
    }

    /// As [`first_16`], for eight lanes.
    #[inline(always)]
    unsafe fn first_8(count: usize) -> __mmask8 {
        ((1u32 << count) - 1) as __mmask8
    }

    /// As [`first_16`], for the masks of AVX2.
    #[inline(always)]
    unsafe fn first_8x32(count: usize) -> __m256i {
        // SAFETY: register operations; the caller's CPU has AVX2.
        unsafe {
            _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
        }
    }

    /// As [`first_8x32`], for four lanes.
    #[inline(always)]
    unsafe fn first_4x64(count: usize) -> __m256i {
        // SAFETY: register operations; the caller's CPU has AVX2.
        unsafe { _mm256_cmpgt_epi64(_mm256_set1_epi64x(count as i64), _mm256_setr_epi64x(0, 1, 2, 3)) }
    }

    #[inline(always)]
    unsafe fn load_16(src: *const f32, mask: __mmask16) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_maskz_loadu_ps(mask, src) }
    }

    #[inline(always)]
    unsafe fn load_8(src: *const f64, mask: __mmask8) -> __m512d {
        // SAFETY: the caller's promise.
        unsafe { _mm512_maskz_loadu_pd(mask, src) }
    }
    register!(
        F32x16,
        __m512,
        f32,
        16,
        _mm512_setzero_ps,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_fmadd_ps,
        _mm512_add_ps,
        first_16,
        load_16,
        _mm512_mask_storeu_ps,
        transpose_16
    );
    register!(
        F64x8,
        __m512d,
        f64,
        8,
        _mm512_setzero_pd,
        _mm512_set1_pd,
        _mm512_loadu_pd,
        _mm512_storeu_pd,
        _mm512_fmadd_pd,
        _mm512_add_pd,
        first_8,
        load_8,
        _mm512_mask_storeu_pd,
        transpose_8x64
    );
    register!(
        F32x8,
        __m256,
        f32,
        8,
        _mm256_setzero_ps,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_fmadd_ps,
        _mm256_add_ps,
        first_8x32,
        _mm256_maskload_ps,
        _mm256_maskstore_ps,
        transpose_8
    );
    register!(
        F64x4,
        __m256d,
        f64,
        4,
        _mm256_setzero_pd,
        _mm256_set1_pd,
        _mm256_loadu_pd,
        _mm256_storeu_pd,
        _mm256_fmadd_pd,
        _mm256_add_pd,
        first_4x64,
        _mm256_maskload_pd,
        _mm256_maskstore_pd,
        transpose_4x64
    );

    /// 16x16.
    #[inline(always)]
    pub(in super::super) unsafe fn transpose_16(block: &mut [F32x16; 16]) {
        let mut rows = block.map(|row| row.0);
        // SAFETY: the caller's CPU has AVX-512.
        unsafe { transpose(&mut rows) };
        *block = rows.map(F32x16);
    }

    /// 8x8 in the first half of the block.
    #[inline(always)]
    unsafe fn transpose_8(block: &mut [F32x8; 16]) {
        // SAFETY: register shuffles only; the caller's CPU has AVX2.
        unsafe {
            let mut q = *block;
            for i in 0..2 {
                let [a, b, c, d] = std::array::from_fn(|r| block[4 * i + r].0);
                let (ab_lo, ab_hi) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                let (cd_lo, cd_hi) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
                q[4 * i].0 = _mm256_shuffle_ps::<0x44>(ab_lo, cd_lo);
                q[4 * i + 1].0 = _mm256_shuffle_ps::<0xee>(ab_lo, cd_lo);
                q[4 * i + 2].0 = _mm256_shuffle_ps::<0x44>(ab_hi, cd_hi);
                q[4 * i + 3].0 = _mm256_shuffle_ps::<0xee>(ab_hi, cd_hi);
            }
            for c in 0..4 {
                block[c].0 = _mm256_permute2f128_ps::<0x20>(q[c].0, q[4 + c].0);
                block[4 + c].0 = _mm256_permute2f128_ps::<0x31>(q[c].0, q[4 + c].0);
            }
        }
    }

    /// 8x8 of f64 in the first half of the block.
    #[inline(always)]
    unsafe fn transpose_8x64(block: &mut [F64x8; 16]) {
        // SAFETY: register shuffles only; the caller's CPU has AVX-512.
        unsafe {
            for h in 0..2 {
                // Columns 2q + h of two rows each, in quarter q.
                let [x, y, z, w] = std::array::from_fn(|i| {
                    let (a, b) = (block[2 * i].0, block[2 * i + 1].0);
                    if h == 0 { _mm512_unpacklo_pd(a, b) } else { _mm512_unpackhi_pd(a, b) }
                });
                let (xy_even, xy_odd) =
                    (_mm512_shuffle_f64x2::<0x88>(x, y), _mm512_shuffle_f64x2::<0xdd>(x, y));
                let (zw_even, zw_odd) =
                    (_mm512_shuffle_f64x2::<0x88>(z, w), _mm512_shuffle_f64x2::<0xdd>(z, w));
                block[8 + h].0 = _mm512_shuffle_f64x2::<0x88>(xy_even, zw_even);
                block[10 + h].0 = _mm512_shuffle_f64x2::<0x88>(xy_odd, zw_odd);
                block[12 + h].0 = _mm512_shuffle_f64x2::<0xdd>(xy_even, zw_even);
                block[14 + h].0 = _mm512_shuffle_f64x2::<0xdd>(xy_odd, zw_odd);
            }
        }
        block.copy_within(8.., 0);
    }

    /// 4x4 of f64 in the first quarter of the block.
    #[inline(always)]
    unsafe fn transpose_4x64(block: &mut [F64x4; 16]) {
        // SAFETY: register shuffles only; the caller's CPU has AVX2.
        unsafe {
            let [a, b, c, d] = std::array::from_fn(|r| block[r].0);
            let (ab_lo, ab_hi) = (_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b));
            let (cd_lo, cd_hi) = (_mm256_unpacklo_pd(c, d), _mm256_unpackhi_pd(c, d));
            block[0].0 = _mm256_permute2f128_pd::<0x20>(ab_lo, cd_lo);
            block[1].0 = _mm256_permute2f128_pd::<0x20>(ab_hi, cd_hi);
            block[2].0 = _mm256_permute2f128_pd::<0x31>(ab_lo, cd_lo);
            block[3].0 = _mm256_permute2f128_pd::<0x31>(ab_hi, cd_hi);
        }
    }

    impl Lanes<F32x16> for bf16 {
        #[inline(always)]
        unsafe fn load(src: *const bf16) -> F32x16 {
            // SAFETY: the caller gives 16 elements and a CPU with AVX-512.
            F32x16(unsafe {
                let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(src.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
            })
        }
    }

    impl Lanes<F32x8> for bf16 {
        #[inline(always)]
        unsafe fn load(src: *const bf16) -> F32x8 {
            // SAFETY: the caller gives 8 elements and a CPU with AVX2.
            F32x8(unsafe {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(src.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
            })
        }
    }

    impl Lanes<F32x16> for f16 {
        #[inline(always)]
        unsafe fn load(src: *const f16) -> F32x16 {
            // SAFETY: the caller gives 16 elements and a CPU with AVX-512.
            F32x16(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(src.cast())) })
        }
    }

    impl Lanes<F32x8> for f16 {
        #[inline(always)]
        unsafe fn load(src: *const f16) -> F32x8 {
            // SAFETY: the caller gives 8 elements and a CPU with F16C.
            F32x8(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(src.cast())) })
        }
    }
}
