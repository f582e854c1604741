//! Singular values and vectors: all of a matrix in memory by Jacobi rotations, the largest of one that is read row by row by
//! subspace iteration.

use planaria_array::random::{Key, Normal, Window, normal_f64};

/// The largest singular values with their vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct Svd {
    /// Left vectors, `[rows, count]`.
    pub left: Vec<f64>,
    /// Descending.
    pub values: Vec<f64>,
    /// Right vectors, `[count, columns]`.
    pub right: Vec<f64>,
}

/// Fills the room it is given with rows from a number on.
pub type ReadRows<'a, E> = dyn Fn(usize, &mut [f64]) -> Result<(), E> + 'a;

/// A matrix whose rows can be read.
pub struct Matrix<'a, E> {
    /// How many rows there are.
    pub rows: usize,
    /// How many columns there are.
    pub columns: usize,
    /// Reads rows from the given one on, as many as there is room for.
    pub read: &'a ReadRows<'a, E>,
}

impl<E> std::fmt::Debug for Matrix<'_, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix[{}, {}]", self.rows, self.columns)
    }
}

/// Rows from `first` on of a matrix that is in memory.
pub fn rows_of(values: &[f64], columns: usize, first: usize, out: &mut [f64]) {
    out.copy_from_slice(&values[first * columns..][..out.len()]);
}

/// Matrices up to this many elements are decomposed in memory.
const SMALL: usize = 1 << 18;
/// Elements that are read at once.
const BLOCK: usize = 1 << 18;
/// Further directions, so that those that are wanted converge quickly.
const MORE: usize = 16;
const STEPS: usize = 60;

/// Bytes of what must be in memory beside the result, where a matrix is too small or too much of it is wanted to read it in
/// parts.
pub fn whole_bytes(rows: usize, columns: usize, count: usize) -> Option<usize> {
    let least = rows.min(columns);
    let whole = rows * columns <= SMALL || count.min(least) + MORE >= least;
    // The matrix, its columns, and their turns.
    whole.then(|| 8 * (2 * rows * columns + least * least))
}

/// The most singular values of a large matrix that are found while it is read in parts.
pub fn most_in_parts(rows: usize, columns: usize) -> usize {
    rows.min(columns).saturating_sub(MORE + 1)
}

/// The `count` largest singular values and their vectors.
pub fn largest<E: From<planaria_array::Error>>(matrix: &Matrix<'_, E>, count: usize) -> Result<Svd, E> {
    let Matrix { rows, columns, read } = *matrix;
    let count = count.min(rows).min(columns);
    if whole_bytes(rows, columns, count).is_some() {
        let mut whole = vec![0.0; rows * columns];
        read(0, &mut whole)?;
        return Ok(cut(jacobi(&whole, rows, columns), rows, columns, count));
    }
    let width = count + MORE;
    let mut basis = vec![0.0; columns * width];
    normal_f64(&mut basis, Key::new(0, 0), &Window::flat(0, columns * width), Normal::STANDARD)?;
    orthonormalize(&mut basis, columns, width);
    let mut before = vec![0.0; count];
    for _ in 0..STEPS {
        let mut image = times(matrix, &basis, width)?;
        let lengths = orthonormalize(&mut image, rows, width);
        let mut next = times_transposed(matrix, &image, width)?;
        let mut values = orthonormalize(&mut next, columns, width);
        basis = next;
        values.sort_by(|a, b| b.total_cmp(a));
        let moved = values.iter().zip(&before).any(|(now, before)| (now - before).abs() > 1e-12 * values[0]);
        before = values[..count].to_vec();
        if !moved || lengths.iter().all(|length| *length == 0.0) {
            break;
        }
    }
    let image = times(matrix, &basis, width)?;
    let inner = jacobi(&image, rows, width);
    // Vectors of the image are combinations of the basis.
    let mut right = vec![0.0; width * columns];
    for k in 0..width {
        for j in 0..columns {
            right[k * columns + j] =
                (0..width).map(|l| inner.right[k * width + l] * basis[j * width + l]).sum();
        }
    }
    Ok(cut(Svd { right, ..inner }, rows, columns, count))
}

/// The first of some singular values.
fn cut(svd: Svd, rows: usize, columns: usize, count: usize) -> Svd {
    let all = svd.values.len();
    let left = (0..rows).flat_map(|row| svd.left[row * all..row * all + count].iter().copied()).collect();
    Svd { left, values: svd.values[..count].to_vec(), right: svd.right[..count * columns].to_vec() }
}

/// The matrix times `[columns, width]`.
fn times<E>(matrix: &Matrix<'_, E>, basis: &[f64], width: usize) -> Result<Vec<f64>, E> {
    let mut image = vec![0.0; matrix.rows * width];
    each_row(matrix, |row, values| {
        let out = &mut image[row * width..(row + 1) * width];
        for (value, line) in values.iter().zip(basis.chunks(width)) {
            out.iter_mut().zip(line).for_each(|(out, x)| *out += value * x);
        }
    })?;
    Ok(image)
}

/// The transposed matrix times `[rows, width]`.
fn times_transposed<E>(matrix: &Matrix<'_, E>, image: &[f64], width: usize) -> Result<Vec<f64>, E> {
    let mut back = vec![0.0; matrix.columns * width];
    each_row(matrix, |row, values| {
        let line = &image[row * width..(row + 1) * width];
        for (value, out) in values.iter().zip(back.chunks_mut(width)) {
            out.iter_mut().zip(line).for_each(|(out, x)| *out += value * x);
        }
    })?;
    Ok(back)
}

fn each_row<E>(matrix: &Matrix<'_, E>, mut work: impl FnMut(usize, &[f64])) -> Result<(), E> {
    let Matrix { rows, columns, read } = *matrix;
    let step = (BLOCK / columns.max(1)).max(1);
    let mut values = Vec::new();
    for first in (0..rows).step_by(step) {
        values.resize(step.min(rows - first) * columns, 0.0);
        read(first, &mut values)?;
        values.chunks(columns).enumerate().for_each(|(at, line)| work(first + at, line));
    }
    Ok(())
}

/// Makes the columns of `[rows, width]` orthonormal; their lengths at their turns.
fn orthonormalize(values: &mut [f64], rows: usize, width: usize) -> Vec<f64> {
    let dot = |values: &[f64], a: usize, b: usize| -> f64 {
        (0..rows).map(|row| values[row * width + a] * values[row * width + b]).sum()
    };
    let mut lengths = Vec::with_capacity(width);
    for column in 0..width {
        // Twice is enough.
        for _ in 0..2 {
            for other in 0..column {
                let product = dot(values, column, other);
                (0..rows)
                    .for_each(|row| values[row * width + column] -= product * values[row * width + other]);
            }
        }
        let length = dot(values, column, column).sqrt();
        let factor = if length > 0.0 { 1.0 / length } else { 0.0 };
        (0..rows).for_each(|row| values[row * width + column] *= factor);
        lengths.push(length);
    }
    lengths
}

/// All singular values of `[rows, columns]` by rotations of pairs of columns (of rows, where there are fewer).
pub fn jacobi(values: &[f64], rows: usize, columns: usize) -> Svd {
    if rows < columns {
        let turned: Vec<f64> = (0..columns)
            .flat_map(|column| (0..rows).map(move |row| values[row * columns + column]))
            .collect();
        let svd = jacobi(&turned, columns, rows);
        let turn = |values: &[f64], rows: usize, columns: usize| -> Vec<f64> {
            (0..columns).flat_map(|column| (0..rows).map(move |row| values[row * columns + column])).collect()
        };
        // With fewer rows than columns: left and right change places.
        return Svd {
            left: turn(&svd.right, rows, rows),
            values: svd.values,
            right: turn(&svd.left, columns, rows),
        };
    }
    // Column by column, so that a rotation runs over memory in order.
    let mut work: Vec<Vec<f64>> =
        (0..columns).map(|column| (0..rows).map(|row| values[row * columns + column]).collect()).collect();
    let mut turns: Vec<Vec<f64>> = (0..columns)
        .map(|column| (0..columns).map(|row| f64::from(u8::from(row == column))).collect())
        .collect();
    for _ in 0..60 {
        let mut rotated = false;
        for p in 0..columns {
            for q in p + 1..columns {
                rotated |= rotate(&mut work, &mut turns, p, q);
            }
        }
        if !rotated {
            break;
        }
    }
    let norm = |column: &[f64]| column.iter().map(|x| x * x).sum::<f64>().sqrt();
    let mut order: Vec<(f64, usize)> = work.iter().map(|column| norm(column)).zip(0..columns).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let unit = |length: f64| if length > 0.0 { 1.0 / length } else { 0.0 };
    let left = (0..rows)
        .flat_map(|row| order.iter().map(|&(length, at)| work[at][row] * unit(length)).collect::<Vec<_>>());
    Svd {
        left: left.collect(),
        values: order.iter().map(|(length, _)| *length).collect(),
        right: order.iter().flat_map(|&(_, at)| turns[at].iter().copied()).collect(),
    }
}

/// Makes two columns orthogonal; whether they were not.
fn rotate(work: &mut [Vec<f64>], turns: &mut [Vec<f64>], p: usize, q: usize) -> bool {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let (alpha, beta, gamma) = (dot(&work[p], &work[p]), dot(&work[q], &work[q]), dot(&work[p], &work[q]));
    if gamma == 0.0 || gamma.abs() <= 1e-15 * (alpha * beta).sqrt() {
        return false;
    }
    let zeta = (beta - alpha) / (2.0 * gamma);
    let tangent = zeta.signum() / (zeta.abs() + (1.0 + zeta * zeta).sqrt());
    let cosine = 1.0 / (1.0 + tangent * tangent).sqrt();
    let sine = cosine * tangent;
    for columns in [work, turns] {
        let (first, second) = columns.split_at_mut(q);
        for (a, b) in first[p].iter_mut().zip(&mut second[0]) {
            (*a, *b) = (cosine * *a - sine * *b, sine * *a + cosine * *b);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(len: usize, stream: u64) -> Vec<f64> {
        let mut values = vec![0.0; len];
        normal_f64(&mut values, Key::new(7, stream), &Window::flat(0, len), Normal::STANDARD).unwrap();
        values
    }

    /// Largest difference between the matrix and the product of the three.
    fn error(svd: &Svd, matrix: &[f64], rows: usize, columns: usize) -> f64 {
        let count = svd.values.len();
        let entry = |i: usize, j: usize| -> f64 {
            (0..count).map(|k| svd.left[i * count + k] * svd.values[k] * svd.right[k * columns + j]).sum()
        };
        let places = (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j)));
        places.map(|(i, j)| (entry(i, j) - matrix[i * columns + j]).abs()).fold(0.0, f64::max)
    }

    #[test]
    fn the_product_of_all_is_the_matrix() {
        for (rows, columns) in [(5, 5), (9, 4), (4, 9), (1, 6), (6, 1)] {
            let matrix = random(rows * columns, (rows * 10 + columns) as u64);
            let svd = jacobi(&matrix, rows, columns);
            assert!(error(&svd, &matrix, rows, columns) < 1e-12, "{rows} {columns}");
            assert!(svd.values.windows(2).all(|pair| pair[0] >= pair[1]));
        }
    }

    #[test]
    fn the_largest_of_a_large_matrix_are_found_without_holding_it() {
        // Rank 6 plus little: the best approximation of rank 6 is off by little.
        let (rows, columns, rank) = (640, 420, 6);
        let (left, right) = (random(rows * rank, 1), random(rank * columns, 2));
        let noise = random(rows * columns, 3);
        let entry = |i: usize, j: usize| -> f64 {
            (0..rank).map(|k| left[i * rank + k] * right[k * columns + j]).sum::<f64>()
                + 1e-6 * noise[i * columns + j]
        };
        let matrix: Vec<f64> =
            (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))).map(|(i, j)| entry(i, j)).collect();
        let read = |first: usize, out: &mut [f64]| -> planaria_array::Result<()> {
            rows_of(&matrix, columns, first, out);
            Ok(())
        };
        let svd = largest(&Matrix { rows, columns, read: &read }, rank).unwrap();
        assert!(error(&svd, &matrix, rows, columns) < 1e-5);
    }
}
