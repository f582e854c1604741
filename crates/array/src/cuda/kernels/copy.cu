// Copies between views, filling a view, choosing by a mask. Elements are moved as words: -DT=u8|u16|u32|u64.
//
// Grid-stride over positions, 256 threads; any grid.
//   copy(Walk<2>, T* out, const T* x, u64 xv)
//   fill(Walk<1>, T* out, u64 value)
//   choose(Walk<4>, T* out, const u8* condition, const T* x, const T* y, u64 xv, u64 yv)
//   transpose(T* out, const T* x, u64 batch, u64 rows, u64 columns, i64 x_batch, i64 x_row, i64 x_column):
//       out[b][r][c] = x[b x_batch + r x_row + c x_column] with out dense, for x_row = 1; 32 x 8 threads, one block for
//       each tile of 32 x 32, grid-stride.
#include "walk.cuh"

struct Same {
    DEVICE T operator()(T x) const { return x; }
};

KERNEL void copy(Walk<2> w, T* out, const T* x, u64 xv) { map1(w, out, x, xv, Same()); }

KERNEL void fill(Walk<1> w, T* out, u64 value) {
    T v = (T)value;
    if (w.ndim == 1 && w.stride[0][0] == 1) {
        const int N = 16 / sizeof(T);
        u64 head = ((16 - (u64)out % 16) % 16) / sizeof(T);
        head = head < w.numel ? head : w.numel;
        u64 packs = (w.numel - head) / N;
        Pack<T, N> pack;
        for (int n = 0; n < N; n++) pack.at[n] = v;
        for (u64 i = FIRST; i < head; i += STEP) out[i] = v;
        for (u64 p = FIRST; p < packs; p += STEP) *(Pack<T, N>*)(out + head + p * N) = pack;
        for (u64 i = head + packs * N + FIRST; i < w.numel; i += STEP) out[i] = v;
        return;
    }
    for (u64 i = FIRST; i < w.numel; i += STEP) {
        i64 at[1];
        locate(w, i, at);
        out[at[0]] = v;
    }
}

KERNEL void choose(Walk<4> w, T* out, const u8* condition, const T* x, const T* y, u64 xv, u64 yv) {
    for (u64 i = FIRST; i < w.numel; i += STEP) {
        i64 at[4];
        locate(w, i, at);
        T a = x ? x[at[2]] : (T)xv, b = y ? y[at[3]] : (T)yv;
        out[at[0]] = condition[at[1]] ? a : b;
    }
}

KERNEL void transpose(T* out, const T* x, u64 batch, u64 rows, u64 columns, i64 x_batch, i64 x_row, i64 x_column) {
    __shared__ T tile[32][33];
    u64 down = (rows + 31) / 32, across = (columns + 31) / 32;
    for (u64 t = blockIdx.x; t < batch * down * across; t += gridDim.x) {
        u64 b = t / (down * across), r0 = t / across % down * 32, c0 = t % across * 32;
        const T* from = x + (i64)b * x_batch;
        T* to = out + b * rows * columns;
        u64 r = r0 + threadIdx.x;
        for (int k = threadIdx.y; k < 32; k += 8)
            if (r < rows && c0 + k < columns) tile[k][threadIdx.x] = from[(i64)r * x_row + (i64)(c0 + k) * x_column];
        __syncthreads();
        u64 c = c0 + threadIdx.x;
        for (int k = threadIdx.y; k < 32; k += 8)
            if (r0 + k < rows && c < columns) to[(r0 + k) * columns + c] = tile[threadIdx.x][k];
        __syncthreads();
    }
}
