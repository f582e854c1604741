// Comparisons of two elements of one type: -DT=f32 and so on.
//
//   <name>(Walk<3>, truth* out, const T* x, const T* y, u64 xv, u64 yv); grid-stride, 256 threads; any grid.
#include "walk.cuh"

#define COMPARE(NAME, VALUE)                                                                   \
    struct Op_##NAME {                                                                         \
        DEVICE truth operator()(T a, T b) const {                                              \
            Wide<T>::type x = widen(a), y = widen(b);                                          \
            truth t;                                                                           \
            t.bits = (VALUE);                                                                  \
            return t;                                                                          \
        }                                                                                      \
    };                                                                                         \
    KERNEL void NAME(Walk<3> w, truth* out, const T* x, const T* y, u64 xv, u64 yv) {          \
        map2(w, out, x, y, xv, yv, Op_##NAME());                                               \
    }

COMPARE(eq, x == y)
COMPARE(ne, x != y)
COMPARE(lt, x < y)
COMPARE(le, x <= y)
COMPARE(gt, x > y)
COMPARE(ge, x >= y)
