//! Asking the memory for a cache line before it is needed.
#![allow(unsafe_code)]

/// Starts loading the line that holds `data[at]`. Any `at` is fine: a prefetch never faults.
#[inline(always)]
pub(crate) fn prefetch<T>(data: &[T], at: usize) {
    let line = data.as_ptr().wrapping_add(at);
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: prefetching has no effect a program can see, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
