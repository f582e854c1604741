// Attention of one new query a sequence over a cache of keys and values, for generation: bf16 and f16, head dims 64 and 128.
//
// The cache is cut into splits of 64 * WARPS keys whatever its length, so the bits of a sequence do not depend on its neighbours. A
// block takes a split of one key head for all query heads it serves (up to 16); decode_fold joins the splits in order.
//
// decode_splits(Decode)   grid (batch * kv_heads, ceil(longest / SPLIT)), block 32 * WARPS, dynamic shared memory
//                         WARPS * 64 * D * 4 + 16 * D * 2 + WARPS * (16 * D + 32) * 4 bytes; SPLIT = 64 * WARPS keys
// decode_fold(Decode)     grid batch * q_heads, block D
//
// Defines: ELEMENT (bf16, f16), DIM (64, 128), WARPS (2, 4).
#include "tensor_core.cuh"

typedef ELEMENT T;
static const int D = DIM, SPLIT = 64 * WARPS, THREADS = 32 * WARPS, NT = 8, KT = D / 16;
#define LOG2E 1.4426950408889634f

struct Decode {
    const T *q, *k, *v; // q: [batch, q_heads, D] by strides of batch and head; k, v by strides of batch, head and row
    T* out;             // by strides of batch and head
    f32 *parts, *tops, *sums; // [batch, q_heads, splits, D] and [batch, q_heads, splits] twice
    const i64* positions; // where each query stands, on the device: it sees the keys up to there
    i64 q_stride[2], k_stride[3], v_stride[3], out_stride[2];
    i32 batch, q_heads, kv_heads, splits, window;
    f32 scale;
};

KERNEL void __launch_bounds__(THREADS) decode_splits(const __grid_constant__ Decode a) {
    extern __shared__ __align__(128) u8 room[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int batch = blockIdx.x / a.kv_heads, kv_head = blockIdx.x % a.kv_heads, group = a.q_heads / a.kv_heads;
    const int length = (int)a.positions[batch] + 1, k0 = blockIdx.y * SPLIT + warp * 64;
    const int from = a.window > 0 ? max(0, length - a.window) : 0;
    if (blockIdx.y * SPLIT >= length || (blockIdx.y + 1) * SPLIT <= from) return;
    const u32 q_tile = shared_address(room), k_tile = q_tile + 16 * D * 2 + warp * 64 * D * 4, v_tile = k_tile + 64 * D * 2;
    f32* joined = (f32*)(room + 16 * D * 2 + WARPS * 64 * D * 4);

    // Queries of the group as rows of one tile; each warp loads its own keys and values.
    for (int i = threadIdx.x; i < 16 * (D / 8); i += THREADS) {
        const int h = i / (D / 8), piece = i % (D / 8);
        const T* from_q = a.q + batch * a.q_stride[0] + (i64)(kv_head * group + (h < group ? h : 0)) * a.q_stride[1] + piece * 8;
        copy16(Tile<D>::at(q_tile, h, piece), from_q, h < group);
    }
    const T *k = a.k + batch * a.k_stride[0] + kv_head * a.k_stride[1], *v = a.v + batch * a.v_stride[0] + kv_head * a.v_stride[1];
    for (int i = lane; i < 64 * (D / 8); i += 32) {
        const int row = i / (D / 8), piece = i % (D / 8);
        const bool there = k0 + row < length;
        copy16(Tile<D>::at(k_tile, row, piece), k + (there ? (k0 + row) * a.k_stride[2] + piece * 8 : 0), there);
    }
    copies_commit();
    for (int i = lane; i < 64 * (D / 8); i += 32) {
        const int row = i / (D / 8), piece = i % (D / 8);
        const bool there = k0 + row < length;
        copy16(Tile<D>::at(v_tile, row, piece), v + (there ? (k0 + row) * a.v_stride[2] + piece * 8 : 0), there);
    }
    copies_commit();
    copies_wait<1>();
    __syncthreads();

    f32 s[NT][4] = {};
#pragma unroll
    for (int kk = 0; kk < KT; kk++) {
        u32 left[4];
        Tile<D>::left(left, q_tile, 0, kk);
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            u32 right[4];
            Tile<D>::right(right, k_tile, 8 * n, kk);
            multiply<T>(s[n], left, right[0], right[1]);
            multiply<T>(s[n + 1], left, right[2], right[3]);
        }
    }
    f32 top[2], sum[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = -INFINITE;
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int j = 2 * i; j < 2 * i + 2; j++) {
                const int key = k0 + 8 * n + lane % 4 * 2 + j % 2;
                s[n][j] = key >= from && key < length ? s[n][j] * (a.scale * LOG2E) : -INFINITE;
                top[i] = fmaxf(top[i], s[n][j]);
            }
        top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], 1));
        top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], 2));
        const f32 shift = top[i] == -INFINITE ? 0.f : top[i];
        sum[i] = 0;
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int j = 2 * i; j < 2 * i + 2; j++) s[n][j] = exp2_fast(s[n][j] - shift), sum[i] += s[n][j];
        sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
        sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
    }
    copies_wait<0>();
    __syncwarp();
    f32 out[D / 8][4] = {};
#pragma unroll
    for (int t = 0; t < NT / 2; t++) {
        u32 left[4];
#pragma unroll
        for (int i = 0; i < 4; i++) left[i] = pack<T>(s[2 * t + i / 2][i % 2 * 2], s[2 * t + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            u32 right[4];
            Tile<D>::right_turned(right, v_tile, 16 * t, n);
            multiply<T>(out[n], left, right[0], right[1]);
            multiply<T>(out[n + 1], left, right[2], right[3]);
        }
    }
    // The warps of the block in order.
    f32* own = joined + warp * (16 * D + 32);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int h = 8 * i + lane / 4;
        if (lane % 4 == 0) own[16 * D + h] = top[i], own[16 * D + 16 + h] = sum[i];
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *(float2*)(own + h * D + 8 * n + lane % 4 * 2) = make_float2(out[n][2 * i], out[n][2 * i + 1]);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < group * D; i += THREADS) {
        const int h = i / D, d = i % D;
        f32 most = -INFINITE, total = 0, value = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) most = fmaxf(most, joined[w * (16 * D + 32) + 16 * D + h]);
        const f32 shift = most == -INFINITE ? 0.f : most;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const f32* from_warp = joined + w * (16 * D + 32);
            const f32 keep = exp2_fast(from_warp[16 * D + h] - shift);
            total += from_warp[16 * D + 16 + h] * keep, value += from_warp[h * D + d] * keep;
        }
        const i64 line = ((i64)batch * a.q_heads + kv_head * group + h) * a.splits + blockIdx.y;
        a.parts[line * D + d] = value;
        if (d == 0) a.tops[line] = most, a.sums[line] = total;
    }
}

KERNEL void __launch_bounds__(D) decode_fold(const __grid_constant__ Decode a) {
    const int batch = blockIdx.x / a.q_heads, head = blockIdx.x % a.q_heads, length = (int)a.positions[batch] + 1;
    const int first = a.window > 0 ? max(0, length - a.window) / SPLIT : 0, last = (length + SPLIT - 1) / SPLIT;
    const i64 line = (i64)blockIdx.x * a.splits;
    f32 most = -INFINITE, total = 0, value = 0;
    for (int s = first; s < last; s++) {
        const f32 top = a.tops[line + s], larger = fmaxf(most, top), shift = larger == -INFINITE ? 0.f : larger;
        const f32 keep = exp2_fast(most - shift), add = exp2_fast(top - shift);
        total = total * keep + a.sums[line + s] * add;
        value = value * keep + a.parts[(line + s) * D + threadIdx.x] * add;
        most = larger;
    }
    a.out[batch * a.out_stride[0] + head * a.out_stride[1] + threadIdx.x] = narrow<T>(total > 0 ? value / total : 0.f);
}
