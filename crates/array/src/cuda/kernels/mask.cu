// Selection by a boolean mask: x[mask], positions of true, masked_fill, masked_scatter.
//
// A mask of `count` bytes is cut into tiles of 4096. First mask_count and tile_scan give the place of each tile's first
// selected element and their number; the host reads that number back to allocate; then one of the writers runs. The
// order is that of the mask, so results have the same bits every time. Arrays are contiguous and elements are moved as
// bits.
//
// mask_count(mask, count, sums)               grid ceil(count / 4096), block 256
// tile_scan(sums, tiles, starts)              grid 1, block 1024; starts[tiles] is the total
// mask_select(mask, x, count, starts, out)    grid and block as mask_count; out[rank] = x[i]
// mask_positions(mask, count, starts, out)    likewise; out[rank] = i, i64
// masked_scatter(mask, x, source, available, count, starts, out)
//                                             likewise; out[i] = mask[i] ? source[rank] : x[i]; out may be x; where the
//                                             source is too short x stays (the host compares the total)
// masked_fill(mask, x, value, count, out)     grid any (strides), block 256; value has the element's bits; where out is x,
//                                             packets that the mask leaves alone are not touched
//
// Defines: ELEMENT (u8, u16, u32, u64).
#include "prelude.cuh"

typedef ELEMENT T;
static const int TILE = 4096;
static const int EACH = 16; // consecutive mask bytes a thread

// Bit i is set where byte i of the sixteen from `at` on is true; bytes past the end are false.
static DEVICE u32 read_bits(const u8* mask, i64 at, i64 count) {
    u32 bits = 0;
    if (at + EACH <= count && ((u64)(mask + at) & 15) == 0) {
        const uint4 raw = *(const uint4*)(mask + at);
        const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const u32 high = (((words[w] & 0x7f7f7f7f) + 0x7f7f7f7f) | words[w]) & 0x80808080;
            // Gathers the four high bits of the bytes.
            bits |= ((high >> 7) * 0x10204080 >> 28) << (4 * w);
        }
    } else {
#pragma unroll
        for (int i = 0; i < EACH; i++) bits |= (u32)(at + i < count && mask[at + i] != 0) << i;
    }
    return bits;
}

// Sum of the values of the threads before this one in a block of 256, and the whole sum.
static DEVICE u32 before(u32 value, u32& total) {
    __shared__ u32 warps[8];
    const int lane = threadIdx.x % 32;
    u32 sum = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    u32 front = 0;
    total = 0;
#pragma unroll
    for (int w = 0; w < 8; w++) {
        if (w < threadIdx.x / 32) front += warps[w];
        total += warps[w];
    }
    return front + sum - value;
}

KERNEL void __launch_bounds__(256) mask_count(const u8* mask, i64 count, u32* sums) {
    u32 total;
    before(__popc(read_bits(mask, (i64)blockIdx.x * TILE + threadIdx.x * EACH, count)), total);
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

KERNEL void __launch_bounds__(1024) tile_scan(const u32* sums, i64 tiles, i64* starts) {
    __shared__ i64 warps[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int RUN = 8; // consecutive tiles a thread
    i64 carried = 0;
    for (i64 first = 0; first < tiles; first += 1024 * RUN) {
        const i64 at = first + threadIdx.x * RUN;
        u32 own[RUN];
        i64 value = 0;
#pragma unroll
        for (int i = 0; i < RUN; i++) {
            own[i] = at + i < tiles ? sums[at + i] : 0;
            value += own[i];
        }
        i64 sum = value;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const i64 other = __shfl_up_sync(~0u, sum, step);
            if (lane >= step) sum += other;
        }
        if (lane == 31) warps[warp] = sum;
        __syncthreads();
        i64 front = carried, total = 0;
        for (int w = 0; w < 32; w++) {
            if (w < warp) front += warps[w];
            total += warps[w];
        }
        front += sum - value;
#pragma unroll
        for (int i = 0; i < RUN; i++) {
            if (at + i < tiles) starts[at + i] = front;
            front += own[i];
        }
        carried += total;
        __syncthreads();
    }
    if (threadIdx.x == 0) starts[tiles] = carried;
}

KERNEL void __launch_bounds__(256) mask_select(const u8* mask, const T* x, i64 count, const i64* starts, T* out) {
    __shared__ T chosen[TILE];
    const i64 at = (i64)blockIdx.x * TILE + threadIdx.x * EACH;
    u32 bits = read_bits(mask, at, count), total;
    u32 rank = before(__popc(bits), total);
    // A thread with nothing chosen reads nothing; otherwise its elements come in packets.
    if (bits && at + EACH <= count && ((u64)(x + at) & 15) == 0) {
        const int LEN = Packet<T>::LEN;
        Packet<T> own[EACH / LEN > 0 ? EACH / LEN : 1];
#pragma unroll
        for (int p = 0; p < EACH / LEN; p++) own[p] = load16(x + at + p * LEN);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (bits >> i & 1) chosen[rank++] = own[i / LEN].at[i % LEN];
    } else {
        for (; bits; bits &= bits - 1) chosen[rank++] = x[at + __ffs(bits) - 1];
    }
    __syncthreads();
    T* to = out + starts[blockIdx.x];
    for (u32 i = threadIdx.x; i < total; i += 256) to[i] = chosen[i];
}

KERNEL void __launch_bounds__(256) mask_positions(const u8* mask, i64 count, const i64* starts, i64* out) {
    __shared__ u16 chosen[TILE];
    u32 bits = read_bits(mask, (i64)blockIdx.x * TILE + threadIdx.x * EACH, count), total;
    u32 rank = before(__popc(bits), total);
    for (; bits; bits &= bits - 1) chosen[rank++] = threadIdx.x * EACH + __ffs(bits) - 1;
    __syncthreads();
    i64* to = out + starts[blockIdx.x];
    for (u32 i = threadIdx.x; i < total; i += 256) to[i] = (i64)blockIdx.x * TILE + chosen[i];
}

KERNEL void __launch_bounds__(256) masked_scatter(
    const u8* mask, const T* x, const T* source, i64 available, i64 count, const i64* starts, T* out) {
    const i64 at = (i64)blockIdx.x * TILE + threadIdx.x * EACH;
    const u32 bits = read_bits(mask, at, count);
    u32 total;
    i64 rank = starts[blockIdx.x] + before(__popc(bits), total);
    if (x == out) {
        for (u32 left = bits; left; left &= left - 1, rank++)
            if (rank < available) out[at + __ffs(left) - 1] = source[rank];
        return;
    }
    const int LEN = Packet<T>::LEN;
    if (at + EACH <= count && (((u64)(x + at) | (u64)(out + at)) & 15) == 0) {
        Packet<T> own[EACH / LEN];
#pragma unroll
        for (int p = 0; p < EACH / LEN; p++) own[p] = load16(x + at + p * LEN);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (bits >> i & 1) {
                if (rank < available) own[i / LEN].at[i % LEN] = source[rank];
                rank++;
            }
#pragma unroll
        for (int p = 0; p < EACH / LEN; p++) store16(out + at + p * LEN, own[p]);
    } else {
        for (int i = 0; i < EACH && at + i < count; i++) {
            const bool set = bits >> i & 1;
            out[at + i] = set && rank < available ? source[rank] : x[at + i];
            rank += set;
        }
    }
}

KERNEL void __launch_bounds__(256) masked_fill(const u8* mask, const T* x, T value, i64 count, T* out) {
    const int LEN = Packet<T>::LEN;
    const i64 threads = (i64)gridDim.x * 256, thread = (i64)blockIdx.x * 256 + threadIdx.x;
    const bool aligned = (((u64)x | (u64)out) & 15) == 0 && ((u64)mask & (LEN - 1)) == 0;
    const i64 packets = aligned ? count / LEN : 0;
    for (i64 p = thread; p < packets; p += threads) {
        const u8* flags = mask + p * LEN;
        u64 set = 0, set_high = 0;
        if (LEN == 2) set = *(const u16*)flags;
        if (LEN == 4) set = *(const u32*)flags;
        if (LEN == 8) set = *(const u64*)flags;
        if (LEN == 16) set = ((const u64*)flags)[0], set_high = ((const u64*)flags)[1];
        if (x == out && (set | set_high) == 0) continue;
        Packet<T> own = load16(x + p * LEN);
#pragma unroll
        for (int i = 0; i < LEN; i++)
            if (((i < 8 ? set : set_high) >> (8 * (i % 8)) & 255) != 0) own.at[i] = value;
        store16(out + p * LEN, own);
    }
    for (i64 i = packets * LEN + thread; i < count; i += threads) out[i] = mask[i] ? value : x[i];
}
