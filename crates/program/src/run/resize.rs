//! Resizing images, and sampling them at any place.

use super::call::{Answer, Call, Found, extents, one, refuse};
use super::nn::{channels_back, channels_first, channels_last};
use planaria_array::ops::matmul;
use planaria_array::{Array, DType};

pub(super) fn call(c: &Call<'_>) -> Found {
    match c.name() {
        "nearest_interp" | "bilinear_interp" | "bicubic_interp" | "linear_interp" | "trilinear_interp" => {
            resize(c)
        }
        "grid_sample" => grid_sample(c),
        _ => Ok(None),
    }
}

/// One dim of a resize.
struct Axis {
    from: usize,
    to: usize,
    ratio: f32,
    corners: bool,
}

impl Axis {
    /// The place in the input that an output position shows, with pixels as squares.
    fn centre(&self, at: usize) -> f32 {
        if self.corners { self.ratio * at as f32 } else { self.ratio * (at as f32 + 0.5) - 0.5 }
    }

    fn clamped(&self, at: i64) -> usize {
        at.clamp(0, self.from as i64 - 1) as usize
    }

    fn nearest(&self, at: usize) -> usize {
        let place = self.ratio * at as f32;
        self.clamped(if self.corners { (place + 0.5) as i64 } else { place as i64 })
    }

    /// Weights of the input's positions for one position of the output.
    fn weights(&self, at: usize, method: &str, mode: i64) -> Vec<(usize, f32)> {
        if method == "bicubic" {
            let place = self.centre(at);
            let low = place.floor();
            let far = place - low;
            let near = |d: f32| ((-0.75 + 2.0) * d - (-0.75 + 3.0)) * d * d + 1.0;
            let wide = |d: f32| ((-0.75 * d - 5.0 * -0.75) * d + 8.0 * -0.75) * d - 4.0 * -0.75;
            let all = [wide(far + 1.0), near(far), near(1.0 - far), wide(2.0 - far)];
            return all
                .iter()
                .enumerate()
                .map(|(i, w)| (self.clamped(low as i64 - 1 + i as i64), *w))
                .collect();
        }
        let place =
            if mode == 0 && !self.corners { self.centre(at).max(0.0) } else { self.ratio * at as f32 };
        let low = place as i64;
        let far = place - low as f32;
        vec![(self.clamped(low), 1.0 - far), (self.clamped(low + 1), far)]
    }
}

fn resize(c: &Call<'_>) -> Found {
    let last = channels_last(c)?;
    let mut x = channels_first(c.array(0)?, last)?;
    let n = x.ndim().saturating_sub(2);
    let (method, corners, mode) =
        (c.text_attr("interp_method")?, c.bool_attr("align_corners")?, c.int_attr("align_mode")?);
    let (sizes, scales) = targets(c, &x, n)?;
    for d in 0..n {
        let (from, to) = (x.shape()[d + 2], sizes[d]);
        if from == 0 || to == 0 {
            return refuse(format!("{from} positions cannot become {to}"));
        }
        let ratio = match (corners, scales.get(d).copied().filter(|scale| *scale > 0.0)) {
            (true, _) if to > 1 => (from - 1) as f32 / (to - 1) as f32,
            (true, _) => 0.0,
            (false, Some(scale)) => (1.0 / scale) as f32,
            (false, None) => from as f32 / to as f32,
        };
        let axis = Axis { from, to, ratio, corners };
        x = resized(&x, d as i64 + 2, &axis, method, mode)?;
    }
    one(channels_back(&x, last)?)
}

/// The extents asked for: by a tensor, by several, by scales, or by attributes.
fn targets(c: &Call<'_>, x: &Array, n: usize) -> Answer<(Vec<usize>, Vec<f64>)> {
    let given = |at: usize| !matches!(c.args.get(at), None | Some(super::Datum::Absent));
    let mut scales = c.reals_attr("scale")?;
    let mut sizes: Vec<i64> = ["out_d", "out_h", "out_w"]
        .iter()
        .skip(3usize.saturating_sub(n))
        .map(|name| c.int_attr(name))
        .collect::<Answer<_>>()?;
    if given(2) {
        sizes = c.ints(2)?;
    } else if given(3) {
        let scale = c.array(3)?.cast(DType::F64)?.to_vec::<f64>()?;
        scales = if scale.len() == 1 { vec![scale[0]; n] } else { scale };
        sizes = vec![-1; n];
    }
    if given(1) {
        sizes = c.ints(1)?;
        scales.clear();
    } else if !scales.is_empty() {
        let scale = |d: usize| scales.get(d).or(scales.first()).copied().unwrap_or(1.0);
        sizes = (0..n).map(|d| (x.shape()[d + 2] as f64 * scale(d)) as i64).collect();
    }
    if sizes.len() != n {
        return refuse(format!("{} extents are given for {n} dims", sizes.len()));
    }
    Ok((extents(&sizes)?, scales))
}

fn resized(x: &Array, dim: i64, axis: &Axis, method: &str, mode: i64) -> Answer<Array> {
    if x.is_meta() {
        let mut dims = x.shape().to_vec();
        dims[dim as usize] = axis.to;
        return Ok(Array::meta(&dims, x.dtype())?);
    }
    if method == "nearest" {
        let picked: Vec<i64> = (0..axis.to).map(|at| axis.nearest(at) as i64).collect();
        let picked = Array::from_slice(&picked, &[axis.to])?;
        return Ok(x.index_select(dim, &picked)?);
    }
    let mut weights = vec![0f32; axis.from * axis.to];
    for at in 0..axis.to {
        for (from, weight) in axis.weights(at, method, mode) {
            weights[from * axis.to + at] += weight;
        }
    }
    let weights = Array::from_slice(&weights, &[axis.from, axis.to])?.cast(x.dtype())?;
    Ok(matmul(&x.transpose(dim, -1)?, &weights)?.transpose(dim, -1)?)
}

/// How places outside an image are read.
#[derive(Clone, Copy)]
struct Sampling<'a> {
    corners: bool,
    outside: &'a str,
}

impl Sampling<'_> {
    /// The position that a coordinate from -1 to 1 stands for.
    fn place(self, at: f64, size: usize) -> f64 {
        let n = size as f64;
        let place = if self.corners { (at + 1.0) / 2.0 * (n - 1.0) } else { ((at + 1.0) * n - 1.0) / 2.0 };
        match self.outside {
            "border" => place.clamp(0.0, n - 1.0),
            "reflection" => self.mirrored(place, n).clamp(0.0, n - 1.0),
            _ => place,
        }
    }

    fn mirrored(self, place: f64, n: f64) -> f64 {
        let (low, span) = if self.corners { (0.0, n - 1.0) } else { (-0.5, n) };
        if span <= 0.0 {
            return 0.0;
        }
        let off = (place - low).abs();
        let turns = (off / span).floor();
        let rest = off - turns * span;
        low + if turns as i64 % 2 == 0 { rest } else { span - rest }
    }
}

fn grid_sample(c: &Call<'_>) -> Found {
    let (x, grid) = (c.array(0)?, c.array(1)?);
    let (Ok([n, ch, h, w]), Ok([_, oh, ow, 2])) =
        (<[usize; 4]>::try_from(&x.shape()[..]), <[usize; 4]>::try_from(&grid.shape()[..]))
    else {
        return refuse(format!("a grid {} does not fit {}", grid.shape(), x.shape()));
    };
    let dims = [n, ch, oh, ow];
    if x.is_meta() {
        return one(Array::meta(&dims, x.dtype())?);
    }
    let how = Sampling { corners: c.bool_attr("align_corners")?, outside: c.text_attr("padding_mode")? };
    let nearest = c.text_attr("mode")? == "nearest";
    let values = x.cast(DType::F64)?.to_vec::<f64>()?;
    let places = grid.cast(DType::F64)?.to_vec::<f64>()?;
    let mut out = vec![0f64; n * ch * oh * ow];
    for (at, pair) in places.chunks_exact(2).enumerate() {
        let (batch, spot) = (at / (oh * ow), at % (oh * ow));
        let (px, py) = (how.place(pair[0], w), how.place(pair[1], h));
        let corners = if nearest {
            vec![(px.round_ties_even() as i64, py.round_ties_even() as i64, 1.0)]
        } else {
            let (x0, y0) = (px.floor(), py.floor());
            let (fx, fy) = (px - x0, py - y0);
            let (x0, y0) = (x0 as i64, y0 as i64);
            vec![
                (x0, y0, (1.0 - fx) * (1.0 - fy)),
                (x0 + 1, y0, fx * (1.0 - fy)),
                (x0, y0 + 1, (1.0 - fx) * fy),
                (x0 + 1, y0 + 1, fx * fy),
            ]
        };
        let inside = |(x, y, _): &&(i64, i64, f64)| (0..w as i64).contains(x) && (0..h as i64).contains(y);
        for (x, y, weight) in corners.iter().filter(inside) {
            for channel in 0..ch {
                let from = ((batch * ch + channel) * h + *y as usize) * w + *x as usize;
                out[(batch * ch + channel) * oh * ow + spot] += weight * values[from];
            }
        }
    }
    one(Array::from_slice(&out, &dims)?.cast(x.dtype())?)
}
