// Gradients of attention's keys and values for Hopper: products of warpgroups, operands by bulk copies. bf16 and f16, dims 64, 128.
//
// A block owns 64 * GROUPS keys and goes over the query heads they serve, and over the queries that see them, in order: nothing is
// added atomically. One warp loads, GROUPS warpgroups compute. Blocks stay and take tiles of keys in turn, long ones first.
//
// attention_grad_keys_tma(Attention, queries, keys, values, gradients)
//   grid min(tiles, multiprocessors) with tiles = ceil(k_len / (64 * GROUPS)) * batch * kv_heads * parts, block 128 * (GROUPS + 1),
//   dynamic shared memory 1024 + (2 * 64 * GROUPS + 2 * STAGES * BM) * D * 2 + STAGES * 3 * BM * 4 + 256 bytes. Maps as for
//   attention_forward_tma, boxes 64 x 1 x BM x 1 for queries and gradients (dout), 64 x 1 x (64 * GROUPS) x 1 for keys and values.
//   Reads lse and delta; writes dk and dv (parts == 1), or dk_parts and dv_parts for attention_fold. `end`, where given, must not
//   fall with the key.
//
// Defines: ELEMENT (bf16, f16), DIM (64, 128), GROUPS (2, 3), BM queries a step (64, 128), STAGES (2 ..).
#include "attention.cuh"
#include "warpgroup.cuh"

static const int BN = 64 * GROUPS;
static const int NT = BM / 8, HALVES = D / 64;
static const int KV_BYTES = BN * D * 2, Q_BYTES = BM * D * 2;

struct Barriers {
    u64 kv_full, kv_empty, full[STAGES], empty[STAGES];
};

static DEVICE int tile_of(int turn) { return turn * gridDim.x + (turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x); }

struct Work {
    int k0, batch, kv_head, part, head_from, head_to, block_from, block_to;

    DEVICE Work(const Attention& a, int tile) {
        const int lines = a.batch * a.kv_heads * a.parts, line = tile % lines, group = a.q_heads / a.kv_heads;
        k0 = tile / lines * BN; // the first keys are seen by the most queries
        batch = line / (a.kv_heads * a.parts), kv_head = line / a.parts % a.kv_heads, part = line % a.parts;
        head_from = kv_head * group + group * part / a.parts, head_to = kv_head * group + group * (part + 1) / a.parts;
        // The last key of the tile is seen longest: `end` does not fall with the key.
        const i32* end = a.end ? a.end + batch * a.end_stride : nullptr;
        const int from = queries_from(a, k0), to = queries_to(a, end, min(k0 + BN, a.k_len) - 1);
        block_from = from / BM, block_to = from < to ? (to + BM - 1) / BM : block_from;
    }
};

static DEVICE void load_all(const Attention& a, const TensorMap* queries, const TensorMap* keys, const TensorMap* values, const TensorMap* gradients,
                            u8* kv_room, u8* q_room, f32* stats, Barriers* bars, int tiles) {
    const int lane = threadIdx.x;
    int step = 0;
    for (int turn = 0; tile_of(turn) < tiles; turn++) {
        const Work w(a, tile_of(turn));
        const i32* first = a.first ? a.first + w.batch * a.first_stride : nullptr;
        barrier_wait(&bars->kv_empty, (turn & 1) ^ 1);
        if (lane == 0) {
            barrier_expect(&bars->kv_full, 2 * KV_BYTES);
            for (int h = 0; h < HALVES; h++) {
                copy_box(kv_room + h * BN * 128, keys, &bars->kv_full, h * 64, w.kv_head, w.k0, w.batch);
                copy_box(kv_room + KV_BYTES + h * BN * 128, values, &bars->kv_full, h * 64, w.kv_head, w.k0, w.batch);
            }
        }
        for (int head = w.head_from; head < w.head_to; head++)
            for (int block = w.block_from; block < w.block_to; block++, step++) {
                const int stage = step % STAGES, q0 = block * BM;
                u8* to = q_room + stage * 2 * Q_BYTES;
                barrier_wait(&bars->empty[stage], (step / STAGES & 1) ^ 1);
                if (lane == 0) {
                    barrier_expect(&bars->full[stage], 2 * Q_BYTES);
                    for (int h = 0; h < HALVES; h++) {
                        copy_box(to + h * BM * 128, queries, &bars->full[stage], h * 64, head, q0, w.batch);
                        copy_box(to + Q_BYTES + h * BM * 128, gradients, &bars->full[stage], h * 64, head, q0, w.batch);
                    }
                }
                // What each query's weights are divided by, as a power of two; a query that is not there or saw nothing has none.
                f32* own = stats + stage * 3 * BM;
                const i64 line = ((i64)w.batch * a.q_heads + head) * a.q_len;
                for (int i = lane; i < BM; i += 32) {
                    const int q = q0 + i;
                    const bool there = q < a.q_len;
                    const f32 lse = there ? a.lse[line + q] : -INFINITE;
                    own[i] = lse == -INFINITE ? INFINITE : lse * LOG2E;
                    own[BM + i] = there ? a.delta[line + q] : 0.f;
                    ((i32*)own)[2 * BM + i] = there ? keys_from(a, first, q) : 0;
                }
                barrier_arrive(&bars->full[stage]);
            }
    }
}

// c[64 keys x BM queries] = rows of one tile times rows of another.
static DEVICE void start_products(f32 (&c)[NT][4], u32 keys, u32 queries) {
    products_fence();
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        product<T, BM>(c, rows_operand(keys + k / 4 * BN * 128 + k % 4 * 32), rows_operand(queries + k / 4 * BM * 128 + k % 4 * 32), k > 0);
    products_commit();
}
// c[64 keys x D] += weights[64 x BM] * rows of a tile of queries.
static DEVICE void start_sums(f32 (&c)[D / 8][4], const u32 (&weights)[BM / 16][4], u32 queries) {
    products_fence();
#pragma unroll
    for (int t = 0; t < BM / 16; t++) product_held<T, D>(c, weights[t], columns_operand(queries + t * 2048, BM * 128), true);
    products_commit();
}
static DEVICE void pack_all(u32 (&weights)[BM / 16][4], const f32 (&c)[NT][4]) {
#pragma unroll
    for (int t = 0; t < BM / 16; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) weights[t][i] = pack<T>(c[2 * t + i / 2][i % 2 * 2], c[2 * t + i / 2][i % 2 * 2 + 1]);
}

static DEVICE void write_rows(const f32 (&c)[D / 8][4], f32 factor, u8* tile, int row, T* to, i64 stride, int k0, int end) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 pair = pack<T>(c[n][2 * i] * factor, c[n][2 * i + 1] * factor);
            *(u32*)(tile + (Tile<D>::at(0, row + 8 * i + lane / 4, n) + lane % 4 * 4)) = pair;
        }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 16 * (D / 8); i += 32) {
        const int local = row + i / (D / 8), piece = i % (D / 8);
        if (k0 + local < end) *(uint4*)(to + (k0 + local) * stride + piece * 8) = *(const uint4*)(tile + Tile<D>::at(0, local, piece));
    }
}
static DEVICE void write_part(const f32 (&c)[D / 8][4], f32 factor, f32* to, int first, int end) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int at = first + 8 * i + lane / 4;
        if (at >= end) continue;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *(float2*)(to + (i64)at * D + 8 * n + lane % 4 * 2) = make_float2(c[n][2 * i] * factor, c[n][2 * i + 1] * factor);
    }
}

static DEVICE void compute_all(const Attention& a, u8* kv_room, u8* q_room, const f32* stats, Barriers* bars, int tiles) {
    const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16;
    const u32 k_place = shared_place(kv_room) + group * 64 * 128, v_place = k_place + KV_BYTES, q_place = shared_place(q_room);
    const f32 unit = a.scale < 0 ? -exponent_unit(a) : exponent_unit(a);
    int step = 0;
    for (int turn = 0; tile_of(turn) < tiles; turn++) {
        const Work w(a, tile_of(turn));
        const int k_first = w.k0 + 64 * group, own_first = k_first + row;
        f32 dk[D / 8][4] = {}, dv[D / 8][4] = {};
        int held = -1; // the stage that products in flight still read
        barrier_wait(&bars->kv_full, turn & 1);
        for (int head = w.head_from; head < w.head_to; head++)
            for (int block = w.block_from; block < w.block_to; block++, step++) {
                const int stage = step % STAGES, q0 = block * BM;
                const u32 q_tile = q_place + stage * 2 * Q_BYTES, dout_tile = q_tile + Q_BYTES;
                const f32 *lse = stats + stage * 3 * BM, *delta = lse + BM;
                const i32* froms = (const i32*)(delta + BM);
                barrier_wait(&bars->full[stage], step / STAGES & 1);
                if (a.causal && q0 + BM - 1 + a.shift < k_first) { // nobody sees this warpgroup's keys yet
                    products_wait<0>();
                    __syncwarp();
                    if (lane == 0) {
                        if (held >= 0) barrier_arrive(&bars->empty[held]);
                        barrier_arrive(&bars->empty[stage]);
                    }
                    held = -1;
                    continue;
                }
                f32 p[NT][4], ds[NT][4];
                u32 weights[BM / 16][4], slopes[BM / 16][4];
                start_products(p, k_place, q_tile);
                products_wait<1>(); // the sums of the step before are done, and their weights' registers free
                __syncwarp();
                if (held >= 0 && lane == 0) barrier_arrive(&bars->empty[held]);
                held = stage;
                start_products(ds, v_place, dout_tile);
                products_wait<1>();

                bool hidden = a.causal && own_first + 15 > q0 + a.shift;
                if (a.window > 0 || a.first) {
                    int most = 0;
#pragma unroll
                    for (int i = 0; i < BM; i += 32) most = max(most, froms[i + lane]);
                    hidden |= __reduce_max_sync(~0u, most) > own_first;
                }
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const float2 l = *(const float2*)(lse + 8 * n + lane % 4 * 2);
#pragma unroll
                    for (int i = 0; i < 4; i++) p[n][i] = exp2_fast(p[n][i] * unit - (i % 2 ? l.y : l.x));
                }
                if (hidden) {
#pragma unroll
                    for (int n = 0; n < NT; n++)
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            const int local = 8 * n + lane % 4 * 2 + i % 2, key = own_first + 8 * (i / 2) + lane / 4;
                            if (key < froms[local] || key >= keys_to(a, q0 + local)) p[n][i] = 0;
                        }
                }
                pack_all(weights, p);
                start_sums(dv, weights, dout_tile);
                products_wait<1>();
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const float2 d = *(const float2*)(delta + 8 * n + lane % 4 * 2);
#pragma unroll
                    for (int i = 0; i < 4; i++) ds[n][i] = p[n][i] * (ds[n][i] - (i % 2 ? d.y : d.x));
                }
                pack_all(slopes, ds);
                start_sums(dk, slopes, q_tile);
            }
        products_wait<0>();
        __syncwarp();
        if (held >= 0 && lane == 0) barrier_arrive(&bars->empty[held]);

        if (a.parts == 1) {
            // The keys' and values' places are free once every warpgroup is here.
            asm volatile("bar.sync 1, %0;" ::"n"(128 * GROUPS) : "memory");
            u8* tile = kv_room + group * 64 * D * 2;
            write_rows(dk, a.scale, tile, row, a.dk + w.batch * a.dk_stride[0] + w.kv_head * a.dk_stride[1], a.dk_stride[2], k_first, a.k_len);
            write_rows(dv, 1, tile, row, a.dv + w.batch * a.dv_stride[0] + w.kv_head * a.dv_stride[1], a.dv_stride[2], k_first, a.k_len);
            __syncwarp();
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        } else {
            const i64 at = (((i64)w.part * a.batch + w.batch) * a.kv_heads + w.kv_head) * a.k_len * D;
            write_part(dk, a.scale, a.dk_parts + at, own_first, a.k_len);
            write_part(dv, 1, a.dv_parts + at, own_first, a.k_len);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&bars->kv_empty);
    }
}

KERNEL void __launch_bounds__(128 * (GROUPS + 1), 1) attention_grad_keys_tma(
    const __grid_constant__ Attention a, const __grid_constant__ TensorMap queries, const __grid_constant__ TensorMap keys,
    const __grid_constant__ TensorMap values, const __grid_constant__ TensorMap gradients) {
    extern __shared__ u8 raw[];
    u8* room = raw + (1024 - shared_place(raw) % 1024) % 1024;
    u8 *kv_room = room, *q_room = kv_room + 2 * KV_BYTES;
    f32* stats = (f32*)(q_room + STAGES * 2 * Q_BYTES);
    Barriers* bars = (Barriers*)(stats + STAGES * 3 * BM);
    if (threadIdx.x == 0) {
        barrier_init(&bars->kv_full, 1), barrier_init(&bars->kv_empty, 4 * GROUPS);
        for (int i = 0; i < STAGES; i++) barrier_init(&bars->full[i], 33), barrier_init(&bars->empty[i], 4 * GROUPS);
        barrier_init_fence();
    }
    __syncthreads();
    const int tiles = (a.k_len + BN - 1) / BN * a.batch * a.kv_heads * a.parts;
    if (threadIdx.x < 128) {
        registers_fewer<GROUPS == 3 ? 32 : D == 64 ? 40 : 24>();
        if (threadIdx.x < 32) load_all(a, &queries, &keys, &values, &gradients, kv_room, q_room, stats, bars, tiles);
    } else {
        registers_more<GROUPS == 3 ? 160 : D == 64 ? 232 : 240>();
        compute_all(a, kv_room, q_room, stats, bars, tiles);
    }
}
