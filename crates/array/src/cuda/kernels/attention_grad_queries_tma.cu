// Gradient of attention's queries for Hopper: products of warpgroups, operands by bulk copies. bf16 and f16, dims 64 and 128.
//
// One warp loads, GROUPS warpgroups of 64 queries each compute; blocks stay and take tiles of queries in turn, long ones first. Keys
// are taken in order.
//
// attention_grad_queries_tma(Attention, queries, keys, values, gradients)
//   grid min(tiles, multiprocessors) with tiles = ceil(q_len / (64 * GROUPS)) * batch * q_heads, block 128 * (GROUPS + 1), dynamic
//   shared memory 1024 + (2 * 64 * GROUPS + 2 * STAGES * BN) * D * 2 + 256 bytes. Maps as for attention_forward_tma, boxes
//   64 x 1 x (64 * GROUPS) x 1 for queries and gradients (dout), 64 x 1 x BN x 1 for keys and values. Reads lse and delta; writes dq.
//   `first`, where given, must not fall with the query.
//
// Defines: ELEMENT (bf16, f16), DIM (64, 128), GROUPS (2, 3), BN keys a step (64, 128), STAGES (2 ..).
#include "attention.cuh"
#include "warpgroup.cuh"

static const int BM = 64 * GROUPS;
static const int NT = BN / 8, HALVES = D / 64;
static const int Q_BYTES = BM * D * 2, KV_BYTES = BN * D * 2;

struct Barriers {
    u64 q_full, q_empty, full[STAGES], empty[STAGES];
};

static DEVICE int tile_of(int turn) { return turn * gridDim.x + (turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x); }

struct Work {
    int q0, batch, head, block_from, block_to;

    DEVICE Work(const Attention& a, int tile, int q_tiles) {
        const int heads = a.batch * a.q_heads, line = tile % heads;
        q0 = (q_tiles - 1 - tile / heads) * BM, batch = line / a.q_heads, head = line % a.q_heads;
        const i32* first = a.first ? a.first + batch * a.first_stride : nullptr;
        const int from = keys_from(a, first, q0), to = keys_to(a, min(q0 + BM, a.q_len) - 1);
        block_from = from / BN, block_to = from < to ? (to + BN - 1) / BN : block_from;
    }
};

static DEVICE void load_all(const Attention& a, const TensorMap* queries, const TensorMap* keys, const TensorMap* values, const TensorMap* gradients,
                            u8* q_room, u8* kv_room, Barriers* bars, int tiles, int q_tiles) {
    int step = 0;
    for (int turn = 0; tile_of(turn) < tiles; turn++) {
        const Work w(a, tile_of(turn), q_tiles);
        const int kv_head = w.head / (a.q_heads / a.kv_heads);
        barrier_wait(&bars->q_empty, (turn & 1) ^ 1);
        barrier_expect(&bars->q_full, 2 * Q_BYTES);
        for (int h = 0; h < HALVES; h++) {
            copy_box(q_room + h * BM * 128, queries, &bars->q_full, h * 64, w.head, w.q0, w.batch);
            copy_box(q_room + Q_BYTES + h * BM * 128, gradients, &bars->q_full, h * 64, w.head, w.q0, w.batch);
        }
        for (int block = w.block_from; block < w.block_to; block++, step++) {
            const int stage = step % STAGES;
            u8* to = kv_room + stage * 2 * KV_BYTES;
            barrier_wait(&bars->empty[stage], (step / STAGES & 1) ^ 1);
            barrier_expect(&bars->full[stage], 2 * KV_BYTES);
            for (int h = 0; h < HALVES; h++) {
                copy_box(to + h * BN * 128, keys, &bars->full[stage], h * 64, kv_head, block * BN, w.batch);
                copy_box(to + KV_BYTES + h * BN * 128, values, &bars->full[stage], h * 64, kv_head, block * BN, w.batch);
            }
        }
    }
}

// c[64 queries x BN keys] = rows of one tile times rows of another.
static DEVICE void start_products(f32 (&c)[NT][4], u32 queries, u32 keys) {
    products_fence();
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        product<T, BN>(c, rows_operand(queries + k / 4 * BM * 128 + k % 4 * 32), rows_operand(keys + k / 4 * BN * 128 + k % 4 * 32), k > 0);
    products_commit();
}

static DEVICE void compute_all(const Attention& a, u8* q_room, u8* kv_room, Barriers* bars, int tiles, int q_tiles) {
    const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16;
    const u32 q_place = shared_place(q_room) + group * 64 * 128, dout_place = q_place + Q_BYTES, kv_place = shared_place(kv_room);
    const f32 unit = a.scale < 0 ? -exponent_unit(a) : exponent_unit(a);
    int step = 0;
    for (int turn = 0; tile_of(turn) < tiles; turn++) {
        const Work w(a, tile_of(turn), q_tiles);
        const i32* first = a.first ? a.first + w.batch * a.first_stride : nullptr;
        int from[2], to[2], from_most = 0, to_least = a.k_len;
        f32 lse[2], delta[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int at = w.q0 + 64 * group + row + 8 * i + lane / 4;
            const i64 line = ((i64)w.batch * a.q_heads + w.head) * a.q_len;
            from[i] = 0, to[i] = 0, lse[i] = INFINITE, delta[i] = 0;
            if (at < a.q_len) {
                from[i] = keys_from(a, first, at), to[i] = keys_to(a, at);
                lse[i] = a.lse[line + at], delta[i] = a.delta[line + at];
                lse[i] = lse[i] == -INFINITE ? INFINITE : lse[i] * LOG2E;
                from_most = max(from_most, from[i]), to_least = min(to_least, to[i]);
            }
        }
        from_most = __reduce_max_sync(~0u, from_most), to_least = __reduce_min_sync(~0u, to_least);
        // One past the last key that the warpgroup's queries see.
        const int group_to = keys_to(a, min(w.q0 + 64 * group + 63, a.q_len - 1));

        f32 dq[D / 8][4] = {};
        int held = -1;
        barrier_wait(&bars->q_full, turn & 1);
        for (int block = w.block_from; block < w.block_to; block++, step++) {
            const int stage = step % STAGES, k0 = block * BN;
            const u32 k_tile = kv_place + stage * 2 * KV_BYTES, v_tile = k_tile + KV_BYTES;
            barrier_wait(&bars->full[stage], step / STAGES & 1);
            if (k0 >= group_to) { // past what this warpgroup sees
                products_wait<0>();
                if (lane == 0) {
                    if (held >= 0) barrier_arrive(&bars->empty[held]);
                    barrier_arrive(&bars->empty[stage]);
                }
                held = -1;
                continue;
            }
            f32 p[NT][4], ds[NT][4];
            u32 slopes[BN / 16][4];
            start_products(p, q_place, k_tile);
            // Wide rows: the registers of the weights before must be free first.
            if (D > 64) products_wait<1>();
            start_products(ds, dout_place, v_tile);
            products_wait<1>();
            if (held >= 0 && lane == 0) barrier_arrive(&bars->empty[held]);
            held = stage;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) p[n][i] = exp2_fast(p[n][i] * unit - lse[i / 2]);
            if (from_most > k0 || to_least < k0 + BN) {
#pragma unroll
                for (int n = 0; n < NT; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int at = k0 + 8 * n + lane % 4 * 2 + i % 2;
                        if (at < from[i / 2] || at >= to[i / 2]) p[n][i] = 0;
                    }
            }
            products_wait<0>();
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) ds[n][i] = p[n][i] * (ds[n][i] - delta[i / 2]);
#pragma unroll
            for (int t = 0; t < BN / 16; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) slopes[t][i] = pack<T>(ds[2 * t + i / 2][i % 2 * 2], ds[2 * t + i / 2][i % 2 * 2 + 1]);
            products_fence();
#pragma unroll
            for (int t = 0; t < BN / 16; t++) product_held<T, D>(dq, slopes[t], columns_operand(k_tile + t * 2048, BN * 128), true);
            products_commit();
        }
        products_wait<0>();
        if (held >= 0 && lane == 0) barrier_arrive(&bars->empty[held]);

        // The queries' places are free once every warpgroup is here.
        asm volatile("bar.sync 1, %0;" ::"n"(128 * GROUPS) : "memory");
        u8* tile = q_room + group * 64 * D * 2;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const u32 pair = pack<T>(dq[n][2 * i] * a.scale, dq[n][2 * i + 1] * a.scale);
                *(u32*)(tile + (Tile<D>::at(0, row + 8 * i + lane / 4, n) + lane % 4 * 4)) = pair;
            }
        __syncwarp();
        T* result = a.dq + w.batch * a.dq_stride[0] + w.head * a.dq_stride[1];
#pragma unroll
        for (int i = lane; i < 16 * (D / 8); i += 32) {
            const int local = row + i / (D / 8), piece = i % (D / 8), at = w.q0 + 64 * group + local;
            if (at < a.q_len) *(uint4*)(result + at * a.dq_stride[2] + piece * 8) = *(const uint4*)(tile + Tile<D>::at(0, local, piece));
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if (lane == 0) barrier_arrive(&bars->q_empty);
    }
}

KERNEL void __launch_bounds__(128 * (GROUPS + 1), 1) attention_grad_queries_tma(
    const __grid_constant__ Attention a, const __grid_constant__ TensorMap queries, const __grid_constant__ TensorMap keys,
    const __grid_constant__ TensorMap values, const __grid_constant__ TensorMap gradients) {
    extern __shared__ u8 raw[];
    u8* room = raw + (1024 - shared_place(raw) % 1024) % 1024;
    u8 *q_room = room, *kv_room = q_room + 2 * Q_BYTES;
    Barriers* bars = (Barriers*)(kv_room + STAGES * 2 * KV_BYTES);
    if (threadIdx.x == 0) {
        barrier_init(&bars->q_full, 1), barrier_init(&bars->q_empty, 4 * GROUPS);
        for (int i = 0; i < STAGES; i++) barrier_init(&bars->full[i], 1), barrier_init(&bars->empty[i], 4 * GROUPS);
        barrier_init_fence();
    }
    __syncthreads();
    const int q_tiles = (a.q_len + BM - 1) / BM, tiles = q_tiles * a.batch * a.q_heads;
    if (threadIdx.x < 128) {
        registers_fewer<GROUPS == 2 ? 24 : 32>();
        if (threadIdx.x == 0) load_all(a, &queries, &keys, &values, &gradients, q_room, kv_room, bars, tiles, q_tiles);
    } else {
        registers_more<GROUPS == 2 ? 240 : 160>();
        compute_all(a, q_room, kv_room, bars, tiles, q_tiles);
    }
}
