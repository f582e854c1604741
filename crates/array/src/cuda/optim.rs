//! Launchers of optimizer steps and of norms of gradients: many tensors in one launch.

use super::program::{ADAMW, EXACT_NORM, SGD, kernel, squared, stepped};
use super::rows::run;
use super::{blocks, fresh, lane_of, read};
use crate::array::Array;
use crate::error::Result;
use crate::storage::{Coverage, CudaUpdate};
use planaria_cuda::{Arg, Lane, Launch};
use planaria_layout::{DType, Shape};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// The arrays of one parameter's step, contiguous; no two have an element in common.
pub(crate) struct Stepped<'a> {
    pub(crate) param: &'a Array,
    pub(crate) master: Option<&'a Array>,
    pub(crate) grad: &'a Array,
    /// First and second moment and the greatest second one; or a velocity.
    pub(crate) moments: [Option<&'a Array>; 3],
}

impl Stepped<'_> {
    fn moment(&self) -> DType {
        self.moments[0].map_or(self.param.dtype(), Array::dtype)
    }

    /// The defines of the kernel for these dtypes.
    fn defines(&self) -> String {
        let (param, grad) = (self.param.dtype(), self.grad.dtype());
        stepped(param, grad, self.moment(), self.master.is_some(), self.moments[2].is_some())
    }
}

/// Storages being changed, each once however many parameters lie in it, and gradients being read.
#[derive(Default)]
struct Opened<'a> {
    updates: BTreeMap<usize, CudaUpdate<'a>>,
    grads: Vec<super::Held>,
}

impl<'a> Opened<'a> {
    /// Addresses of param, master, grad and three moments; 0 where absent.
    fn open(&mut self, op: &'static str, lane: &Arc<Lane>, arrays: &Stepped<'a>) -> Result<[u64; 6]> {
        let grad = read(op, lane, arrays.grad)?;
        let address = grad.address;
        self.grads.push(grad);
        let (param, master) =
            (self.begin(op, lane, Some(arrays.param))?, self.begin(op, lane, arrays.master)?);
        let [m, v, max] = arrays.moments;
        let [m, v, max] = [self.begin(op, lane, m)?, self.begin(op, lane, v)?, self.begin(op, lane, max)?];
        Ok([param, master, address, m, v, max])
    }

    fn begin(&mut self, op: &'static str, lane: &Arc<Lane>, x: Option<&'a Array>) -> Result<u64> {
        let Some(x) = x else { return Ok(0) };
        let update = match self.updates.entry(x.storage_key()) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(new) => new.insert(x.begin_cuda_update(op, lane, Coverage::Part)?),
        };
        Ok(update.address() + (x.offset() * x.dtype().size()) as u64)
    }

    fn commit(self) {
        self.updates.into_values().for_each(CudaUpdate::commit);
    }
}

/// Elements of a piece.
const PIECE: usize = 8192;

/// One step of AdamW for all of them; `constants` are those of `adamw.cu`.
pub(crate) fn adamw(op: &'static str, list: &[Stepped<'_>], constants: [f64; 8]) -> Result<()> {
    let mut alike: BTreeMap<String, Vec<&Stepped<'_>>> = BTreeMap::new();
    for arrays in list.iter().filter(|arrays| arrays.param.numel() > 0) {
        alike.entry(arrays.defines()).or_default().push(arrays);
    }
    for (defines, group) in alike {
        step_alike(op, &defines, &group, constants)?;
    }
    Ok(())
}

fn step_alike(op: &'static str, defines: &str, group: &[&Stepped<'_>], constants: [f64; 8]) -> Result<()> {
    let lane = lane_of(op, group[0].param)?;
    let mut opened = Opened::default();
    let mut table: Vec<u64> = Vec::new();
    let mut pieces: Vec<u64> = Vec::new();
    for (tensor, arrays) in group.iter().enumerate() {
        let count = arrays.param.numel();
        let addresses = opened.open(op, &lane, arrays)?;
        let aligned = addresses.iter().all(|address| address.is_multiple_of(16));
        table.extend(addresses);
        table.extend([count as u64, u64::from(aligned) << 32]);
        pieces.extend((0..count.div_ceil(PIECE)).map(|number| tensor as u64 | (number as u64) << 32));
    }
    let wide: Vec<u64> = match group[0].param.dtype() {
        DType::F64 => constants.iter().map(|x| x.to_bits()).collect(),
        _ => constants
            .chunks_exact(2)
            .map(|pair| u64::from((pair[0] as f32).to_bits()) | u64::from((pair[1] as f32).to_bits()) << 32)
            .collect(),
    };
    let (tensors, first_piece) = (8 * wide.len() as u64, 8 * (wide.len() + table.len()) as u64);
    let words = [&wide[..], &table[..], &pieces[..]].concat();
    let block = lane.block(op, 8 * words.len())?;
    lane.copy_in(op, block.address(), bytemuck::cast_slice(&words))?;
    let kernel = kernel(&lane, &ADAMW, defines, "adamw")?;
    let grid = [pieces.len() as u32, 1, 1];
    let args = [block.address() + tensors, block.address() + first_piece, block.address()].map(Arg::U64);
    lane.launch(&Launch { op, kernel: &kernel, grid, block: [256, 1, 1], shared: 0 }, &args)?;
    opened.commit();
    Ok(())
}

/// One step of SGD; `constants` are those of `sgd.cu`.
pub(crate) fn sgd(op: &'static str, arrays: &Stepped<'_>, constants: [f64; 6], nesterov: bool) -> Result<()> {
    let lane = lane_of(op, arrays.param)?;
    let mut opened = Opened::default();
    let [param, master, grad, velocity, ..] = opened.open(op, &lane, arrays)?;
    let count = arrays.param.numel();
    let mut words = vec![param, master, grad, velocity, count as u64, u64::from(nesterov)];
    words.extend(constants.map(f64::to_bits));
    let defines = stepped(arrays.param.dtype(), arrays.grad.dtype(), arrays.moment(), false, false);
    run(op, &lane, (&SGD, &defines, "sgd"), blocks(&lane, count, 1), &[Arg::Words(&words)])?;
    opened.commit();
    Ok(())
}

/// Elements of a piece of a sum of squares.
const SQUARES: usize = 65_536;

/// The sum of the squares of all elements as words of 32 bits in 64, not carried, then the numbers of NaN and of infinities:
/// `words` in all. The arrays are contiguous, of f32, bf16 or f16.
pub(crate) fn exact_squares(op: &'static str, list: &[Array], words: usize) -> Result<Option<Array>> {
    let Some(first) = list.first() else { return Ok(None) };
    let lane = lane_of(op, first)?;
    let (out, to) = fresh(op, &lane, &Shape::new(&[words])?, DType::I64)?;
    lane.fill_bytes(op, to, 0, 8 * words)?;
    let mut alike: BTreeMap<String, Vec<&Array>> = BTreeMap::new();
    for x in list.iter().filter(|x| x.numel() > 0) {
        alike.entry(squared(x.dtype())).or_default().push(x);
    }
    for (defines, group) in alike {
        let held = group.iter().map(|x| read(op, &lane, x)).collect::<Result<Vec<_>>>()?;
        let table = group.iter().zip(&held).flat_map(|(x, held)| [held.address, x.numel() as u64]);
        let mut all: Vec<u64> = table.collect();
        let pieces_at = 8 * all.len() as u64;
        for (tensor, x) in group.iter().enumerate() {
            let pieces = x.numel().div_ceil(SQUARES);
            all.extend((0..pieces).map(|number| tensor as u64 | (number as u64) << 32));
        }
        let pieces = all.len() as u64 - pieces_at / 8;
        let block = lane.block(op, 8 * all.len())?;
        lane.copy_in(op, block.address(), bytemuck::cast_slice(&all))?;
        let args = [block.address(), block.address() + pieces_at, to].map(Arg::U64);
        run(op, &lane, (&EXACT_NORM, &defines, "exact_norm"), pieces as u32, &args)?;
    }
    Ok(Some(out))
}
