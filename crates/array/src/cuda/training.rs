//! Launchers of the fused operations of training: norms, cross-entropy, rotary embedding, gated activations.

use super::program::{
    COLUMNS, CROSS_ENTROPY, GATED, NORM, ROTARY, Span, column_sums, entropy, gated_by, kernel, normed,
    rotated,
};
use super::rows::run;
use super::{blocks, fresh, lane_of, read};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::ops::{Gate, RotaryPairing};
use crate::storage::Coverage;
use planaria_cuda::{Arg, Lane, Launch};
use planaria_layout::{DType, Shape};
use std::sync::Arc;

/// f64 for f64, else f32.
fn real(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// True when rows of `cols` elements are whole packets at these addresses.
fn in_packets(cols: usize, dtype: DType, addresses: &[u64]) -> bool {
    (cols * dtype.size()).is_multiple_of(16) && addresses.iter().all(|address| address.is_multiple_of(16))
}

/// A parameter in the computing type, aligned for its packets.
fn param(x: Option<&Array>, dtype: DType) -> Result<Option<Array>> {
    let Some(x) = x else { return Ok(None) };
    let wide = x.cast(real(dtype))?.contiguous()?;
    let aligned = (wide.offset() * wide.dtype().size()).is_multiple_of(64);
    if aligned { Ok(Some(wide)) } else { wide.copy().map(Some) }
}

/// The address of an operand that may be absent.
fn address_of(op: &'static str, lane: &Arc<Lane>, x: Option<&Array>) -> Result<u64> {
    x.map_or(Ok(0), |x| Ok(read(op, lane, x)?.address))
}

/// The kernel's defines for rows of `cols` elements, and how they are held.
fn span_of(op: &'static str, x: &Array, cols: usize, addresses: &[u64]) -> Result<(Span, bool)> {
    let packets = in_packets(cols, x.dtype(), addresses);
    match Span::of(cols, x.dtype(), packets) {
        Some(span) => Ok((span, packets)),
        None => Err(Error::NotOnDevice { op, device: x.device() }),
    }
}

/// What a norm gives: what it normalised, the result, means (of layer norms) and one over the deviations of rows.
pub(crate) struct Normed {
    pub(crate) sum: Array,
    pub(crate) y: Array,
    pub(crate) mean: Array,
    pub(crate) rstd: Array,
}

/// Normalises rows, of a sum where there is `more`; `center` tells layer norms from rms norms.
pub(crate) fn norm(
    op: &'static str,
    (x, more): (&Array, Option<&Array>),
    (leading, cols): (&Shape, usize),
    (weight, bias): (Option<&Array>, Option<&Array>),
    eps: f64,
    center: bool,
) -> Result<Normed> {
    let (lane, x, more) = (lane_of(op, x)?, x.contiguous()?, more.map(Array::contiguous).transpose()?);
    let rows = leading.numel();
    let (y, to) = fresh(op, &lane, x.shape(), x.dtype())?;
    let sum = more.as_ref().map(|_| fresh(op, &lane, x.shape(), x.dtype())).transpose()?;
    let (mean, mean_to) = fresh(op, &lane, leading, real(x.dtype()))?;
    let (rstd, rstd_to) = fresh(op, &lane, leading, real(x.dtype()))?;
    let (weight, bias) = (param(weight, x.dtype())?, param(bias, x.dtype())?);
    let from = read(op, &lane, &x)?;
    let (w, b) = (address_of(op, &lane, weight.as_ref())?, address_of(op, &lane, bias.as_ref())?);
    let (more, sum_to) = (address_of(op, &lane, more.as_ref())?, sum.as_ref().map_or(0, |(_, to)| *to));
    let (span, packets) = span_of(op, &x, cols, &[from.address, more])?;
    let defines = normed(x.dtype(), center, span, packets);
    let mut args =
        [from.address, more, sum_to, w, b, to, mean_to, rstd_to, rows as u64].map(Arg::U64).to_vec();
    args.extend([Arg::U32(cols as u32), Arg::F64(eps)]);
    run(op, &lane, (&NORM, &defines, "norm_forward"), blocks(&lane, rows * span.lanes, 1), &args)?;
    Ok(Normed { sum: sum.map_or(x, |(sum, _)| sum), y, mean, rstd })
}

/// Rows of a partial sum.
const PART: usize = 128;

/// Gradients of [`norm`]: of its input, its weight and (of layer norms) its bias, the last two in the computing type. What is
/// `carried` is added to the first.
pub(crate) fn norm_grad(
    op: &'static str,
    (dy, x, carried): (&Array, &Array, Option<&Array>),
    cols: usize,
    (mean, rstd): (Option<&Array>, &Array),
    weight: Option<&Array>,
    shape: &Shape,
) -> Result<(Array, Array, Option<Array>)> {
    let (lane, x, dy, rstd) = (lane_of(op, x)?, x.contiguous()?, dy.contiguous()?, rstd.contiguous()?);
    let [mean, carried] = [mean, carried].map(|x| x.map(Array::contiguous).transpose());
    let (mean, carried) = (mean?, carried?);
    let wide = real(x.dtype());
    let (dx, to) = fresh(op, &lane, x.shape(), x.dtype())?;
    let rows = x.numel() / cols.max(1);
    let weight = param(weight, x.dtype())?;
    let (held, held_dy) = (read(op, &lane, &x)?, read(op, &lane, &dy)?);
    let (w, m) = (address_of(op, &lane, weight.as_ref())?, address_of(op, &lane, mean.as_ref())?);
    let s = read(op, &lane, &rstd)?;
    let more = address_of(op, &lane, carried.as_ref())?;
    let (span, packets) = span_of(op, &x, cols, &[held.address, held_dy.address, more])?;
    let center = mean.is_some();
    let defines = normed(x.dtype(), center, span, packets);
    let parts = rows.div_ceil(PART);
    let bytes = (parts * cols * wide.size()).max(1);
    let (dw, db) = (lane.block(op, bytes)?, lane.block(op, if center { bytes } else { 1 })?);
    let db_to = if center { db.address() } else { 0 };
    let mut args = [held_dy.address, held.address, w, m, s.address, more, to, dw.address(), db_to]
        .map(Arg::U64)
        .to_vec();
    args.extend([Arg::U64(rows as u64), Arg::U32(cols as u32)]);
    let length = if packets { 16 / x.dtype().size() } else { 1 };
    let shared = (1 + center as usize) * span.groups * span.lanes * span.per * length * wide.size();
    let kernel = kernel(&lane, &NORM, &defines, "norm_grad")?;
    let block = [(span.lanes * span.groups) as u32, 1, 1];
    lane.launch(
        &Launch { op, kernel: &kernel, grid: [parts as u32, 1, 1], block, shared: shared as u32 },
        &args,
    )?;
    let fold = |from: u64| -> Result<Array> {
        let (out, to) = fresh(op, &lane, shape, wide)?;
        let mut args = [from, parts as u64, cols as u64, to].map(Arg::U64).to_vec();
        args.push(Arg::U32(0));
        run(
            op,
            &lane,
            (&COLUMNS, &column_sums(wide, false), "column_fold"),
            cols.div_ceil(32) as u32,
            &args,
        )?;
        Ok(out)
    };
    Ok((dx, fold(dw.address())?, center.then(|| fold(db.address())).transpose()?))
}

/// Rows of scores with their labels, those to be ignored below zero.
pub(crate) struct Scores<'a> {
    pub(crate) op: &'static str,
    pub(crate) x: &'a Array,
    pub(crate) labels: &'a Array,
    pub(crate) cols: usize,
    pub(crate) smoothing: f64,
}

impl Scores<'_> {
    /// `pointers`: scores, gradient, scale, loss, lse.
    fn launch(&self, lane: &Arc<Lane>, grad: u8, pointers: [u64; 5], scale_stride: u64) -> Result<()> {
        let labels = read(self.op, lane, self.labels)?;
        let [x, dx, scale, loss, lse] = pointers;
        let (rows, cols) = (self.labels.numel(), self.cols as u64);
        let words = [
            x,
            dx,
            labels.address,
            scale,
            loss,
            lse,
            0,
            rows as u64,
            cols,
            cols,
            scale_stride,
            self.smoothing.to_bits(),
        ];
        let packets = in_packets(self.cols, self.x.dtype(), &[x, dx]);
        let defines = entropy(self.x.dtype(), grad, packets);
        let grid = blocks(lane, rows * 256, 1);
        run(self.op, lane, (&CROSS_ENTROPY, &defines, "cross_entropy"), grid, &[Arg::Words(&words)])
    }

    /// The loss and the log of the sum of exponentials of each row.
    pub(crate) fn losses(&self, shape: &Shape) -> Result<(Array, Array)> {
        let lane = lane_of(self.op, self.x)?;
        let (loss, loss_to) = fresh(self.op, &lane, shape, real(self.x.dtype()))?;
        let (lse, lse_to) = fresh(self.op, &lane, shape, real(self.x.dtype()))?;
        let x = read(self.op, &lane, self.x)?;
        self.launch(&lane, 0, [x.address, 0, 0, loss_to, lse_to], 0)?;
        Ok((loss, lse))
    }

    /// The gradient of the scores; `scale` is one for all rows or one each.
    pub(crate) fn grad(&self, lse: &Array, scale: &Array) -> Result<Array> {
        let lane = lane_of(self.op, self.x)?;
        let (dx, to) = fresh(self.op, &lane, self.x.shape(), self.x.dtype())?;
        let (lse, scale) = (lse.contiguous()?, scale.contiguous()?);
        let (l, s) = (read(self.op, &lane, &lse)?, read(self.op, &lane, &scale)?);
        let x = read(self.op, &lane, self.x)?;
        self.launch(&lane, 2, [x.address, to, s.address, 0, l.address], u64::from(scale.ndim() > 0))?;
        Ok(dx)
    }

    /// The loss of each row; the gradient of their sum takes the place of the scores.
    pub(crate) fn losses_into_grad(&self, shape: &Shape) -> Result<Array> {
        let lane = lane_of(self.op, self.x)?;
        let real = real(self.x.dtype());
        let (loss, loss_to) = fresh(self.op, &lane, shape, real)?;
        let (_lse, lse_to) = fresh(self.op, &lane, shape, real)?;
        let one = Array::full_on(&[], 1.0, real, self.x.device())?;
        let scale = read(self.op, &lane, &one)?;
        let update = self.x.begin_cuda_update(self.op, &lane, Coverage::Part)?;
        let at = update.address() + (self.x.offset() * self.x.dtype().size()) as u64;
        self.launch(&lane, 1, [at, at, scale.address, loss_to, lse_to], 0)?;
        update.commit();
        Ok(loss)
    }
}

/// The geometry of a rotation: rows of `heads` heads of `dim` elements.
pub(crate) struct Rotation<'a> {
    /// Of the result, which has no gaps.
    pub(crate) shape: &'a Shape,
    pub(crate) heads: usize,
    pub(crate) dim: usize,
    pub(crate) half: usize,
    /// The position of each row, I64; or none where row `r` has position `r % length` of the tables.
    pub(crate) positions: Option<&'a Array>,
    pub(crate) length: usize,
    pub(crate) pairing: RotaryPairing,
}

/// Rotates pairs of the rows of a matrix without gaps in them; the tables are contiguous, in the computing type.
pub(crate) fn rotate(
    op: &'static str,
    x: &Array,
    cos: &Array,
    sin: &Array,
    rotation: &Rotation<'_>,
) -> Result<Array> {
    let lane = lane_of(op, x)?;
    let Rotation { shape, heads, dim, half, length, pairing, .. } = *rotation;
    let (y, to) = fresh(op, &lane, shape, x.dtype())?;
    let (from, cos, sin) = (read(op, &lane, x)?, read(op, &lane, cos)?, read(op, &lane, sin)?);
    let positions = address_of(op, &lane, rotation.positions)?;
    let (row, stride) = (heads * dim, x.strides()[0] as usize);
    let whole = |len| in_packets(len, x.dtype(), &[from.address]);
    let packets = whole(half) && whole(dim) && whole(stride);
    let defines = rotated(x.dtype(), pairing == RotaryPairing::Interleaved, packets);
    let args = [
        Arg::U64(from.address),
        Arg::U64(to),
        Arg::U64((x.numel() / row.max(1)) as u64),
        Arg::U32(heads as u32),
        Arg::U64(stride as u64),
        Arg::U64(row as u64),
        Arg::U32(dim as u32),
        Arg::U32(half as u32),
        Arg::U64(positions),
        Arg::U64(length.max(1) as u64),
        Arg::U64(cos.address),
        Arg::U64(sin.address),
        Arg::U32(1),
    ];
    run(op, &lane, (&ROTARY, &defines, "rotary"), blocks(&lane, x.numel().div_ceil(2), 1), &args)?;
    Ok(y)
}

/// Two arrays of rows: the addresses of the first elements, and elements between rows.
struct Pair {
    gate: u64,
    up: u64,
    stride: usize,
}

impl Pair {
    /// The halves of each row of one array, or two arrays.
    fn of(gate: u64, up: Option<u64>, cols: usize, dtype: DType) -> Pair {
        match up {
            Some(up) => Pair { gate, up, stride: cols },
            None => Pair { gate, up: gate + (cols * dtype.size()) as u64, stride: 2 * cols },
        }
    }
}

/// `act(gate) * up`, from two contiguous arrays or, without `up`, from the halves of the rows of one.
pub(crate) fn gated(
    op: &'static str,
    gate: &Array,
    up: Option<&Array>,
    (cols, shape): (usize, &Shape),
    act: Gate,
) -> Result<Array> {
    let lane = lane_of(op, gate)?;
    let (y, to) = fresh(op, &lane, shape, gate.dtype())?;
    let held = up.map(|up| read(op, &lane, up)).transpose()?;
    let from = read(op, &lane, gate)?;
    let pair = Pair::of(from.address, held.as_ref().map(|up| up.address), cols, gate.dtype());
    let packets = in_packets(cols, gate.dtype(), &[pair.gate, pair.up]);
    let rows = shape.numel() / cols.max(1);
    let stride = pair.stride as u64;
    let args = [pair.gate, pair.up, stride, stride, to, rows as u64, cols as u64].map(Arg::U64);
    let defines = gated_by(gate.dtype(), act as u8, packets);
    run(op, &lane, (&GATED, &defines, "gated_forward"), blocks(&lane, shape.numel(), 4), &args)?;
    Ok(y)
}

/// Gradients of [`gated`]: of the gate and of the other factor, or of the one array that holds both.
pub(crate) fn gated_grad(
    op: &'static str,
    dy: &Array,
    gate: &Array,
    up: Option<&Array>,
    cols: usize,
    act: Gate,
) -> Result<(Array, Option<Array>)> {
    let lane = lane_of(op, gate)?;
    let (dgate, dgate_to) = fresh(op, &lane, gate.shape(), gate.dtype())?;
    let dup = up.map(|up| fresh(op, &lane, up.shape(), up.dtype())).transpose()?;
    let held_up = up.map(|up| read(op, &lane, up)).transpose()?;
    let (held, held_dy) = (read(op, &lane, gate)?, read(op, &lane, dy)?);
    let from = Pair::of(held.address, held_up.as_ref().map(|up| up.address), cols, gate.dtype());
    let to = Pair::of(dgate_to, dup.as_ref().map(|dup| dup.1), cols, gate.dtype());
    let packets = in_packets(cols, gate.dtype(), &[from.gate, from.up, held_dy.address]);
    let rows = dy.numel() / cols.max(1);
    let (s, d) = (from.stride as u64, to.stride as u64);
    let args = [held_dy.address, from.gate, from.up, s, s, to.gate, to.up, d, d, 0, rows as u64, cols as u64];
    let defines = gated_by(gate.dtype(), act as u8, packets);
    run(op, &lane, (&GATED, &defines, "gated_grad"), blocks(&lane, dy.numel(), 4), &args.map(Arg::U64))?;
    Ok((dgate, dup.map(|dup| dup.0)))
}
