// Folds over any dims: -DT=f32 and so on. What is folded together follows from extents and strides alone, never from the
// size of the device.
//
//   <name>(Walk<1> kept, Walk<1> inner, u64 tile, u64 tiles, const T* x, A* out):
//       out[o * tiles + t] = fold of positions t * tile .. (t + 1) * tile of `inner` at position o of `kept`;
//       one block of 256 threads for each result, grid-stride.
//   <name>_each(the same): one thread for each result, grid-stride, 256 threads.
// A is f32 or f64 for floats, i64 or u64 for integers, i64 for any, all and count. The partial results of a first pass are
// folded by a second one with -DT=A.
#include "walk.cuh"

typedef Wide<T>::type R;

#define THREADS 256

template <class A> DEVICE bool not_a_number(A x) { return x != x; }

struct Add {
    template <class A> static DEVICE A join(A x, A y) { return x + y; }
};
struct AddWhole {
    template <class A> static DEVICE A join(A x, A y) { return (A)((u64)x + (u64)y); }
};
struct Multiply {
    template <class A> static DEVICE A join(A x, A y) { return x * y; }
};
struct MultiplyWhole {
    template <class A> static DEVICE A join(A x, A y) { return (A)((u64)x * (u64)y); }
};
// NaN wins.
struct Larger {
    template <class A> static DEVICE A join(A x, A y) { return x > y || not_a_number(x) ? x : y; }
};
struct Smaller {
    template <class A> static DEVICE A join(A x, A y) { return x < y || not_a_number(x) ? x : y; }
};

template <class A, class J, class L>
DEVICE void fold_block(const Walk<1>& kept, const Walk<1>& inner, u64 tile, u64 tiles, const T* x, A* out, A start, L load) {
    __shared__ A room[THREADS];
    u64 results = kept.numel * tiles;
    for (u64 r = blockIdx.x; r < results; r += gridDim.x) {
        i64 base[1], at[1];
        locate(kept, r / tiles, base);
        u64 begin = r % tiles * tile, end = begin + tile < inner.numel ? begin + tile : inner.numel;
        A sum = start;
        for (u64 i = begin + threadIdx.x; i < end; i += THREADS) {
            locate(inner, i, at);
            sum = J::join(sum, load(x[base[0] + at[0]]));
        }
        room[threadIdx.x] = sum;
        __syncthreads();
        for (int half = THREADS / 2; half > 0; half /= 2) {
            if ((int)threadIdx.x < half) room[threadIdx.x] = J::join(room[threadIdx.x], room[threadIdx.x + half]);
            __syncthreads();
        }
        if (threadIdx.x == 0) out[r] = room[0];
        __syncthreads();
    }
}

template <class A, class J, class L>
DEVICE void fold_each(const Walk<1>& kept, const Walk<1>& inner, u64 tile, u64 tiles, const T* x, A* out, A start, L load) {
    u64 results = kept.numel * tiles;
    // Neighbours take neighbouring places of `kept`, whose elements lie next to each other.
    for (u64 n = FIRST; n < results; n += STEP) {
        u64 o = n % kept.numel, t = n / kept.numel;
        i64 base[1], at[1];
        locate(kept, o, base);
        u64 begin = t * tile, end = begin + tile < inner.numel ? begin + tile : inner.numel;
        A sum = start;
        for (u64 i = begin; i < end; i++) {
            locate(inner, i, at);
            sum = J::join(sum, load(x[base[0] + at[0]]));
        }
        out[o * tiles + t] = sum;
    }
}

#define FOLD(NAME, A, JOIN, START, VALUE)                                                                         \
    struct Load_##NAME {                                                                                          \
        DEVICE A operator()(T in) const {                                                                         \
            R x = widen(in);                                                                                      \
            return (A)(VALUE);                                                                                    \
        }                                                                                                         \
    };                                                                                                            \
    KERNEL void NAME(Walk<1> kept, Walk<1> inner, u64 tile, u64 tiles, const T* x, A* out) {                      \
        fold_block<A, JOIN>(kept, inner, tile, tiles, x, out, (A)(START), Load_##NAME());                         \
    }                                                                                                             \
    KERNEL void NAME##_each(Walk<1> kept, Walk<1> inner, u64 tile, u64 tiles, const T* x, A* out) {               \
        fold_each<A, JOIN>(kept, inner, tile, tiles, x, out, (A)(START), Load_##NAME());                          \
    }

#if FLOAT
FOLD(sum, R, Add, 0, x)
FOLD(squares, R, Add, 0, x* x)
FOLD(product, R, Multiply, 1, x)
FOLD(largest, R, Larger, -float_of(0x7f800000u), x)
FOLD(smallest, R, Smaller, float_of(0x7f800000u), x)
#else
#define LEAST (sizeof(R) == 8 && (R)-1 > 0 ? (R)0 : (R)0x8000000000000000ull)
#define MOST (sizeof(R) == 8 && (R)-1 > 0 ? (R)0xffffffffffffffffull : (R)0x7fffffffffffffffull)
FOLD(sum, i64, AddWhole, 0, x)
FOLD(product, i64, MultiplyWhole, 1, x)
FOLD(largest, R, Larger, LEAST, x)
FOLD(smallest, R, Smaller, MOST, x)
#endif
FOLD(any, i64, Larger, 0, x != 0)
FOLD(all, i64, Smaller, 1, x != 0)
FOLD(count, i64, AddWhole, 0, x != 0)

static DEVICE bool equal(R x, R y) { return x == y || (not_a_number(x) && not_a_number(y)); }

// Where an extreme stands:
//   first_equal(kept, inner, tile, tiles, x, const R* want, i64* out) and first_equal_each: the place in `inner`, or the
//   greatest i64 where the tile has none.
KERNEL void first_equal(Walk<1> kept, Walk<1> inner, u64 tile, u64 tiles, const T* x, const R* want, i64* out) {
    __shared__ i64 room[THREADS];
    for (u64 r = blockIdx.x; r < kept.numel * tiles; r += gridDim.x) {
        i64 base[1], at[1], first = 0x7fffffffffffffffll;
        locate(kept, r / tiles, base);
        u64 begin = r % tiles * tile, end = begin + tile < inner.numel ? begin + tile : inner.numel;
        for (u64 i = begin + threadIdx.x; i < end; i += THREADS) {
            locate(inner, i, at);
            if (equal(widen(x[base[0] + at[0]]), want[r / tiles])) {
                first = (i64)i;
                break;
            }
        }
        room[threadIdx.x] = first;
        __syncthreads();
        for (int half = THREADS / 2; half > 0; half /= 2) {
            if ((int)threadIdx.x < half) room[threadIdx.x] = Smaller::join(room[threadIdx.x], room[threadIdx.x + half]);
            __syncthreads();
        }
        if (threadIdx.x == 0) out[r] = room[0];
        __syncthreads();
    }
}

KERNEL void first_equal_each(Walk<1> kept, Walk<1> inner, u64 tile, u64 tiles, const T* x, const R* want, i64* out) {
    for (u64 n = FIRST; n < kept.numel * tiles; n += STEP) {
        u64 o = n % kept.numel, t = n / kept.numel;
        i64 base[1], at[1], first = 0x7fffffffffffffffll;
        locate(kept, o, base);
        u64 begin = t * tile, end = begin + tile < inner.numel ? begin + tile : inner.numel;
        for (u64 i = begin; i < end; i++) {
            locate(inner, i, at);
            if (equal(widen(x[base[0] + at[0]]), want[o])) {
                first = (i64)i;
                break;
            }
        }
        out[o * tiles + t] = first;
    }
}
