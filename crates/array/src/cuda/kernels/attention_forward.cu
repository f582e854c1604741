// Attention forward with warp-wide matrix products (sm_80 and later): bf16 and f16, head dims 64 and 128.
//
// attention_forward(Attention)
//   grid (batch * q_heads, ceil(q_len / BM)), block 32 * WARPS, shared memory (BM + 4 * BN) * D * 2 bytes, dynamic.
//   Writes `out` and `lse`. A query that sees no key gives zeros and -inf. Blocks of keys are taken in order and
//   those that nobody of the block of queries sees are skipped, so the bits follow from the operands alone.
//
// Defines: ELEMENT (bf16, f16), DIM (64, 128), BM queries a block (16 * WARPS * m), BN keys a step (multiple of 16), WARPS,
//   BLOCKS per multiprocessor the registers must allow, Q_IN_REGISTERS (0, 1), MASK (0 none, 1 u8, 2 T added).
#include "attention.cuh"

static const int THREADS = 32 * WARPS;
static const int MT = BM / (16 * WARPS); // tiles of 16 queries a warp
static const int NT = BN / 8;
static const int KT = D / 16;

// Scores of the warp's queries with BN keys.
static DEVICE void scores(f32 (&s)[MT][NT][4], const u32 (&qf)[MT][KT][4], u32 q_tile, u32 k_tile, int row) {
#pragma unroll
    for (int k = 0; k < KT; k++) {
        u32 left[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            if (Q_IN_REGISTERS) {
#pragma unroll
                for (int i = 0; i < 4; i++) left[m][i] = qf[m][k][i];
            } else {
                Tile<D>::left(left[m], q_tile, row + 16 * m, k);
            }
        }
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            u32 right[4];
            Tile<D>::right(right, k_tile, 8 * n, k);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                multiply<T>(s[m][n], left[m], right[0], right[1]);
                multiply<T>(s[m][n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

KERNEL void __launch_bounds__(THREADS, BLOCKS) attention_forward(const __grid_constant__ Attention a) {
    extern __shared__ __align__(128) u8 room[];
    __shared__ int range[2];
    const u32 q_tile = shared_address(room), kv_tiles = q_tile + BM * D * 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int batch = blockIdx.x / a.q_heads, head = blockIdx.x % a.q_heads;
    const int kv_head = head / (a.q_heads / a.kv_heads);
    // The last queries see the most keys: begin with them.
    const int q0 = (gridDim.y - 1 - blockIdx.y) * BM;
    const int row = warp * 16 * MT;
    const T* q = a.q + batch * a.q_stride[0] + head * a.q_stride[1];
    const T* k = a.k + batch * a.k_stride[0] + kv_head * a.k_stride[1];
    const T* v = a.v + batch * a.v_stride[0] + kv_head * a.v_stride[1];
    const i32* first = a.first ? a.first + batch * a.first_stride : nullptr;

    Tile<D>::load<BM, THREADS>(q_tile, q, a.q_stride[2], q0, a.q_len);

    // Keys each of the thread's queries sees; queries past the end have no say in what is skipped.
    int from[MT][2], to[MT][2];
    int from_least = a.k_len, from_most = 0, to_least = a.k_len, to_most = 0;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int at = q0 + row + 16 * m + 8 * i + lane / 4;
            from[m][i] = 0, to[m][i] = a.k_len;
            if (at < a.q_len) {
                from[m][i] = keys_from(a, first, at), to[m][i] = keys_to(a, at);
                from_least = min(from_least, from[m][i]), from_most = max(from_most, from[m][i]);
                to_least = min(to_least, to[m][i]), to_most = max(to_most, to[m][i]);
            }
        }
    from_most = __reduce_max_sync(~0u, from_most);
    to_least = __reduce_min_sync(~0u, to_least);
    if (threadIdx.x == 0) range[0] = a.k_len, range[1] = 0;
    __syncthreads();
    atomicMin(&range[0], __reduce_min_sync(~0u, from_least));
    atomicMax(&range[1], __reduce_max_sync(~0u, to_most));
    __syncthreads();
    const int block_from = range[0] / BN, block_to = (range[1] + BN - 1) / BN;

    f32 out[MT][D / 8][4] = {}, top[MT][2], sum[MT][2] = {};
#pragma unroll
    for (int m = 0; m < MT; m++) top[m][0] = top[m][1] = -INFINITE;
    u32 qf[MT][KT][4];
    const f32 unit = exponent_unit(a);

    if (block_from < block_to) {
        Tile<D>::load<BN, THREADS>(kv_tiles, k, a.k_stride[2], block_from * BN, a.k_len);
        Tile<D>::load<BN, THREADS>(kv_tiles + BN * D * 2, v, a.v_stride[2], block_from * BN, a.k_len);
    }
    copies_commit();
    for (int block = block_from; block < block_to; block++) {
        const int k0 = block * BN, stage = (block - block_from) % 2;
        const u32 k_tile = kv_tiles + stage * 2 * BN * D * 2, v_tile = k_tile + BN * D * 2;
        copies_wait<0>();
        __syncthreads();
        if (block + 1 < block_to) {
            const u32 next = kv_tiles + (1 - stage) * 2 * BN * D * 2;
            Tile<D>::load<BN, THREADS>(next, k, a.k_stride[2], k0 + BN, a.k_len);
            Tile<D>::load<BN, THREADS>(next + BN * D * 2, v, a.v_stride[2], k0 + BN, a.k_len);
            copies_commit();
        }
        if (Q_IN_REGISTERS && block == block_from) {
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = 0; i < KT; i++) Tile<D>::left(qf[m][i], q_tile, row + 16 * m, i);
        }

        f32 s[MT][NT][4] = {};
        scores(s, qf, q_tile, k_tile, row);

        if (MASK || a.scale < 0 || from_most > k0 || to_least < k0 + BN) {
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int n = 0; n < NT; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        int at = k0 + 8 * n + lane % 4 * 2 + i % 2;
                        bool seen = at >= from[m][i / 2] && at < to[m][i / 2];
                        int query = q0 + row + 16 * m + 8 * (i / 2) + lane / 4;
                        if (MASK && seen && query < a.q_len) s[m][n][i] = masked(a, s[m][n][i], batch, head, query, at);
                        if (!MASK && a.scale < 0) s[m][n][i] = -s[m][n][i];
                        if (!seen) s[m][n][i] = -INFINITE;
                    }
        }

#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                f32 most = top[m][i];
#pragma unroll
                for (int n = 0; n < NT; n++) most = fmaxf(most, fmaxf(s[m][n][2 * i], s[m][n][2 * i + 1]));
                most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
                most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
                f32 shift = most == -INFINITE ? 0.f : most * unit;
                f32 keep = exp2_fast(top[m][i] * unit - shift);
                top[m][i] = most;
                f32 part = 0;
#pragma unroll
                for (int n = 0; n < NT; n++)
#pragma unroll
                    for (int j = 2 * i; j < 2 * i + 2; j++) {
                        s[m][n][j] = exp2_fast(s[m][n][j] * unit - shift);
                        part += s[m][n][j];
                    }
                sum[m][i] = sum[m][i] * keep + part;
#pragma unroll
                for (int n = 0; n < D / 8; n++) out[m][n][2 * i] *= keep, out[m][n][2 * i + 1] *= keep;
            }

#pragma unroll
        for (int t = 0; t < NT / 2; t++) {
            u32 left[MT][4];
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const f32* p = &s[m][2 * t + i / 2][i % 2 * 2];
                    left[m][i] = pack<T>(p[0], p[1]);
                }
#pragma unroll
            for (int n = 0; n < D / 8; n += 2) {
                u32 right[4];
                Tile<D>::right_turned(right, v_tile, 16 * t, n);
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    multiply<T>(out[m][n], left[m], right[0], right[1]);
                    multiply<T>(out[m][n + 1], left[m], right[2], right[3]);
                }
            }
        }
    }

    // Each warp turns its own rows of the queries' tile into rows of the result.
    copies_wait<0>();
    __syncthreads();
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            f32 total = sum[m][i];
            total += __shfl_xor_sync(~0u, total, 1);
            total += __shfl_xor_sync(~0u, total, 2);
            f32 inverse = total > 0 ? 1 / total : 0;
            int local = row + 16 * m + 8 * i + lane / 4, at = q0 + local;
            if (total != total) inverse = total;
            if (lane % 4 == 0 && at < a.q_len) {
                a.lse[(i64)blockIdx.x * a.q_len + at] = total == 0 ? -INFINITE : (top[m][i] * unit + log2f(total)) * LN2;
            }
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                u32 pair = pack<T>(out[m][n][2 * i] * inverse, out[m][n][2 * i + 1] * inverse);
                *(u32*)(room + (Tile<D>::at(0, local, n) + lane % 4 * 4)) = pair;
            }
        }
    __syncwarp();
    T* result = a.out + batch * a.out_stride[0] + head * a.out_stride[1];
#pragma unroll
    for (int i = lane; i < 16 * MT * (D / 8); i += 32) {
        int local = row + i / (D / 8), piece = i % (D / 8);
        if (q0 + local < a.q_len) {
            *(uint4*)(result + (q0 + local) * a.out_stride[2] + piece * 8) = *(const uint4*)(room + Tile<D>::at(0, local, piece));
        }
    }
}
