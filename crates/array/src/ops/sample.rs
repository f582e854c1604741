//! Random arrays, whole or any box of a global one.

use crate::array::Array;
use crate::convert::Number;
use crate::cuda;
use crate::device::Device;
use crate::element::{Bool, Element, with_dtype};
use crate::error::{Error, Result};
use crate::random::{self, Key, Normal, TruncatedNormal, Window};
use planaria_layout::{DType, Shape};

/// What random values to draw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Uniform in `low..high`, for float dtypes.
    Uniform {
        /// Smallest value.
        low: f64,
        /// Values stay below this, also after rounding to a narrow dtype.
        high: f64,
    },
    /// Normal, for float dtypes.
    Normal(Normal),
    /// Normal between bounds, for float dtypes.
    TruncatedNormal(TruncatedNormal),
    /// 1 or true with probability `p`, else 0, for any dtype.
    Bernoulli {
        /// Probability of a 1.
        p: f64,
    },
    /// Integers in `low..high`, for integer dtypes that can hold them.
    Integers {
        /// Smallest value.
        low: i64,
        /// One more than the largest value.
        high: i64,
    },
}

impl Array {
    /// Random values keyed by their position in the array.
    pub fn random(shape: &[usize], distribution: Distribution, dtype: DType, key: Key) -> Result<Array> {
        Array::random_in(&Window::whole(&Shape::new(shape)?), distribution, dtype, key)
    }

    /// The part of a global random array that `window` shows: the same bits as slicing the whole would give.
    pub fn random_in(window: &Window, distribution: Distribution, dtype: DType, key: Key) -> Result<Array> {
        Array::random_on(window, distribution, dtype, key, Device::Cpu)
    }

    /// [`Array::random_in`] on a device: the same bits on each.
    pub fn random_on(
        window: &Window,
        distribution: Distribution,
        dtype: DType,
        key: Key,
        device: Device,
    ) -> Result<Array> {
        match device {
            Device::Cpu => random_on_host(window, distribution, dtype, key),
            Device::Meta => Array::meta(window.shape(), dtype),
            Device::Cuda(ordinal) => random_on_cuda(window, distribution, dtype, key, ordinal),
        }
    }

    /// Uniform in `[0, 1)`.
    pub fn uniform(shape: &[usize], dtype: DType, key: Key) -> Result<Array> {
        Array::random(shape, Distribution::Uniform { low: 0.0, high: 1.0 }, dtype, key)
    }

    /// Normal with mean 0 and standard deviation 1.
    pub fn normal(shape: &[usize], dtype: DType, key: Key) -> Result<Array> {
        Array::random(shape, Distribution::Normal(Normal::STANDARD), dtype, key)
    }
}

fn random_on_host(window: &Window, distribution: Distribution, dtype: DType, key: Key) -> Result<Array> {
    let op = "random";
    let shape = Shape::new(window.shape())?;
    match distribution {
        Distribution::Bernoulli { p } => {
            let mask = checked(shape, |out: &mut [Bool]| random::bernoulli(out, key, window, p))?;
            mask.cast(dtype)
        }
        Distribution::Integers { low, high } => {
            check_integers(low, high, dtype)?;
            checked(shape, |out| random::randint(out, key, window, low, high))?.cast(dtype)
        }
        _ if !dtype.is_float() => Err(Error::DType { op, found: dtype, expected: "a float type" }),
        Distribution::Uniform { low, high } => uniform(shape, window, low, high, dtype, key),
        Distribution::Normal(n) if dtype == DType::F64 => {
            checked(shape, |out| random::normal_f64(out, key, window, n))
        }
        Distribution::Normal(n) => checked(shape, |out| random::normal(out, key, window, n))?.cast(dtype),
        Distribution::TruncatedNormal(t) if dtype == DType::F64 => {
            checked(shape, |out| random::truncated_normal_f64(out, key, window, t))
        }
        Distribution::TruncatedNormal(t) => {
            checked(shape, |out| random::truncated_normal(out, key, window, t))?.cast(dtype)
        }
    }
}

/// The draws of the host, by kernels; what is checked and rounded is the same.
fn random_on_cuda(
    window: &Window,
    distribution: Distribution,
    dtype: DType,
    key: Key,
    ordinal: u32,
) -> Result<Array> {
    let draw =
        |kernel, drawn, words: &[cuda::Parameter]| cuda::draw(ordinal, window, key, kernel, drawn, words);
    let wide = dtype == DType::F64;
    match distribution {
        Distribution::Bernoulli { p } => {
            let below = random::threshold("bernoulli", p)?.map_or(1 << 32, u64::from);
            draw("bernoulli", DType::Bool, &[cuda::Parameter::Word(below)])?.cast(dtype)
        }
        Distribution::Integers { low, high } => {
            check_integers(low, high, dtype)?;
            let span = high.wrapping_sub(low) as u64;
            let words = [cuda::Parameter::Word(low as u64), cuda::Parameter::Word(span)];
            draw("randint", DType::I64, &words)?.cast(dtype)
        }
        _ if !dtype.is_float() => Err(Error::DType { op: "random", found: dtype, expected: "a float type" }),
        Distribution::Uniform { low, high } => {
            check_bounds(low, high, dtype)?;
            if wide {
                let bounds = [low, high - low, high.next_down()].map(cuda::Parameter::Double);
                return draw("uniform_f64", DType::F64, &bounds);
            }
            let last = with_dtype!(dtype, T => below::<T>(high));
            let bounds = [low as f32, (high - low) as f32, last].map(cuda::Parameter::Single);
            draw("uniform_f32", DType::F32, &bounds)?.cast(dtype)
        }
        Distribution::Normal(normal) => {
            let Normal { mean, std } = normal.check("normal")?;
            if wide {
                return draw("normal_f64", DType::F64, &[mean, std].map(cuda::Parameter::Double));
            }
            let words = [mean as f32, std as f32].map(cuda::Parameter::Single);
            draw("normal_f32", DType::F32, &words)?.cast(dtype)
        }
        Distribution::TruncatedNormal(of) => {
            let numbers = random::Truncated::new(of)?.numbers().map(f64::to_bits);
            let words = [cuda::Parameter::Words(&numbers)];
            if wide {
                return draw("truncated_f64", DType::F64, &words);
            }
            draw("truncated_f32", DType::F32, &words)?.cast(dtype)
        }
    }
}

/// [`Array::build`] with a fill that can refuse its arguments.
fn checked<T: Number>(shape: Shape, fill: impl FnOnce(&mut [T]) -> Result<()>) -> Result<Array> {
    let mut outcome = Ok(());
    let array = Array::build(shape, |out| {
        outcome = fill(out);
        if outcome.is_err() {
            out.fill(T::default());
        }
    })?;
    outcome.map(|()| array)
}

fn check_integers(low: i64, high: i64, dtype: DType) -> Result<()> {
    if !dtype.is_int() {
        return Err(Error::DType { op: "random", found: dtype, expected: "an integer type" });
    }
    let holds = |x: i64| with_dtype!(dtype, T => x.cast::<T>().to_scalar().as_int() == i128::from(x));
    if low < high && holds(low) && holds(high - 1) {
        return Ok(());
    }
    Err(Error::argument("random", format!("{low}..{high} must not be empty and must fit dtype {dtype}")))
}

fn check_bounds(low: f64, high: f64, dtype: DType) -> Result<()> {
    let fits = |x: f64| with_dtype!(dtype, T => x.cast::<T>().cast::<f64>().is_finite());
    let width_fits =
        if dtype == DType::F64 { (high - low).is_finite() } else { ((high - low) as f32).is_finite() };
    if !(low < high && width_fits && fits(low) && fits(high)) {
        let what = format!("bounds {low} and {high} must be in order and finite in dtype {dtype}");
        return Err(Error::argument("random", what));
    }
    Ok(())
}

fn uniform(shape: Shape, window: &Window, low: f64, high: f64, dtype: DType, key: Key) -> Result<Array> {
    check_bounds(low, high, dtype)?;
    if dtype == DType::F64 {
        return checked(shape, |out: &mut [f64]| {
            random::uniform_f64(out, key, window)?;
            let last = high.next_down();
            planaria_cpu::pool::for_chunks_mut(out, 4096, 16, |_, piece| {
                piece.iter_mut().for_each(|x| *x = (low + *x * (high - low)).min(last));
            });
            Ok(())
        });
    }
    let last = with_dtype!(dtype, T => below::<T>(high));
    let (low, width) = (low as f32, (high - low) as f32);
    let narrow = checked(shape, |out: &mut [f32]| {
        random::uniform(out, key, window)?;
        planaria_cpu::pool::for_chunks_mut(out, 4096, 8, |_, piece| {
            piece.iter_mut().for_each(|x| *x = (low + *x * width).min(last));
        });
        Ok(())
    })?;
    narrow.cast(dtype)
}

/// The largest value of T below `high`, as f32: rounding anything up to it cannot reach `high`.
fn below<T: Number>(high: f64) -> f32 {
    let x = high as f32;
    let mut step = x - x.next_down();
    let mut last = x.cast::<T>();
    // A step that still rounds to `high` is at most half of T's spacing, so twice that reaches the neighbour.
    while last.cast::<f64>() >= high {
        last = (x - step).cast();
        step *= 2.0;
    }
    last.cast()
}
