//! One source, three instruction sets: plain loops compiled for baseline, AVX2 and AVX-512, chosen at run time.
//!
//! A kernel written inside [`simd!`] is an ordinary safe loop that the compiler vectorises; the macro compiles
//! it again with wider instructions enabled and picks by what the CPU has. Reductions spell out their lanes, so
//! every level gives the same bits.
#![allow(unsafe_code)]

pub(crate) use planaria_cpu::{Level, level};

/// Whether a kernel with these generic types has an AVX-512 form. Those of eight-byte elements do not: they have few
/// lanes to gain, and one form less is a good part of the build.
#[cfg(target_arch = "x86_64")]
pub(crate) const fn has_v4<G>() -> bool {
    size_of::<G>() != 8
}

/// Declares kernels that are compiled once per [`Level`] and chosen at each call.
macro_rules! simd {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident $(<$($g:ident : $bound:path),+>)? ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)+) => {$(
        $(#[$meta])*
        #[allow(unsafe_code, clippy::extra_unused_type_parameters)]
        $vis fn $name $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
            fn v3 $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? { body $(::<$($g),+>)? ($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
            fn v4 $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? { body $(::<$($g),+>)? ($($arg),*) }
            match $crate::cpu::simd::level() {
                // SAFETY: `level` returned V4 only after detecting every feature that `v4` enables.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::simd::Level::V4 if const { true $($(&& $crate::cpu::simd::has_v4::<$g>())+)? } => unsafe {
                    v4 $(::<$($g),+>)? ($($arg),*)
                },
                // SAFETY: `level` returned V3 or V4 only after detecting every feature that `v3` enables.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::simd::Level::V3 | $crate::cpu::simd::Level::V4 => unsafe { v3 $(::<$($g),+>)? ($($arg),*) },
                _ => body $(::<$($g),+>)? ($($arg),*),
            }
        }
    )+};
}

/// Like [`simd!`] without the AVX-512 copy: for kernels that are bound by memory or rarely used.
macro_rules! simd_v3 {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident $(<$($g:ident : $bound:path),+>)? ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)+) => {$(
        $(#[$meta])*
        #[allow(unsafe_code)]
        $vis fn $name $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
            fn v3 $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? { body $(::<$($g),+>)? ($($arg),*) }
            match $crate::cpu::simd::level() {
                $crate::cpu::simd::Level::Baseline => body $(::<$($g),+>)? ($($arg),*),
                // SAFETY: every level above the baseline has the features that `v3` enables.
                #[cfg(target_arch = "x86_64")]
                _ => unsafe { v3 $(::<$($g),+>)? ($($arg),*) },
                #[cfg(not(target_arch = "x86_64"))]
                _ => body $(::<$($g),+>)? ($($arg),*),
            }
        }
    )+};
}

/// The form of [`simd!`] for kernels that gain nothing from it: declares plain functions.
macro_rules! scalar {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident $(<$($g:ident : $bound:path),+>)? ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)+) => {$(
        $(#[$meta])*
        $vis fn $name $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? $body
    )+};
}
pub(crate) use {scalar, simd, simd_v3};
