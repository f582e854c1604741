//! Convolutions in any number of dims, from windows of the input and matrix products.

use super::call::{Answer, Call, Found, extents, one, refuse};
use super::nn::{channels_back, channels_first, channels_last, padded};
use planaria_array::Array;
use planaria_array::ops::matmul;

pub(super) fn call(c: &Call<'_>) -> Found {
    match c.name() {
        "conv2d" | "depthwise_conv2d" | "conv3d" => {
            let last = channels_last(c)?;
            let x = channels_first(c.array(0)?, last)?;
            let filter = c.array(1)?;
            let window = Window::of(c, &x, &filter.shape()[2.min(filter.ndim())..])?;
            let groups = extents(&[c.int_attr("groups")?])?[0];
            one(channels_back(&convolved(&x, filter, &window, groups)?, last)?)
        }
        "conv2d_transpose" => {
            let last = channels_last(c)?;
            let x = channels_first(c.array(0)?, last)?;
            one(channels_back(&transposed(c, &x)?, last)?)
        }
        "unfold" => unfold(c),
        _ => Ok(None),
    }
}

/// Where windows lie: one value per spatial dim.
pub(super) struct Window {
    pub(super) kernel: Vec<usize>,
    pub(super) stride: Vec<usize>,
    pub(super) dilation: Vec<usize>,
    pub(super) margins: Vec<(i64, i64)>,
}

/// Margins before and after every dim, from one or two values each.
pub(super) fn margins(paddings: &[i64], spatial: usize) -> Answer<Vec<(i64, i64)>> {
    match paddings.len() {
        n if n == spatial => Ok(paddings.iter().map(|p| (*p, *p)).collect()),
        n if n == 2 * spatial => Ok(paddings.chunks_exact(2).map(|p| (p[0], p[1])).collect()),
        n => refuse(format!("{n} paddings are given for {spatial} dims")),
    }
}

/// Margins so that as many windows fit as there are strides.
pub(super) fn same(size: usize, kernel: usize, stride: usize) -> (i64, i64) {
    let windows = size.div_ceil(stride.max(1)) as i64;
    let total = ((windows - 1) * stride as i64 + kernel as i64 - size as i64).max(0);
    (total / 2, total - total / 2)
}

impl Window {
    fn of(c: &Call<'_>, x: &Array, kernel: &[usize]) -> Answer<Window> {
        let spatial = kernel.len();
        if x.ndim() != spatial + 2 {
            return refuse(format!("a window of {spatial} dims does not fit {}", x.shape()));
        }
        let stride = extents(&c.ints_attr("strides")?)?;
        let mut dilation = extents(&c.ints_attr("dilations")?)?;
        let margins = match c.text_attr("padding_algorithm")? {
            "SAME" => {
                dilation = vec![1; spatial];
                (0..spatial)
                    .map(|d| same(x.shape()[d + 2], kernel[d], *stride.get(d).unwrap_or(&1)))
                    .collect()
            }
            "VALID" => vec![(0, 0); spatial],
            _ => margins(&c.ints_attr("paddings")?, spatial)?,
        };
        Window { kernel: kernel.to_vec(), stride, dilation, margins }.checked()
    }

    pub(super) fn checked(self) -> Answer<Window> {
        let n = self.kernel.len();
        let whole = [&self.kernel, &self.stride, &self.dilation];
        if whole.iter().any(|v| v.len() != n || v.contains(&0)) {
            return refuse(format!(
                "windows of {:?}, {:?} apart, spread by {:?} do not exist",
                self.kernel, self.stride, self.dilation
            ));
        }
        Ok(self)
    }

    /// How many windows fit into each dim of a padded tensor.
    pub(super) fn counts(&self, padded: &[usize]) -> Answer<Vec<usize>> {
        let count = |d: usize| {
            let reach = self.dilation[d] * (self.kernel[d] - 1) + 1;
            padded[d].checked_sub(reach).map(|room| room / self.stride[d] + 1)
        };
        let counts: Option<Vec<usize>> = (0..self.kernel.len()).map(count).collect();
        counts.map_or_else(|| refuse(format!("a window of {:?} does not fit {padded:?}", self.kernel)), Ok)
    }

    /// The windows of a padded tensor `[batch, channels, ..]`: `[batch, channels, counts.., kernel..]`, a view.
    pub(super) fn views(&self, x: &Array) -> Answer<(Array, Vec<usize>)> {
        let counts = self.counts(&x.shape()[2..])?;
        let mut dims = x.shape()[..2].to_vec();
        dims.extend(&counts);
        dims.extend(&self.kernel);
        if x.is_meta() {
            return Ok((Array::meta(&dims, x.dtype())?, counts));
        }
        let spatial = &x.strides()[2..];
        let mut strides = x.strides()[..2].to_vec();
        strides.extend(spatial.iter().zip(&self.stride).map(|(s, by)| s * *by as isize));
        strides.extend(spatial.iter().zip(&self.dilation).map(|(s, by)| s * *by as isize));
        Ok((x.as_strided(&dims, &strides, x.offset())?, counts))
    }

    /// The windows as columns: `[batch, groups, channels / groups * kernel, counts]`.
    fn columns(&self, x: &Array, groups: usize) -> Answer<(Array, Vec<usize>)> {
        let (views, counts) = self.views(&padded(x, &self.margins, 0.0)?)?;
        let n = self.kernel.len();
        let mut order: Vec<i64> = vec![0, 1];
        order.extend(2 + n as i64..2 + 2 * n as i64);
        order.extend(2..2 + n as i64);
        let rows = x.shape()[1] / groups * self.kernel.iter().product::<usize>();
        let dims = [x.shape()[0], groups, rows, counts.iter().product()];
        Ok((views.permute(&order)?.reshape(&dims)?, counts))
    }
}

fn convolved(x: &Array, filter: &Array, window: &Window, groups: usize) -> Answer<Array> {
    let out = filter.shape()[0];
    if groups == 0
        || !x.shape()[1].is_multiple_of(groups)
        || !out.is_multiple_of(groups)
        || filter.shape()[1] * groups != x.shape()[1]
    {
        return refuse(format!("a filter {} in {groups} groups does not fit {}", filter.shape(), x.shape()));
    }
    let (columns, counts) = window.columns(x, groups)?;
    let rows = columns.shape()[2];
    let product = matmul(&filter.reshape(&[1, groups, out / groups, rows])?, &columns)?;
    let mut dims = vec![x.shape()[0], out];
    dims.extend(counts);
    Ok(product.reshape(&dims)?)
}

/// A convolution backwards: zeros between the elements, the filter turned around.
fn transposed(c: &Call<'_>, x: &Array) -> Answer<Array> {
    let filter = c.array(1)?;
    if filter.ndim() != x.ndim() || x.ndim() < 3 || filter.shape()[0] != x.shape()[1] {
        return refuse(format!("a filter {} does not fit {}", filter.shape(), x.shape()));
    }
    let forward = Window::of(c, x, &filter.shape()[2..])?;
    let spatial = forward.kernel.len();
    let groups = extents(&[c.int_attr("groups")?])?[0].max(1);
    let reach: Vec<i64> =
        (0..spatial).map(|d| (forward.dilation[d] * (forward.kernel[d] - 1)) as i64).collect();
    let spread: Vec<usize> =
        (0..spatial).map(|d| (x.shape()[d + 2].max(1) - 1) * forward.stride[d] + 1).collect();
    let plain: Vec<i64> = (0..spatial)
        .map(|d| spread[d] as i64 + reach[d] - forward.margins[d].0 - forward.margins[d].1)
        .collect();
    let more: Vec<i64> = match c.ints(2) {
        Ok(asked) if asked.len() == spatial => asked.iter().zip(&plain).map(|(a, p)| a - p).collect(),
        _ => match c.ints_attr("output_padding")? {
            none if none.is_empty() => vec![0; spatial],
            given => given,
        },
    };
    let (inner, outer) = (filter.shape()[0] / groups, filter.shape()[1]);
    if x.is_meta() {
        let mut dims = vec![x.shape()[0], outer * groups];
        dims.extend(extents(&plain.iter().zip(&more).map(|(p, m)| p + m).collect::<Vec<_>>())?);
        return Ok(Array::meta(&dims, x.dtype())?);
    }
    let mut dims = x.shape()[..2].to_vec();
    dims.extend(&spread);
    let thin = Array::zeros(&dims, x.dtype())?;
    let mut at = thin.clone();
    for d in 0..spatial {
        at = at.slice(d as i64 + 2, None, None, forward.stride[d] as i64)?;
    }
    at.copy_from(x)?;
    let turned: Vec<i64> = (2..filter.ndim() as i64).collect();
    let mut parts = vec![groups, inner, outer];
    parts.extend(&forward.kernel);
    let mut swapped = vec![groups * outer, inner];
    swapped.extend(&forward.kernel);
    let filter = filter.flip(&turned)?.reshape(&parts)?.transpose(1, 2)?.reshape(&swapped)?;
    let margins = (0..spatial)
        .map(|d| (reach[d] - forward.margins[d].0, reach[d] - forward.margins[d].1 + more[d]))
        .collect();
    let window = Window { stride: vec![1; spatial], margins, ..forward };
    convolved(&thin, &filter, &window, groups)
}

fn unfold(c: &Call<'_>) -> Found {
    let x = c.array(0)?;
    let pads = c.ints_attr("paddings")?;
    let margins = match pads.as_slice() {
        // Top, left, bottom, right.
        [top, left, bottom, right] => vec![(*top, *bottom), (*left, *right)],
        _ => margins(&pads, 2)?,
    };
    let window = Window {
        kernel: extents(&c.ints_attr("kernel_sizes")?)?,
        stride: extents(&c.ints_attr("strides")?)?,
        dilation: extents(&c.ints_attr("dilations")?)?,
        margins,
    };
    let (columns, _) = window.checked()?.columns(x, 1)?;
    let dims = [columns.shape()[0], columns.shape()[2], columns.shape()[3]];
    one(columns.reshape(&dims)?)
}
