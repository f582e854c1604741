// Conversion from one element type to every other: -DS=f32 and so on.
//
//   to_<D>(Walk<2>, D* out, const S* x, u64 xv); grid-stride over positions, 256 threads; any grid.
#include "walk.cuh"

template <class D> struct Convert {
    DEVICE D operator()(S x) const { return To<D>::of(widen(x)); }
};

#define CAST(D) \
    KERNEL void to_##D(Walk<2> w, D* out, const S* x, u64 xv) { map1(w, out, x, xv, Convert<D>()); }
CAST(truth)
CAST(u8)
CAST(i8)
CAST(u16)
CAST(i16)
CAST(u32)
CAST(i32)
CAST(u64)
CAST(i64)
CAST(f16)
CAST(bf16)
CAST(f32)
CAST(f64)
CAST(f8e4m3)
CAST(f8e5m2)
