// Gradient of attention's queries with warp-wide matrix products, and the sums that both gradients start from.
//
// attention_delta(Attention)
//   grid: any (strides), block 256. delta = sum over the dim of dout * out, per query.
// attention_grad_queries(Attention)
//   grid (batch * q_heads, ceil(q_len / BM)) with BM = 16 * WARPS, block 32 * WARPS, dynamic shared memory
//   (2 * BM + 4 * BN) * D * 2 bytes. Reads q, k, v, dout, lse, delta; writes dq. Keys are taken in order.
//
// Defines: ELEMENT (bf16, f16), DIM (64, 128), BN keys a step (multiple of 16), WARPS, BLOCKS per multiprocessor that
//   the registers must allow, QUERIES_IN_REGISTERS (0, 1), MASK (0 none, 1 u8, 2 ELEMENT added).
#include "attention.cuh"

static const int THREADS = 32 * WARPS;
static const int BM = 16 * WARPS;
static const int NT = BN / 8;
static const int KT = D / 16;

KERNEL void __launch_bounds__(256) attention_delta(const __grid_constant__ Attention a) {
    const int LANES = D / 8; // threads that share a row
    const i64 rows = (i64)a.batch * a.q_heads * a.q_len;
    const i64 threads = (i64)gridDim.x * 256, all = (rows * LANES + 31) / 32 * 32;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < all; i += threads) {
        const i64 row = i / LANES, line = row / a.q_len, q = row % a.q_len;
        const i64 batch = line / a.q_heads, head = line % a.q_heads;
        f32 sum = 0;
        if (row < rows) {
            const int at = i % LANES * 8;
            const Packet<T> x = load16(a.out + batch * a.out_stride[0] + head * a.out_stride[1] + q * a.out_stride[2] + at);
            const Packet<T> y = load16(a.dout + batch * a.dout_stride[0] + head * a.dout_stride[1] + q * a.dout_stride[2] + at);
#pragma unroll
            for (int j = 0; j < 8; j++) sum += widen(x.at[j]) * widen(y.at[j]);
        }
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        if (row < rows && i % LANES == 0) a.delta[row] = sum;
    }
}

// c[16 queries x BN keys] += queries' rows of a tile times the rows of another.
static DEVICE void products(f32 (&c)[NT][4], const u32 (&held)[KT][4], u32 queries, u32 keys, int row) {
#pragma unroll
    for (int k = 0; k < KT; k++) {
        u32 left[4];
        if (QUERIES_IN_REGISTERS) {
#pragma unroll
            for (int i = 0; i < 4; i++) left[i] = held[k][i];
        } else {
            Tile<D>::left(left, queries, row, k);
        }
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            u32 right[4];
            Tile<D>::right(right, keys, 8 * n, k);
            multiply<T>(c[n], left, right[0], right[1]);
            multiply<T>(c[n + 1], left, right[2], right[3]);
        }
    }
}

KERNEL void __launch_bounds__(THREADS, BLOCKS) attention_grad_queries(const __grid_constant__ Attention a) {
    extern __shared__ __align__(128) u8 room[];
    __shared__ int range[2];
    const u32 q_tile = shared_address(room), dout_tile = q_tile + BM * D * 2, kv_tiles = dout_tile + BM * D * 2;
    const int TILE = BN * D * 2; // bytes
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = 16 * warp;
    const int batch = blockIdx.x / a.q_heads, head = blockIdx.x % a.q_heads, kv_head = head / (a.q_heads / a.kv_heads);
    const int q0 = (gridDim.y - 1 - blockIdx.y) * BM;
    const T* k = a.k + batch * a.k_stride[0] + kv_head * a.k_stride[1];
    const T* v = a.v + batch * a.v_stride[0] + kv_head * a.v_stride[1];
    const i32* first = a.first ? a.first + batch * a.first_stride : nullptr;

    Tile<D>::load<BM, THREADS>(q_tile, a.q + batch * a.q_stride[0] + head * a.q_stride[1], a.q_stride[2], q0, a.q_len);
    Tile<D>::load<BM, THREADS>(dout_tile, a.dout + batch * a.dout_stride[0] + head * a.dout_stride[1], a.dout_stride[2], q0, a.q_len);

    int from[2], to[2];
    f32 lse[2], delta[2];
    int from_least = a.k_len, from_most = 0, to_least = a.k_len, to_most = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int at = q0 + row + 8 * i + lane / 4;
        from[i] = 0, to[i] = a.k_len, lse[i] = -INFINITE, delta[i] = 0;
        if (at < a.q_len) {
            from[i] = keys_from(a, first, at), to[i] = keys_to(a, at);
            lse[i] = a.lse[(i64)blockIdx.x * a.q_len + at], delta[i] = a.delta[(i64)blockIdx.x * a.q_len + at];
            from_least = min(from_least, from[i]), from_most = max(from_most, from[i]);
            to_least = min(to_least, to[i]), to_most = max(to_most, to[i]);
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

    auto fetch = [&](int block) {
        const u32 tiles = kv_tiles + (block - block_from) % 2 * 2 * TILE;
        Tile<D>::load<BN, THREADS>(tiles, k, a.k_stride[2], block * BN, a.k_len);
        Tile<D>::load<BN, THREADS>(tiles + TILE, v, a.v_stride[2], block * BN, a.k_len);
        copies_commit();
    };

    f32 dq[D / 8][4] = {};
    u32 qf[KT][4], df[KT][4];
    const f32 unit = exponent_unit(a);
    if (block_from < block_to) fetch(block_from);
    for (int block = block_from; block < block_to; block++) {
        const int k0 = block * BN;
        const u32 k_tile = kv_tiles + (block - block_from) % 2 * 2 * TILE, v_tile = k_tile + TILE;
        copies_wait<0>();
        __syncthreads();
        if (block + 1 < block_to) fetch(block + 1);
        if (QUERIES_IN_REGISTERS && block == block_from) {
#pragma unroll
            for (int i = 0; i < KT; i++) Tile<D>::left(qf[i], q_tile, row, i), Tile<D>::left(df[i], dout_tile, row, i);
        }

        f32 p[NT][4] = {}, ds[NT][4] = {};
        products(p, qf, q_tile, k_tile, row);
        products(ds, df, dout_tile, v_tile, row);
        if (MASK || a.scale < 0 || from_most > k0 || to_least < k0 + BN) {
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int at = k0 + 8 * n + lane % 4 * 2 + i % 2, query = q0 + row + 8 * (i / 2) + lane / 4;
                    const bool seen = at >= from[i / 2] && at < to[i / 2];
                    if (MASK && seen && query < a.q_len) p[n][i] = masked(a, p[n][i], batch, head, query, at);
                    if (!MASK && a.scale < 0) p[n][i] = -p[n][i];
                    if (!seen) p[n][i] = -INFINITE;
                }
        }
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) ds[n][i] = probability(p[n][i], unit, lse[i / 2]) * (ds[n][i] - delta[i / 2]);

#pragma unroll
        for (int t = 0; t < NT / 2; t++) {
            u32 left[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const f32* w = &ds[2 * t + i / 2][i % 2 * 2];
                left[i] = pack<T>(w[0], w[1]);
            }
#pragma unroll
            for (int n = 0; n < D / 8; n += 2) {
                u32 right[4];
                Tile<D>::right_turned(right, k_tile, 16 * t, n);
                multiply<T>(dq[n], left, right[0], right[1]);
                multiply<T>(dq[n + 1], left, right[2], right[3]);
            }
        }
    }

    copies_wait<0>();
    __syncthreads();
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 pair = pack<T>(dq[n][2 * i] * a.scale, dq[n][2 * i + 1] * a.scale);
            *(u32*)(room + (Tile<D>::at(0, row + 8 * i + lane / 4, n) + lane % 4 * 4)) = pair;
        }
    __syncwarp();
    T* result = a.dq + batch * a.dq_stride[0] + head * a.dq_stride[1];
#pragma unroll
    for (int i = lane; i < 16 * (D / 8); i += 32) {
        const int local = row + i / (D / 8), piece = i % (D / 8);
        if (q0 + local < a.q_len) {
            *(uint4*)(result + (q0 + local) * a.dq_stride[2] + piece * 8) = *(const uint4*)(room + Tile<D>::at(0, local, piece));
        }
    }
}
