//! Launchers of attention: by tensor cores where types and dims allow it, else by a kernel for every type and dim.

use super::program::{
    ATTENTION_FORWARD, ATTENTION_FORWARD_TMA, ATTENTION_KEYS, ATTENTION_KEYS_TMA, ATTENTION_PLAIN,
    ATTENTION_QUERIES, ATTENTION_QUERIES_TMA, attend_forward, attend_forward_tma, attend_keys,
    attend_keys_tma, attend_plain, attend_queries, attend_queries_tma, kernel,
};
use super::{Held, blocks, fresh, lane_of, read};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::ops::Bounds;
use planaria_cuda::{Arg, Lane, Launch, Program, TensorMap};
use planaria_layout::{DType, Shape};
use std::sync::Arc;

/// What is computed besides the operands. A mask is a view of all scores: bools, or numbers of the computing type.
#[derive(Clone, Copy)]
pub(crate) struct Rule<'a> {
    pub(crate) op: &'static str,
    pub(crate) causal: bool,
    pub(crate) scale: f64,
    pub(crate) mask: Option<&'a Array>,
    pub(crate) bounds: Option<Bounds<'a>>,
}

/// How the tensor cores are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// By warps: sm_80 and later.
    Warps,
    /// By warpgroups, operands by bulk copies: sm_90a.
    Groups,
    /// Not at all.
    Plain,
}

/// Gradients of the queries, keys and values.
pub(crate) struct Gradients {
    pub(crate) q: Array,
    pub(crate) k: Array,
    pub(crate) v: Array,
}

/// The operands of one attention, rows contiguous.
struct Operands<'a> {
    rule: Rule<'a>,
    lane: Arc<Lane>,
    path: Path,
    q: Array,
    k: Array,
    v: Array,
}

/// Multiples of 16 bytes between rows, heads and batches, and rows without gaps.
fn in_packets(x: &Array) -> bool {
    let per = (16 / x.dtype().size()) as isize;
    let (last, others) = (x.strides()[3], &x.strides()[..3]);
    let start = (x.offset() * x.dtype().size()).is_multiple_of(16);
    last == 1 && start && others.iter().all(|stride| stride % per == 0 && *stride > 0)
}

/// Rows as a kernel takes them: the array itself, or a copy.
fn rows(path: Path, x: &Array) -> Result<Array> {
    match path {
        Path::Plain if x.strides()[3] == 1 => Ok(x.clone()),
        Path::Warps | Path::Groups if in_packets(x) => Ok(x.clone()),
        _ => x.copy(),
    }
}

/// A fresh `[batch, heads, length, dim]` in which the heads of a token lie side by side, as the products before and after
/// attention have them.
fn by_tokens(op: &'static str, lane: &Arc<Lane>, shape: &[usize], dtype: DType) -> Result<Array> {
    let turned = Shape::new(&[shape[0], shape[2], shape[1], shape[3]])?;
    fresh(op, lane, &turned, dtype)?.0.transpose(1, 2)
}

impl<'a> Operands<'a> {
    fn new(rule: Rule<'a>, q: &Array, k: &Array, v: &Array) -> Result<Operands<'a>> {
        let lane = lane_of(rule.op, q)?;
        let (dim, v_dim, dtype) = (q.shape()[3], v.shape()[3], q.dtype());
        let narrow = matches!(dtype, DType::BF16 | DType::F16) && dim == v_dim && matches!(dim, 64 | 128);
        // Added masks are in the computing type, which those kernels do not take.
        let simple = rule.mask.is_none_or(|mask| mask.dtype() == DType::Bool);
        let path = match lane.context().info().capability {
            (9, 0) if narrow && rule.mask.is_none() => Path::Groups,
            (8.., _) if narrow && simple => Path::Warps,
            _ => Path::Plain,
        };
        Ok(Operands { rule, path, q: rows(path, q)?, k: rows(path, k)?, v: rows(path, v)?, lane })
    }

    fn read(&self, x: &Array) -> Result<Held> {
        read(self.rule.op, &self.lane, x)
    }

    fn element(&self) -> DType {
        self.q.dtype()
    }

    fn dim(&self) -> usize {
        self.q.shape()[3]
    }

    /// Tiles of `rows` queries or keys over all heads of `x`.
    fn tiles(&self, x: &Array, rows: usize) -> usize {
        x.shape()[2].div_ceil(rows) * x.shape()[0] * x.shape()[1]
    }

    /// The struct `Plain` or `Attention`; arrays that a kernel does not use are none.
    fn words(&self, work: &Work<'_>) -> Result<Vec<u64>> {
        let (q, k, v) = (&self.q, &self.k, &self.v);
        let address = |x: Option<&Array>| x.map_or(Ok(0), |x| Ok::<u64, Error>(self.read(x)?.address));
        let mut words = vec![self.read(q)?.address, self.read(k)?.address, self.read(v)?.address];
        let [out, lse, dout, delta, dq, dk, dv] = work.arrays;
        for x in [out, lse, dout, delta, dq, dk, dv] {
            words.push(address(x)?);
        }
        if self.path != Path::Plain {
            // Parts of the gradients of keys, of which there is one.
            words.extend([0, 0]);
        }
        let bounds = self.rule.bounds;
        let [first, end] = [bounds.map(|bounds| bounds.first), bounds.map(|bounds| bounds.end)];
        words.extend([address(first)?, address(end)?, address(self.rule.mask)?]);
        let strides = |x: Option<&Array>| -> [u64; 3] {
            x.map_or([0; 3], |x| std::array::from_fn(|d| x.strides()[d] as i64 as u64))
        };
        for x in [Some(q), Some(k), Some(v), out, dout, dq, dk, dv] {
            words.extend(strides(x));
        }
        words.extend((0..4).map(|d| self.rule.mask.map_or(0, |mask| mask.strides()[d] as i64 as u64)));
        words.extend([first, end].map(|x| x.map_or(0, |x| x.strides()[0] as i64 as u64)));
        let [batch, q_heads, q_len, dim] = [0, 1, 2, 3].map(|d| q.shape()[d] as u32);
        let (kv_heads, k_len, v_dim) = (k.shape()[1] as u32, k.shape()[2] as u32, v.shape()[3] as u32);
        let causal = self.rule.causal as u32;
        let mut small = vec![batch, q_heads, kv_heads, q_len, k_len];
        if self.path == Path::Plain {
            small.extend([dim, v_dim, causal, 0, 0]);
        } else {
            small.extend([1, causal, 0, 0, (self.rule.scale as f32).to_bits()]);
        }
        words.extend(small.chunks_exact(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32));
        if self.path == Path::Plain {
            words.push(self.rule.scale.to_bits());
        }
        Ok(words)
    }

    fn launch(&self, work: &Work<'_>, shape: Grid, maps: &[TensorMap]) -> Result<()> {
        let words = self.words(work)?;
        let kernel = kernel(&self.lane, &work.program, &work.defines, work.name)?;
        let mut args = vec![Arg::Words(&words)];
        args.extend(maps.iter().map(|map| Arg::Words(map.words())));
        let Grid { grid, threads, shared } = shape;
        let block = [threads as u32, 1, 1];
        let launch = Launch { op: self.rule.op, kernel: &kernel, grid, block, shared: shared as u32 };
        Ok(self.lane.launch(&launch, &args)?)
    }

    /// Blocks that stay and take tiles in turn.
    fn staying(&self, tiles: usize, groups: usize, shared: usize) -> Grid {
        let most = self.lane.context().info().multiprocessors as usize;
        Grid { grid: [tiles.min(most) as u32, 1, 1], threads: 128 * (groups + 1), shared }
    }

    /// Boxes of 64 columns and `rows` rows of one head.
    fn map(&self, x: &Array, rows: usize) -> Result<TensorMap> {
        let (s, t) = (x.shape(), x.strides());
        let dims = [s[3], s[1], s[2], s[0]].map(|n| n as u64);
        // A dim of one element may have any stride, but not none.
        let bytes = |d: usize| (t[d].max(8) * 2) as u64;
        let held = self.read(x)?;
        let boxes = [64, 1, rows as u32, 1];
        let half = self.element() == DType::F16;
        Ok(self.lane.tensor_map(
            self.rule.op,
            held.address,
            half,
            dims,
            [bytes(1), bytes(2), bytes(0)],
            boxes,
        )?)
    }
}

/// Blocks, threads of one, and its dynamic shared memory.
struct Grid {
    grid: [u32; 3],
    threads: usize,
    shared: usize,
}

/// One launch: which kernel, and the arrays besides the operands (out, lse, dout, delta, dq, dk, dv).
struct Work<'a> {
    program: Program,
    defines: String,
    name: &'static str,
    arrays: [Option<&'a Array>; 7],
}

/// The greatest dim of the kernel for every type.
const MOST_DIM: usize = 256;

/// The defines of that kernel.
fn plain_defines(of: &Operands<'_>) -> Result<String> {
    let most = of.dim().max(of.v.shape()[3]);
    if most > MOST_DIM {
        let what = format!("heads of {most} elements; at most {MOST_DIM} are possible on {}", of.q.device());
        return Err(Error::argument(of.rule.op, what));
    }
    let mask = of.rule.mask.map_or(0, |mask| if mask.dtype() == DType::Bool { 1 } else { 2 });
    Ok(attend_plain(of.element(), most.div_ceil(32).max(1), mask))
}

fn plain_grid(of: &Operands<'_>, rows: usize) -> Grid {
    Grid { grid: [blocks(&of.lane, rows * 64, 1), 1, 1], threads: 128, shared: 0 }
}

/// The result and the logs of sums of exponentials, of the given shapes.
pub(crate) fn attend(
    rule: Rule<'_>,
    (q, k, v): (&Array, &Array, &Array),
    (shape, lse_shape, real): (&Shape, &Shape, DType),
) -> Result<(Array, Array)> {
    let of = Operands::new(rule, q, k, v)?;
    let out = by_tokens(rule.op, &of.lane, shape, q.dtype())?;
    let (lse, _) = fresh(rule.op, &of.lane, lse_shape, real)?;
    if lse.numel() == 0 {
        return Ok((out, lse));
    }
    let arrays = [Some(&out), Some(&lse), None, None, None, None, None];
    let work = |program, defines, name| Work { program, defines, name, arrays };
    let (element, dim, mask) = (of.element(), of.dim(), rule.mask.is_some());
    match of.path {
        Path::Plain => {
            let work = work(ATTENTION_PLAIN, plain_defines(&of)?, "plain_forward");
            of.launch(&work, plain_grid(&of, lse.numel()), &[])?;
        }
        Path::Warps => {
            let (defines, [bm, bn, warps]) = attend_forward(element, dim, mask);
            let grid = [(q.shape()[0] * q.shape()[1]) as u32, q.shape()[2].div_ceil(bm) as u32, 1];
            let shape = Grid { grid, threads: 32 * warps, shared: (bm + 4 * bn) * dim * 2 };
            of.launch(&work(ATTENTION_FORWARD, defines, "attention_forward"), shape, &[])?;
        }
        Path::Groups => {
            let (defines, [groups, bn, stages]) = attend_forward_tma(element, dim);
            let bm = 64 * groups;
            let shared = 1024 + (2 * bm + 2 * stages * bn) * dim * 2 + 256;
            let maps = [of.map(&of.q, 64)?, of.map(&of.k, bn)?, of.map(&of.v, bn)?];
            let shape = of.staying(of.tiles(&of.q, bm), groups, shared);
            of.launch(&work(ATTENTION_FORWARD_TMA, defines, "attention_forward_tma"), shape, &maps)?;
        }
    }
    Ok((out, lse))
}

/// Gradients of [`attend`] from its operands and results and the gradient of its result.
pub(crate) fn attend_grad(
    rule: Rule<'_>,
    (q, k, v): (&Array, &Array, &Array),
    (out, lse, dout): (&Array, &Array, &Array),
) -> Result<Gradients> {
    let of = Operands::new(rule, q, k, v)?;
    let (out, lse, dout) = (rows(of.path, out)?, lse.contiguous()?, rows(of.path, dout)?);
    let make = |x: &Array| by_tokens(rule.op, &of.lane, x.shape(), x.dtype());
    let (dq, dk, dv) = (make(q)?, make(k)?, make(v)?);
    let (delta, _) = fresh(rule.op, &of.lane, lse.shape(), lse.dtype())?;
    let arrays = [&out, &lse, &dout, &delta, &dq, &dk, &dv].map(Some);
    if dq.numel() > 0 && k.numel() > 0 {
        match of.path {
            Path::Plain => grad_plain(&of, arrays)?,
            Path::Warps => grad_warps(&of, arrays)?,
            Path::Groups => grad_groups(&of, arrays)?,
        }
    } else {
        [&dq, &dk, &dv].into_iter().try_for_each(|x| x.fill(0))?;
    }
    Ok(Gradients { q: dq, k: dk, v: dv })
}

fn grad_plain(of: &Operands<'_>, arrays: [Option<&Array>; 7]) -> Result<()> {
    let defines = plain_defines(of)?;
    let rows = |x: &Array| x.shape()[..3].iter().product::<usize>();
    for (name, rows) in [("plain_grad_queries", rows(&of.q)), ("plain_grad_keys", rows(&of.k))] {
        let work = Work { program: ATTENTION_PLAIN, defines: defines.clone(), name, arrays };
        of.launch(&work, plain_grid(of, rows), &[])?;
    }
    Ok(())
}

/// The sums over rows that both gradients start from.
fn grad_delta(of: &Operands<'_>, arrays: [Option<&Array>; 7]) -> Result<()> {
    let (defines, _) = attend_queries(of.element(), of.dim(), of.rule.mask.is_some());
    let rows = of.q.shape()[..3].iter().product::<usize>();
    let grid = [blocks(&of.lane, rows * of.dim() / 8, 1), 1, 1];
    let work = Work { program: ATTENTION_QUERIES, defines, name: "attention_delta", arrays };
    of.launch(&work, Grid { grid, threads: 256, shared: 0 }, &[])
}

fn grad_warps(of: &Operands<'_>, arrays: [Option<&Array>; 7]) -> Result<()> {
    grad_delta(of, arrays)?;
    let (element, dim, mask) = (of.element(), of.dim(), of.rule.mask.is_some());
    let lines = |x: &Array| (x.shape()[0] * x.shape()[1]) as u32;
    let (defines, [bm, warps]) = attend_keys(element, dim, mask);
    let bn = 16 * warps;
    let grid = [lines(&of.k), of.k.shape()[2].div_ceil(bn) as u32, 1];
    let shape = Grid { grid, threads: 32 * warps, shared: (2 * bn + 4 * bm) * dim * 2 + 6 * bm * 4 };
    let work = Work { program: ATTENTION_KEYS, defines, name: "attention_grad_keys", arrays };
    of.launch(&work, shape, &[])?;
    let (defines, [bn, warps]) = attend_queries(element, dim, mask);
    let bm = 16 * warps;
    let grid = [lines(&of.q), of.q.shape()[2].div_ceil(bm) as u32, 1];
    let shape = Grid { grid, threads: 32 * warps, shared: (2 * bm + 4 * bn) * dim * 2 };
    of.launch(
        &Work { program: ATTENTION_QUERIES, defines, name: "attention_grad_queries", arrays },
        shape,
        &[],
    )
}

fn grad_groups(of: &Operands<'_>, arrays: [Option<&Array>; 7]) -> Result<()> {
    grad_delta(of, arrays)?;
    let (element, dim) = (of.element(), of.dim());
    let Some(dout) = arrays[2] else { return Ok(()) };
    let (defines, [groups, bm, stages]) = attend_keys_tma(element, dim);
    let bn = 64 * groups;
    let shared = 1024 + (2 * bn + 2 * stages * bm) * dim * 2 + stages * 3 * bm * 4 + 256;
    let maps = [of.map(&of.q, bm)?, of.map(&of.k, bn)?, of.map(&of.v, bn)?, of.map(dout, bm)?];
    let work = Work { program: ATTENTION_KEYS_TMA, defines, name: "attention_grad_keys_tma", arrays };
    of.launch(&work, of.staying(of.tiles(&of.k, bn), groups, shared), &maps)?;
    let (defines, [groups, bn, stages]) = attend_queries_tma(element, dim);
    let bm = 64 * groups;
    let shared = 1024 + (2 * bm + 2 * stages * bn) * dim * 2 + 256;
    let maps = [of.map(&of.q, bm)?, of.map(&of.k, bn)?, of.map(&of.v, bn)?, of.map(dout, bm)?];
    let work = Work { program: ATTENTION_QUERIES_TMA, defines, name: "attention_grad_queries_tma", arrays };
    of.launch(&work, of.staying(of.tiles(&of.q, bm), groups, shared), &maps)
}
