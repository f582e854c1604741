//! Launchers of the random kernels.

use super::program::{RANDOM, kernel};
use super::walk::MAX_DIMS;
use super::{fresh, lane, launch_over};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::random::{Key, Window};
use planaria_cuda::Arg;
use planaria_layout::{DType, Shape};

/// A parameter of a distribution.
#[derive(Clone, Copy)]
pub(crate) enum Parameter<'a> {
    Word(u64),
    Single(f32),
    Double(f64),
    Words(&'a [u64]),
}

impl<'a> From<Parameter<'a>> for Arg<'a> {
    fn from(parameter: Parameter<'a>) -> Arg<'a> {
        match parameter {
            Parameter::Word(x) => Arg::U64(x),
            Parameter::Single(x) => Arg::F32(x),
            Parameter::Double(x) => Arg::F64(x),
            Parameter::Words(x) => Arg::Words(x),
        }
    }
}

/// The elements of a window, drawn on a device by one kernel.
pub(crate) fn draw(
    ordinal: u32,
    window: &Window,
    key: Key,
    function: &str,
    dtype: DType,
    parameters: &[Parameter<'_>],
) -> Result<Array> {
    let (local, steps, start) = window.steps();
    if local.len() > MAX_DIMS {
        let what = format!("a window cut along {} dims; at most {MAX_DIMS} are possible", local.len());
        return Err(Error::argument("random", what));
    }
    let lane = lane(ordinal)?;
    let (out, address) = fresh("random", &lane, &Shape::new(window.shape())?, dtype)?;
    if window.is_empty() {
        return Ok(out);
    }
    let mut words = vec![0u64; 3 + 2 * MAX_DIMS];
    (words[0], words[1], words[2 + 2 * MAX_DIMS]) = (window.len() as u64, local.len() as u64, start);
    for (d, (&len, &step)) in local.iter().zip(steps).enumerate() {
        (words[2 + d], words[2 + MAX_DIMS + d]) = (len as u64, step as u64);
    }
    let kernel = kernel(&lane, &RANDOM, "", function)?;
    let mut args = vec![Arg::Words(&words), Arg::U64(key.seed), Arg::U64(key.stream), Arg::U64(address)];
    args.extend(parameters.iter().map(|&parameter| Arg::from(parameter)));
    launch_over("random", &lane, &kernel, window.len(), &args)?;
    Ok(out)
}
