//! Convolution and pooling in one, two or three dims, from windows of the input and matrix products.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::{Error, Result};
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::compose;
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::ops::{self, Binary, Keep, PadMode};
use planaria_array::{Array, DType, Scalar};
use planaria_layout::rule::{LINEAR, Rule};
use planaria_layout::{Dims, Reduce};
use smallvec::smallvec;

/// The windows of a convolution or pooling, one value per spatial dim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    /// Steps between windows.
    pub stride: Dims,
    /// Zeros on both sides of the input.
    pub padding: Dims,
    /// Steps between the elements of a window.
    pub dilation: Dims,
}

impl Windows {
    /// Windows side by side, one step apart, without padding.
    pub fn dense(spatial: usize) -> Windows {
        Windows {
            stride: smallvec![1; spatial],
            padding: smallvec![0; spatial],
            dilation: smallvec![1; spatial],
        }
    }
}

/// The sizes of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Geometry {
    kernel: Dims,
    windows: Windows,
    /// Extents of the input's spatial dims.
    input: Dims,
}

impl Geometry {
    fn new(op: &'static str, input: &[usize], kernel: &[usize], windows: &Windows) -> Result<Geometry> {
        let n = kernel.len();
        let refuse = |message: String| Err(Error::Argument { op, message });
        if input.len() != n
            || [&windows.stride, &windows.padding, &windows.dilation].iter().any(|v| v.len() != n)
        {
            return refuse(format!(
                "a window of {n} dims does not fit {} spatial dims and {windows:?}",
                input.len()
            ));
        }
        if windows.stride.contains(&0) || windows.dilation.contains(&0) || kernel.contains(&0) {
            return refuse(format!(
                "kernel {kernel:?}, strides and dilations must not be 0, got {windows:?}"
            ));
        }
        let made = Geometry { kernel: kernel.into(), windows: windows.clone(), input: input.into() };
        for d in 0..n {
            let span = (kernel[d] - 1).checked_mul(windows.dilation[d]).and_then(|s| s.checked_add(1));
            let room = windows.padding[d].checked_mul(2).and_then(|p| p.checked_add(input[d]));
            match (span, room) {
                (Some(span), Some(room)) if span <= room => {}
                _ => {
                    return refuse(format!("a window of {kernel:?} does not fit {input:?} with {windows:?}"));
                }
            }
        }
        Ok(made)
    }

    /// Number of windows along each spatial dim.
    fn counts(&self) -> Dims {
        let w = &self.windows;
        let count = |d: usize| {
            let span = (self.kernel[d] - 1) * w.dilation[d] + 1;
            (self.input[d] + 2 * w.padding[d] - span) / w.stride[d] + 1
        };
        (0..self.kernel.len()).map(count).collect()
    }

    fn attributes(&self) -> Attributes {
        let w = &self.windows;
        Attributes::new()
            .with("kernel", self.kernel.as_slice())
            .with("strides", w.stride.as_slice())
            .with("paddings", w.padding.as_slice())
            .with("dilations", w.dilation.as_slice())
            .with("input", self.input.as_slice())
    }

    fn columns_shape(&self, batch: usize, channels: usize) -> [usize; 4] {
        [batch, channels, self.kernel.iter().product(), self.counts().iter().product()]
    }

    /// `[batch, channels, ..]` to `[batch, channels, window elements, windows]`.
    fn unfold(&self, x: &Array) -> Result<Array> {
        let shape = self.columns_shape(x.shape()[0], x.shape()[1]);
        if x.is_meta() || shape.contains(&0) {
            return if x.is_meta() {
                Ok(Array::meta(&shape, x.dtype())?)
            } else {
                Ok(Array::zeros_on(&shape, x.dtype(), x.device())?)
            };
        }
        let margin = |&p: &usize| (p as i64, p as i64);
        let margins: Vec<_> =
            [(0, 0), (0, 0)].into_iter().chain(self.windows.padding.iter().map(margin)).collect();
        let padded = x.pad(&margins, PadMode::Constant(Scalar::Float(0.0)))?.contiguous()?;
        let (counts, strides) = (self.counts(), padded.strides());
        let steps =
            |by: &Dims| by.iter().zip(&strides[2..]).map(|(&s, &t)| s as isize * t).collect::<Vec<_>>();
        let view = [&x.shape()[..2], &self.kernel[..], &counts[..]].concat();
        let all = [&strides[..2], &steps(&self.windows.dilation), &steps(&self.windows.stride)].concat();
        Ok(padded.as_strided(&view, &all, padded.offset())?.reshape(&shape)?)
    }

    /// The transpose of [`Geometry::unfold`]: window elements added where they came from.
    fn fold(&self, columns: &Array) -> Result<Array> {
        let lead = [columns.shape()[0], columns.shape()[1]];
        let w = &self.windows;
        let shape = [&lead[..], &self.input[..]].concat();
        if columns.is_meta() {
            return Ok(Array::meta(&shape, columns.dtype())?);
        }
        let padded: Vec<usize> = self.input.iter().zip(&w.padding).map(|(n, p)| n + 2 * p).collect();
        let out = Array::zeros_on(&[&lead[..], &padded].concat(), columns.dtype(), columns.device())?;
        let counts = self.counts();
        for place in 0..columns.shape()[2] {
            let part = columns.select(2, place as i64)?.reshape(&[&lead[..], &counts[..]].concat())?;
            let (mut target, mut rest) = (out.clone(), place);
            for d in (0..self.kernel.len()).rev() {
                let start = (rest % self.kernel[d] * w.dilation[d]) as i64;
                rest /= self.kernel[d];
                let stop = start + ((counts[d] - 1) * w.stride[d]) as i64 + 1;
                target = target.slice(d as i64 + 2, Some(start), Some(stop), w.stride[d] as i64)?;
            }
            target.binary_in_place(Binary::Add, &part)?;
        }
        let mut inner = out;
        for d in 0..self.kernel.len() {
            inner = inner.narrow(d as i64 + 2, w.padding[d], self.input[d])?;
        }
        Ok(inner)
    }
}

/// Windows of the input side by side, or their transpose.
#[derive(Debug, Clone)]
struct Unfold {
    geometry: Geometry,
    /// Adds windows back instead.
    back: bool,
}

impl Op for Unfold {
    fn name(&self) -> &'static str {
        if self.back { "fold" } else { "unfold" }
    }

    fn attributes(&self) -> Attributes {
        self.geometry.attributes()
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let shape = &inputs[0].shape;
        let lead = [Some(rule.free(shape[0])), Some(rule.free(shape[1]))];
        let dims = |ndim: usize| (0..ndim).map(|d| lead.get(d).copied().flatten()).collect::<Vec<_>>();
        rule.input(&dims(shape.ndim()));
        rule.output(&dims(outputs[0].shape.ndim()));
        rule.pass(&[0], LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![if self.back {
            self.geometry.fold(inputs[0])?
        } else {
            self.geometry.unfold(inputs[0])?
        }])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let back = |dy: &Tensor| apply1(Unfold { back: !self.back, ..self.clone() }, &[dy]);
        Ok(smallvec![grads[0].as_ref().map(back).transpose()?])
    }
}

/// `[batch, channels, ..]` with `[out channels, channels / groups, ..]`. Windows are not kept for the gradient.
#[derive(Debug, Clone)]
struct Conv {
    geometry: Geometry,
    groups: usize,
}

impl Conv {
    /// The same with simple ops.
    fn plain(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (x, weight, g) = (&inputs[0], &inputs[1], self.groups);
        let columns = apply1(Unfold { geometry: self.geometry.clone(), back: false }, &[x])?;
        let [batch, _, elements, count] = columns.shape()[..] else { return Err(FOUR) };
        let (outs, ins) = (weight.shape()[0], weight.shape()[1]);
        let columns = columns.reshape(&[batch, g, ins * elements, count])?;
        let weight = weight.reshape(&[g, outs / g, ins * elements])?;
        let y = weight.matmul(&columns)?;
        Ok(vec![y.reshape(&[&[batch, outs], &self.geometry.counts()[..]].concat())?])
    }
}

const FOUR: Error = Error::Bug("columns have four dims");

impl Op for Conv {
    fn name(&self) -> &'static str {
        match self.geometry.kernel.len() {
            1 => "conv1d",
            2 => "conv2d",
            _ => "conv3d",
        }
    }

    fn attributes(&self) -> Attributes {
        self.geometry.attributes().with("groups", self.groups)
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let ndim = inputs[0].shape.ndim();
        let batch = Some(rule.free(inputs[0].shape[0]));
        let plain = self.groups == 1;
        let ins = plain.then(|| rule.reduced(inputs[0].shape[1], Reduce::Sum));
        let outs = plain.then(|| rule.free(outputs[0].shape[1]));
        let dims = |first: Option<usize>, second: Option<usize>| {
            let mut dims = vec![None; ndim];
            (dims[0], dims[1]) = (first, second);
            dims
        };
        rule.input(&dims(batch, ins));
        rule.input(&dims(outs, ins));
        rule.output(&dims(batch, outs));
        rule.pass(&[0], LINEAR);
        rule.pass(&[1], LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let (x, weight, g) = (inputs[0], inputs[1], self.groups);
        let columns = self.geometry.unfold(x)?;
        let [batch, _, elements, count] = columns.shape()[..] else { return Err(FOUR) };
        let (outs, ins) = (weight.shape()[0], weight.shape()[1]);
        let shape = [&[batch, outs], &self.geometry.counts()[..]].concat();
        if x.is_meta() {
            return Ok(smallvec![Array::meta(&shape, x.dtype())?]);
        }
        let columns = columns.reshape(&[batch, g, ins * elements, count])?;
        let weight = weight.reshape(&[g, outs / g, ins * elements])?;
        Ok(smallvec![ops::matmul(&weight, &columns)?.reshape(&shape)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        compose::saves_inputs(2)
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        compose::gradient(at, grads, |inputs| self.plain(inputs))
    }
}

fn check_weight(
    op: &'static str,
    x: &Tensor,
    weight: &Tensor,
    ins: usize,
    groups: usize,
    outs: usize,
) -> Result<()> {
    let ndim = x.ndim();
    let fits = (3..=5).contains(&ndim) && weight.ndim() == ndim && groups > 0;
    if fits && x.shape()[1] == ins && outs.is_multiple_of(groups) && x.shape()[1].is_multiple_of(groups) {
        return Ok(());
    }
    let message =
        format!("a weight of shape {} in {groups} groups does not fit {}", weight.shape(), x.shape());
    Err(Error::Argument { op, message })
}

fn with_bias(y: Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let Some(bias) = bias else { return Ok(y) };
    let mut shape = vec![1; y.ndim()];
    shape[1] = y.shape()[1];
    y.add(&bias.reshape(&shape)?)
}

/// Convolution of `[batch, channels, ..]` (one, two or three spatial dims) with `[out, channels / groups, ..]`.
pub fn conv(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    windows: &Windows,
    groups: usize,
) -> Result<Tensor> {
    let ins = weight.shape().get(1).map_or(0, |n| n.saturating_mul(groups));
    check_weight("conv", x, weight, ins, groups, weight.shape().first().copied().unwrap_or(0))?;
    let geometry = Geometry::new("conv", &x.shape()[2..], &weight.shape()[2..], windows)?;
    with_bias(apply1(Conv { geometry, groups }, &[x, weight])?, bias)
}

/// The transpose of [`conv`], from `[batch, channels, ..]` with `[channels, out / groups, ..]`; `extra` more elements
/// at the end of each spatial dim choose among the sizes that [`conv`] would bring to this one.
pub fn conv_transpose(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    windows: &Windows,
    extra: &[usize],
    groups: usize,
) -> Result<Tensor> {
    let op = "conv_transpose";
    let ins = weight.shape().first().copied().unwrap_or(0);
    check_weight(op, x, weight, ins, groups, groups)?;
    let (kernel, n) = (&weight.shape()[2..], weight.ndim() - 2);
    let refuse = || Error::Argument {
        op,
        message: format!("no output has windows {windows:?} of {kernel:?} and {extra:?} more"),
    };
    let fits = [&windows.stride[..], &windows.padding, &windows.dilation, extra].iter().all(|v| v.len() == n);
    let size = |d: usize| {
        let span = kernel[d].checked_sub(1)?.checked_mul(windows.dilation[d])?.checked_add(1)?;
        let steps = x.shape()[d + 2].checked_sub(1)?.checked_mul(windows.stride[d])?;
        steps.checked_add(span)?.checked_add(extra[d])?.checked_sub(windows.padding[d].checked_mul(2)?)
    };
    let input: Dims =
        fits.then(|| (0..n).map(size).collect::<Option<Dims>>()).flatten().ok_or_else(refuse)?;
    let geometry = Geometry::new(op, &input, kernel, windows)?;
    if geometry.counts()[..] != x.shape()[2..] {
        return Err(refuse());
    }
    let (batch, each, elements) = (x.shape()[0], weight.shape()[1], kernel.iter().product::<usize>());
    let count: usize = x.shape()[2..].iter().product();
    let rows = x.reshape(&[batch, groups, ins / groups, count])?;
    let weight = weight.reshape(&[groups, ins / groups, each * elements])?.transpose(1, 2)?;
    let columns = weight.matmul(&rows)?.reshape(&[batch, groups * each, elements, count])?;
    with_bias(apply1(Unfold { geometry, back: true }, &[&columns])?, bias)
}

/// What [`avg_pool`] divides a window's sum by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PoolCount {
    /// All elements of the window, padding included.
    #[default]
    Window,
    /// The elements that are there.
    Input,
}

/// The windows of a pooling as columns, and which of their elements are there: `[1, 1, elements, windows]`.
fn pool(
    op: &'static str,
    x: &Tensor,
    kernel: &[usize],
    windows: &Windows,
) -> Result<(Tensor, Array, Vec<usize>)> {
    if !(3..=5).contains(&x.ndim()) {
        let message =
            format!("the input must be [batch, channels, ..] with 1 to 3 spatial dims, got {}", x.shape());
        return Err(Error::Argument { op, message });
    }
    let geometry = Geometry::new(op, &x.shape()[2..], kernel, windows)?;
    if kernel.iter().zip(&windows.padding).any(|(&k, &p)| p > k / 2) {
        let message = format!("padding {:?} is more than half of {kernel:?}", windows.padding.as_slice());
        return Err(Error::Argument { op, message });
    }
    let ones = Array::full(&[&[1, 1], &x.shape()[2..]].concat(), 1.0, DType::F64)?;
    let there = geometry.unfold(&ones)?;
    let shape = [&x.shape()[..2], &geometry.counts()[..]].concat();
    Ok((apply1(Unfold { geometry, back: false }, &[x])?, there, shape))
}

/// The largest element of each window; the first of equal ones gets the gradient.
pub fn max_pool(x: &Tensor, kernel: &[usize], windows: &Windows) -> Result<Tensor> {
    let (columns, there, shape) = pool("max_pool", x, kernel, windows)?;
    let padding = Tensor::new(there.cast(DType::Bool)?.logical_not()?);
    columns.masked_fill(&padding, f64::NEG_INFINITY)?.max(2, Keep::No)?.0.reshape(&shape)
}

/// The mean of each window.
pub fn avg_pool(x: &Tensor, kernel: &[usize], windows: &Windows, count: PoolCount) -> Result<Tensor> {
    let (columns, there, shape) = pool("avg_pool", x, kernel, windows)?;
    let sum = columns.sum(&[2], Keep::No)?;
    let counts = match count {
        PoolCount::Window => Array::scalar(kernel.iter().product::<usize>(), x.dtype())?,
        PoolCount::Input => there.sum(&[2], Keep::No)?.cast(x.dtype())?,
    };
    sum.div(&Tensor::new(counts))?.reshape(&shape)
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    if !["conv1d", "conv2d", "conv3d", "unfold", "fold"].contains(&name) {
        return None;
    }
    let sizes = |name| at.sizes(name);
    let windows =
        Windows { stride: sizes("strides")?, padding: sizes("paddings")?, dilation: sizes("dilations")? };
    let geometry = Geometry::new("conv", &sizes("input")?, &sizes("kernel")?, &windows).ok()?;
    match name {
        "unfold" | "fold" => found(Unfold { geometry, back: name == "fold" }),
        _ => found(Conv { geometry, groups: at.size("groups")? }),
    }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let n = 1 + draw.below(2);
    let input: Dims = (0..n).map(|_| 5 + draw.below(3)).collect();
    let kernel: Dims = (0..n).map(|_| 1 + draw.below(3)).collect();
    let mut some = |least: usize, bound: usize| (0..n).map(|_| least + draw.below(bound)).collect::<Dims>();
    let windows = Windows { stride: some(1, 2), padding: some(0, 2), dilation: some(1, 2) };
    let geometry = Geometry::new("conv", &input, &kernel, &windows)?;
    let (batch, groups) = (draw.size().min(4), draw.pick(&[1, 1, 2]));
    let (ins, outs) = (groups * (1 + draw.below(3)), groups * (1 + draw.below(3)));
    let x = [&[batch, ins], &input[..]].concat();
    Ok(match draw.below(4) {
        0 => Sample::new(Unfold { geometry, back: false }, [draw.normal(&x)?]),
        1 => {
            let columns = geometry.columns_shape(batch, ins);
            Sample::new(Unfold { geometry, back: true }, [draw.normal(&columns)?])
        }
        _ => {
            let weight = [&[outs, ins / groups], &kernel[..]].concat();
            Sample::new(Conv { geometry, groups }, [draw.normal(&x)?, draw.normal(&weight)?])
        }
    })
}
