//! Sums over the dims along which a smaller array was repeated.

use super::simd::simd;
use crate::convert::Number;

/// Adds each element of the row-major `data` to `sums[distance of its coordinate under strides]`.
pub(crate) fn sum_rows<T: Number>(data: &[T], shape: &[usize], strides: &[isize], sums: &mut [f64]) {
    let Some((&row, outer)) = shape.split_last() else {
        sums[0] += data[0].cast::<f64>();
        return;
    };
    if data.is_empty() {
        return;
    }
    let steps = super::index::Steps::new(outer, &strides[..outer.len()]);
    let stride = strides[outer.len()];
    for (r, data) in data.chunks_exact(row).enumerate() {
        let at = steps.at(r) as usize;
        if stride == 0 {
            sums[at] += total::<T>(data);
        } else {
            add::<T>(&mut sums[at..at + row], data);
        }
    }
}

simd! {
    fn total<T: Number>(data: &[T]) -> f64 {
        let mut lanes = [0f64; 16];
        let rows = data.chunks_exact(16);
        let tail: f64 = rows.remainder().iter().map(|&v| v.cast::<f64>()).sum();
        for row in rows {
            for (lane, &v) in lanes.iter_mut().zip(row) {
                *lane += v.cast::<f64>();
            }
        }
        lanes.iter().sum::<f64>() + tail
    }

    fn add<T: Number>(sums: &mut [f64], data: &[T]) {
        for (s, &v) in sums.iter_mut().zip(data) {
            *s += v.cast::<f64>();
        }
    }
}
