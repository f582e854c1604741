// What generation does for one new token of each of several rows, besides products: all positions are read on the device.
//
// look_up(table, ids, out, rows, width, size)   grid any, block 256. Row ids[r] of a table of `size` rows; zeros where there is none.
// rotate_into(Rotate)     grid any, block 256. Rotates queries in place and keys into the cache, copies values into it, each row at its position.
// attend_rows(Attend)     grid rows * heads, block 128. One query a row and head over the keys up to its position. Warps take keys in turn and are
//                         joined in order: a row has the same bits beside any others.
// take_best(Taken)        grid rows, block 1024. The token of the highest score, of equals the first, becomes the row's next one.
//
// Caches are contiguous [rows, kv_heads, capacity, dim]; dim <= 256. A row that has ended stays as it is.
//
// Defines: ELEMENT (bf16, f16, f32, f64).
#include "prelude.cuh"

typedef ELEMENT T;
typedef Real<T>::type R;
static const int WARPS = 4, SPAN = 8, LEN = Packet<T>::LEN;

KERNEL void __launch_bounds__(256) look_up(const T* table, const i64* ids, T* out, i64 rows, i64 width, i64 size) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < rows * width; i += (i64)gridDim.x * 256) {
        const i64 row = i / width, id = ids[row];
        out[i] = id >= 0 && id < size ? table[id * width + (i - row * width)] : narrow<T>((R)0);
    }
}

struct Rotate {
    T* q;
    const T *k, *v;
    T *keys, *values;
    const i64* positions;
    const R *cosines, *sines; // [reach, dim / 2]
    i64 rows, heads, kv_heads, dim, capacity, reach;
};

KERNEL void __launch_bounds__(256) rotate_into(const __grid_constant__ Rotate a) {
    const i64 half = a.dim / 2, units = (a.heads + 2 * a.kv_heads) * half;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < a.rows * units; i += (i64)gridDim.x * 256) {
        const i64 row = i / units, unit = i - row * units, head = unit / half, at = unit - head * half;
        const i64 position = a.positions[row];
        if (position < 0 || position >= a.capacity || position >= a.reach) continue;
        const i64 kv = (head - a.heads) % a.kv_heads;
        const i64 slot = ((row * a.kv_heads + kv) * a.capacity + position) * a.dim;
        const T* from = head < a.heads ? a.q + (row * a.heads + head) * a.dim
                                       : (head < a.heads + a.kv_heads ? a.k : a.v) + (row * a.kv_heads + kv) * a.dim;
        T* to = head < a.heads ? a.q + (row * a.heads + head) * a.dim : (head < a.heads + a.kv_heads ? a.keys : a.values) + slot;
        T low = from[at], high = from[at + half];
        if (head < a.heads + a.kv_heads) {
            const R u = widen(low), v = widen(high), c = a.cosines[position * half + at], s = a.sines[position * half + at];
            low = narrow<T>(fma(u, c, -(v * s)));
            high = narrow<T>(fma(v, c, u * s));
        }
        to[at] = low;
        to[at + half] = high;
    }
}

struct Attend {
    const T *q, *keys, *values;
    T* out;
    const i64* positions;
    i64 heads, kv_heads, dim, capacity, window; // window 0: all keys before
    f64 scale;
};

KERNEL void __launch_bounds__(32 * WARPS) attend_rows(const __grid_constant__ Attend a) {
    __shared__ R tops[WARPS], sums[WARPS], parts[WARPS][32 * SPAN];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 row = blockIdx.x / a.heads, head = blockIdx.x % a.heads, kv = head / (a.heads / a.kv_heads);
    const i64 length = min(a.positions[row] + 1, a.capacity), from = a.window > 0 ? max(length - a.window, (i64)0) : 0;
    const T *keys = a.keys + (row * a.kv_heads + kv) * a.capacity * a.dim, *values = a.values + (row * a.kv_heads + kv) * a.capacity * a.dim;
    const T* query = a.q + (i64)blockIdx.x * a.dim;
    R q[SPAN], part[SPAN], top = -(R)INFINITE, sum = 0;
#pragma unroll
    for (int s = 0; s < SPAN; s++) {
        const int d = lane + 32 * s;
        q[s] = d < a.dim ? widen(query[d]) : (R)0;
        part[s] = 0;
    }
    for (i64 key = from + warp; key < length; key += WARPS) {
        R dot = 0;
#pragma unroll
        for (int s = 0; s < SPAN; s++)
            if (lane + 32 * s < a.dim) dot += q[s] * widen(keys[key * a.dim + lane + 32 * s]);
        dot = warp_sum(dot) * (R)a.scale;
        const R larger = dot > top ? dot : top, keep = exp(top - larger), weight = exp(dot - larger);
        sum = sum * keep + weight;
#pragma unroll
        for (int s = 0; s < SPAN; s++)
            if (lane + 32 * s < a.dim) part[s] = part[s] * keep + weight * widen(values[key * a.dim + lane + 32 * s]);
        top = larger;
    }
    if (lane == 0) tops[warp] = top, sums[warp] = sum;
#pragma unroll
    for (int s = 0; s < SPAN; s++) parts[warp][lane + 32 * s] = part[s];
    __syncthreads();
    R most = tops[0];
#pragma unroll
    for (int w = 1; w < WARPS; w++) most = tops[w] > most ? tops[w] : most;
    for (int d = threadIdx.x; d < a.dim; d += 32 * WARPS) {
        R total = 0, value = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const R keep = tops[w] == -(R)INFINITE ? (R)0 : exp(tops[w] - most);
            total += sums[w] * keep;
            value += parts[w][d] * keep;
        }
        a.out[(i64)blockIdx.x * a.dim + d] = narrow<T>(total > 0 ? value / total : (R)0);
    }
}

struct Taken {
    const T* scores; // [rows, size]
    i64 *positions, *next, *made; // made: [rows, room]
    u8* ended;
    const i64 *lengths, *limits, *stops;
    i64 size, room, stop_count;
};

// Keeps the higher score; of equals, and before anything else, the lower token.
static DEVICE void better(R& best, i64& token, R score, i64 other) {
    if (score > best || (score == best && other < token)) best = score, token = other;
}

KERNEL void __launch_bounds__(1024) take_best(const __grid_constant__ Taken a) {
    __shared__ R scores[32];
    __shared__ i64 tokens[32];
    const i64 row = blockIdx.x, none = a.size;
    const T* own = a.scores + row * a.size;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    R best = -(R)INFINITE;
    i64 token = none;
    const i64 packets = a.size % LEN == 0 && (u64)own % 16 == 0 ? a.size / LEN : 0;
#pragma unroll 4
    for (i64 p = threadIdx.x; p < packets; p += 1024) {
        const Packet<T> v = load16(own + p * LEN);
#pragma unroll
        for (int i = 0; i < LEN; i++) better(best, token, widen(v.at[i]), p * LEN + i);
    }
    for (i64 i = packets * LEN + threadIdx.x; i < a.size; i += 1024) better(best, token, widen(own[i]), i);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const R score = __shfl_xor_sync(~0u, best, step);
        const i64 other = __shfl_xor_sync(~0u, token, step);
        better(best, token, score, other);
    }
    if (lane == 0) scores[warp] = best, tokens[warp] = token;
    __syncthreads();
    if (threadIdx.x != 0 || a.ended[row]) return;
    for (int w = 1; w < 32; w++) better(best, token, scores[w], tokens[w]);
    // No score is a number: the first token, as on the host.
    if (token == none) token = 0;
    const i64 position = a.positions[row] + 1, number = position - a.lengths[row];
    if (number < 0 || number >= a.room) return;
    a.made[row * a.room + number] = token;
    a.next[row] = token;
    a.positions[row] = position;
    bool stop = number + 1 >= a.limits[row];
    for (i64 i = 0; i < a.stop_count; i++) stop |= a.stops[i] == token;
    a.ended[row] = stop;
}
