// Gated activations act(gate) * up and their gradients, from two arrays or the halves of one.
//
// gated_forward(gate, up, gate_stride, up_stride, y, rows, cols)
// gated_grad(dy, gate, up, gate_stride, up_stride, dgate, dup, dgate_stride, dup_stride, y, rows, cols)
//   grid any (strides), block 256. Strides are elements between rows; dy and y are contiguous. dgate and dup may be gate and
//   up. `y` (or null) gets act(gate) * up again, for the weight gradient that follows.
//
// Defines: ELEMENT, ACT (0 silu, 1 gelu, 2 gelu by tanh), PACKETS (1: cols and strides are multiples of a packet, aligned).
#include "prelude.cuh"

typedef ELEMENT T;
typedef Real<T>::type R;
#if PACKETS
static const int LEN = Packet<T>::LEN;
#else
static const int LEN = 1;
#endif
struct alignas(LEN * sizeof(T)) Piece { T at[LEN]; };

// The activation and its slope.
static DEVICE R act(R x, R& slope) {
    if (ACT == 0) {
        const R s = (R)1 / ((R)1 + exp(-x));
        slope = s * ((R)1 + x * ((R)1 - s));
        return x * s;
    }
    if (ACT == 1) {
        const R phi = (R)0.5 * ((R)1 + erf(x * (R)0.7071067811865475244));
        slope = phi + x * (R)0.3989422804014326779 * exp((R)-0.5 * x * x);
        return x * phi;
    }
    const R scale = (R)0.7978845608028653559, cubic = (R)0.044715;
    const R t = tanh(scale * x * ((R)1 + cubic * x * x)), phi = (R)0.5 * ((R)1 + t);
    slope = phi + (R)0.5 * x * ((R)1 - t * t) * scale * ((R)1 + (R)3 * cubic * x * x);
    return x * phi;
}

KERNEL void __launch_bounds__(256) gated_forward(
    const T* __restrict__ gate, const T* __restrict__ up, i64 gate_stride, i64 up_stride, T* __restrict__ y, i64 rows, i64 cols) {
    const i64 pieces = cols / LEN, all = rows * pieces;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < all; i += (i64)gridDim.x * 256) {
        const i64 row = i / pieces, c = (i - row * pieces) * LEN;
        Piece g = *(const Piece*)(gate + row * gate_stride + c);
        const Piece u = *(const Piece*)(up + row * up_stride + c);
#pragma unroll
        for (int j = 0; j < LEN; j++) {
            R slope;
            g.at[j] = narrow<T>(act(widen(g.at[j]), slope) * widen(u.at[j]));
        }
        *(Piece*)(y + row * cols + c) = g;
    }
}

KERNEL void __launch_bounds__(256) gated_grad(
    const T* dy, const T* gate, const T* up, i64 gate_stride, i64 up_stride, T* dgate, T* dup, i64 dgate_stride, i64 dup_stride, T* y,
    i64 rows, i64 cols) {
    const i64 pieces = cols / LEN, all = rows * pieces;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < all; i += (i64)gridDim.x * 256) {
        const i64 row = i / pieces, c = (i - row * pieces) * LEN;
        const Piece d = *(const Piece*)(dy + row * cols + c);
        Piece g = *(const Piece*)(gate + row * gate_stride + c), u = *(const Piece*)(up + row * up_stride + c), out;
#pragma unroll
        for (int j = 0; j < LEN; j++) {
            R slope;
            const R value = act(widen(g.at[j]), slope), grad = widen(d.at[j]), factor = widen(u.at[j]);
            out.at[j] = narrow<T>(value * factor);
            g.at[j] = narrow<T>(grad * factor * slope);
            u.at[j] = narrow<T>(grad * value);
        }
        *(Piece*)(dgate + row * dgate_stride + c) = g;
        *(Piece*)(dup + row * dup_stride + c) = u;
        if (y) *(Piece*)(y + row * cols + c) = out;
    }
}
