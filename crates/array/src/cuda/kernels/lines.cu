// What runs along a dim element by element, one thread a line: -DT=f32 and so on. x is dense [outer, n, inner].
//
// running_extreme(x, lines, n, inner, largest, at)   where the extreme so far stands: the last among equals, the latest NaN
// running_logs(x, lines, n, inner, y)                ln of the sum of exponentials so far; T is f64
//   lines = outer * inner; grid any (strides), block 256.
#include "walk.cuh"

typedef Wide<T>::type R;

static DEVICE u64 start_of(u64 line, u64 n, u64 inner) { return line / inner * n * inner + line % inner; }

KERNEL void running_extreme(const T* x, u64 lines, u64 n, u64 inner, u32 largest, i64* at) {
    for (u64 line = FIRST; line < lines; line += STEP) {
        u64 place = start_of(line, n, inner);
        R best = widen(x[place]);
        i64 where = 0;
        for (u64 i = 0; i < n; i++, place += inner) {
            const R value = widen(x[place]);
            const bool beaten = largest ? best > value : best < value;
            if (value != value || (best == best && !beaten)) best = value, where = (i64)i;
            at[place] = where;
        }
    }
}

#if FLOAT
KERNEL void running_logs(const T* x, u64 lines, u64 n, u64 inner, T* y) {
    for (u64 line = FIRST; line < lines; line += STEP) {
        u64 place = start_of(line, n, inner);
        f64 sum = -(f64)float_of(0x7f800000u);
        for (u64 i = 0; i < n; i++, place += inner) {
            const f64 value = (f64)widen(x[place]), low = sum <= value ? sum : value, high = sum <= value ? value : sum;
            const bool odd = sum != sum || value != value, endless = high - high != 0;
            sum = odd ? sum + value : endless ? high : high + log1p(exp(low - high));
            y[place] = To<T>::of(sum);
        }
    }
}
#endif
