// Stable radix sort of keys with a payload: eight bits a pass, each pass one kernel in which tiles look back at the
// counts of those before them. The result follows from the keys alone.
//
// radix_histogram(keys, count, passes, histogram)   grid any (strides), block 256; histogram u64[passes][256], zeroed
// radix_scan(histogram)                             grid passes, block 256; sums of the digits below
// radix_pass(keys, payload, count, shift, histogram, status, ticket, keys_out, payload_out)
//   grid ceil(count / 4096), block 256. `histogram` is that of this pass; status u64[tiles][256] and the ticket u32 are
//   zeroed before each pass. A null payload stands for the positions 0, 1, 2, ...
//
// Defines: KEY (u16, u32, u64), PAYLOAD (u32, u64: holds every position).
#include "prelude.cuh"

static const int DIGITS = 256;
static const int THREADS = 256;
static const int EACH = 16; // keys a thread
static const int TILE = THREADS * EACH;
static const int WARPS = THREADS / 32;

KERNEL void __launch_bounds__(THREADS) radix_histogram(const KEY* keys, i64 count, i32 passes, u64* histogram) {
    __shared__ u32 bins[sizeof(KEY)][DIGITS];
    for (int p = 0; p < passes; p++) bins[p][threadIdx.x] = 0;
    __syncthreads();
    // Bins of 32 bits hold what one block counts: below 2^32 keys.
    for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < count; i += (i64)gridDim.x * THREADS) {
        const KEY key = keys[i];
        for (int p = 0; p < passes; p++) atomicAdd(&bins[p][key >> (8 * p) & 255], 1u);
    }
    __syncthreads();
    for (int p = 0; p < passes; p++) {
        const u32 found = bins[p][threadIdx.x];
        if (found) atomicAdd(histogram + p * DIGITS + threadIdx.x, (u64)found);
    }
}

// Exclusive sum over the 256 threads of a block.
template <class R> static DEVICE R exclusive(R value, R* room) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    R sum = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const R other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) room[warp] = sum;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        if (w < warp) sum += room[w];
    __syncthreads();
    return sum - value;
}

KERNEL void __launch_bounds__(DIGITS) radix_scan(u64* histogram) {
    __shared__ u64 room[WARPS];
    u64* own = histogram + blockIdx.x * DIGITS + threadIdx.x;
    *own = exclusive(*own, room);
}

// A tile's counts, then the counts of all tiles up to it.
static const u64 COUNTED = 1ull << 62, SUMMED = 2ull << 62, NUMBER = COUNTED - 1;

KERNEL void __launch_bounds__(THREADS, sizeof(KEY) + sizeof(PAYLOAD) > 8 ? 2 : 4) radix_pass(
    const KEY* keys, const PAYLOAD* payload, i64 count, i32 shift, const u64* histogram, u64* status, u32* ticket,
    KEY* keys_out, PAYLOAD* payload_out) {
    __shared__ u32 tile_room, starts[DIGITS], counts[WARPS][DIGITS];
    __shared__ u32 room[WARPS];
    __shared__ PAYLOAD targets[DIGITS];
    __shared__ union { KEY keys[TILE]; PAYLOAD payload[TILE]; } sorted;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, digit = threadIdx.x;
    // Tiles are taken in the order in which blocks start, so that none waits for one that has not begun.
    if (threadIdx.x == 0) tile_room = atomicAdd(ticket, 1u);
#pragma unroll
    for (int w = 0; w < WARPS; w++) counts[w][digit] = 0;
    __syncthreads();
    const i64 tile = tile_room, first = tile * TILE;
    const int here = (int)(count - first < TILE ? count - first : TILE);

    KEY own[EACH];
    u32 rank[EACH];
    const int base = warp * 32 * EACH + lane;
#pragma unroll
    for (int i = 0; i < EACH; i++) own[i] = base + 32 * i < here ? keys[first + base + 32 * i] : (KEY)~(KEY)0;
    // Rank among the keys of the warp with the same digit, in order.
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const bool there = base + 32 * i < here;
        const u32 d = (u32)(own[i] >> shift) & 255;
        u32 same = __ballot_sync(~0u, there);
        if (!there) same = ~same;
#pragma unroll
        for (int bit = 0; bit < 8; bit++) {
            const u32 votes = __ballot_sync(~0u, d >> bit & 1);
            same &= d >> bit & 1 ? votes : ~votes;
        }
        const u32 ahead = __popc(same & ((1u << lane) - 1));
        u32 old = 0;
        if (there && ahead == 0) {
            old = counts[warp][d];
            counts[warp][d] = old + __popc(same);
        }
        rank[i] = __shfl_sync(~0u, old, __ffs(same) - 1) + ahead;
        __syncwarp();
    }
    __syncthreads();

    // Thread `digit`: the digit's keys in each warp, in the tile, and in all tiles before.
    u32 total = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const u32 found = counts[w][digit];
        counts[w][digit] = total;
        total += found;
    }
    volatile u64* mine = status + tile * DIGITS + digit;
    *mine = (tile == 0 ? SUMMED : COUNTED) | total;
    const u32 start = exclusive(total, room);
    starts[digit] = start;
    u64 before = 0;
    for (i64 back = tile - 1; back >= 0; back--) {
        volatile u64* other = status + back * DIGITS + digit;
        u64 seen;
        while ((seen = *other) == 0) {}
        before += seen & NUMBER;
        if (seen >= SUMMED) break;
    }
    if (tile > 0) *mine = SUMMED | (before + total);
    targets[digit] = (PAYLOAD)(histogram[digit] + before - start);
    __syncthreads();

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const u32 d = (u32)(own[i] >> shift) & 255;
        rank[i] += starts[d] + counts[warp][d];
        if (base + 32 * i < here) sorted.keys[rank[i]] = own[i];
    }
    __syncthreads();
    PAYLOAD to[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int at = i * THREADS + threadIdx.x;
        if (at < here) {
            const KEY key = sorted.keys[at];
            to[i] = targets[(u32)(key >> shift) & 255] + at;
            keys_out[to[i]] = key;
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int at = base + 32 * i;
        if (at < here) sorted.payload[rank[i]] = payload ? payload[first + at] : (PAYLOAD)(first + at);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int at = i * THREADS + threadIdx.x;
        if (at < here) payload_out[to[i]] = sorted.payload[at];
    }
}
