// Walking over views: which element of each operand belongs to position i of the common shape.
//
// The launcher merges dims, puts each operand's offset into its address and passes strides in elements. An operand
// that is one value of the host has no address: its bits come as an argument.
#pragma once
#include "number.cuh"

#define DIMS 8

template <int K> struct Walk {
    u64 numel;
    u64 ndim;
    u64 shape[DIMS];
    i64 stride[K][DIMS];
};

// Offsets of position i in every operand. Divisions are 32 bits wide where that is enough.
template <int K> DEVICE void locate(const Walk<K>& w, u64 i, i64 (&at)[K]) {
    for (int k = 0; k < K; k++) at[k] = 0;
    if (w.numel <= 0xffffffffull) {
        u32 rest = (u32)i;
#pragma unroll 1
        for (int d = (int)w.ndim - 1; d > 0; d--) {
            u32 size = (u32)w.shape[d], next = rest / size;
            i64 here = rest - next * size;
            for (int k = 0; k < K; k++) at[k] += here * w.stride[k][d];
            rest = next;
        }
        for (int k = 0; k < K; k++) at[k] += (i64)rest * w.stride[k][0];
        return;
    }
    u64 rest = i;
#pragma unroll 1
    for (int d = (int)w.ndim - 1; d > 0; d--) {
        u64 size = w.shape[d], next = rest / size;
        i64 here = (i64)(rest - next * size);
        for (int k = 0; k < K; k++) at[k] += here * w.stride[k][d];
        rest = next;
    }
    for (int k = 0; k < K; k++) at[k] += (i64)rest * w.stride[k][0];
}

// N elements moved at once.
template <class E, int N> struct alignas(sizeof(E) * N) Pack { E at[N]; };

// True when every operand is one dense run (or one value) and `out`, x and y start at multiples of a pack.
template <int K> DEVICE bool dense(const Walk<K>& w) {
    if (w.ndim != 1 || w.stride[0][0] != 1) return false;
    for (int k = 1; k < K; k++)
        if (w.stride[k][0] != 1 && w.stride[k][0] != 0) return false;
    return true;
}
template <class E, int N> DEVICE bool aligned(const E* p, i64 stride) {
    return stride == 0 || (u64)p % (sizeof(E) * N) == 0;
}

// N elements of an operand from position i on; a stride of 0 repeats one.
template <class E, int N> DEVICE Pack<E, N> fetch(const E* p, u64 bits, i64 stride, u64 i) {
    if (stride != 0) return *(const Pack<E, N>*)(p + i);
    Pack<E, N> pack;
    E value = p ? *p : from_word<E>(bits);
    for (int n = 0; n < N; n++) pack.at[n] = value;
    return pack;
}

// Elements a thread takes at once: up to 16 bytes, and up to four, which keeps kernels short.
#define PACK(E, O) (sizeof(E) > 4 || sizeof(O) > 4 ? 2 : 4)

#define FIRST ((u64)blockIdx.x * blockDim.x + threadIdx.x)
#define STEP ((u64)gridDim.x * blockDim.x)

// out = f(x)
template <class O, class E, class F> DEVICE void map1(const Walk<2>& w, O* out, const E* x, u64 xv, F f) {
    const int N = PACK(E, O);
    i64 sx = w.stride[1][0];
    if (dense(w) && aligned<O, N>(out, 1) && aligned<E, N>(x, sx)) {
        u64 packs = w.numel / N;
#pragma unroll 1
        for (u64 p = FIRST; p < packs; p += STEP) {
            Pack<E, N> a = fetch<E, N>(x, xv, sx, p * N);
            Pack<O, N> o;
#pragma unroll
            for (int n = 0; n < N; n++) o.at[n] = f(a.at[n]);
            *(Pack<O, N>*)(out + p * N) = o;
        }
#pragma unroll 1
        for (u64 i = packs * N + FIRST; i < w.numel; i += STEP) out[i] = f(sx && x ? x[i] : x ? *x : from_word<E>(xv));
        return;
    }
#pragma unroll 1
    for (u64 i = FIRST; i < w.numel; i += STEP) {
        i64 at[2];
        locate(w, i, at);
        out[at[0]] = f(x ? x[at[1]] : from_word<E>(xv));
    }
}

// out = f(x, y)
template <class O, class E, class F>
DEVICE void map2(const Walk<3>& w, O* out, const E* x, const E* y, u64 xv, u64 yv, F f) {
    const int N = PACK(E, O);
    i64 sx = w.stride[1][0], sy = w.stride[2][0];
    if (dense(w) && aligned<O, N>(out, 1) && aligned<E, N>(x, sx) && aligned<E, N>(y, sy)) {
        u64 packs = w.numel / N;
#pragma unroll 1
        for (u64 p = FIRST; p < packs; p += STEP) {
            Pack<E, N> a = fetch<E, N>(x, xv, sx, p * N), b = fetch<E, N>(y, yv, sy, p * N);
            Pack<O, N> o;
#pragma unroll
            for (int n = 0; n < N; n++) o.at[n] = f(a.at[n], b.at[n]);
            *(Pack<O, N>*)(out + p * N) = o;
        }
#pragma unroll 1
        for (u64 i = packs * N + FIRST; i < w.numel; i += STEP)
            out[i] = f(x ? x[sx * (i64)i] : from_word<E>(xv), y ? y[sy * (i64)i] : from_word<E>(yv));
        return;
    }
#pragma unroll 1
    for (u64 i = FIRST; i < w.numel; i += STEP) {
        i64 at[3];
        locate(w, i, at);
        out[at[0]] = f(x ? x[at[1]] : from_word<E>(xv), y ? y[at[2]] : from_word<E>(yv));
    }
}
