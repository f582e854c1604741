// Reading and writing places named by integer arrays: x[i, j, ..], gather and index_put along dims, and the keys by which
// sums over equal places are ordered.
//
// An Index holds up to 8 contiguous integer arrays of `count` entries, one per indexed dim, with the dims' extents and
// strides. Strides count rows: `inner` contiguous elements. Entries below zero count from the end; those out of range are
// reported, read as row 0 and never written. Elements are moved as bits.
//
// index_read(Index, x, inner, out, fault)        out[i] = x[row(i)]
// index_keys(Index, limit, keys, fault)          keys[i] = row(i), or `limit` where it is out of range
// index_claim(Index, winner, fault)              winner[row(i)] = max(winner[row(i)], i + 1), from zeros
// index_write(Index, values, value_stride, inner, winner, out, fault)
//     out[row(i)] = values[i * value_stride ..] where i won, so that the last entry counts; a null winner: all write
// Writing elements far apart, most of them named once (rows of one element):
//     index_mark(Index, keys, seen, twice, fault)      keys[i] = row(i) (or all ones); bits of rows named at all, and more than once
//     index_write_once(keys, count, values, value_stride, twice, winner, again, out)
//                                                      writes the rest; entries of rows named twice go on the list `again`, their winner
//                                                      is zeroed
//     index_claim_again(keys, again, winner)           winner[key] = max(winner[key], entry + 1)
//     index_write_again(keys, values, value_stride, again, winner, out)
//   seen and twice are u32[rows / 32 + 1], zeroed; again is its length (zeroed), then room for every entry.
// gather_dim(x, index, outer, length, extent, inner, out, fault)      out[o, l, i] = x[o, index[o, l, i], i]
// gather_dim_keys(index, outer, length, extent, inner, keys, fault)   keys = the place read above, limit outer*extent*inner
//     Position in a report is the flat position in `index`.
// All: grid any (strides), block 256.
//
// Defines: ELEMENT (u8, u16, u32, u64), OFFSET (u64, or u32 where every offset reached is below 2^31), KEY (u32, u64), PACKETS (1: rows
//   are multiples of 16 bytes and aligned; 0: any), WINNER (u32, u64).
#include "prelude.cuh"

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

// The row entry `i` names; false where it is out of range.
static DEVICE bool row_of(const Index& index, i64 i, OFFSET& row, Fault* fault) {
    row = 0;
    bool good = true;
    for (int d = 0; d < index.dims; d++) {
        const i64 given = index.at[d][i], value = given < 0 ? given + index.extent[d] : given;
        if ((u64)value >= (u64)index.extent[d]) {
            if (good && fault) report(fault, i, given, d);
            good = false;
        }
        row += (OFFSET)value * (OFFSET)index.stride[d];
    }
    if (!good) row = 0;
    return good;
}

KERNEL void __launch_bounds__(256) index_read(const __grid_constant__ Index index, const T* x, i64 inner, T* out, Fault* fault) {
    const OFFSET units = inner / UNIT, all = (OFFSET)index.count * units, chunk = AHEAD * 256;
    const Unit *from = (const Unit*)x;
    Unit* to = (Unit*)out;
    for (OFFSET first = blockIdx.x * chunk + threadIdx.x; first < all; first += gridDim.x * chunk) {
        Unit held[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const OFFSET at = first + a * 256;
            if (at >= all) break;
            const OFFSET i = units == 1 ? at : at / units, rest = units == 1 ? 0 : at % units;
            OFFSET row;
            row_of(index, i, row, rest == 0 ? fault : nullptr);
            held[a] = from[row * units + rest];
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const OFFSET at = first + a * 256;
            if (at >= all) break;
            to[at] = held[a];
        }
    }
}

KERNEL void __launch_bounds__(256) index_keys(const __grid_constant__ Index index, u64 limit, KEY* keys, Fault* fault) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < index.count; i += (i64)gridDim.x * 256) {
        OFFSET row;
        keys[i] = row_of(index, i, row, fault) ? (KEY)row : (KEY)limit;
    }
}

KERNEL void __launch_bounds__(256) index_claim(const __grid_constant__ Index index, WINNER* winner, Fault* fault) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < index.count; i += (i64)gridDim.x * 256) {
        OFFSET row;
        if (row_of(index, i, row, fault)) atomicMax(winner + row, (WINNER)(i + 1));
    }
}

KERNEL void __launch_bounds__(256) index_write(
    const __grid_constant__ Index index, const T* values, i64 value_stride, i64 inner, const WINNER* winner, T* out, Fault* fault) {
    const OFFSET units = inner / UNIT, all = (OFFSET)index.count * units, chunk = AHEAD * 256;
    const Unit* from = (const Unit*)values;
    Unit* to = (Unit*)out;
    const OFFSET step = value_stride / UNIT;
    for (OFFSET first = blockIdx.x * chunk + threadIdx.x; first < all; first += gridDim.x * chunk) {
        Unit held[AHEAD];
        OFFSET target[AHEAD];
        bool write[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const OFFSET at = first + a * 256;
            write[a] = at < all;
            if (!write[a]) continue;
            const OFFSET i = units == 1 ? at : at / units, rest = units == 1 ? 0 : at % units;
            OFFSET row;
            write[a] = row_of(index, i, row, rest == 0 ? fault : nullptr) && (!winner || winner[row] == (WINNER)(i + 1));
            target[a] = row * units + rest;
            if (write[a]) held[a] = from[i * step + (value_stride ? rest : 0)];
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (write[a]) to[target[a]] = held[a];
    }
}

KERNEL void __launch_bounds__(256) index_mark(const __grid_constant__ Index index, KEY* keys, u32* seen, u32* twice, Fault* fault) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < index.count; i += (i64)gridDim.x * 256) {
        OFFSET row;
        const bool good = row_of(index, i, row, fault);
        keys[i] = good ? (KEY)row : (KEY)~(KEY)0;
        const u32 bit = 1u << row % 32;
        if (good && (atomicOr(seen + row / 32, bit) & bit)) atomicOr(twice + row / 32, bit);
    }
}

KERNEL void __launch_bounds__(256) index_write_once(
    const KEY* keys, i64 count, const T* values, i64 value_stride, const u32* twice, WINNER* winner, WINNER* again, T* out) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < count; i += (i64)gridDim.x * 256) {
        const KEY key = keys[i];
        if (key == (KEY)~(KEY)0) continue;
        if (twice[key / 32] >> key % 32 & 1) {
            winner[key] = 0;
            again[1 + atomicAdd(again, (WINNER)1)] = (WINNER)i;
        } else {
            out[key] = values[i * value_stride];
        }
    }
}

KERNEL void __launch_bounds__(256) index_claim_again(const KEY* keys, const WINNER* again, WINNER* winner) {
    for (WINNER l = blockIdx.x * 256 + threadIdx.x; l < again[0]; l += gridDim.x * 256) atomicMax(winner + keys[again[1 + l]], again[1 + l] + 1);
}

KERNEL void __launch_bounds__(256) index_write_again(
    const KEY* keys, const T* values, i64 value_stride, const WINNER* again, const WINNER* winner, T* out) {
    for (WINNER l = blockIdx.x * 256 + threadIdx.x; l < again[0]; l += gridDim.x * 256) {
        const WINNER entry = again[1 + l];
        if (winner[keys[entry]] == entry + 1) out[keys[entry]] = values[(i64)entry * value_stride];
    }
}

// The place that entry `at` of an index along a dim names.
static DEVICE bool place_of(const i64* index, OFFSET at, OFFSET length, i64 extent, OFFSET inner, OFFSET& place, Fault* fault) {
    const i64 given = index[at], value = given < 0 ? given + extent : given;
    const OFFSET i = at % inner, o = at / inner / length;
    const bool good = (u64)value < (u64)extent;
    if (!good) report(fault, at, given, 0);
    place = (o * (OFFSET)extent + (OFFSET)(good ? value : 0)) * inner + i;
    return good;
}

KERNEL void __launch_bounds__(256) gather_dim(
    const T* x, const i64* index, i64 outer, i64 length, i64 extent, i64 inner, T* out, Fault* fault) {
    const OFFSET all = outer * length * inner, chunk = AHEAD * 256;
    for (OFFSET first = blockIdx.x * chunk + threadIdx.x; first < all; first += gridDim.x * chunk) {
        T held[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const OFFSET at = first + a * 256;
            if (at >= all) break;
            OFFSET place;
            place_of(index, at, length, extent, inner, place, fault);
            held[a] = x[place];
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const OFFSET at = first + a * 256;
            if (at >= all) break;
            out[at] = held[a];
        }
    }
}

KERNEL void __launch_bounds__(256) gather_dim_keys(
    const i64* index, i64 outer, i64 length, i64 extent, i64 inner, KEY* keys, Fault* fault) {
    const OFFSET all = outer * length * inner;
    for (u64 at = (u64)blockIdx.x * 256 + threadIdx.x; at < all; at += (u64)gridDim.x * 256) {
        OFFSET place;
        keys[at] = place_of(index, (OFFSET)at, length, extent, inner, place, fault) ? (KEY)place : (KEY)(outer * extent * inner);
    }
}
