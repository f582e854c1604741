//! Random operations on random views, a device beside the host: the same results, or the same kind of refusal.

mod arrays;
mod cases;

pub use arrays::{Args, Rng};
pub use cases::{Operation, Run, operations};

use super::report::Report;
use crate::array::Array;
use crate::device::Device;
use crate::error::{Error, Result};
use planaria_layout::DType;
use std::mem::discriminant;

/// How far results may lie apart when an operation adds in another order.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-9,
        DType::F32 => 1e-4,
        DType::F16 => 1e-2,
        DType::BF16 => 5e-2,
        DType::F8E4M3 | DType::F8E5M2 => 0.3,
        _ => 0.0,
    }
}

/// Views of absurd extents cost nothing until they are read.
const READABLE: usize = 1 << 16;

fn same(a: &Array, b: &Array) -> Result<bool> {
    if a.dtype() != b.dtype() || a.shape() != b.shape() {
        return Ok(false);
    }
    if a.numel() > READABLE {
        return Ok(true);
    }
    let wide = |a: &Array| a.to(Device::Cpu)?.cast(DType::F64)?.to_vec::<f64>();
    let limit = tolerance(a.dtype());
    let close = |(a, b): (f64, f64)| {
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= limit * a.abs().max(1.0)
    };
    Ok(wide(a)?.into_iter().zip(wide(b)?).all(close))
}

/// What is wrong with two outcomes that should be the same.
pub fn difference(one: &Result<Vec<Array>>, other: &Result<Vec<Array>>) -> Option<String> {
    let all = |a: &[Array], b: &[Array]| -> Result<bool> {
        let mut pairs = a.iter().zip(b);
        pairs.try_fold(a.len() == b.len(), |whole, (a, b)| Ok(whole && same(a, b)?))
    };
    match (one, other) {
        (Err(a), Err(b)) if discriminant(a) == discriminant(b) => None,
        (Ok(a), Ok(b)) if all(a, b) == Ok(true) => None,
        _ => Some(format!("one gives {one:?}\nthe other {other:?}")),
    }
}

/// True for what is refused because of an element's value.
fn follows_values(error: &Error) -> bool {
    match error {
        Error::PositionOutOfRange { .. } | Error::IndexOutOfRange { .. } => true,
        Error::Argument { op, .. } => *op == "elementwise",
        _ => false,
    }
}

/// Rounds of all operations on a device, each beside the host, which draws the same.
pub(super) fn run(device: Device, rounds: u64, report: &mut Report, in_time: &dyn Fn() -> bool) {
    for round in 0..rounds {
        for (number, operation) in operations().enumerate() {
            if !in_time() {
                report.skip("fuzz");
                continue;
            }
            let seed = (round << 8) + number as u64;
            let name = format!("{} seed {seed}", operation.name);
            let outcome = |device| -> Result<Vec<Array>> {
                let mut rng = Rng::new(seed);
                let args = Args::random(&mut rng, device)?;
                // What a device refuses, it refuses when its results are looked at.
                let look = |x: Array| if x.numel() > READABLE { Ok(x) } else { x.to(Device::Cpu) };
                (operation.run)(&mut rng, &args)?.into_iter().map(look).collect()
            };
            let (host, there) = (outcome(Device::Cpu), outcome(device));
            if there.is_err() {
                // What else it found comes late, and belongs to this case.
                let _ = Array::zeros_on(&[1], DType::F32, device).and_then(|x| x.to(Device::Cpu));
            }
            match (host, there) {
                (_, Err(Error::NotOnDevice { op, .. })) => report.missing("fuzz", op, &name),
                // The host looks at values first, a device at everything else.
                (Err(host), Err(_)) if follows_values(&host) => report.pass("fuzz", 0.0),
                (host, there) => match difference(&host, &there) {
                    None => report.pass("fuzz", 0.0),
                    Some(what) => {
                        let args = Args::random(&mut Rng::new(seed), Device::Cpu);
                        let args = args.map_or_else(|error| error.to_string(), |args| args.describe());
                        report.fail("fuzz", &name, format!("{what}; {args}"));
                    }
                },
            }
        }
    }
}
