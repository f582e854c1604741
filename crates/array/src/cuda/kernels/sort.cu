// Keys by which radix.cu sorts rows of elements, and what comes out of it. -0 equals 0, NaN comes last, as on the CPU.
//
// sort_keys(x, rows, cols, descending, keys)                 keys[i] = row << BITS | the order of x[i]
// sort_take(x, order, rows, cols, kept, values, indices)     values[r, j] = x[order[r * cols + j]], indices = its place in the row, for j < kept
//   grid any (strides), block 256. Descending turns the order round (NaN first); equal elements keep their places. Sorting takes BITS bits and
//   those of the row's number.
//
// sort_search(sorted, wanted, count, n, m, rows, right, out)   out[i] = how many of the n elements of row i / m (with rows; else of the one row)
//   come before wanted[i], or (right) not after it
//
// Defines: ELEMENT (bf16, f16, f32, f64 or integers), KEY (u64, or u32 where everything fits), BITS (of ELEMENT), FLOAT (0, 1), SIGNED (0, 1),
//   INFINITY_BITS (of floats: above them only NaN), PAYLOAD (u32, u64).
#include "prelude.cuh"

typedef ELEMENT T;

static DEVICE u64 order_of(T x) {
    union { T value; u64 bits; } u;
    u.bits = 0;
    u.value = x;
    const u64 mask = ~0ull >> (64 - BITS), sign = 1ull << (BITS - 1);
    u64 bits = u.bits & mask;
    if (!FLOAT) return SIGNED ? bits ^ sign : bits;
    const u64 magnitude = bits & ~sign;
    if (magnitude > (u64)(INFINITY_BITS)) return mask;
    if (magnitude == 0) return sign;
    return bits & sign ? ~bits & mask : bits | sign;
}

KERNEL void __launch_bounds__(256) sort_keys(const T* x, i64 rows, i64 cols, i32 descending, KEY* keys) {
    const u64 mask = ~0ull >> (64 - BITS);
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < rows * cols; i += (i64)gridDim.x * 256) {
        const u64 order = order_of(x[i]), turned = descending ? ~order & mask : order;
        const u64 row = rows == 1 ? 0 : i / cols;
        keys[i] = (KEY)(BITS < 64 ? row << (BITS % 64) | turned : turned);
    }
}

KERNEL void __launch_bounds__(256) sort_take(const T* x, const PAYLOAD* order, i64 rows, i64 cols, i64 kept, T* values, i64* indices) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < rows * kept; i += (i64)gridDim.x * 256) {
        const i64 row = i / kept, j = i % kept, from = (i64)order[row * cols + j];
        if (values) values[i] = x[from];
        if (indices) indices[i] = from - row * cols;
    }
}

KERNEL void __launch_bounds__(256) sort_search(
    const T* sorted, const T* wanted, i64 count, i64 n, i64 m, i32 rows, i32 right, i64* out) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < count; i += (i64)gridDim.x * 256) {
        const T* row = sorted + (rows ? i / m * n : 0);
        const u64 order = order_of(wanted[i]);
        i64 low = 0, high = n;
        while (low < high) {
            const i64 middle = low + (high - low) / 2;
            const u64 here = order_of(row[middle]);
            if (here < order || (right && here == order)) low = middle + 1;
            else high = middle;
        }
        out[i] = low;
    }
}
