// Gradients of attention's keys and values with warp-wide matrix products: bf16 and f16, head dims 64 and 128.
//
// A block owns BN = 16 * WARPS keys and goes over the query heads they serve, and over the queries that see them, in
// order: nothing is added atomically. Where a key head serves many query heads, `parts` blocks take some each, and
// attention_fold adds what they found in order.
//
// attention_grad_keys(Attention)
//   grid (batch * kv_heads, ceil(k_len / BN), parts), block 32 * WARPS, dynamic shared memory
//   (2 * BN + 4 * BM) * D * 2 + 6 * BM * 4 bytes. Reads q, k, v, dout, lse, delta; writes dk and dv (parts == 1) or
//   dk_parts and dv_parts.
// attention_fold(Attention)
//   grid: any (strides), block 256. Adds the parts into dk and dv.
//
// Defines: ELEMENT (bf16, f16), DIM (64, 128), BM queries a step (multiple of 32), WARPS, BLOCKS per multiprocessor
//   that the registers must allow, KEYS_IN_REGISTERS (0, 1), MASK (0 none, 1 u8, 2 ELEMENT added).
#include "attention.cuh"

static const int THREADS = 32 * WARPS;
static const int BN = 16 * WARPS;
static const int NT = BM / 8;
static const int KT = D / 16;

// c[16 keys x BM queries] += keys' rows of a tile times the rows of another.
static DEVICE void products(f32 (&c)[NT][4], const u32 (&held)[KT][4], u32 keys, u32 queries, int row) {
#pragma unroll
    for (int k = 0; k < KT; k++) {
        u32 left[4];
        if (KEYS_IN_REGISTERS) {
#pragma unroll
            for (int i = 0; i < 4; i++) left[i] = held[k][i];
        } else {
            Tile<D>::left(left, keys, row, k);
        }
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            u32 right[4];
            Tile<D>::right(right, queries, 8 * n, k);
            multiply<T>(c[n], left, right[0], right[1]);
            multiply<T>(c[n + 1], left, right[2], right[3]);
        }
    }
}

// c[16 keys x D] += weights[16 keys x BM queries] * rows of a tile of queries.
static DEVICE void gather_rows(f32 (&c)[D / 8][4], const f32 (&weights)[NT][4], u32 queries) {
#pragma unroll
    for (int t = 0; t < NT / 2; t++) {
        u32 left[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const f32* w = &weights[2 * t + i / 2][i % 2 * 2];
            left[i] = pack<T>(w[0], w[1]);
        }
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            u32 right[4];
            Tile<D>::right_turned(right, queries, 16 * t, n);
            multiply<T>(c[n], left, right[0], right[1]);
            multiply<T>(c[n + 1], left, right[2], right[3]);
        }
    }
}

// Writes the warp's 16 rows, through its rows of a tile, as elements.
static DEVICE void write_rows(const f32 (&c)[D / 8][4], f32 factor, u8* tile, int row, T* to, i64 stride, int k0, int end) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 pair = pack<T>(c[n][2 * i] * factor, c[n][2 * i + 1] * factor);
            *(u32*)(tile + (Tile<D>::at(0, row + 8 * i + lane / 4, n) + lane % 4 * 4)) = pair;
        }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 16 * (D / 8); i += 32) {
        int local = row + i / (D / 8), piece = i % (D / 8);
        if (k0 + local < end) *(uint4*)(to + (k0 + local) * stride + piece * 8) = *(const uint4*)(tile + Tile<D>::at(0, local, piece));
    }
}

static DEVICE void write_part(const f32 (&c)[D / 8][4], f32 factor, f32* to, int first, int end) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int at = first + 8 * i + lane / 4;
        if (at >= end) continue;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            *(float2*)(to + (i64)at * D + 8 * n + lane % 4 * 2) = make_float2(c[n][2 * i] * factor, c[n][2 * i + 1] * factor);
        }
    }
}

KERNEL void __launch_bounds__(THREADS, BLOCKS) attention_grad_keys(const __grid_constant__ Attention a) {
    extern __shared__ __align__(128) u8 room[];
    __shared__ int last;
    const u32 k_tile = shared_address(room), v_tile = k_tile + BN * D * 2, q_tiles = v_tile + BN * D * 2;
    const int TILE = BM * D * 2; // bytes
    f32* stats = (f32*)(room + 2 * BN * D * 2 + 4 * TILE); // per stage: lse, delta, first
    const u32 stats_at = shared_address(stats);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = 16 * warp;
    const int batch = blockIdx.x / a.kv_heads, kv_head = blockIdx.x % a.kv_heads, k0 = blockIdx.y * BN;
    const int group = a.q_heads / a.kv_heads;
    const int head_from = kv_head * group + group * blockIdx.z / a.parts;
    const int head_to = kv_head * group + group * (blockIdx.z + 1) / a.parts;
    const i32* first = a.first ? a.first + batch * a.first_stride : nullptr;
    const i32* end = a.end ? a.end + batch * a.end_stride : nullptr;

    Tile<D>::load<BN, THREADS>(k_tile, a.k + batch * a.k_stride[0] + kv_head * a.k_stride[1], a.k_stride[2], k0, a.k_len);
    Tile<D>::load<BN, THREADS>(v_tile, a.v + batch * a.v_stride[0] + kv_head * a.v_stride[1], a.v_stride[2], k0, a.k_len);

    if (threadIdx.x == 0) last = 0;
    __syncthreads();
    if (threadIdx.x < BN && k0 + threadIdx.x < a.k_len) atomicMax(&last, queries_to(a, end, k0 + threadIdx.x));
    __syncthreads();
    const int block_from = queries_from(a, k0) / BM, block_to = (last + BM - 1) / BM;
    const int blocks = max(0, block_to - block_from), steps = blocks * (head_to - head_from);

    auto fetch = [&](int step) {
        const int head = head_from + step / blocks, q0 = (block_from + step % blocks) * BM, stage = step % 2;
        const u32 tiles = q_tiles + stage * 2 * TILE;
        Tile<D>::load<BM, THREADS>(tiles, a.q + batch * a.q_stride[0] + head * a.q_stride[1], a.q_stride[2], q0, a.q_len);
        Tile<D>::load<BM, THREADS>(tiles + TILE, a.dout + batch * a.dout_stride[0] + head * a.dout_stride[1], a.dout_stride[2], q0, a.q_len);
        const i64 line = ((i64)batch * a.q_heads + head) * a.q_len;
        for (int i = threadIdx.x; i < BM; i += THREADS) {
            const bool there = q0 + i < a.q_len;
            const u32 to = stats_at + (stage * 3 * BM + i) * 4;
            copy4(to, a.lse + line + (there ? q0 + i : 0), there);
            copy4(to + BM * 4, a.delta + line + (there ? q0 + i : 0), there);
            if (first) copy4(to + 2 * BM * 4, first + (there ? q0 + i : 0), there);
        }
        copies_commit();
    };

    f32 dk[D / 8][4] = {}, dv[D / 8][4] = {};
    u32 kf[KT][4], vf[KT][4];
    const f32 unit = exponent_unit(a);
    if (steps > 0) fetch(0);
    for (int step = 0; step < steps; step++) {
        const int head = head_from + step / blocks, q0 = (block_from + step % blocks) * BM, stage = step % 2;
        const u32 q_tile = q_tiles + stage * 2 * TILE, dout_tile = q_tile + TILE;
        const f32 *lse = stats + stage * 3 * BM, *delta = lse + BM;
        const i32* firsts = (const i32*)(delta + BM);
        copies_wait<0>();
        __syncthreads();
        if (step + 1 < steps) fetch(step + 1);
        if (KEYS_IN_REGISTERS && step == 0) {
#pragma unroll
            for (int k = 0; k < KT; k++) Tile<D>::left(kf[k], k_tile, row, k), Tile<D>::left(vf[k], v_tile, row, k);
        }

        f32 p[NT][4] = {};
        products(p, kf, k_tile, q_tile, row);

        // Where every key of the warp is seen by every query of the step nothing needs to be hidden.
        int hidden = MASK || a.scale < 0 || q0 + BM > a.q_len || k0 + row + 16 > keys_to(a, q0);
        if (a.window > 0) hidden |= k0 + row < q0 + BM - 1 + a.shift - a.window + 1;
        if (first) {
            int most = 0;
#pragma unroll
            for (int i = 0; i < BM; i += 32) most = max(most, firsts[i + lane]);
            hidden |= __reduce_max_sync(~0u, most) > k0 + row;
        }
        if (hidden) {
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int local = 8 * n + lane % 4 * 2 + i % 2, query = q0 + local, key = k0 + row + 8 * (i / 2) + lane / 4;
                    int from = first ? firsts[local] : 0;
                    if (a.window > 0) from = max(from, query + a.shift - a.window + 1);
                    const bool seen = query < a.q_len && key >= from && key < keys_to(a, query);
                    if (MASK && seen) p[n][i] = masked(a, p[n][i], batch, head, query, key);
                    if (!MASK && a.scale < 0) p[n][i] = -p[n][i];
                    if (!seen) p[n][i] = -INFINITE;
                }
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const float2 l = *(const float2*)(lse + 8 * n + lane % 4 * 2);
#pragma unroll
            for (int i = 0; i < 4; i++) p[n][i] = probability(p[n][i], unit, i % 2 ? l.y : l.x);
        }
        gather_rows(dv, p, dout_tile);

        f32 ds[NT][4] = {};
        products(ds, vf, v_tile, dout_tile, row);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const float2 d = *(const float2*)(delta + 8 * n + lane % 4 * 2);
#pragma unroll
            for (int i = 0; i < 4; i++) ds[n][i] = p[n][i] * (ds[n][i] - (i % 2 ? d.y : d.x));
        }
        gather_rows(dk, ds, q_tile);
    }

    copies_wait<0>();
    __syncthreads();
    if (a.parts == 1) {
        write_rows(dk, a.scale, room, row, a.dk + batch * a.dk_stride[0] + kv_head * a.dk_stride[1], a.dk_stride[2], k0, a.k_len);
        write_rows(dv, 1, room, row, a.dv + batch * a.dv_stride[0] + kv_head * a.dv_stride[1], a.dv_stride[2], k0, a.k_len);
    } else {
        const i64 at = ((i64)blockIdx.z * gridDim.x + blockIdx.x) * a.k_len * D;
        write_part(dk, a.scale, a.dk_parts + at, k0 + row, a.k_len);
        write_part(dv, 1, a.dv_parts + at, k0 + row, a.k_len);
    }
}

KERNEL void __launch_bounds__(256) attention_fold(const __grid_constant__ Attention a) {
    const i64 pieces = (i64)a.batch * a.kv_heads * a.k_len * (D / 4), part = pieces * 4;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < pieces; i += (i64)gridDim.x * 256) {
        const i64 line = i / (D / 4), at = i % (D / 4) * 4, head = line / a.k_len, key = line % a.k_len;
        const i64 batch = head / a.kv_heads, kv_head = head % a.kv_heads;
#pragma unroll
        for (int which = 0; which < 2; which++) {
            const f32* from = (which ? a.dv_parts : a.dk_parts) + line * D + at;
            float4 sum = *(const float4*)from;
            for (int p = 1; p < a.parts; p++) {
                const float4 more = *(const float4*)(from + p * part);
                sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
            }
            const i64* stride = which ? a.dv_stride : a.dk_stride;
            T* to = (which ? a.dv : a.dk) + batch * stride[0] + kv_head * stride[1] + key * stride[2] + at;
            *(uint2*)to = make_uint2(pack<T>(sum.x, sum.y), pack<T>(sum.z, sum.w));
        }
    }
}
