//! Asking the memory for a cache line before it is needed, to read it or to write it.
#![allow(unsafe_code)]

/// Starts loading the line that holds `data[at]`. Any `at` is fine.
#[inline(always)]
pub fn prefetch<T>(data: &[T], at: usize) {
    prefetch_at(data.as_ptr().wrapping_add(at));
}

/// Starts loading the line at `place`. Any address is fine: a prefetch never faults.
#[inline(always)]
pub fn prefetch_at<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: prefetching has no effect a program can see, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Starts taking the line at `place` for this core alone, as a store to it will need. Any address is fine.
#[inline(always)]
#[allow(
    clippy::pointers_in_nomem_asm_block,
    reason = "a prefetch neither reads nor writes what a program can see"
)]
pub fn claim<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above; CPUs without the instruction take it for none at all.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) place, options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
