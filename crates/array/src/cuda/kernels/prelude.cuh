// What the kernels of whole rows share beside number.cuh: rounding by one instruction, packets of 16 bytes, sums over warps and blocks.
//
// Element types are chosen by defines such as -DELEMENT=bf16. Arithmetic is in `Real<T>::type`: f64 for f64, f32 for the
// other floats, the type itself for integers, i64 for bools.
#pragma once
#define FAST_HALF 1
#include "late.cuh"

#ifdef EMULATED
#define DYNAMIC(name) u8* name = (u8*)emulated_shared
#define GROUP_BARRIER(group, lanes) emulated_wait_group(lanes)
#else
// Dynamic shared memory, and a barrier of `lanes` neighbouring threads.
#define DYNAMIC(name) extern __shared__ __align__(128) u8 name[]
#define GROUP_BARRIER(group, lanes) asm volatile("bar.sync %0, %1;" ::"r"(1 + (group)), "n"(lanes) : "memory")
#endif
#define INFINITE __int_as_float(0x7f800000)

template <class T> struct Real { typedef typename Wide<T>::type type; };
template <class T> struct Narrow {
    static DEVICE T of(typename Real<T>::type x) { return To<T>::of(x); }
};
#define WHOLE_NUMBERS(EACH) EACH(i8) EACH(i16) EACH(i32) EACH(i64) EACH(u8) EACH(u16) EACH(u32) EACH(u64)
#define WHOLE(T)                                                    \
    template <> struct Real<T> { typedef T type; };                 \
    template <> struct Narrow<T> { static DEVICE T of(T x) { return x; } };
WHOLE_NUMBERS(WHOLE)

// Rounds to nearest, ties to even.
template <class T> DEVICE T narrow(typename Real<T>::type x) { return Narrow<T>::of(x); }

#ifndef EMULATED
template <> struct Narrow<bf16> {
    static DEVICE bf16 of(f32 x) {
        bf16 y;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
        return y;
    }
};
template <> struct Narrow<f16> {
    static DEVICE f16 of(f32 x) {
        f16 y;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
        return y;
    }
};

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

DEVICE f32 exp2_fast(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#else
DEVICE f32 exp2_fast(f32 x) { return exp2f(x); }
#endif

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
