//! Rows of a table by id, and the sum of row gradients per id.

use super::norm::rows::accumulate;
use super::real::{Float, Real};
use bytemuck::Pod;
use planaria_cpu::pool;

/// `out[i] = table[ids[i]]`; ids have been checked.
pub(crate) fn gather<T: Pod + Send + Sync>(table: &[T], ids: &[i64], width: usize, out: &mut [T]) {
    if out.is_empty() {
        return;
    }
    pool::for_chunks_mut(out, width, 2 * size_of::<T>(), |at, piece| {
        let ids = &ids[at / width..];
        for (row, &id) in piece.chunks_exact_mut(width).zip(ids) {
            row.copy_from_slice(&table[id as usize * width..][..width]);
        }
    });
}

/// `grad[id] = sum of dy[i] over ids[i] == id`, in the order of i; rows no id names are zero, and so is `skip`.
pub(crate) fn scatter<T: Float>(dy: &[T], ids: &[i64], skip: Option<usize>, width: usize, grad: &mut [T]) {
    if grad.is_empty() {
        return;
    }
    let order = Order::new(ids, grad.len() / width);
    pool::for_chunks_mut(grad, width, 2 * size_of::<T>(), |at, piece| {
        let (mut wide, mut out) = (Vec::new(), Vec::new());
        for (i, row) in piece.chunks_exact_mut(width).enumerate() {
            let id = at / width + i;
            let sources = if skip == Some(id) { &[] } else { order.of(id) };
            match *sources {
                [] => row.fill(T::default()),
                [one] => row.copy_from_slice(&dy[one * width..][..width]),
                _ => T::narrow(row, &mut out, |row| {
                    row.fill(T::Real::ZERO);
                    for &source in sources {
                        accumulate(row, T::widen(&dy[source * width..][..width], &mut wide));
                    }
                }),
            }
        }
    });
}

/// Positions sorted by id, in their own order for each id.
struct Order {
    /// Where each id's positions start, and one end.
    starts: Vec<usize>,
    positions: Vec<usize>,
}

impl Order {
    fn new(ids: &[i64], count: usize) -> Order {
        let mut starts = vec![0; count + 2];
        for &id in ids {
            starts[id as usize + 2] += 1;
        }
        for i in 2..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut positions = vec![0; ids.len()];
        for (i, &id) in ids.iter().enumerate() {
            positions[starts[id as usize + 1]] = i;
            starts[id as usize + 1] += 1;
        }
        Order { starts, positions }
    }

    fn of(&self, id: usize) -> &[usize] {
        &self.positions[self.starts[id]..self.starts[id + 1]]
    }
}
