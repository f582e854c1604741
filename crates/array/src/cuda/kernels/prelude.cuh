// Types, conversions and 16-byte packets that every kernel file starts with.
//
// Element types are chosen by defines such as -DELEMENT=bf16. Arithmetic is in `Real<T>::type`: f64 for f64, f32 for the
// other floats, the type itself for integers. Without a CUDA compiler (the C++ shim) only the scalar forms are compiled.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;

struct bf16 { u16 bits; };
struct f16 { u16 bits; };

template <class T> struct Real { typedef f32 type; };
template <> struct Real<f64> { typedef f64 type; };
#define WHOLE_NUMBERS(EACH) EACH(i8) EACH(i16) EACH(i32) EACH(i64) EACH(u8) EACH(u16) EACH(u32) EACH(u64)
#define REAL_OF(T) template <> struct Real<T> { typedef T type; };
WHOLE_NUMBERS(REAL_OF)

#ifdef __CUDACC__
#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__
#define INFINITE __int_as_float(0x7f800000)

DEVICE f32 widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
DEVICE f32 widen(f16 x) {
    f32 y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
DEVICE f32 widen(f32 x) { return x; }
DEVICE f64 widen(f64 x) { return x; }

// Rounds to nearest, ties to even.
template <class T> DEVICE T narrow(typename Real<T>::type x);
template <> DEVICE f32 narrow<f32>(f32 x) { return x; }
template <> DEVICE f64 narrow<f64>(f64 x) { return x; }
template <> DEVICE bf16 narrow<bf16>(f32 x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
template <> DEVICE f16 narrow<f16>(f32 x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

#define MOVE_WHOLE(T) \
    DEVICE T widen(T x) { return x; } \
    template <> DEVICE T narrow<T>(T x) { return x; }
WHOLE_NUMBERS(MOVE_WHOLE)

// Two values side by side in one register, `low` first in memory.
template <class T> DEVICE u32 pack(f32 low, f32 high);
template <> DEVICE u32 pack<bf16>(f32 low, f32 high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
template <> DEVICE u32 pack<f16>(f32 low, f32 high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

// Sixteen bytes of elements, moved at once.
template <class T> struct alignas(16) Packet {
    static const int LEN = 16 / sizeof(T);
    T at[LEN];
};

template <class T> DEVICE Packet<T> load16(const T* p) {
    union { uint4 raw; Packet<T> packet; } u;
    u.raw = *(const uint4*)p;
    return u.packet;
}
template <class T> DEVICE void store16(T* p, const Packet<T>& packet) {
    union U { uint4 raw; Packet<T> packet; DEVICE U() {} } u;
    u.packet = packet;
    *(uint4*)p = u.raw;
}

DEVICE f32 exp2_fast(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <class R> DEVICE R warp_sum(R x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}
template <class R> DEVICE R warp_max(R x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        R other = __shfl_xor_sync(~0u, x, step);
        x = x > other ? x : other;
    }
    return x;
}

// The sum over a block of SIZE threads, in every thread; `room` holds one value per warp and one more.
template <int SIZE, class R> DEVICE R block_sum(R x, R* room) {
    x = warp_sum(x);
    if (SIZE == 32) return x;
    __syncthreads();
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    R sum = room[0];
#pragma unroll
    for (int w = 1; w < SIZE / 32; w++) sum += room[w];
    return sum;
}
template <int SIZE, class R> DEVICE R block_max(R x, R* room) {
    x = warp_max(x);
    if (SIZE == 32) return x;
    __syncthreads();
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    R top = room[0];
#pragma unroll
    for (int w = 1; w < SIZE / 32; w++) top = room[w] > top ? room[w] : top;
    return top;
}

// What a kernel found wrong with a value: the lowest position wins. `position` starts as all ones, the rest as zero.
struct Fault {
    u64 position;
    i64 value;
    i32 dim;
    u32 lock;
};

// Bad values are rare, and once one is known only lower positions take the lock.
DEVICE void report(Fault* fault, u64 position, i64 value, i32 dim) {
    if (position >= *(volatile u64*)&fault->position) return;
    while (atomicCAS(&fault->lock, 0u, 1u)) {}
    __threadfence();
    volatile Fault* f = fault;
    if (position < f->position) f->position = position, f->value = value, f->dim = dim;
    __threadfence();
    atomicExch(&fault->lock, 0u);
}
#endif
