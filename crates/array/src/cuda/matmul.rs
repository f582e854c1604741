//! Launchers of matrix products.

use super::program::{MATMUL, kernel, multiplied};
use super::walk::{Walk, walks};
use super::{fresh, lane_of, read};
use crate::array::Array;
use crate::error::Result;
use planaria_cuda::{Arg, Launch, Matrix, Product, ProductType};
use planaria_layout::{DType, Shape};

/// Rows and columns of a block.
const TILE: usize = 64;
/// Blocks along y and z.
const MOST_BLOCKS: usize = 65_535;

/// A product as the library takes it: matrices by rows or columns, one step between those of a batch.
fn library_product(
    a: &Array,
    b: &Array,
    start: Option<&Array>,
    (m, n, k): (usize, usize, usize),
) -> Option<Product> {
    let kind = match a.dtype() {
        DType::F64 => ProductType::F64,
        DType::F32 => ProductType::F32,
        DType::BF16 => ProductType::BF16,
        DType::F16 => ProductType::F16,
        _ => return None,
    };
    if m == 0 || n == 0 || k == 0 || start.is_some_and(|start| start.strides()[0] != 1) {
        return None;
    }
    let dims = a.ndim() - 2;
    let walk = |x: &Array| {
        let mut pieces = walks(&x.shape()[..dims], &[&x.strides()[..dims]]);
        let one = pieces.pop().filter(|walk| pieces.is_empty() && walk.words[1] == 1)?;
        Some((one.numel, one.words[2 + super::walk::MAX_DIMS] as i64))
    };
    let matrix = |x: &Array, rows: usize, columns: usize| {
        let (row, column) = (x.strides()[dims], x.strides()[dims + 1]);
        // One row or column may have any step.
        let (by_rows, step) = match (row, column) {
            (row, 1) if row >= columns as isize => (true, row),
            (1, column) if column >= rows as isize => (false, column),
            (_, 1) if rows == 1 => (true, columns as isize),
            (1, _) if columns == 1 => (false, rows as isize),
            _ => return None,
        };
        let (_, batch_step) = walk(x)?;
        (batch_step >= 0).then_some(Matrix { by_rows, step: step as u64, batch_step: batch_step as u64 })
    };
    let (batch, _) = walk(a)?;
    let (left, right) = (matrix(a, m, k)?, matrix(b, k, n)?);
    let (m, n, k, batch) = (m as u64, n as u64, k as u64, batch as u64);
    Some(Product { kind, m, n, k, batch, a: left, b: right, bias: start.is_some(), alignment: 16 })
}

/// `a · b` of the last two dims, batches before them equal; sums start from `start`, which is broadcast over rows.
pub(crate) fn matmul(
    op: &'static str,
    a: &Array,
    b: &Array,
    start: Option<&Array>,
    shape: &Shape,
) -> Result<Array> {
    let lane = lane_of(op, a)?;
    let (out, to) = fresh(op, &lane, shape, a.dtype())?;
    let (ha, hb) = (read(op, &lane, a)?, read(op, &lane, b)?);
    let hs = start.map(|start| read(op, &lane, start)).transpose()?;
    let n_dims = a.ndim();
    let (m, k, n) = (a.shape()[n_dims - 2], a.shape()[n_dims - 1], b.shape()[n_dims - 1]);
    let (sa, sb, batch) = (a.strides(), b.strides(), &shape[..n_dims - 2]);
    if let Some(product) = library_product(a, b, start, (m, n, k)) {
        let addresses = [ha.address, hb.address, hs.as_ref().map_or(0, |start| start.address), to];
        if lane.product(op, &product.align(&addresses), addresses)? {
            return Ok(out);
        }
    }
    let step = |x: isize| x as i64 as u64;
    let size = a.dtype().size() as isize;
    let kernel = kernel(&lane, &MATMUL, &multiplied(a.dtype()), "matmul")?;
    let mut done = 0;
    for Walk { words, skip, numel } in walks(batch, &[&sa[..n_dims - 2], &sb[..n_dims - 2]]) {
        let at = |address: u64, skip: isize| address.wrapping_add_signed((skip * size) as i64);
        let mut all = vec![at(ha.address, skip[0]), at(hb.address, skip[1])];
        all.push(hs.as_ref().map_or(0, |start| start.address));
        all.push(to + (done * m * n) as u64 * size as u64);
        all.extend([m, n, k].map(|n| n as u64));
        all.extend([sa[n_dims - 2], sa[n_dims - 1], sb[n_dims - 2], sb[n_dims - 1]].map(step));
        all.push(start.map_or(0, |start| step(start.strides()[0])));
        all.extend_from_slice(&words);
        let high = |blocks: usize| blocks.min(MOST_BLOCKS) as u32;
        let grid = [n.div_ceil(TILE) as u32, high(m.div_ceil(TILE)), high(numel)];
        let launch = Launch { op, kernel: &kernel, grid, block: [256, 1, 1], shared: 0 };
        lane.launch(&launch, &[Arg::Words(&all)])?;
        done += numel;
    }
    Ok(out)
}
