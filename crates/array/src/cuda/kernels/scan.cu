// Running sums, products and extremes along contiguous rows, in a fixed order.
//
// A row is cut into tiles of 2048: tiles are reduced, their results run along the row in order, then every tile runs from there.
//
// scan_tiles(x, rows, cols, tiles, sums)               grid min(rows * tiles, any) (strides), block 256; sums R[rows, tiles]
// scan_sums(sums, rows, tiles)                         grid min(rows, any) (strides), block 256: what lies before each tile
// scan_rows(x, rows, cols, tiles, sums, y, exclusive)  grid as scan_tiles; y may be x. With one tile only this one is needed (sums null).
//
// Defines: ELEMENT, OUT (types), OP (0 sum, 1 product, 2 max, 3 min), LEAST, GREATEST (of ELEMENT).
#include "prelude.cuh"

typedef ELEMENT T;
typedef Real<T>::type R;
static const int EACH = 8, TILE = 256 * EACH;

static DEVICE R neutral() { return OP == 0 ? (R)0 : OP == 1 ? (R)1 : OP == 2 ? (R)(LEAST) : (R)(GREATEST); }
static DEVICE R join(R a, R b) {
    if (OP == 0) return a + b;
    if (OP == 1) return a * b;
    if (OP == 2) return a > b || a != a ? a : b;
    return a < b || a != a ? a : b;
}

// Eight neighbouring elements, in packets where they are whole and aligned.
static DEVICE void load_run(R (&own)[EACH], const T* from, i64 first, i64 cols) {
    const int LEN = EACH < Packet<T>::LEN ? EACH : Packet<T>::LEN;
    struct alignas(LEN * sizeof(T)) Piece { T at[LEN]; };
    if (first + EACH <= cols && (u64)(from + first) % sizeof(Piece) == 0) {
#pragma unroll
        for (int p = 0; p < EACH / LEN; p++) {
            const Piece piece = *(const Piece*)(from + first + p * LEN);
#pragma unroll
            for (int i = 0; i < LEN; i++) own[p * LEN + i] = widen(piece.at[i]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < EACH; i++) own[i] = first + i < cols ? widen(from[first + i]) : neutral();
    }
}
static DEVICE void store_run(OUT* to, const R (&own)[EACH], i64 first, i64 cols) {
    const int LEN = EACH < Packet<OUT>::LEN ? EACH : Packet<OUT>::LEN;
    struct alignas(LEN * sizeof(OUT)) Piece { OUT at[LEN]; };
    if (first + EACH <= cols && (u64)(to + first) % sizeof(Piece) == 0) {
#pragma unroll
        for (int p = 0; p < EACH / LEN; p++) {
            Piece piece;
#pragma unroll
            for (int i = 0; i < LEN; i++) piece.at[i] = narrow<OUT>((Real<OUT>::type)own[p * LEN + i]);
            *(Piece*)(to + first + p * LEN) = piece;
        }
    } else {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (first + i < cols) to[first + i] = narrow<OUT>((Real<OUT>::type)own[i]);
    }
}

// What the threads before this one hold, joined in order, and all of them.
static DEVICE R before(R value, R* room, R& all) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    R sum = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const R other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum = join(other, sum);
    }
    R front = __shfl_up_sync(~0u, sum, 1);
    if (lane == 0) front = neutral();
    __syncthreads();
    if (lane == 31) room[warp] = sum;
    __syncthreads();
    R warps = neutral();
    all = neutral();
#pragma unroll
    for (int w = 0; w < 8; w++) {
        if (w == warp) warps = all;
        all = join(all, room[w]);
    }
    return join(warps, front);
}

KERNEL void __launch_bounds__(256) scan_tiles(const T* x, i64 rows, i64 cols, i64 tiles, R* sums) {
    __shared__ R room[8];
    for (i64 unit = blockIdx.x; unit < rows * tiles; unit += gridDim.x) {
        const i64 first = unit % tiles * TILE + threadIdx.x * EACH;
        const T* from = x + unit / tiles * cols;
        R own[EACH], sum = neutral(), all;
        load_run(own, from, first, cols);
#pragma unroll
        for (int i = 0; i < EACH; i++) sum = join(sum, own[i]);
        before(sum, room, all);
        if (threadIdx.x == 0) sums[unit] = all;
    }
}

KERNEL void __launch_bounds__(256) scan_sums(R* sums, i64 rows, i64 tiles) {
    __shared__ R room[8];
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        // Threads take stretches of tiles, in order.
        const i64 each = (tiles + 255) / 256, from = threadIdx.x * each, to = from + each < tiles ? from + each : tiles;
        R* own = sums + row * tiles;
        R sum = neutral(), all;
#pragma unroll 8
        for (i64 t = from; t < to; t++) sum = join(sum, own[t]);
        R run = before(sum, room, all);
        for (i64 t = from; t < to; t++) {
            const R next = join(run, own[t]);
            own[t] = run;
            run = next;
        }
    }
}

KERNEL void __launch_bounds__(256) scan_rows(const T* x, i64 rows, i64 cols, i64 tiles, const R* sums, OUT* y, i32 exclusive) {
    __shared__ R room[8];
    for (i64 unit = blockIdx.x; unit < rows * tiles; unit += gridDim.x) {
        const i64 first = unit % tiles * TILE + threadIdx.x * EACH;
        const T* from = x + unit / tiles * cols;
        OUT* to = y + unit / tiles * cols;
        R own[EACH], sum = neutral();
        load_run(own, from, first, cols);
#pragma unroll
        for (int i = 0; i < EACH; i++) sum = join(sum, own[i]);
        R all, run = before(sum, room, all);
        if (sums) run = join(sums[unit], run);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const R next = join(run, own[i]);
            own[i] = exclusive ? run : next;
            run = next;
        }
        store_run(to, own, first, cols);
    }
}
