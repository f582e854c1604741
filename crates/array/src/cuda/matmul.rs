//! Launchers of matrix products.

use super::program::{MATMUL, kernel, multiplied};
use super::reduce::{Fold, reduce};
use super::walk::{Walk, walks};
use super::{fresh, lane_of, read};
use crate::array::Array;
use crate::error::Result;
use crate::storage::Coverage;
use planaria_cuda::{Arg, Lane, Launch, Matrix, Product, ProductType};
use planaria_layout::{DType, Shape};
use std::sync::Arc;

/// Rows and columns of a block.
const TILE: usize = 64;
/// Blocks along y and z.
const MOST_BLOCKS: usize = 65_535;

/// An element type as the library names it, where it has it.
fn product_type(dtype: DType) -> Option<ProductType> {
    match dtype {
        DType::F64 => Some(ProductType::F64),
        DType::F32 => Some(ProductType::F32),
        DType::BF16 => Some(ProductType::BF16),
        DType::F16 => Some(ProductType::F16),
        _ => None,
    }
}

/// A product as the library takes it: matrices by rows or columns, one step between those of a batch.
fn library_product(
    a: &Array,
    b: &Array,
    start: Option<&Array>,
    (m, n, k): (usize, usize, usize),
) -> Option<Product> {
    let kind = product_type(a.dtype())?;
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
    Some(Product {
        kind,
        out: kind,
        add: false,
        m,
        n,
        k,
        batch,
        a: left,
        b: right,
        bias: start.is_some(),
        alignment: 16,
    })
}

/// Parts that the sums of a product are cut into, so that long sums of few results fill the device. It follows from the extents
/// alone; of products by rows from the length of the sums alone, so that rows have the bits they have among others.
fn splits(product: &Product) -> u64 {
    let Product { m, n, k, a, .. } = *product;
    let fits = |parts: &u64| k.is_multiple_of(8 * parts);
    if a.by_rows {
        return if k >= LONG_SUM && fits(&4) { 4 } else { 1 };
    }
    let tiles = m.div_ceil(128) * n.div_ceil(128);
    let few = |parts: &u64| tiles * parts <= MOST_TILES && k / parts >= LEAST_TERMS;
    [16, 8, 4, 2].into_iter().find(|parts| few(parts) && fits(parts)).unwrap_or(1)
}

/// Sums of products by rows from this length on are cut.
const LONG_SUM: u64 = 1 << 16;
/// Tiles of 128 by 128 results that a device is full with.
const MOST_TILES: u64 = 400;
/// Terms that a part of a sum has at least.
const LEAST_TERMS: u64 = 1024;

/// A product whose sums are cut into parts: these in f32, then added in order. None where the library does not take it.
fn by_parts(
    op: &'static str,
    lane: &Arc<Lane>,
    product: Product,
    [a, b]: [u64; 2],
    (shape, dtype): (&Shape, DType),
) -> Result<Option<Array>> {
    let parts = splits(&product);
    if parts == 1 || product.batch != 1 || product.bias || !matches!(dtype, DType::BF16 | DType::F16) {
        return Ok(None);
    }
    let terms = product.k / parts;
    let along = |matrix: Matrix, steps: bool| Matrix {
        batch_step: terms * if steps { matrix.step } else { 1 },
        ..matrix
    };
    let (left, right) = (along(product.a, !product.a.by_rows), along(product.b, product.b.by_rows));
    let product = Product { k: terms, batch: parts, a: left, b: right, out: ProductType::F32, ..product };
    let results = (product.m * product.n) as usize;
    let (sums, to) = fresh(op, lane, &Shape::new(&[parts as usize, results])?, DType::F32)?;
    let addresses = [a, b, 0, to];
    if !lane.product(op, &product.align(&addresses), addresses)? {
        return Ok(None);
    }
    reduce(op, &sums, &[true, false], Fold::Sum)?.cast(dtype)?.reshape(shape).map(Some)
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
    let (ha, hb) = (read(op, &lane, a)?, read(op, &lane, b)?);
    let hs = start.map(|start| read(op, &lane, start)).transpose()?;
    let n_dims = a.ndim();
    let (m, k, n) = (a.shape()[n_dims - 2], a.shape()[n_dims - 1], b.shape()[n_dims - 1]);
    let (sa, sb, batch) = (a.strides(), b.strides(), &shape[..n_dims - 2]);
    let product = library_product(a, b, start, (m, n, k));
    let pair = [ha.address, hb.address];
    if let Some(product) = product
        && let Some(out) = by_parts(op, &lane, product, pair, (shape, a.dtype()))?
    {
        return Ok(out);
    }
    let (out, to) = fresh(op, &lane, shape, a.dtype())?;
    if let Some(product) = product {
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

/// Adds the product of two matrices to a contiguous one, in its type; false where the library does not take it.
pub(crate) fn add_matmul(op: &'static str, out: &Array, a: &Array, b: &Array) -> Result<bool> {
    let (m, k, n) = (a.shape()[0], a.shape()[1], b.shape()[1]);
    let (Some(product), Some(kind)) = (library_product(a, b, None, (m, n, k)), product_type(out.dtype()))
    else {
        return Ok(false);
    };
    let lane = lane_of(op, out)?;
    let (ha, hb) = (read(op, &lane, a)?, read(op, &lane, b)?);
    let update = out.begin_cuda_update(op, &lane, Coverage::Part)?;
    let to = update.address() + (out.offset() * out.dtype().size()) as u64;
    let addresses = [ha.address, hb.address, 0, to];
    let product = Product { out: kind, add: true, ..product }.align(&addresses);
    let taken = lane.product(op, &product, addresses)?;
    update.commit();
    Ok(taken)
}
