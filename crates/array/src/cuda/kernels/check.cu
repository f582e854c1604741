// Checks of values that are reported late: -DT=i32 and so on.
#include "walk.cuh"
#include "late.cuh"

// Integers that divide must not be zero.
KERNEL void no_zero(Walk<1> w, const T* x, u64* slot) {
    for (u64 i = FIRST; i < w.numel; i += STEP) {
        i64 at[1];
        locate(w, i, at);
        if (widen(x[at[0]]) == 0) report(slot, i, 0);
    }
}

// Integers must lie in 0 .. size; with `skipping` also `skip` is right.
KERNEL void within(Walk<1> w, const T* x, u64 size, i64 skip, u32 skipping, u64* slot) {
    for (u64 i = FIRST; i < w.numel; i += STEP) {
        i64 at[1];
        locate(w, i, at);
        const i64 value = (i64)widen(x[at[0]]);
        if ((u64)value >= size && !(skipping && value == skip)) report(slot, i, value);
    }
}
