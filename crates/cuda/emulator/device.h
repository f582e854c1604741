// What a kernel finds on a device, as C++: included before a kernel's text, which then becomes a shared library for the
// emulated driver. Threads of a block run one after the other; where a kernel waits for others (barriers, shuffles) each
// is a context of its own, and a wait hands over to the next one.
#pragma once
#include <math.h>
#include <setjmp.h>
#include <stddef.h>
#include <string.h>
#include <ucontext.h>

#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __shared__ static
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define DEVICE inline
#define EMULATED 1

struct Dim3 { unsigned x, y, z; };
static Dim3 threadIdx, blockIdx, blockDim, gridDim;
struct uint4 { unsigned x, y, z, w; };
struct uint2 { unsigned x, y; };

template <class A, class B> static inline A bits_as(B x) {
    A y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }
static inline int __float_as_int(float x) { return bits_as<int>(x); }
static inline float __uint_as_float(unsigned x) { return bits_as<float>(x); }
static inline float __int_as_float(int x) { return bits_as<float>(x); }
static inline long long __double_as_longlong(double x) { return bits_as<long long>(x); }
static inline double __longlong_as_double(long long x) { return bits_as<double>(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return (unsigned)((((unsigned long long)high << 32 | low) << (by & 31)) >> 32);
}
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
template <class T> static inline T min(T x, T y) { return y < x ? y : x; }
template <class T> static inline T max(T x, T y) { return x < y ? y : x; }
template <class T> static inline T __ldg(const T* p) { return *p; }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
template <class T> static inline T atomicCAS(T* p, T compare, T value) {
    T old = *p;
    if (old == compare) *p = value;
    return old;
}
template <class T> static inline T atomicExch(T* p, T value) { T old = *p; *p = value; return old; }
template <class T> static inline T atomicAdd(T* p, T value) { T old = *p; *p = old + value; return old; }
template <class T> static inline T atomicMin(T* p, T value) { T old = *p; *p = value < old ? value : old; return old; }
template <class T> static inline T atomicMax(T* p, T value) { T old = *p; *p = old < value ? value : old; return old; }
template <class T> static inline T atomicOr(T* p, T value) { T old = *p; *p = old | value; return old; }

alignas(1024) static char emulated_shared[256 << 10];

// One thread of a block that may wait.
struct Fiber {
    jmp_buf state; // where it waits; a jump costs far less than a change of contexts, which is only made to begin
    ucontext_t context;
    std::vector<char> stack;
    Dim3 index;
    int waiting; // 0: runs, 1: at the block's barrier, 2: at its warp's, 2 + n: at one of n neighbours
    bool begun, done;
    unsigned char passed[16];
};
static std::vector<Fiber> fibers;
static jmp_buf scheduler;
static int current_fiber;
static unsigned emulated_count; // threads of the block that runs
static void (*emulated_call)(void**);
static void** emulated_params;

static void emulated_wait(int kind) {
    fibers[current_fiber].waiting = kind;
    if (!_setjmp(fibers[current_fiber].state)) _longjmp(scheduler, 1);
    threadIdx = fibers[current_fiber].index;
}
static inline void __syncthreads() { emulated_wait(1); }
static inline void __syncwarp(unsigned = ~0u) { emulated_wait(2); }
static inline void emulated_wait_group(int lanes) { emulated_wait(2 + lanes); }
static inline int emulated_lane() { return current_fiber % 32; }
template <class T> static inline T emulated_exchange(T x, int from) {
    static_assert(sizeof(T) <= 16, "");
    memcpy(fibers[current_fiber].passed, &x, sizeof x);
    emulated_wait(2);
    int other = current_fiber / 32 * 32 + from;
    T y = x;
    if (from >= 0 && from < 32 && other < (int)emulated_count) memcpy(&y, fibers[other].passed, sizeof y);
    emulated_wait(2);
    return y;
}
template <class T> static inline T __shfl_xor_sync(unsigned, T x, int mask, int = 32) {
    return emulated_exchange(x, emulated_lane() ^ mask);
}
template <class T> static inline T __shfl_sync(unsigned, T x, int lane, int width = 32) {
    return emulated_exchange(x, emulated_lane() / width * width + lane % width);
}
template <class T> static inline T __shfl_up_sync(unsigned, T x, unsigned by, int width = 32) {
    int lane = emulated_lane();
    return emulated_exchange(x, lane % width < (int)by ? lane : lane - (int)by);
}
template <class T> static inline T __shfl_down_sync(unsigned, T x, unsigned by, int width = 32) {
    int lane = emulated_lane();
    return emulated_exchange(x, lane % width + (int)by >= width ? lane : lane + (int)by);
}
static inline unsigned __ballot_sync(unsigned, int flag) {
    unsigned all = 0;
    fibers[current_fiber].passed[0] = flag != 0;
    emulated_wait(2);
    for (int lane = 0; lane < 32; lane++) {
        int other = current_fiber / 32 * 32 + lane;
        if (other < (int)emulated_count && !fibers[other].done && fibers[other].passed[0]) all |= 1u << lane;
    }
    emulated_wait(2);
    return all;
}
static inline int __any_sync(unsigned mask, int flag) { return __ballot_sync(mask, flag) != 0; }
static inline int __all_sync(unsigned mask, int flag) { return __ballot_sync(mask, !flag) == 0; }
static inline unsigned __reduce_max_sync(unsigned, unsigned x) {
    for (int step = 16; step > 0; step /= 2) {
        unsigned other = __shfl_xor_sync(~0u, x, step);
        x = other > x ? other : x;
    }
    return x;
}
static inline int __syncthreads_count(int flag) {
    static int count;
    emulated_wait(1);
    count = 0;
    emulated_wait(1);
    count += flag != 0;
    emulated_wait(1);
    return count;
}
static inline int __syncthreads_or(int flag) {
    static int any;
    emulated_wait(1);
    any = 0;
    emulated_wait(1);
    any |= flag != 0;
    emulated_wait(1);
    return any;
}

// A thread of every block there will be.
static void emulated_entry() {
    for (;;) {
        threadIdx = fibers[current_fiber].index;
        emulated_call(emulated_params);
        fibers[current_fiber].done = true;
        if (!_setjmp(fibers[current_fiber].state)) _longjmp(scheduler, 1);
    }
}

static __attribute__((noinline)) void emulated_resume() {
    Fiber& f = fibers[current_fiber];
    if (_setjmp(scheduler)) return;
    if (f.begun) _longjmp(f.state, 1);
    f.begun = true;
    setcontext(&f.context);
}

static void emulated_block() {
    unsigned count = blockDim.x * blockDim.y * blockDim.z;
    // They stay where they are once they have begun.
    if (fibers.empty()) fibers.reserve(1024);
    while (fibers.size() < count) fibers.emplace_back();
    emulated_count = count;
    for (unsigned t = 0; t < count; t++) {
        Fiber& f = fibers[t];
        f.index = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
        f.waiting = 0;
        f.done = false;
        if (f.begun) continue;
        f.stack.resize(64 << 10);
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.data();
        f.context.uc_stack.ss_size = f.stack.size();
        f.context.uc_link = nullptr;
        makecontext(&f.context, emulated_entry, 0);
    }
    for (unsigned left = count; left > 0;) {
        for (unsigned t = 0; t < count; t++) {
            if (fibers[t].done || fibers[t].waiting) continue;
            current_fiber = (int)t;
            emulated_resume();
            left -= fibers[t].done;
        }
        // A warp goes on when all its threads wait; the block when all that are left do.
        for (unsigned w = 0; w < count; w += 32) {
            bool all = true;
            for (unsigned t = w; t < count && t < w + 32; t++) all &= fibers[t].done || fibers[t].waiting == 2;
            for (unsigned t = w; all && t < count && t < w + 32; t++) fibers[t].waiting = 0;
        }
        for (unsigned t = 0, n; t < count; t++) {
            if ((n = fibers[t].waiting) <= 2) continue;
            bool all = true;
            unsigned first = t / (n - 2) * (n - 2), last = first + n - 2 < count ? first + n - 2 : count;
            for (unsigned u = first; u < last; u++) all &= fibers[u].done || fibers[u].waiting == (int)n;
            for (unsigned u = first; all && u < last; u++) fibers[u].waiting = 0;
        }
        bool all = true;
        for (unsigned t = 0; t < count; t++) all &= fibers[t].done || fibers[t].waiting == 1;
        for (unsigned t = 0; all && t < count; t++) fibers[t].waiting = 0;
    }
}

template <bool WAITS> static void emulated_launch(void (*call)(void**), const unsigned* dims, void** params) {
    gridDim = {dims[0], dims[1], dims[2]};
    blockDim = {dims[3], dims[4], dims[5]};
    emulated_call = call;
    emulated_params = params;
    for (unsigned z = 0; z < dims[2]; z++)
        for (unsigned y = 0; y < dims[1]; y++)
            for (unsigned x = 0; x < dims[0]; x++) {
                blockIdx = {x, y, z};
                if (WAITS) {
                    emulated_block();
                    continue;
                }
                for (unsigned k = 0; k < dims[5]; k++)
                    for (unsigned j = 0; j < dims[4]; j++)
                        for (unsigned i = 0; i < dims[3]; i++) {
                            threadIdx = {i, j, k};
                            call(params);
                        }
            }
}

template <class... A, size_t... I>
static inline void emulated_apply(void (*kernel)(A...), void** params, std::index_sequence<I...>) {
    kernel(*(std::remove_reference_t<A>*)params[I]...);
}
template <class... A> static inline void emulated_apply(void (*kernel)(A...), void** params) {
    emulated_apply(kernel, params, std::index_sequence_for<A...>());
}
