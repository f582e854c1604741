// Random numbers: Philox4x32-10 keyed by the global index of an element, with the CPU's bits (`random.rs`).
//
// Every kernel takes (Window, seed, stream, out, parameters); grid-stride over elements, 256 threads; any grid.
#include "number.cuh"

#define DIMS 8
#define FIRST ((u64)blockIdx.x * blockDim.x + threadIdx.x)
#define STEP ((u64)gridDim.x * blockDim.x)

// Which elements of a global tensor are drawn: extents of the box and global steps for each of them.
struct Window {
    u64 numel;
    u64 ndim;
    u64 shape[DIMS];
    u64 step[DIMS];
    u64 start;
};

DEVICE u64 global_index(const Window& w, u64 i) {
    u64 at = w.start, rest = i;
    for (int d = (int)w.ndim - 1; d > 0; d--) {
        at += rest % w.shape[d] * w.step[d];
        rest /= w.shape[d];
    }
    return at + rest * w.step[0];
}

struct Words { u32 at[4]; };

DEVICE Words philox(u64 seed, u64 stream, u64 block) {
    u64 c0 = (u32)block, c1 = block >> 32, c2 = (u32)stream, c3 = stream >> 32;
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u64 p0 = 0xd2511f53ull * c0, p1 = 0xcd9e8d57ull * c2;
        c0 = (p1 >> 32) ^ c1 ^ k0;
        c1 = (u32)p1;
        c2 = (p0 >> 32) ^ c3 ^ k1;
        c3 = (u32)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    Words words = {{(u32)c0, (u32)c1, (u32)c2, (u32)c3}};
    return words;
}

// The word of element i, four to a block; the 64 bits of element i, two to a block, the low word first.
DEVICE u32 word_at(u64 seed, u64 stream, u64 i) { return philox(seed, stream, i / 4).at[i % 4]; }
DEVICE u64 half_at(u64 seed, u64 stream, u64 i) {
    Words w = philox(seed, stream, i / 2);
    return i % 2 ? (u64)w.at[3] << 32 | w.at[2] : (u64)w.at[1] << 32 | w.at[0];
}

#define LN_2 0.693147180559945309417232121458
#define TAU 6.28318530717958647692528676656

DEVICE f32 ln_plain(f32 x) {
    u32 bits = bits_of(x);
    i32 e = (i32)(bits - 0x3f3504f3u) >> 23;
    f32 m = float_of(bits - ((u32)e << 23));
    f32 s = (m - 1.0f) / (m + 1.0f);
    f32 z = s * s;
    f32 tail = s * (z * ((f32)(2.0 / 3.0) + z * ((f32)(2.0 / 5.0) + z * ((f32)(2.0 / 7.0) + z * (f32)(2.0 / 9.0)))));
    return (f32)e * (f32)LN_2 + (s + s + tail);
}
DEVICE f64 ln_plain(f64 x) {
    u64 bits = bits_of(x);
    i64 e = (i64)(bits - 0x3fe6a09e667f3bcdull) >> 52;
    f64 m = double_of(bits - ((u64)e << 52));
    f64 s = (m - 1.0) / (m + 1.0);
    f64 z = s * s;
    f64 sum = 2.0 / 21.0;
#pragma unroll
    for (int k = 19; k >= 3; k -= 2) sum = 2.0 / (f64)k + z * sum;
    return (f64)e * LN_2 + (s + s + s * (z * sum));
}

// Sine and cosine of turn / 2^32 turns.
DEVICE void sin_cos(u32 turn, f32& sin, f32& cos) {
    u32 quarter = (turn + (1u << 29)) >> 30;
    f32 x = (f32)(i32)(turn - (quarter << 30)) * (f32)(TAU / 4294967296.0);
    f32 z = x * x;
    f32 a = (f32)(1.0 / 362880.0);
    a = (f32)(-1.0 / 5040.0) + z * a;
    a = (f32)(1.0 / 120.0) + z * a;
    a = (f32)(-1.0 / 6.0) + z * a;
    f32 s = x + x * (z * a);
    f32 b = (f32)(-1.0 / 3628800.0);
    b = (f32)(1.0 / 40320.0) + z * b;
    b = (f32)(-1.0 / 720.0) + z * b;
    b = (f32)(1.0 / 24.0) + z * b;
    b = (f32)(-1.0 / 2.0) + z * b;
    f32 c = 1.0f + z * b;
    sin = float_of(bits_of(quarter & 1 ? c : s) ^ ((quarter & 2) << 30));
    cos = float_of(bits_of(quarter & 1 ? s : c) ^ (((quarter + 1) & 2) << 30));
}
DEVICE void sin_cos(u64 turn, f64& sin, f64& cos) {
    u64 quarter = (turn + (1ull << 61)) >> 62;
    f64 x = (f64)(i64)(turn - (quarter << 62)) * (TAU / 18446744073709551616.0);
    f64 z = x * x;
    const f64 down[8] = {-1.0 / 6.0, 1.0 / 120.0, -1.0 / 5040.0, 1.0 / 362880.0, -1.0 / 39916800.0,
        1.0 / 6227020800.0, -1.0 / 1307674368000.0, 1.0 / 355687428096000.0};
    const f64 even[8] = {-1.0 / 2.0, 1.0 / 24.0, -1.0 / 720.0, 1.0 / 40320.0, -1.0 / 3628800.0,
        1.0 / 479001600.0, -1.0 / 87178291200.0, 1.0 / 20922789888000.0};
    f64 a = down[7], b = even[7];
#pragma unroll
    for (int k = 6; k >= 0; k--) {
        a = down[k] + z * a;
        b = even[k] + z * b;
    }
    f64 s = x + x * (z * a), c = 1.0 + z * b;
    sin = double_of(bits_of(quarter & 1 ? c : s) ^ ((quarter & 2) << 62));
    cos = double_of(bits_of(quarter & 1 ? s : c) ^ (((quarter + 1) & 2) << 62));
}

// Wichura's algorithm AS 241.
template <int N> DEVICE f64 ratio(const f64 (&top)[N], const f64 (&bottom)[N], f64 r) {
    f64 a = top[N - 1], b = bottom[N - 1];
#pragma unroll
    for (int k = N - 2; k >= 0; k--) {
        a = top[k] + r * a;
        b = bottom[k] + r * b;
    }
    return a / b;
}
DEVICE f64 normal_quantile(f64 p) {
    const f64 top0[8] = {3.3871328727963665, 1.3314166789178438e2, 1.9715909503065513e3, 1.373169376550946e4,
        4.592195393154987e4, 6.72657709270087e4, 3.343057558358813e4, 2.5090809287301227e3};
    const f64 bottom0[8] = {1.0, 4.231333070160091e1, 6.871870074920579e2, 5.394196021424751e3,
        2.1213794301586597e4, 3.930789580009271e4, 2.8729085735721943e4, 5.226495278852854e3};
    const f64 top1[8] = {1.4234371107496835, 4.630337846156546, 5.769497221460691, 3.6478483247632045,
        1.2704582524523684, 2.417807251774506e-1, 2.2723844989269184e-2, 7.745450142783414e-4};
    const f64 bottom1[8] = {1.0, 2.053191626637759, 1.6763848301838038, 6.897673349851e-1,
        1.4810397642748008e-1, 1.5198666563616457e-2, 5.475938084995345e-4, 1.0507500716444169e-9};
    const f64 top2[8] = {6.657904643501103, 5.463784911164114, 1.7848265399172913, 2.9656057182850487e-1,
        2.6532189526576124e-2, 1.2426609473880784e-3, 2.7115555687434876e-5, 2.0103343992922881e-7};
    const f64 bottom2[8] = {1.0, 5.99832206555888e-1, 1.369298809227358e-1, 1.4875361290850615e-2,
        7.868691311456133e-4, 1.8463183175100548e-5, 1.421511758316446e-7, 2.0442631033899398e-15};
    f64 q = p - 0.5;
    f64 centre = q * ratio(top0, bottom0, 0.180625 - q * q);
    f64 smaller = q < 0.0 ? p : 1.0 - p;
    f64 r = sqrt(-ln_plain(smaller));
    f64 tail = r <= 5.0 ? ratio(top1, bottom1, r - 1.6) : ratio(top2, bottom2, r - 5.0);
    f64 sided = q < 0.0 ? -tail : tail;
    return fabs(q) <= 0.425 ? centre : sided;
}

struct Truncated { f64 below, inside, mirror, mean, std, low, high; };
DEVICE f64 truncated_at(const Truncated& t, f64 u) {
    f64 x = t.mean + t.std * (t.mirror * normal_quantile(t.below + u * t.inside));
    x = x < t.low ? t.low : x;
    return x > t.high ? t.high : x;
}

#define DRAW(NAME, OUT, PARAMETERS, VALUE)                                        \
    KERNEL void NAME(Window w, u64 seed, u64 stream, OUT* out, PARAMETERS) {      \
        for (u64 n = FIRST; n < w.numel; n += STEP) {                             \
            u64 i = global_index(w, n);                                           \
            out[n] = (VALUE);                                                     \
        }                                                                         \
    }

DEVICE truth is_below(u32 word, u64 count) {
    truth t;
    t.bits = word < count;
    return t;
}
DEVICE f32 uniform_of(u32 word, f32 low, f32 width, f32 last) {
    f32 x = low + (f32)(i32)(word >> 8) * (1.0f / 16777216.0f) * width;
    return x < last ? x : last;
}
DEVICE f64 uniform_of(u64 bits, f64 low, f64 width, f64 last) {
    f64 x = low + (f64)(i64)(bits >> 11) * (1.0 / 9007199254740992.0) * width;
    return x < last ? x : last;
}
DEVICE f32 normal_of(u64 seed, u64 stream, u64 i, f32 mean, f32 std) {
    Words w = philox(seed, stream, i / 4);
    int pair = i % 4 / 2 * 2;
    f32 u = (f32)(w.at[pair] | 1) * (f32)(1.0 / 4294967296.0);
    f32 radius = sqrtf(-2.0f * ln_plain(u)), sin, cos;
    sin_cos(w.at[pair + 1], sin, cos);
    return mean + std * (radius * (i % 2 ? sin : cos));
}
DEVICE f64 normal_of(u64 seed, u64 stream, u64 i, f64 mean, f64 std) {
    Words w = philox(seed, stream, i / 2);
    u64 first = (u64)w.at[1] << 32 | w.at[0], second = (u64)w.at[3] << 32 | w.at[2];
    f64 u = (f64)(i64)((first >> 11) + 1) * (1.0 / 9007199254740992.0);
    f64 radius = sqrt(-2.0 * ln_plain(u)), sin, cos;
    sin_cos(second, sin, cos);
    return mean + std * (radius * (i % 2 ? sin : cos));
}
// The upper half of a 64 by 64 bit product.
DEVICE u64 high_product(u64 x, u64 y) {
    u64 x0 = (u32)x, x1 = x >> 32, y0 = (u32)y, y1 = y >> 32;
    u64 middle = x1 * y0 + (x0 * y0 >> 32);
    u64 low = (u32)middle + x0 * y1;
    return x1 * y1 + (middle >> 32) + (low >> 32);
}

DRAW(bits, u32, u64 unused, word_at(seed, stream, i))
KERNEL void uniform_f32(Window w, u64 seed, u64 stream, f32* out, f32 low, f32 width, f32 last) {
    for (u64 n = FIRST; n < w.numel; n += STEP)
        out[n] = uniform_of(word_at(seed, stream, global_index(w, n)), low, width, last);
}
KERNEL void uniform_f64(Window w, u64 seed, u64 stream, f64* out, f64 low, f64 width, f64 last) {
    for (u64 n = FIRST; n < w.numel; n += STEP)
        out[n] = uniform_of(half_at(seed, stream, global_index(w, n)), low, width, last);
}
KERNEL void normal_f32(Window w, u64 seed, u64 stream, f32* out, f32 mean, f32 std) {
    for (u64 n = FIRST; n < w.numel; n += STEP) out[n] = normal_of(seed, stream, global_index(w, n), mean, std);
}
KERNEL void normal_f64(Window w, u64 seed, u64 stream, f64* out, f64 mean, f64 std) {
    for (u64 n = FIRST; n < w.numel; n += STEP) out[n] = normal_of(seed, stream, global_index(w, n), mean, std);
}
DRAW(truncated_f32, f32, Truncated t, (f32)truncated_at(t, ((f64)word_at(seed, stream, i) + 0.5) * (1.0 / 4294967296.0)))
DRAW(truncated_f64, f64, Truncated t,
    truncated_at(t, ((f64)(i64)(half_at(seed, stream, i) >> 12) + 0.5) * (2.0 / 9007199254740992.0)))
DRAW(bernoulli, truth, u64 below, is_below(word_at(seed, stream, i), below))
KERNEL void randint(Window w, u64 seed, u64 stream, i64* out, i64 low, u64 span) {
    for (u64 n = FIRST; n < w.numel; n += STEP)
        out[n] = (i64)((u64)low + high_product(half_at(seed, stream, global_index(w, n)), span));
}
