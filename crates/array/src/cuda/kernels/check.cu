// Checks of values: -DT=i32 and so on.
//
//   no_zero(Walk<1>, const T* x, u64* slot): reports the first zero; grid-stride, 256 threads; any grid.
#include "walk.cuh"
#include "late.cuh"

KERNEL void no_zero(Walk<1> w, const T* x, u64* slot) {
    for (u64 i = FIRST; i < w.numel; i += STEP) {
        i64 at[1];
        locate(w, i, at);
        if (widen(x[at[0]]) == 0) report(slot, i, 0);
    }
}
