// The operands of attention and which keys a query sees, shared by the forward pass and the gradients.
#pragma once
#include "tensor_core.cuh"

typedef ELEMENT T;
static const int D = DIM;

#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f

// Strides are in elements: of the batch, of a head, of a row. Rows are contiguous; base addresses are 16-byte aligned
// and strides multiples of 8. `lse` and `delta` are contiguous [batch, q_heads, q_len].
struct Attention {
    const T *q, *k, *v;
    T* out;
    f32* lse;
    const T* dout;
    f32* delta;
    T *dq, *dk, *dv;
    f32 *dk_parts, *dv_parts; // contiguous [parts, batch, kv_heads, k_len, D]; used where parts > 1
    const i32* first; // of a query, the first key it may see (its document's start); or null
    const i32* end;   // of a key, one past the last query that may see it; or null
    const void* mask; // MASK 1: u8, zero hides the key; MASK 2: T, added to the scaled score
    i64 q_stride[3], k_stride[3], v_stride[3], out_stride[3], dout_stride[3], dq_stride[3], dk_stride[3], dv_stride[3];
    i64 mask_stride[4]; // batch, head, query, key
    i64 first_stride, end_stride; // of the batch
    i32 batch, q_heads, kv_heads, q_len, k_len;
    i32 parts;  // into which the query heads of a key head are cut for dk and dv
    i32 causal; // 1: query i sees keys up to i + shift
    i32 shift;
    i32 window; // 0, or how many keys a query sees at most, itself included (causal only)
    f32 scale;
};

#ifndef MASK
#define MASK 0
#endif

// First key that query `q` sees, and one past its last.
DEVICE int keys_from(const Attention& a, const i32* first, int q) {
    int from = first ? first[q] : 0;
    if (a.window > 0) from = max(from, q + a.shift - a.window + 1);
    return max(from, 0);
}
DEVICE int keys_to(const Attention& a, int q) {
    return a.causal ? max(0, min(a.k_len, q + a.shift + 1)) : a.k_len;
}
// First query that sees key `k`, and one past its last.
DEVICE int queries_from(const Attention& a, int k) { return a.causal ? max(0, k - a.shift) : 0; }
DEVICE int queries_to(const Attention& a, const i32* end, int k) {
    int to = end ? min(a.q_len, end[k]) : a.q_len;
    if (a.window > 0) to = min(to, k - a.shift + a.window);
    return to;
}

// The score of a query and a key that both exist, scaled and with the mask array applied.
DEVICE f32 masked(const Attention& a, f32 score, int batch, int head, int q, int k) {
#if MASK
    i64 at = batch * a.mask_stride[0] + head * a.mask_stride[1] + q * a.mask_stride[2] + k * a.mask_stride[3];
#endif
#if MASK == 1
    return ((const u8*)a.mask)[at] ? score * a.scale : -INFINITE;
#elif MASK == 2
    return score * a.scale + widen(((const T*)a.mask)[at]);
#else
    return score;
#endif
}

// What a score is multiplied by to be a power of two. With a mask array scores are scaled before.
DEVICE f32 exponent_unit(const Attention& a) {
    if (MASK) return LOG2E;
    return fmaxf(fabsf(a.scale) * LOG2E, 1e-30f);
}

// exp(score - lse) for scores in their unit; a query that saw nothing gives zero.
DEVICE f32 probability(f32 score, f32 unit, f32 lse) {
    return exp2_fast(score * unit - (lse == -INFINITE ? INFINITE : lse * LOG2E));
}
