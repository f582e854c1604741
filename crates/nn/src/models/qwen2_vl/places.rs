//! Where patches stand in their pictures, which of them see each other, and how windows reorder them.

use crate::error::{Error, Result};
use planaria_array::Array;
use planaria_array::ops::RotaryTable;

/// Frames, rows and columns of patches of one picture or video.
pub type Grid = [usize; 3];

/// Row and column of every patch, in the order of the tower: frame after frame, block after block of `merge * merge`.
pub fn patch_places(grids: &[Grid], merge: usize) -> Vec<[usize; 2]> {
    let mut places = Vec::with_capacity(patches(grids));
    for &[frames, rows, columns] in grids {
        for _ in 0..frames {
            for block in (0..rows).step_by(merge) {
                for left in (0..columns).step_by(merge) {
                    for row in block..block + merge {
                        places.extend((left..left + merge).map(|column| [row, column]));
                    }
                }
            }
        }
    }
    places
}

/// Patches of all grids.
pub(super) fn patches(grids: &[Grid]) -> usize {
    grids.iter().map(|grid| grid.iter().product::<usize>()).sum()
}

/// Borders between patches that do not see each other: every frame is alone. The first is 0, the last the number of patches.
pub fn frame_borders(grids: &[Grid]) -> Vec<usize> {
    let frames =
        grids.iter().flat_map(|&[frames, rows, columns]| std::iter::repeat_n(rows * columns, frames));
    let ends = frames.scan(0, |end, len| {
        *end += len;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

/// The frequencies of the rows, and of the columns, of patches in heads of so many elements.
pub(super) fn patch_frequencies(head: usize, theta: f64) -> Vec<f64> {
    (0..head / 4).map(|i| theta.powf(-2.0 * i as f64 / (head / 2) as f64)).collect()
}

/// The angles of every patch: those of its row, then those of its column, `[patches, head / 2]`.
pub fn patch_angles(places: &[[usize; 2]], head: usize, theta: f64) -> Vec<f64> {
    let frequencies = patch_frequencies(head, theta);
    let of = |at: usize| frequencies.iter().map(move |frequency| at as f64 * frequency);
    places.iter().flat_map(|&[row, column]| of(row).chain(of(column))).collect()
}

/// Cosines and sines of angles `[rows, pairs]`.
pub(super) fn rotations(angles: &[f64], pairs: usize) -> Result<RotaryTable> {
    let shape = [angles.len() / pairs.max(1), pairs];
    let table = |f: fn(f64) -> f64| {
        let values: Vec<f32> = angles.iter().map(|&angle| f(angle) as f32).collect();
        Array::from_slice(&values, &shape)
    };
    Ok(RotaryTable { cos: table(f64::cos)?, sin: table(f64::sin)? })
}

/// Merged tokens in the order of windows, and the borders of windows, counted in patches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Which token stands at each place.
    pub order: Vec<usize>,
    /// From 0 to the number of patches.
    pub borders: Vec<usize>,
}

/// Windows of `side` merged tokens on each side; those at the edges are smaller.
pub fn windows(grids: &[Grid], merge: usize, side: usize) -> Result<Windows> {
    if side == 0 || merge == 0 {
        let message = format!("windows of {side} tokens of {merge} patches a side");
        return Err(Error::Argument { what: "vision windows", message });
    }
    let (mut order, mut borders, mut before) = (Vec::new(), vec![0], 0);
    for &[frames, rows, columns] in grids {
        let (rows, columns) = (rows / merge, columns / merge);
        for frame in 0..frames {
            for top in (0..rows).step_by(side) {
                for left in (0..columns).step_by(side) {
                    for row in top..rows.min(top + side) {
                        let start = before + (frame * rows + row) * columns;
                        order.extend((left..columns.min(left + side)).map(|column| start + column));
                    }
                    borders.push(order.len() * merge * merge);
                }
            }
        }
        before += frames * rows * columns;
    }
    Ok(Windows { order, borders })
}

/// The rows of a fused query-key-value weight that each rank has: its heads out of each of the three.
pub fn fused_rows(heads: usize, head: usize, ranks: usize) -> Result<Vec<Vec<usize>>> {
    if ranks == 0 || !heads.is_multiple_of(ranks) {
        let message = format!("{heads} heads cannot be divided over {ranks} ranks");
        return Err(Error::Argument { what: "vision heads", message });
    }
    let own = heads / ranks * head;
    let of = |rank: usize| {
        (0..3).flat_map(move |part| (0..own).map(move |i| part * heads * head + rank * own + i))
    };
    Ok((0..ranks).map(|rank| of(rank).collect()).collect())
}
