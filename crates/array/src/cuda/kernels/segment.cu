// Sums (or products, extremes) over entries with equal keys, in a fixed order: what index_put with accumulate, scatter and
// the gradient of an embedding end in. Keys come sorted with the positions they had (radix.cu); those from `limit` on are
// ignored.
//
// The entries of a segment are cut from its start into runs of 128; a run is taken in order, then the runs in order. So
// the bits follow from the entries alone.
//
// segment_count(keys, count, limit, sums)                     grid ceil(count / 4096), block 256; heads in each tile
// segment_starts(keys, count, limit, tile_starts, starts)     likewise, after tile_scan (mask.cu): first entry of each
//     segment, and behind the last one the number of entries below the limit
// segment_reduce(Segments)   elements (inner == 1): grid any (strides), block 256
// segment_rows(Segments)     rows: grid any (strides), block 256; segments longer than 512 go on the list `longer`
// segment_rows_longer(Segments)   after it: grid any (strides), block 256
//
// Defines: ELEMENT (f64, f32, bf16, f16, integers), KEY, PAYLOAD (u32, u64) as in radix.cu, OP (0 sum, 1 product, 2 max,
//   3 min), PACKETS (1: rows are multiples of 16 bytes and aligned).
#include "prelude.cuh"

typedef ELEMENT T;
typedef Real<T>::type R;

struct Segments {
    const KEY* keys;
    const PAYLOAD* positions;
    const PAYLOAD* starts;
    const i64* number; // of segments
    const T* values;
    T* out;
    u32* longer; // its length, then numbers of segments; the length starts as zero
    i64 value_stride; // elements between rows of values
    i64 inner;
    i32 include; // 1: what `out` holds takes part
    i32 mean;    // 1: divided by how many took part
};

static const int TILE = 4096, EACH = 16, RUN = 128, LONG = 512;

static DEVICE R join(R a, R b) {
    if (OP == 0) return a + b;
    if (OP == 1) return a * b;
    if (OP == 2) return a > b || a != a ? a : b;
    return a < b || a != a ? a : b;
}
static DEVICE T finish(R found, T old, i64 entries, const Segments& s) {
    R all = s.include ? join(widen(old), found) : found;
    if (s.mean) all = all / (R)(entries + s.include);
    return narrow<T>(all);
}

static DEVICE bool is_head(const KEY* keys, i64 i, i64 count, u64 limit) {
    return i < count && keys[i] < limit && (i == 0 || keys[i] != keys[i - 1]);
}

// Heads before this thread's sixteen entries in its tile; `heads` has a bit for each.
static DEVICE u32 tile_rank(const KEY* keys, i64 at, i64 count, u64 limit, u32& heads, u32& total) {
    __shared__ u32 warps[8];
    const int lane = threadIdx.x % 32;
    heads = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) heads |= (u32)is_head(keys, at + i, count, limit) << i;
    u32 sum = __popc(heads);
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
    return front + sum - __popc(heads);
}

KERNEL void __launch_bounds__(256) segment_count(const KEY* keys, i64 count, u64 limit, u32* sums) {
    u32 heads, total;
    tile_rank(keys, (i64)blockIdx.x * TILE + threadIdx.x * EACH, count, limit, heads, total);
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

KERNEL void __launch_bounds__(256) segment_starts(
    const KEY* keys, i64 count, u64 limit, const i64* tile_starts, PAYLOAD* starts) {
    const i64 at = (i64)blockIdx.x * TILE + threadIdx.x * EACH;
    u32 heads, total;
    i64 rank = tile_starts[blockIdx.x] + tile_rank(keys, at, count, limit, heads, total);
    for (; heads; heads &= heads - 1) starts[rank++] = (PAYLOAD)(at + __ffs(heads) - 1);
    for (i64 i = at; i < at + EACH && i < count; i++) {
        const bool last = keys[i] < limit && (i + 1 == count || keys[i + 1] >= limit);
        if (last) starts[tile_starts[gridDim.x]] = (PAYLOAD)(i + 1);
    }
    if (at == 0 && threadIdx.x == 0 && !(keys[0] < limit)) starts[0] = 0;
}

// A run of entries of one element each, in order.
static DEVICE R run_of(const Segments& s, i64 from, i64 to) {
    R sum = widen(s.values[(i64)s.positions[from] * s.value_stride]);
    for (i64 i = from + 1; i < to; i++) sum = join(sum, widen(s.values[(i64)s.positions[i] * s.value_stride]));
    return sum;
}

KERNEL void __launch_bounds__(256) segment_reduce(const __grid_constant__ Segments s) {
    __shared__ i64 queue[256];
    __shared__ R runs[256];
    __shared__ u32 queued;
    const i64 number = *s.number;
    for (i64 base = (i64)blockIdx.x * 256; base < number; base += (i64)gridDim.x * 256) {
        if (threadIdx.x == 0) queued = 0;
        __syncthreads();
        const i64 segment = base + threadIdx.x;
        if (segment < number) {
            const i64 from = s.starts[segment], to = s.starts[segment + 1];
            if (to - from <= RUN) {
                T* target = s.out + s.keys[from];
                *target = finish(run_of(s, from, to), *target, to - from, s);
            } else {
                queue[atomicAdd(&queued, 1u)] = segment;
            }
        }
        __syncthreads();
        // Long segments: one run a thread, runs joined in order by the first.
        for (u32 q = 0; q < queued; q++) {
            const i64 from = s.starts[queue[q]], to = s.starts[queue[q] + 1];
            R sum = 0;
            for (i64 block = from; block < to; block += 256 * RUN) {
                const i64 begin = block + threadIdx.x * RUN;
                if (begin < to) runs[threadIdx.x] = run_of(s, begin, begin + RUN < to ? begin + RUN : to);
                __syncthreads();
                if (threadIdx.x == 0) {
                    const i64 left = (to - block + RUN - 1) / RUN;
                    for (int r = 0; r < 256 && r < left; r++) sum = block == from && r == 0 ? runs[0] : join(sum, runs[r]);
                }
                __syncthreads();
            }
            if (threadIdx.x == 0) {
                T* target = s.out + s.keys[from];
                *target = finish(sum, *target, to - from, s);
            }
        }
        __syncthreads();
    }
}

#if PACKETS
static const int WIDTH = Packet<T>::LEN;
#else
static const int WIDTH = 1;
#endif
static const int AHEAD = 4;
struct alignas(WIDTH * sizeof(T)) Piece { T at[WIDTH]; };

// The sum of entries `from .. to` of a lane's columns, in order.
static DEVICE void run_of_rows(R (&sum)[WIDTH], const Segments& s, i64 from, i64 to, i64 column) {
    for (i64 i = from; i < to; i += AHEAD) {
        Piece held[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (i + a < to) held[a] = *(const Piece*)(s.values + (i64)s.positions[i + a] * s.value_stride + column);
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (i + a < to) {
#pragma unroll
                for (int c = 0; c < WIDTH; c++) {
                    const R value = widen(held[a].at[c]);
                    sum[c] = i + a == from ? value : join(sum[c], value);
                }
            }
    }
}
static DEVICE void write_columns(const R (&sum)[WIDTH], const Segments& s, i64 row, i64 column, i64 entries) {
    Piece* target = (Piece*)(s.out + row * s.inner + column);
    Piece old = {};
    if (s.include) old = *target;
#pragma unroll
    for (int c = 0; c < WIDTH; c++) old.at[c] = finish(sum[c], old.at[c], entries, s);
    *target = old;
}

KERNEL void __launch_bounds__(256) segment_rows(const __grid_constant__ Segments s) {
    const int lane = threadIdx.x % 32;
    const i64 chunks = (s.inner + 32 * WIDTH - 1) / (32 * WIDTH), units = *s.number * chunks;
    for (i64 unit = (i64)blockIdx.x * 8 + threadIdx.x / 32; unit < units; unit += (i64)gridDim.x * 8) {
        const i64 segment = unit / chunks, column = (unit % chunks * 32 + lane) * WIDTH;
        const i64 from = s.starts[segment], to = s.starts[segment + 1];
        if (to - from > LONG) {
            if (lane == 0 && unit % chunks == 0) s.longer[1 + atomicAdd(s.longer, 1u)] = (u32)segment;
            continue;
        }
        if (column >= s.inner) continue;
        R sum[WIDTH];
        for (i64 begin = from; begin < to; begin += RUN) {
            R run[WIDTH];
            run_of_rows(run, s, begin, begin + RUN < to ? begin + RUN : to, column);
#pragma unroll
            for (int c = 0; c < WIDTH; c++) sum[c] = begin == from ? run[c] : join(sum[c], run[c]);
        }
        write_columns(sum, s, (i64)s.keys[from], column, to - from);
    }
}

KERNEL void __launch_bounds__(256) segment_rows_longer(const __grid_constant__ Segments s) {
    __shared__ R runs[8][32][WIDTH];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 chunks = (s.inner + 32 * WIDTH - 1) / (32 * WIDTH), units = s.longer[0] * chunks;
    for (i64 unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const i64 segment = s.longer[1 + unit / chunks], column = (unit % chunks * 32 + lane) * WIDTH;
        const i64 from = s.starts[segment], to = s.starts[segment + 1];
        R sum[WIDTH];
        for (i64 block = from; block < to; block += 8 * RUN) {
            const i64 begin = block + warp * RUN;
            R run[WIDTH];
            if (begin < to && column < s.inner) {
                run_of_rows(run, s, begin, begin + RUN < to ? begin + RUN : to, column);
#pragma unroll
                for (int c = 0; c < WIDTH; c++) runs[warp][lane][c] = run[c];
            }
            __syncthreads();
            if (warp == 0) {
                for (int w = 0; w < 8 && block + w * RUN < to; w++)
#pragma unroll
                    for (int c = 0; c < WIDTH; c++) sum[c] = block == from && w == 0 ? runs[0][lane][c] : join(sum[c], runs[w][lane][c]);
            }
            __syncthreads();
        }
        if (warp == 0 && column < s.inner) write_columns(sum, s, (i64)s.keys[from], column, to - from);
    }
}
