// Attention forward for Hopper: products of warpgroups (wgmma), operands by bulk tensor copies. bf16 and f16, head dims 64 and 128.
//
// One warp loads, GROUPS warpgroups of 64 queries each compute; blocks stay and take tiles of 64 * GROUPS queries in turn, those
// with the most keys first. While a warpgroup turns scores into weights, the product of the weights before with their values
// runs. Blocks of keys are taken in order, so the bits follow from the operands alone.
//
// attention_forward_tma(Attention, queries, keys, values)
//   grid min(tiles, multiprocessors), block 128 * (GROUPS + 1), dynamic shared memory 1024 + (2 * 64 * GROUPS + 2 * STAGES * BN) * D * 2
//   + 256 bytes. The maps are of 4 dims (dim, head, row, batch) of two-byte elements, boxes 64 x 1 x 64 x 1 for queries and
//   64 x 1 x BN x 1 for keys and values, 128-byte swizzle. Writes out and lse. `first`, where given, must not fall with the query.
//
// Defines: ELEMENT (bf16, f16), DIM (64, 128), GROUPS (2, 3), BN (64, 128), STAGES (2 ..), TURNS (1: warpgroups start their products in
//   turn), POLYNOMIAL (n > 0: every n-th exponential by fused multiplications instead of the special unit).
#include "attention.cuh"
#include "warpgroup.cuh"

static const int BM = 64 * GROUPS;
static const int NT = BN / 8, HALVES = D / 64;
static const int Q_BYTES = 64 * D * 2, KV_BYTES = BN * D * 2; // a warpgroup's queries; a stage of keys or values

struct Barriers {
    u64 q_full, q_empty, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

// Which tile block `b` takes in its turn: to and fro, so that every block gets long and short ones.
static DEVICE int tile_of(int turn) { return turn * gridDim.x + (turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x); }

struct Work {
    int q0, batch, head, block_from, block_to;

    DEVICE Work(const Attention& a, int tile, int q_tiles) {
        const int heads = a.batch * a.q_heads, line = tile % heads;
        q0 = (q_tiles - 1 - tile / heads) * BM, batch = line / a.q_heads, head = line % a.q_heads;
        const int last = min(q0 + BM, a.q_len) - 1;
        const i32* first = a.first ? a.first + batch * a.first_stride : nullptr;
        const int from = keys_from(a, first, q0), to = keys_to(a, last);
        block_from = from / BN, block_to = from < to ? (to + BN - 1) / BN : block_from;
    }
};

static DEVICE void load_all(const Attention& a, const TensorMap* queries, const TensorMap* keys, const TensorMap* values, u8* q_room, u8* kv_room,
                            Barriers* bars, int tiles, int q_tiles) {
    prefetch_map(queries), prefetch_map(keys), prefetch_map(values);
    int step = 0;
    for (int turn = 0; tile_of(turn) < tiles; turn++) {
        const Work w(a, tile_of(turn), q_tiles);
        const int kv_head = w.head / (a.q_heads / a.kv_heads);
        barrier_wait(&bars->q_empty, (turn & 1) ^ 1);
        barrier_expect(&bars->q_full, GROUPS * Q_BYTES);
        for (int g = 0; g < GROUPS; g++)
            for (int h = 0; h < HALVES; h++) copy_box(q_room + g * Q_BYTES + h * 64 * 128, queries, &bars->q_full, h * 64, w.head, w.q0 + 64 * g, w.batch);
        for (int block = w.block_from; block < w.block_to; block++, step++) {
            const int stage = step % STAGES, parity = (step / STAGES & 1) ^ 1;
            u8 *k_to = kv_room + stage * 2 * KV_BYTES, *v_to = k_to + KV_BYTES;
            barrier_wait(&bars->k_empty[stage], parity);
            barrier_expect(&bars->k_full[stage], KV_BYTES);
            for (int h = 0; h < HALVES; h++) copy_box(k_to + h * BN * 128, keys, &bars->k_full[stage], h * 64, kv_head, block * BN, w.batch);
            barrier_wait(&bars->v_empty[stage], parity);
            barrier_expect(&bars->v_full[stage], KV_BYTES);
            for (int h = 0; h < HALVES; h++) copy_box(v_to + h * BN * 128, values, &bars->v_full[stage], h * 64, kv_head, block * BN, w.batch);
        }
    }
}

// Starts the scores of 64 queries with BN keys.
static DEVICE void start_scores(f32 (&s)[NT][4], u32 q_place, u32 k_place) {
    products_fence();
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        const u32 q_at = q_place + k / 4 * 64 * 128 + k % 4 * 32, k_at = k_place + k / 4 * BN * 128 + k % 4 * 32;
        product<T, BN>(s, rows_operand(q_at), rows_operand(k_at), k > 0);
    }
    products_commit();
}

// Starts out += weights * values.
static DEVICE void start_out(f32 (&out)[D / 8][4], const u32 (&weights)[BN / 16][4], u32 v_place) {
    products_fence();
#pragma unroll
    for (int t = 0; t < BN / 16; t++) product_held<T, D>(out, weights[t], columns_operand(v_place + t * 2048, BN * 128), true);
    products_commit();
}

// Stays where it is written, so that it runs beside the products in flight.
static DEVICE f32 exp2_here(f32 x) {
    f32 y;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// 2^x for x up to 0, to 5e-6; zero below 2^-126.
static DEVICE f32 exp2_by_products(f32 x) {
    const f32 whole = x + 12582912.f, f = x - (whole - 12582912.f);
    f32 p = 9.6181291e-3f;
    p = fmaf(p, f, 5.5503324e-2f);
    p = fmaf(p, f, 2.4022652e-1f);
    p = fmaf(p, f, 6.9314718e-1f);
    p = fmaf(p, f, 1.f);
    const f32 y = __int_as_float(__float_as_int(p) + (__float_as_int(whole) << 23));
    return x < -126.f ? 0.f : y;
}

// The groups take turns: named barriers 2 .. 2 + GROUPS, of this group and the one after it.
static DEVICE void turn_wait(int group) {
    if (TURNS) asm volatile("bar.sync %0, 256;" ::"r"(2 + group) : "memory");
}
static DEVICE void turn_pass(int group) {
    if (TURNS) asm volatile("bar.arrive %0, 256;" ::"r"(2 + (group + 1) % GROUPS) : "memory");
}

struct Rows {
    f32 top[2], sum[2], keep[2];
    int from[2], to[2], from_most, to_least;

    // Turns scores into weights; `keep` is what earlier sums are multiplied by.
    DEVICE void weigh(f32 (&s)[NT][4], const Attention& a, f32 unit, int k0, int lane) {
        const bool some_hidden = a.scale < 0 || from_most > k0 || to_least < k0 + BN;
        if (some_hidden) {
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int at = k0 + 8 * n + lane % 4 * 2 + i % 2;
                    if (a.scale < 0) s[n][i] = -s[n][i];
                    if (at < from[i / 2] || at >= to[i / 2]) s[n][i] = -INFINITE;
                }
        }
        // Four chains a row, so that none waits for the one before.
        const int CHAINS = 4;
        f32 most[2][CHAINS], part[2][CHAINS], shift[2];
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const f32 larger = fmaxf(s[n][2 * i], s[n][2 * i + 1]);
                most[i][n % CHAINS] = n < CHAINS ? larger : fmaxf(most[i][n % CHAINS], larger);
            }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            f32 all = fmaxf(fmaxf(most[i][0], most[i][1]), fmaxf(most[i][2], most[i][3]));
            all = fmaxf(all, __shfl_xor_sync(~0u, all, 1));
            all = fmaxf(top[i], fmaxf(all, __shfl_xor_sync(~0u, all, 2)));
            shift[i] = all == -INFINITE ? 0.f : all * unit;
            keep[i] = exp2_fast(top[i] * unit - shift[i]);
            top[i] = all;
        }
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                s[n][2 * i] = exp2_here(s[n][2 * i] * unit - shift[i]);
                const f32 last = s[n][2 * i + 1] * unit - shift[i];
                const bool product = POLYNOMIAL > 0 && (2 * n + i) % (POLYNOMIAL / 2 > 0 ? POLYNOMIAL / 2 : 1) == 0;
                s[n][2 * i + 1] = product ? exp2_by_products(last) : exp2_here(last);
                const f32 pair = s[n][2 * i] + s[n][2 * i + 1];
                part[i][n % CHAINS] = n < CHAINS ? pair : part[i][n % CHAINS] + pair;
            }
#pragma unroll
        for (int i = 0; i < 2; i++) sum[i] = sum[i] * keep[i] + ((part[i][0] + part[i][1]) + (part[i][2] + part[i][3]));
    }
};

static DEVICE void pack_weights(u32 (&weights)[BN / 16][4], const f32 (&s)[NT][4]) {
#pragma unroll
    for (int t = 0; t < BN / 16; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) weights[t][i] = pack<T>(s[2 * t + i / 2][i % 2 * 2], s[2 * t + i / 2][i % 2 * 2 + 1]);
}

static DEVICE void compute_all(const Attention& a, u8* q_room, u8* kv_room, u8* out_room, Barriers* bars, int tiles, int q_tiles) {
    const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16;
    const u32 q_place = shared_place(q_room) + group * Q_BYTES, kv_place = shared_place(kv_room);
    u8* out_tile = out_room + group * Q_BYTES;
    const f32 unit = exponent_unit(a);
    int step = 0;
    if (group == GROUPS - 1) turn_pass(group); // the first group may begin
    for (int turn = 0; tile_of(turn) < tiles; turn++) {
        const Work w(a, tile_of(turn), q_tiles);
        const i32* first = a.first ? a.first + w.batch * a.first_stride : nullptr;
        Rows r;
        r.from_most = 0, r.to_least = a.k_len;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int at = w.q0 + 64 * group + row + 8 * i + lane / 4;
            r.top[i] = -INFINITE, r.sum[i] = 0, r.from[i] = 0, r.to[i] = a.k_len;
            if (at < a.q_len) {
                r.from[i] = keys_from(a, first, at), r.to[i] = keys_to(a, at);
                r.from_most = max(r.from_most, r.from[i]), r.to_least = min(r.to_least, r.to[i]);
            }
        }
        r.from_most = __reduce_max_sync(~0u, r.from_most), r.to_least = __reduce_min_sync(~0u, r.to_least);

        f32 out[D / 8][4] = {}, s[NT][4];
        u32 weights[BN / 16][4];
        barrier_wait(&bars->q_full, turn & 1);
        if (w.block_from < w.block_to) {
            int stage = step % STAGES;
            barrier_wait(&bars->k_full[stage], step / STAGES & 1);
            start_scores(s, q_place, kv_place + stage * 2 * KV_BYTES);
            products_wait<0>();
            if (lane == 0) barrier_arrive(&bars->k_empty[stage]);
            r.weigh(s, a, unit, w.block_from * BN, lane);
            pack_weights(weights, s);
            for (int block = w.block_from + 1; block < w.block_to; block++) {
                const int before = step % STAGES, before_parity = step / STAGES & 1;
                step++;
                stage = step % STAGES;
                barrier_wait(&bars->k_full[stage], step / STAGES & 1);
                turn_wait(group);
                start_scores(s, q_place, kv_place + stage * 2 * KV_BYTES);
                barrier_wait(&bars->v_full[before], before_parity);
                start_out(out, weights, kv_place + before * 2 * KV_BYTES + KV_BYTES);
                turn_pass(group);
                products_wait<1>();
                if (lane == 0) barrier_arrive(&bars->k_empty[stage]);
                r.weigh(s, a, unit, block * BN, lane);
                products_wait_after(r.sum[0] + r.sum[1]);
                products_wait<0>();
                if (lane == 0) barrier_arrive(&bars->v_empty[before]);
#pragma unroll
                for (int n = 0; n < D / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) out[n][i] *= r.keep[i / 2];
                pack_weights(weights, s);
            }
            if (lane == 0) barrier_arrive(&bars->q_empty);
            const int before = step % STAGES;
            barrier_wait(&bars->v_full[before], step / STAGES & 1);
            start_out(out, weights, kv_place + before * 2 * KV_BYTES + KV_BYTES);
            products_wait<0>();
            if (lane == 0) barrier_arrive(&bars->v_empty[before]);
            step++;
        } else if (lane == 0) {
            barrier_arrive(&bars->q_empty);
        }

        // Each warp passes its 16 rows through its own part of shared memory.
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            f32 total = r.sum[i];
            total += __shfl_xor_sync(~0u, total, 1);
            total += __shfl_xor_sync(~0u, total, 2);
            f32 inverse = total > 0 ? 1 / total : 0;
            if (total != total) inverse = total;
            const int local = row + 8 * i + lane / 4, at = w.q0 + 64 * group + local;
            if (lane % 4 == 0 && at < a.q_len) {
                a.lse[((i64)w.batch * a.q_heads + w.head) * a.q_len + at] = total == 0 ? -INFINITE : (r.top[i] * unit + log2f(total)) * LN2;
            }
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                const u32 pair = pack<T>(out[n][2 * i] * inverse, out[n][2 * i + 1] * inverse);
                *(u32*)(out_tile + (Tile<D>::at(0, local, n) + lane % 4 * 4)) = pair;
            }
        }
        __syncwarp();
        T* result = a.out + w.batch * a.out_stride[0] + w.head * a.out_stride[1];
#pragma unroll
        for (int i = lane; i < 16 * (D / 8); i += 32) {
            const int local = row + i / (D / 8), piece = i % (D / 8), at = w.q0 + 64 * group + local;
            if (at < a.q_len) *(uint4*)(result + at * a.out_stride[2] + piece * 8) = *(const uint4*)(out_tile + Tile<D>::at(0, local, piece));
        }
    }
}

KERNEL void __launch_bounds__(128 * (GROUPS + 1), 1) attention_forward_tma(
    const __grid_constant__ Attention a, const __grid_constant__ TensorMap queries, const __grid_constant__ TensorMap keys,
    const __grid_constant__ TensorMap values) {
    extern __shared__ u8 raw[];
    u8* room = raw + (1024 - shared_place(raw) % 1024) % 1024;
    u8 *q_room = room, *kv_room = q_room + GROUPS * Q_BYTES, *out_room = kv_room + STAGES * 2 * KV_BYTES;
    Barriers* bars = (Barriers*)(out_room + GROUPS * Q_BYTES);
    if (threadIdx.x == 0) {
        const int warps = 4 * GROUPS;
        barrier_init(&bars->q_full, 1), barrier_init(&bars->q_empty, warps);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&bars->k_full[i], 1), barrier_init(&bars->v_full[i], 1);
            barrier_init(&bars->k_empty[i], warps), barrier_init(&bars->v_empty[i], warps);
        }
        barrier_init_fence();
    }
    __syncthreads();
    const int q_tiles = (a.q_len + BM - 1) / BM, tiles = q_tiles * a.batch * a.q_heads;
    if (threadIdx.x < 128) {
        registers_fewer<GROUPS == 2 ? 24 : 32>();
        if (threadIdx.x == 0) load_all(a, &queries, &keys, &values, q_room, kv_room, bars, tiles, q_tiles);
    } else {
        registers_more<GROUPS == 2 ? 240 : 160>();
        compute_all(a, q_room, kv_room, out_room, bars, tiles, q_tiles);
    }
}
