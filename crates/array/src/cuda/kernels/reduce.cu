// Reductions in a fixed order: sums, products, extremes and where they are, any, all; over rows, columns or everything.
//
// A row is cut into tiles of 4096 elements; a tile is reduced by a tree over its threads, and tiles are joined in order. So the bits follow
// from the extents alone.
//
// reduce_rows(x, rows, cols, tiles, parts, places, out, at, scale)
//   grid min(rows * tiles, any) (strides), block 256; tiles = ceil(cols / 4096). With one tile writes out (and at), else parts (and places),
//   both [rows, tiles].
// reduce_tiles(parts, places, rows, tiles, out, at, scale)      after it, where tiles > 1: grid min(rows, any) (strides), block 256
// reduce_columns(x, outer, count, inner, tiles, parts, places, out, at, scale)
//   x is [outer, count, inner], reduced over count: grid (ceil(inner / 32), outer * tiles), block 256; tiles = ceil(count / 256).
//   Parts [outer, tiles, inner].
// reduce_column_tiles(parts, places, outer, tiles, inner, out, at, scale)   after it, where tiles > 1: grid any (strides), block 256
//   Results are multiplied by `scale` (1, or one over the count for means). at: i64, the first place of an extreme.
//   Of nothing: zero, one, and (extremes) the least or greatest value; a NaN is an extreme.
//
// Defines: ELEMENT, OUT (types), OP (0 sum, 1 product, 2 max, 3 min, 4 any, 5 all), MAP (0 none, 1 square, 2 magnitude), PLACE (1: extremes
//   with their places), LEAST, GREATEST (of ELEMENT, for extremes of nothing).
#include "prelude.cuh"

typedef ELEMENT T;
typedef Real<T>::type R;

struct Found {
    R value;
    i64 place;
};

static DEVICE Found nothing() {
    Found f;
    f.value = OP == 0 || OP == 4 ? (R)0 : OP == 1 || OP == 5 ? (R)1 : OP == 2 ? (R)(LEAST) : (R)(GREATEST);
    f.place = 0x7fffffffffffffffll;
    return f;
}
static DEVICE R mapped(T x) {
    const R v = widen(x);
    if (OP == 4 || OP == 5) return v != (R)0 ? (R)1 : (R)0;
    return MAP == 1 ? v * v : MAP == 2 ? (v < (R)0 ? -v : v) : v;
}
// `a` before `b`: of equal extremes the lower place stays.
static DEVICE Found join(const Found& a, const Found& b) {
    Found f = a;
    if (OP == 0) f.value = a.value + b.value;
    if (OP == 1) f.value = a.value * b.value;
    if (OP == 4) f.value = a.value != (R)0 || b.value != (R)0 ? (R)1 : (R)0;
    if (OP == 5) f.value = a.value != (R)0 && b.value != (R)0 ? (R)1 : (R)0;
    if (OP == 2 || OP == 3) {
        const bool odd_a = a.value != a.value, odd_b = b.value != b.value;
        const bool better = OP == 2 ? b.value > a.value : b.value < a.value;
        const bool same = b.value == a.value || (odd_a && odd_b);
        if (same ? b.place < a.place : odd_b || (!odd_a && better)) f = b;
    }
    return f;
}
static DEVICE Found across(Found f) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        Found other;
        other.value = __shfl_down_sync(~0u, f.value, step);
        if (PLACE) other.place = __shfl_down_sync(~0u, f.place, step);
        f = join(f, other);
    }
    return f;
}
static DEVICE void write(const Found& f, OUT* out, i64* at, i64 i, f64 scale) {
    R v = f.value;
    if (scale != 1) v = (R)(v * (R)scale);
    if (out) out[i] = narrow<OUT>((Real<OUT>::type)v);
    if (PLACE) at[i] = f.place;
}

static const int TILE = 4096, EACH = TILE / 256;

KERNEL void __launch_bounds__(256) reduce_rows(
    const T* x, i64 rows, i64 cols, i64 tiles, R* parts, i64* places, OUT* out, i64* at, f64 scale) {
    __shared__ R values[8];
    __shared__ i64 where[8];
    for (i64 unit = blockIdx.x; unit < rows * tiles; unit += gridDim.x) {
        const i64 row = unit / tiles, first = unit % tiles * TILE;
        const T* from = x + row * cols;
        Found f = nothing();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const i64 c = first + i * 256 + threadIdx.x;
            if (c < cols) {
                const Found one = {mapped(from[c]), c};
                f = join(f, one);
            }
        }
        f = across(f);
        __syncthreads();
        if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = f.value, where[threadIdx.x / 32] = f.place;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int w = 1; w < 8; w++) {
                const Found one = {values[w], where[w]};
                f = join(f, one);
            }
            if (tiles == 1) {
                write(f, out, at, row, scale);
            } else {
                parts[unit] = f.value;
                if (PLACE) places[unit] = f.place;
            }
        }
    }
}

KERNEL void __launch_bounds__(256) reduce_tiles(const R* parts, const i64* places, i64 rows, i64 tiles, OUT* out, i64* at, f64 scale) {
    __shared__ R values[8];
    __shared__ i64 where[8];
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        // Threads take stretches of tiles, in order; then threads in order.
        const i64 each = (tiles + 255) / 256, from = threadIdx.x * each, to = from + each < tiles ? from + each : tiles;
        Found f = nothing();
#pragma unroll 8
        for (i64 t = from; t < to; t++) {
            const Found one = {parts[row * tiles + t], PLACE ? places[row * tiles + t] : 0};
            f = join(f, one);
        }
        f = across(f);
        __syncthreads();
        if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = f.value, where[threadIdx.x / 32] = f.place;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int w = 1; w < 8; w++) {
                const Found one = {values[w], where[w]};
                f = join(f, one);
            }
            write(f, out, at, row, scale);
        }
    }
}

KERNEL void __launch_bounds__(256) reduce_columns(
    const T* x, i64 outer, i64 count, i64 inner, i64 tiles, R* parts, i64* places, OUT* out, i64* at, f64 scale) {
    __shared__ R values[8][32];
    __shared__ i64 where[8][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 column = (i64)blockIdx.x * 32 + lane;
    for (i64 unit = blockIdx.y; unit < outer * tiles; unit += gridDim.y) {
        const i64 o = unit / tiles, first = unit % tiles * 256;
        Found f = nothing();
        if (column < inner) {
#pragma unroll 8
            for (int i = 0; i < 32; i++) {
                const i64 c = first + i * 8 + warp;
                if (c < count) {
                    const Found one = {mapped(x[(o * count + c) * inner + column]), c};
                    f = join(f, one);
                }
            }
        }
        __syncthreads();
        values[warp][lane] = f.value, where[warp][lane] = f.place;
        __syncthreads();
        if (warp == 0 && column < inner) {
            for (int w = 1; w < 8; w++) {
                const Found one = {values[w][lane], where[w][lane]};
                f = join(f, one);
            }
            if (tiles == 1) {
                write(f, out, at, o * inner + column, scale);
            } else {
                parts[unit * inner + column] = f.value;
                if (PLACE) places[unit * inner + column] = f.place;
            }
        }
    }
}

KERNEL void __launch_bounds__(256) reduce_column_tiles(
    const R* parts, const i64* places, i64 outer, i64 tiles, i64 inner, OUT* out, i64* at, f64 scale) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < outer * inner; i += (i64)gridDim.x * 256) {
        const i64 o = i / inner, c = i % inner;
        Found f = nothing();
        for (i64 t = 0; t < tiles; t++) {
            const i64 p = (o * tiles + t) * inner + c;
            const Found one = {parts[p], PLACE ? places[p] : 0};
            f = join(f, one);
        }
        write(f, out, at, i, scale);
    }
}
