// Sums (or products, extremes) over entries with equal keys, in a fixed order: what index_put with accumulate, scatter and
// the gradient of an embedding end in. Keys come sorted with the positions they had (radix.cu); those from `limit` on are
// ignored.
//
// The entries of a segment are cut from its start into runs of 128; a run is taken in order, then the runs in order (rows), or by the
// same rule again (elements). So the bits follow from the entries alone.
//
// Elements (inner == 1), without a list of segments:
//   segment_elements(Segments, count, limit)   grid any (strides), block 256; segments longer than 128 go on the list `longer`
//   segment_runs(Segments, count)              after it: grid (any, ceil(count / 32768)), block 256; sums of their runs into `parts`
//   segment_fold(Segments, count)              after it: grid any (strides), block 256
// Rows:
//   segment_count(keys, count, limit, sums)                   grid ceil(count / 4096), block 256; heads in each tile
//   segment_starts(keys, count, limit, tile_starts, starts)   likewise, after tile_scan (mask.cu): first entry of each segment, and
//                                                             behind the last one the number of entries below the limit
//   segment_rows(Segments)                     grid any (strides), block 256; segments longer than 512 go on the list `longer`
//   segment_rows_longer(Segments)              after it: grid any (strides), block 256
//
// Defines: ELEMENT (every type), WORD (u32, u64: KEY and PAYLOAD of radix.cu), PACKETS (1: rows are multiples of 16 bytes and aligned).
#include "prelude.cuh"

typedef ELEMENT T;
typedef Real<T>::type R;
typedef WORD KEY;
typedef WORD PAYLOAD;

struct Segments {
    const KEY* keys;
    const PAYLOAD* positions;
    const PAYLOAD* starts; // rows
    const i64* number;     // of segments: rows
    const T* values;
    T* out;
    u32* longer; // its length, then segments (rows: numbers, elements: first entries below 2^32); the length starts as zero
    R* parts;    // elements: count / 64 + 1 values
    i64 value_stride; // elements between rows of values
    i64 inner;
    i32 include; // 1: what `out` holds takes part
    i32 mean;    // 1: divided by how many took part; integers round down
    i32 op;      // 0 sum, 1 product, 2 max, 3 min
};

static const int TILE = 4096, EACH = 16, RUN = 128, LONG = 512;

static DEVICE R join(const Segments& s, R a, R b) {
    if (s.op == 0) return a + b;
    if (s.op == 1) return a * b;
    if (s.op == 2) return a > b || a != a ? a : b;
    return a < b || a != a ? a : b;
}
static DEVICE T finish(R found, T old, i64 entries, const Segments& s) {
    R all = s.include ? join(s, widen(old), found) : found;
    if (s.mean) {
        const R by = (R)(entries + s.include), whole = all / by;
        all = !IsFloat<T>::value && whole * by > all ? whole - 1 : whole;
    }
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

static DEVICE R value_at(const Segments& s, i64 entry) { return widen(s.values[(i64)s.positions[entry] * s.value_stride]); }

// A run of entries with the key of the first, in order; `end` gets where it ends.
static DEVICE R run_of(const Segments& s, KEY key, i64 from, i64 count, i64& end) {
    R sum = value_at(s, from);
    i64 i = from + 1;
    for (; i < from + RUN && i < count && s.keys[i] == key; i++) sum = join(s, sum, value_at(s, i));
    end = i;
    return sum;
}

KERNEL void __launch_bounds__(256) segment_elements(const __grid_constant__ Segments s, i64 count, u64 limit) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < count; i += (i64)gridDim.x * 256) {
        if (!is_head(s.keys, i, count, limit)) continue;
        const KEY key = s.keys[i];
        i64 end;
        const R sum = run_of(s, key, i, count, end);
        if (end == i + RUN && end < count && s.keys[end] == key) {
            s.longer[1 + atomicAdd(s.longer, 1u)] = (u32)i;
        } else {
            s.out[key] = finish(sum, s.include ? s.out[key] : T(), end - i, s);
        }
    }
}

// Runs of a segment start at parts[first / 64]: it has more than 128 entries, so the next segment's lie behind.
KERNEL void __launch_bounds__(256) segment_runs(const __grid_constant__ Segments s, i64 count) {
    const i64 run = (i64)blockIdx.y * 256 + threadIdx.x;
    for (u32 l = blockIdx.x; l < s.longer[0]; l += gridDim.x) {
        const i64 first = s.longer[1 + l], from = first + run * RUN;
        const KEY key = s.keys[first];
        i64 end;
        if (from < count && s.keys[from] == key) s.parts[first / 64 + run] = run_of(s, key, from, count, end);
    }
}

KERNEL void __launch_bounds__(256) segment_fold(const __grid_constant__ Segments s, i64 count) {
    for (u32 l = blockIdx.x; l < s.longer[0]; l += gridDim.x) {
        const i64 first = s.longer[1 + l];
        const KEY key = s.keys[first];
        // One past the last entry: 256 places are looked at at once.
        i64 low = first, high = count;
        while (high - low > 1) {
            const i64 step = (high - low + 255) / 256, at = low + threadIdx.x * step;
            const int same = __syncthreads_count(at < high && s.keys[at] == key);
            low += (same - 1) * step;
            high = low + step < high ? low + step : high;
        }
        R* parts = s.parts + first / 64;
        for (i64 left = (high - first + RUN - 1) / RUN; left > 1; left = (left + RUN - 1) / RUN)
            for (i64 base = 0; base * RUN < left; base += 256) {
                const i64 group = base + threadIdx.x, from = group * RUN, to = from + RUN < left ? from + RUN : left;
                R sum = 0;
                if (from < left) {
                    sum = parts[from];
                    for (i64 i = from + 1; i < to; i++) sum = join(s, sum, parts[i]);
                }
                __syncthreads();
                if (from < left) parts[group] = sum;
                __syncthreads();
            }
        if (threadIdx.x == 0) s.out[key] = finish(parts[0], s.include ? s.out[key] : T(), high - first, s);
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
                    sum[c] = i + a == from ? value : join(s, sum[c], value);
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
            for (int c = 0; c < WIDTH; c++) sum[c] = begin == from ? run[c] : join(s, sum[c], run[c]);
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
                    for (int c = 0; c < WIDTH; c++) sum[c] = block == from && w == 0 ? runs[0][lane][c] : join(s, sum[c], runs[w][lane][c]);
            }
            __syncthreads();
        }
        if (warp == 0 && column < s.inner) write_columns(sum, s, (i64)s.keys[from], column, to - from);
    }
}
