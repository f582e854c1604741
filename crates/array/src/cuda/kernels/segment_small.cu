// Up to 16384 keys sorted and cut into segments by one block in one launch: what radix.cu, tile_scan and segment_starts do for many.
//
// segment_small(keys, count, bits, limit, keys_out, positions, starts, number, longer)
//   grid 1, block 1024, dynamic shared memory 16384 * 8 + 32 * 256 * 2 bytes. Stable sort by the lowest `bits` bits; positions u32 are where
//   keys came from; starts u32 the first entry of each segment of keys below the limit, and behind the last one their number; number i64
//   the segments; longer[0] is set to zero for segment_rows.
#include "prelude.cuh"

static const int MOST = 16384, THREADS = 1024, EACH = MOST / THREADS, WARPS = THREADS / 32, DIGITS = 256;

// Sum of the values of the threads before this one, and of all.
static DEVICE u32 before(u32 value, u32* room, u32& total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 sum = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
    }
    __syncthreads();
    if (lane == 31) room[warp] = sum;
    __syncthreads();
    const u32 own = room[lane];
    u32 all = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_up_sync(~0u, all, step);
        if (lane >= step) all += other;
    }
    total = __shfl_sync(~0u, all, 31);
    return sum - value + __shfl_sync(~0u, all - own, warp);
}

KERNEL void __launch_bounds__(THREADS) segment_small(
    const u32* keys, i32 count, i32 bits, u64 limit, u32* keys_out, u32* positions, u32* starts, i64* number, u32* longer) {
    DYNAMIC(shared);
    u32 *sorted = (u32*)shared, *places = sorted + MOST;
    u16* counts = (u16*)(places + MOST); // [warp][digit]
    __shared__ u32 room[WARPS], first_of[DIGITS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, base = warp * 32 * EACH + lane;
    u32 key[EACH], place[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int at = base + 32 * i;
        key[i] = at < count ? keys[at] : ~0u, place[i] = at;
    }
    for (int shift = 0; shift < bits; shift += 8) {
        for (int i = threadIdx.x; i < WARPS * DIGITS; i += THREADS) counts[i] = 0;
        __syncthreads();
        u16 rank[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const u32 d = key[i] >> shift & 255;
            u32 same = ~0u;
#pragma unroll
            for (int bit = 0; bit < 8; bit++) {
                const u32 votes = __ballot_sync(~0u, d >> bit & 1);
                same &= d >> bit & 1 ? votes : ~votes;
            }
            const u32 ahead = __popc(same & ((1u << lane) - 1));
            u32 old = 0;
            if (ahead == 0) {
                old = counts[warp * DIGITS + d];
                counts[warp * DIGITS + d] = (u16)(old + __popc(same));
            }
            rank[i] = (u16)(__shfl_sync(~0u, old, __ffs(same) - 1) + ahead);
            __syncwarp();
        }
        __syncthreads();
        // Where each digit begins, and in it each warp.
        u32 total = 0, all;
        if (threadIdx.x < DIGITS)
            for (int w = 0; w < WARPS; w++) {
                const u32 found = counts[w * DIGITS + threadIdx.x];
                counts[w * DIGITS + threadIdx.x] = (u16)total;
                total += found;
            }
        const u32 first = before(total, room, all);
        if (threadIdx.x < DIGITS) first_of[threadIdx.x] = first;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const u32 d = key[i] >> shift & 255, to = first_of[d] + counts[warp * DIGITS + d] + rank[i];
            sorted[to] = key[i], places[to] = place[i];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EACH; i++) key[i] = sorted[base + 32 * i], place[i] = places[base + 32 * i];
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int at = base + 32 * i;
        sorted[at] = key[i];
        if (at < count) keys_out[at] = key[i], positions[at] = place[i];
    }
    __syncthreads();
    // Sixteen neighbouring entries a thread.
    u32 heads = 0, valid = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int at = threadIdx.x * EACH + i;
        const bool there = at < count && sorted[at] < limit;
        heads |= (u32)(there && (at == 0 || sorted[at] != sorted[at - 1])) << i;
        valid += there;
    }
    u32 segments, entries;
    u32 at = before(__popc(heads), room, segments);
    for (u32 left = heads; left; left &= left - 1) starts[at++] = threadIdx.x * EACH + __ffs(left) - 1;
    before(valid, room, entries);
    if (threadIdx.x == 0) starts[segments] = entries, *number = segments, longer[0] = 0;
}
