// Layer and rms normalisation of rows, with the addition of a residual before it, and their gradients.
//
// A group of LANES threads holds a row in registers as PER packets each, so every array is read and written once. Where
// cols is no multiple of a packet, PACKETS is 0 and a packet is one element. Sums are in f32 (f64 for f64).
//
// norm_forward(x, residual, added, weight, bias, y, mean, rstd, rows, cols, eps)
//   grid any (strides), block 256. h = x (+ residual, rounded to ELEMENT, written to `added`); y = (h - mean) * rstd *
//   weight + bias. Null: residual and added, weight, bias, mean.
// norm_grad(dy, h, weight, mean, rstd, carried, dx, dw_parts, db_parts, rows, cols)
//   grid ceil(rows / 128), block LANES * GROUPS, dynamic shared memory (1 + CENTER) * GROUPS * LANES * PER * packet *
//   sizeof(R) bytes.
//   dx = the gradient of h (+ carried: the gradient that passes by the norm). Parameter gradients are sums over the block's
//   128 rows: group g takes rows g, g + GROUPS, .., then groups in order; columns.cu adds blocks in order.
//   Null: weight, mean (0), carried, dw_parts, db_parts.
//
// Defines: ELEMENT, WEIGHT (types), CENTER (1 layer norm, 0 rms), LANES (32 .. 256, power of 2), PER, PACKETS, GROUPS.
#include "prelude.cuh"

typedef ELEMENT T;
typedef WEIGHT W;
typedef Real<T>::type R;
#if PACKETS
static const int LEN = Packet<T>::LEN;
#else
static const int LEN = 1;
#endif
struct alignas(LEN * sizeof(T)) Piece { T at[LEN]; };
struct alignas(LEN * sizeof(W)) WeightPiece { W at[LEN]; };
static const int ROOM = LANES * PER * LEN;
static const int ROWS = 128; // of a partial sum

// Column of the first element of piece `p`.
static DEVICE int column_of(int p, int lane) { return (p * LANES + lane) * LEN; }

// The sum over the LANES threads of a row; `room` has a place for each warp of the block.
static DEVICE R row_sum(R x, R* room) {
    if (LANES <= 32) {
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
        return x;
    }
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    const int first = threadIdx.x / LANES * (LANES / 32);
    R sum = room[first];
#pragma unroll
    for (int w = 1; w < LANES / 32; w++) sum += room[first + w];
    return sum;
}

KERNEL void __launch_bounds__(256) norm_forward(
    const T* __restrict__ x, const T* residual, T* added, const W* __restrict__ weight, const W* __restrict__ bias, T* y, R* mean,
    R* rstd, i64 rows, i32 cols, f64 eps) {
    __shared__ R room[8];
    const int lane = threadIdx.x % LANES, BLOCK_ROWS = 256 / LANES;
    const R inverse = (R)1 / (R)cols;
    // Every thread takes every turn: rows share barriers.
    for (i64 base = (i64)blockIdx.x * BLOCK_ROWS; base < rows; base += (i64)gridDim.x * BLOCK_ROWS) {
        const i64 row = base + threadIdx.x / LANES;
        const bool there = row < rows;
        Piece held[PER];
        R sum = 0;
#pragma unroll
        for (int p = 0; p < PER; p++) {
            const int c = column_of(p, lane);
            if (!there || c >= cols) continue;
            held[p] = *(const Piece*)(x + row * cols + c);
            if (residual) {
                const Piece more = *(const Piece*)(residual + row * cols + c);
#pragma unroll
                for (int i = 0; i < LEN; i++) held[p].at[i] = narrow<T>(widen(held[p].at[i]) + widen(more.at[i]));
                *(Piece*)(added + row * cols + c) = held[p];
            }
            if (CENTER) {
#pragma unroll
                for (int i = 0; i < LEN; i++) sum += widen(held[p].at[i]);
            }
        }
        const R m = CENTER ? row_sum(sum, room) * inverse : 0;
        R squares = 0;
#pragma unroll
        for (int p = 0; p < PER; p++) {
            if (!there || column_of(p, lane) >= cols) continue;
#pragma unroll
            for (int i = 0; i < LEN; i++) {
                const R d = widen(held[p].at[i]) - m;
                squares += d * d;
            }
        }
        const R s = (R)1 / sqrt(row_sum(squares, room) * inverse + (R)eps);
        if (!there) continue;
        if (lane == 0) {
            rstd[row] = s;
            if (mean) mean[row] = m;
        }
#pragma unroll
        for (int p = 0; p < PER; p++) {
            const int c = column_of(p, lane);
            if (c >= cols) continue;
            WeightPiece w, b;
            if (weight) w = *(const WeightPiece*)(weight + c);
            if (bias) b = *(const WeightPiece*)(bias + c);
#pragma unroll
            for (int i = 0; i < LEN; i++) {
                R v = (widen(held[p].at[i]) - m) * s;
                if (weight) v *= widen(w.at[i]);
                if (bias) v += widen(b.at[i]);
                held[p].at[i] = narrow<T>(v);
            }
            *(Piece*)(y + row * cols + c) = held[p];
        }
    }
}

// Two sums over the LANES threads of a row; all threads of the block call it. `room` alternates between rows.
static DEVICE void group_sums(R& a, R& b, R* room) {
    a = warp_sum(a), b = warp_sum(b);
    if (LANES == 32) return;
    const int lane = threadIdx.x % LANES;
    if (lane % 32 == 0) room[lane / 32 * 2] = a, room[lane / 32 * 2 + 1] = b;
    __syncthreads();
    a = room[0], b = room[1];
#pragma unroll
    for (int w = 1; w < LANES / 32; w++) a += room[2 * w], b += room[2 * w + 1];
}

KERNEL void __launch_bounds__(LANES * GROUPS) norm_grad(
    const T* __restrict__ dy, const T* __restrict__ h, const W* __restrict__ weight, const R* mean, const R* rstd, const T* carried, T* dx,
    R* dw_parts, R* db_parts, i64 rows, i32 cols) {
    DYNAMIC(shared);
    __shared__ R sums[GROUPS][2][LANES / 16];
    R *dw_room = (R*)shared, *db_room = dw_room + GROUPS * ROOM; // a row of each for every group
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const i64 first = (i64)blockIdx.x * ROWS, last = first + ROWS < rows ? first + ROWS : rows;
    const R inverse = (R)1 / (R)cols;
    R dw[PER][LEN] = {}, db[CENTER ? PER : 1][LEN] = {};
    WeightPiece w[PER];
#pragma unroll
    for (int p = 0; p < PER; p++)
        if (weight && column_of(p, lane) < cols) w[p] = *(const WeightPiece*)(weight + column_of(p, lane));
    int turn = 0;
    // Every thread takes every turn: rows share barriers.
    for (i64 base = first; base < last; base += GROUPS, turn ^= 1) {
        const i64 row = base + group;
        const bool there = row < last;
        Piece g[PER], x[PER], more[PER];
#pragma unroll
        for (int p = 0; p < PER; p++) {
            const int c = column_of(p, lane);
            if (!there || c >= cols) continue;
            g[p] = *(const Piece*)(dy + row * cols + c), x[p] = *(const Piece*)(h + row * cols + c);
            if (carried) more[p] = *(const Piece*)(carried + row * cols + c);
        }
        const R m = mean && there ? mean[row] : 0, s = there ? rstd[row] : 0;
        R sum = 0, dot = 0;
#pragma unroll
        for (int p = 0; p < PER; p++) {
            if (!there || column_of(p, lane) >= cols) continue;
#pragma unroll
            for (int i = 0; i < LEN; i++) {
                const R grad = widen(g[p].at[i]), normal = (widen(x[p].at[i]) - m) * s;
                const R weighted = weight ? grad * widen(w[p].at[i]) : grad;
                dw[p][i] += grad * normal;
                if (CENTER) db[p][i] += grad, sum += weighted;
                dot += weighted * normal;
            }
        }
        group_sums(sum, dot, sums[group][turn]);
        const R c1 = CENTER ? sum * inverse : 0, c2 = dot * inverse;
#pragma unroll
        for (int p = 0; p < PER; p++) {
            const int c = column_of(p, lane);
            if (!there || c >= cols) continue;
#pragma unroll
            for (int i = 0; i < LEN; i++) {
                const R grad = widen(g[p].at[i]), normal = (widen(x[p].at[i]) - m) * s;
                const R weighted = weight ? grad * widen(w[p].at[i]) : grad;
                R d = s * (weighted - c1 - normal * c2);
                if (carried) d += widen(more[p].at[i]);
                g[p].at[i] = narrow<T>(d);
            }
            *(Piece*)(dx + row * cols + c) = g[p];
        }
    }
    if (!dw_parts) return;
#pragma unroll
    for (int p = 0; p < PER; p++)
#pragma unroll
        for (int i = 0; i < LEN; i++) {
            // Element i of lane l lies at i * LANES + l, so that lanes meet no bank twice.
            const int at = group * ROOM + (p * LEN + i) * LANES + lane;
            dw_room[at] = dw[p][i];
            if (CENTER) db_room[at] = db[p][i];
        }
    __syncthreads();
    for (int c = threadIdx.x; c < cols; c += LANES * GROUPS) {
        const int piece = c / LEN, at = (piece / LANES * LEN + c % LEN) * LANES + piece % LANES;
        R w = dw_room[at], b = CENTER ? db_room[at] : (R)0;
#pragma unroll
        for (int g = 1; g < GROUPS; g++) {
            w += dw_room[g * ROOM + at];
            if (CENTER) b += db_room[g * ROOM + at];
        }
        dw_parts[(i64)blockIdx.x * cols + c] = w;
        if (CENTER && db_parts) db_parts[(i64)blockIdx.x * cols + c] = b;
    }
}
