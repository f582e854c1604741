// Reading and writing places named by integer arrays: x[i, j, ..], gather, scatter and index_put, and the keys by which sums
// over equal places are ordered. Elements are moved as bits.
//
// An Index holds up to 8 contiguous integer arrays of `count` entries, one per indexed dim, with the dims' extents and
// strides. Strides count rows: `inner` contiguous elements. Entries below zero count from the end; those out of range are
// reported to the dim's slot, read as row 0 and never written.
//
// index_read(Index, x, inner, out, slots)        out[i] = x[row(i)]
// index_keys(Index, limit, keys, slots)          keys[i] = row(i), or `limit` where it is out of range
// Along one dim, with one entry per element; entries must lie in 0 .. extent (with `wrap`, those below zero count from the end), `step` is the
// dim's stride in x:
// along_read(Walk<3>, out, x, index, extent, step, wrap, slot)       out = x[.. entry ..]; operands out, x without the dim, index
// along_keys(Walk<2>, index, extent, step, limit, keys, slot)        keys of a dense x; operands place without the dim, index
// Writing rows by keys, of equal keys the last:
// key_claim(keys, count, limit, winner)          winner[key] = max(winner[key], i + 1), from zeros
// key_write(keys, count, limit, values, value_stride, inner, winner, out)
//     out[key] = values[i * value_stride ..] where i won; a null winner: all write; a value_stride of 0: one packet for all
// Writing elements far apart, most of them named once:
// key_mark(keys, count, limit, seen, twice)      bits of places named at all, and more than once
// key_write_once(keys, count, limit, values, value_stride, twice, winner, again, out)
//     writes the rest; entries of places named twice go on the list `again`, their winner is zeroed
// key_claim_again(keys, again, winner)           winner[key] = max(winner[key], entry + 1)
// key_write_again(keys, values, value_stride, again, winner, out)
//   seen and twice are u32[limit / 32 + 1], zeroed; again is its length (zeroed), then room for every entry.
// All: grid any (strides), block 256.
//
// Defines: ELEMENT (u8, u16, u32, u64), WORD (of keys and offsets: u64, or u32 where every offset reached is below 2^31),
//   PACKETS (1: rows are multiples of 16 bytes and aligned; 0: any).
#include "prelude.cuh"
#include "walk.cuh"

typedef ELEMENT T;
struct Index {
    const i64* at[8];
    i64 extent[8], stride[8];
    i64 count;
    i32 dims;
};

#if PACKETS
typedef uint4 Unit;
#else
typedef T Unit;
#endif
static const int UNIT = sizeof(Unit) / sizeof(T);
static const int AHEAD = 4; // independent units a thread has in flight
static const int SLOT = 4;  // words of a slot

// The row entry `i` names; false where it is out of range.
static DEVICE bool row_of(const Index& index, i64 i, WORD& row, u64* slots) {
    row = 0;
    bool good = true;
    for (int d = 0; d < index.dims; d++) {
        const i64 given = index.at[d][i], value = given < 0 ? given + index.extent[d] : given;
        if ((u64)value >= (u64)index.extent[d]) {
            if (slots) report(slots + SLOT * d, i, given);
            good = false;
        }
        row += (WORD)value * (WORD)index.stride[d];
    }
    if (!good) row = 0;
    return good;
}

KERNEL void __launch_bounds__(256) index_read(const __grid_constant__ Index index, const T* x, i64 inner, T* out, u64* slots) {
    const WORD units = inner / UNIT, all = (WORD)index.count * units, chunk = AHEAD * 256;
    const Unit* from = (const Unit*)x;
    Unit* to = (Unit*)out;
    for (WORD first = blockIdx.x * chunk + threadIdx.x; first < all; first += gridDim.x * chunk) {
        Unit held[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const WORD at = first + a * 256;
            if (at >= all) break;
            const WORD i = units == 1 ? at : at / units, rest = units == 1 ? 0 : at % units;
            WORD row;
            row_of(index, i, row, rest == 0 ? slots : nullptr);
            held[a] = from[row * units + rest];
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const WORD at = first + a * 256;
            if (at >= all) break;
            to[at] = held[a];
        }
    }
}

KERNEL void __launch_bounds__(256) index_keys(const __grid_constant__ Index index, u64 limit, WORD* keys, u64* slots) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < index.count; i += (i64)gridDim.x * 256) {
        WORD row;
        keys[i] = row_of(index, i, row, slots) ? row : (WORD)limit;
    }
}

KERNEL void __launch_bounds__(256) along_read(Walk<3> w, T* out, const T* x, const i64* index, i64 extent, i64 step, u32 wrap, u64* slot) {
    for (u64 i = FIRST; i < w.numel; i += STEP) {
        i64 at[3];
        locate(w, i, at);
        const i64 given = index[at[2]], entry = wrap && given < 0 ? given + extent : given;
        const bool good = (u64)entry < (u64)extent;
        if (!good) report(slot, i, given);
        out[at[0]] = x[at[1] + (good ? entry : 0) * step];
    }
}

KERNEL void __launch_bounds__(256) along_keys(Walk<2> w, const i64* index, i64 extent, i64 step, u64 limit, WORD* keys, u64* slot) {
    for (u64 i = FIRST; i < w.numel; i += STEP) {
        i64 at[2];
        locate(w, i, at);
        const i64 entry = index[at[1]];
        const bool good = (u64)entry < (u64)extent;
        if (!good) report(slot, i, entry);
        keys[i] = good ? (WORD)(at[0] + entry * step) : (WORD)limit;
    }
}

KERNEL void __launch_bounds__(256) key_claim(const WORD* keys, i64 count, u64 limit, WORD* winner) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < count; i += (i64)gridDim.x * 256)
        if (keys[i] < limit) atomicMax(winner + keys[i], (WORD)(i + 1));
}

KERNEL void __launch_bounds__(256) key_write(
    const WORD* keys, i64 count, u64 limit, const T* values, i64 value_stride, i64 inner, const WORD* winner, T* out) {
    const WORD units = inner / UNIT, all = (WORD)count * units, chunk = AHEAD * 256;
    const Unit* from = (const Unit*)values;
    Unit* to = (Unit*)out;
    const WORD step = value_stride / UNIT;
    for (WORD first = blockIdx.x * chunk + threadIdx.x; first < all; first += gridDim.x * chunk) {
        Unit held[AHEAD];
        WORD target[AHEAD];
        bool write[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const WORD at = first + a * 256;
            write[a] = at < all;
            if (!write[a]) continue;
            const WORD i = units == 1 ? at : at / units, rest = units == 1 ? 0 : at % units, key = keys[i];
            write[a] = key < limit && (!winner || winner[key] == (WORD)(i + 1));
            target[a] = key * units + rest;
            if (write[a]) held[a] = from[i * step + (value_stride ? rest : 0)];
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (write[a]) to[target[a]] = held[a];
    }
}

KERNEL void __launch_bounds__(256) key_mark(const WORD* keys, i64 count, u64 limit, u32* seen, u32* twice) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < count; i += (i64)gridDim.x * 256) {
        const WORD key = keys[i];
        if (key >= limit) continue;
        const u32 bit = 1u << key % 32;
        if (atomicOr(seen + key / 32, bit) & bit) atomicOr(twice + key / 32, bit);
    }
}

KERNEL void __launch_bounds__(256) key_write_once(
    const WORD* keys, i64 count, u64 limit, const T* values, i64 value_stride, const u32* twice, WORD* winner, WORD* again, T* out) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < count; i += (i64)gridDim.x * 256) {
        const WORD key = keys[i];
        if (key >= limit) continue;
        if (twice[key / 32] >> key % 32 & 1) {
            winner[key] = 0;
            again[1 + atomicAdd(again, (WORD)1)] = (WORD)i;
        } else {
            out[key] = values[i * value_stride];
        }
    }
}

KERNEL void __launch_bounds__(256) key_claim_again(const WORD* keys, const WORD* again, WORD* winner) {
    for (WORD l = blockIdx.x * 256 + threadIdx.x; l < again[0]; l += gridDim.x * 256) atomicMax(winner + keys[again[1 + l]], again[1 + l] + 1);
}

KERNEL void __launch_bounds__(256) key_write_again(
    const WORD* keys, const T* values, i64 value_stride, const WORD* again, const WORD* winner, T* out) {
    for (WORD l = blockIdx.x * 256 + threadIdx.x; l < again[0]; l += gridDim.x * 256) {
        const WORD entry = again[1 + l];
        if (winner[keys[entry]] == entry + 1) out[keys[entry]] = values[(i64)entry * value_stride];
    }
}
