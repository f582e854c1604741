// Attention and its gradients for every type and head dim: one warp a query (forward, dq) or a key (dk, dv), sums in f32 (f64 for f64) in a
// fixed order. For what the tensor-core kernels do not take: f32, f64, odd dims, values of another dim than keys.
//
// plain_forward(Plain)        grid any (strides), block 128; writes out and lse
// plain_grad_queries(Plain)   likewise; reads lse, writes dq and delta
// plain_grad_keys(Plain)      likewise, after it; writes dk and dv: query heads of a group in order, queries in order
//   A query that sees no key gives zeros and -inf.
//
// Defines: ELEMENT (f64, f32, bf16, f16), SPAN (dims up to 32 * SPAN, keys' and values'), MASK (0 none, 1 u8, 2 R added).
#include "prelude.cuh"

typedef ELEMENT T;
typedef Real<T>::type R;

// Strides in elements: of the batch, of a head, of a row. lse and delta are contiguous [batch, q_heads, q_len].
struct Plain {
    const T *q, *k, *v;
    T* out;
    R* lse;
    const T* dout;
    R* delta;
    T *dq, *dk, *dv;
    const i32* first; // of a query, the first key it may see; or null
    const i32* end;   // of a key, one past the last query that may see it; or null
    const void* mask; // MASK 1: u8, zero hides the key; MASK 2: R, added to the scaled score
    i64 q_stride[3], k_stride[3], v_stride[3], out_stride[3], dout_stride[3], dq_stride[3], dk_stride[3], dv_stride[3];
    i64 mask_stride[4];
    i64 first_stride, end_stride; // of the batch
    i32 batch, q_heads, kv_heads, q_len, k_len, dim, v_dim;
    i32 causal, shift, window; // as in attention.cuh
    f64 scale;
};

static const int WARPS = 4;

static DEVICE int keys_from(const Plain& a, int batch, int q) {
    int from = a.first ? a.first[batch * a.first_stride + q] : 0;
    if (a.window > 0) from = max(from, q + a.shift - a.window + 1);
    return max(from, 0);
}
static DEVICE int keys_to(const Plain& a, int q) { return a.causal ? max(0, min(a.k_len, q + a.shift + 1)) : a.k_len; }

// A row's elements lane, lane + 32, ..
static DEVICE void load_row(R (&r)[SPAN], const T* row, int dim) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < SPAN; s++) r[s] = s * 32 + lane < dim ? widen(row[s * 32 + lane]) : (R)0;
}
static DEVICE void store_row(T* row, const R (&r)[SPAN], int dim, R factor) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < SPAN; s++)
        if (s * 32 + lane < dim) row[s * 32 + lane] = narrow<T>(r[s] * factor);
}
static DEVICE R dot(const R (&a)[SPAN], const R (&b)[SPAN]) {
    R sum = 0;
#pragma unroll
    for (int s = 0; s < SPAN; s++) sum += a[s] * b[s];
    return warp_sum(sum);
}
static DEVICE void add_scaled(R (&to)[SPAN], R factor, const R (&row)[SPAN]) {
#pragma unroll
    for (int s = 0; s < SPAN; s++) to[s] += factor * row[s];
}

// The scaled score with the mask array applied.
static DEVICE R masked(const Plain& a, R score, int batch, int head, int q, int k) {
    score *= (R)a.scale;
#if MASK
    const i64 at = batch * a.mask_stride[0] + head * a.mask_stride[1] + q * a.mask_stride[2] + k * a.mask_stride[3];
#endif
#if MASK == 1
    return ((const u8*)a.mask)[at] ? score : -(R)INFINITE;
#elif MASK == 2
    return score + ((const R*)a.mask)[at];
#else
    return score;
#endif
}

KERNEL void __launch_bounds__(32 * WARPS) plain_forward(const __grid_constant__ Plain a) {
    const i64 all = (i64)a.batch * a.q_heads * a.q_len;
    for (i64 unit = (i64)blockIdx.x * WARPS + threadIdx.x / 32; unit < all; unit += (i64)gridDim.x * WARPS) {
        const int q = unit % a.q_len, head = unit / a.q_len % a.q_heads, batch = unit / a.q_len / a.q_heads, kv_head = head / (a.q_heads / a.kv_heads);
        const T *k = a.k + batch * a.k_stride[0] + kv_head * a.k_stride[1], *v = a.v + batch * a.v_stride[0] + kv_head * a.v_stride[1];
        R query[SPAN], row[SPAN], out[SPAN] = {}, top = -(R)INFINITE, sum = 0;
        load_row(query, a.q + batch * a.q_stride[0] + head * a.q_stride[1] + q * a.q_stride[2], a.dim);
        for (int key = keys_from(a, batch, q); key < keys_to(a, q); key++) {
            load_row(row, k + key * a.k_stride[2], a.dim);
            const R score = masked(a, dot(query, row), batch, head, q, key);
            if (score == -(R)INFINITE) continue;
            const R most = score > top ? score : top, keep = exp(top - most), weight = exp(score - most);
            load_row(row, v + key * a.v_stride[2], a.v_dim);
#pragma unroll
            for (int s = 0; s < SPAN; s++) out[s] = out[s] * keep + weight * row[s];
            sum = sum * keep + weight;
            top = most;
        }
        store_row(a.out + batch * a.out_stride[0] + head * a.out_stride[1] + q * a.out_stride[2], out, a.v_dim, sum == 0 ? (R)0 : (R)1 / sum);
        if (threadIdx.x % 32 == 0) a.lse[unit] = sum == 0 ? -(R)INFINITE : top + log(sum);
    }
}

KERNEL void __launch_bounds__(32 * WARPS) plain_grad_queries(const __grid_constant__ Plain a) {
    const i64 all = (i64)a.batch * a.q_heads * a.q_len;
    for (i64 unit = (i64)blockIdx.x * WARPS + threadIdx.x / 32; unit < all; unit += (i64)gridDim.x * WARPS) {
        const int q = unit % a.q_len, head = unit / a.q_len % a.q_heads, batch = unit / a.q_len / a.q_heads, kv_head = head / (a.q_heads / a.kv_heads);
        const T *k = a.k + batch * a.k_stride[0] + kv_head * a.k_stride[1], *v = a.v + batch * a.v_stride[0] + kv_head * a.v_stride[1];
        R query[SPAN], grad[SPAN], row[SPAN], dq[SPAN] = {};
        load_row(query, a.q + batch * a.q_stride[0] + head * a.q_stride[1] + q * a.q_stride[2], a.dim);
        load_row(grad, a.dout + batch * a.dout_stride[0] + head * a.dout_stride[1] + q * a.dout_stride[2], a.v_dim);
        load_row(row, a.out + batch * a.out_stride[0] + head * a.out_stride[1] + q * a.out_stride[2], a.v_dim);
        const R delta = dot(grad, row), lse = a.lse[unit];
        if (threadIdx.x % 32 == 0) a.delta[unit] = delta;
        for (int key = keys_from(a, batch, q); key < keys_to(a, q) && lse != -(R)INFINITE; key++) {
            load_row(row, v + key * a.v_stride[2], a.v_dim);
            const R slope = dot(grad, row) - delta;
            load_row(row, k + key * a.k_stride[2], a.dim);
            const R weight = exp(masked(a, dot(query, row), batch, head, q, key) - lse);
            add_scaled(dq, weight * slope, row);
        }
        store_row(a.dq + batch * a.dq_stride[0] + head * a.dq_stride[1] + q * a.dq_stride[2], dq, a.dim, (R)a.scale);
    }
}

KERNEL void __launch_bounds__(32 * WARPS) plain_grad_keys(const __grid_constant__ Plain a) {
    const i64 all = (i64)a.batch * a.kv_heads * a.k_len;
    const int group = a.q_heads / a.kv_heads;
    for (i64 unit = (i64)blockIdx.x * WARPS + threadIdx.x / 32; unit < all; unit += (i64)gridDim.x * WARPS) {
        const int key = unit % a.k_len, kv_head = unit / a.k_len % a.kv_heads, batch = unit / a.k_len / a.kv_heads;
        R k[SPAN], v[SPAN], query[SPAN], grad[SPAN], dk[SPAN] = {}, dv[SPAN] = {};
        load_row(k, a.k + batch * a.k_stride[0] + kv_head * a.k_stride[1] + key * a.k_stride[2], a.dim);
        load_row(v, a.v + batch * a.v_stride[0] + kv_head * a.v_stride[1] + key * a.v_stride[2], a.v_dim);
        const int from = a.causal ? max(0, key - a.shift) : 0;
        int to = a.end ? min(a.q_len, a.end[batch * a.end_stride + key]) : a.q_len;
        if (a.window > 0) to = min(to, key - a.shift + a.window);
        for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
            for (int q = from; q < to; q++) {
                const i64 line = ((i64)batch * a.q_heads + head) * a.q_len + q;
                const R lse = a.lse[line];
                if (lse == -(R)INFINITE || key < keys_from(a, batch, q) || key >= keys_to(a, q)) continue;
                load_row(query, a.q + batch * a.q_stride[0] + head * a.q_stride[1] + q * a.q_stride[2], a.dim);
                load_row(grad, a.dout + batch * a.dout_stride[0] + head * a.dout_stride[1] + q * a.dout_stride[2], a.v_dim);
                const R weight = exp(masked(a, dot(query, k), batch, head, q, key) - lse);
                add_scaled(dv, weight, grad);
                add_scaled(dk, weight * (dot(grad, v) - a.delta[line]), query);
            }
        store_row(a.dk + batch * a.dk_stride[0] + kv_head * a.dk_stride[1] + key * a.dk_stride[2], dk, a.dim, (R)a.scale);
        store_row(a.dv + batch * a.dv_stride[0] + kv_head * a.dv_stride[1] + key * a.dv_stride[2], dv, a.v_dim, (R)1);
    }
}
