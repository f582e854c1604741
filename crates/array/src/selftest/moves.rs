//! What moves values without computing: copies, fills, conversions, transfers.

use super::case::{Case, Input, View};
use super::compare::Tolerance;
use crate::array::Array;
use crate::device::Device;
use crate::element::Scalar;
use crate::ops::Distribution;
use crate::random::{Key, Normal};
use planaria_layout::DType;

/// Values of a dtype that look random: normal for floats, all of the range for integers.
pub(super) fn some(shape: &[usize], dtype: DType, seed: u64) -> Array {
    let key = Key::new(0x5e1f, seed);
    let drawn = if dtype.is_float() {
        Array::random(shape, Distribution::Normal(Normal { mean: 0.0, std: 2.0 }), dtype, key)
    } else if dtype == DType::Bool {
        Array::random(shape, Distribution::Bernoulli { p: 0.4 }, dtype, key)
    } else {
        Array::random(shape, Distribution::Integers { low: i64::MIN, high: i64::MAX }, DType::I64, key)
            .and_then(|wide| wide.cast(dtype))
    };
    drawn.unwrap_or_else(|_| specials(dtype))
}

/// Values at which something happens: zeros, ones, extremes, halves, infinities, NaN, the smallest ones.
pub(super) fn specials(dtype: DType) -> Array {
    let mut values =
        vec![0.0, -0.0, 1.0, -1.0, 2.0, 3.0, -3.0, 0.5, 1.5, 2.5, -2.5, 0.1, 10.0, 88.0, -88.0, 200.0];
    values.extend([
        127.0, 128.0, -128.0, 255.0, 256.0, 448.0, 449.0, 464.0, 32767.0, 32768.0, 65504.0, 65520.0,
    ]);
    values.extend([57344.0, 61440.0, 2147483647.0, 2147483648.0, 4294967295.0, 4294967296.0, -2147483649.0]);
    values.extend([9.223_372_036_854_776e18, 1.8446744073709552e19, -9.3e18, 1e30, -1e30, 3.5e38, 1e300]);
    values.extend([
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        -f64::NAN,
        1e-40,
        -1e-45,
        5e-324,
        1e-8,
        6e-5,
        1e-5,
    ]);
    values.extend((1..40).map(|i| f64::from(i) * 0.37 - 7.0));
    let wide = Array::from_slice(&values, &[values.len()]);
    let made = wide.and_then(|wide| wide.cast(dtype));
    made.unwrap_or_else(|_| Array::meta_of(Default::default(), dtype))
}

/// Every bit pattern of narrow types, random ones of wide types.
fn patterns(dtype: DType) -> Option<Array> {
    let bytes: Vec<u8> = match dtype.size() {
        _ if dtype == DType::Bool => [0u8, 1].repeat(40),
        1 => (0..=255).collect(),
        2 => (0..=u16::MAX).flat_map(u16::to_le_bytes).collect(),
        _ => some(&[65536], DType::I64, 77).bytes().ok()?.to_vec(),
    };
    Array::from_bytes(&bytes, &[bytes.len() / dtype.size()], dtype).ok()
}

pub(super) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for dtype in DType::ALL {
        copies(dtype, &mut all);
        for to in DType::ALL {
            for (kind, base) in [("patterns", patterns(dtype)), ("values", Some(specials(dtype)))] {
                let Some(base) = base else { continue };
                let inputs = vec![Input::plain(base)];
                let name = format!("{dtype} to {to}, {kind}");
                all.push(Case::new("cast", name, inputs, Tolerance::Bits, move |x, _| {
                    Ok(vec![x[0].cast(to)?])
                }));
            }
        }
        for view in View::ALL {
            let inputs = vec![Input::seen(some(&[6, 35, 22], dtype, 4), view)];
            all.push(Case::new("cast", format!("{dtype} {view:?}"), inputs, Tolerance::Bits, |x, _| {
                Ok(vec![x[0].cast(DType::F32)?, x[0].cast(DType::I16)?])
            }));
        }
    }
    all
}

fn copies(dtype: DType, all: &mut Vec<Case>) {
    let shapes: [&[usize]; 7] =
        [&[], &[0, 3], &[1], &[4099], &[3, 70, 65], &[2, 2, 2, 2, 2, 2, 2, 2, 2, 2], &[130, 257]];
    for shape in shapes {
        for view in View::ALL {
            let inputs = vec![Input::seen(some(shape, dtype, 1), view)];
            let name = format!("{dtype} {shape:?} {view:?}");
            all.push(Case::new("copy", name, inputs, Tolerance::Bits, |x, device| {
                let back = x[0].to(Device::Cpu)?.to(device)?;
                Ok(vec![x[0].copy()?, back, x[0].contiguous()?])
            }));
        }
    }
    let inputs = vec![Input::plain(some(&[2, 2, 3, 2, 3, 2, 2, 3, 2, 3], dtype, 2))];
    all.push(Case::new("copy", format!("{dtype} ten dims reversed"), inputs, Tolerance::Bits, |x, _| {
        Ok(vec![x[0].permute(&[9, 8, 7, 6, 5, 4, 3, 2, 1, 0])?.copy()?])
    }));
    let inputs = vec![Input::plain(some(&[12, 34], dtype, 2)), Input::plain(some(&[1, 17], dtype, 3))];
    all.push(Case::new("copy", format!("{dtype} into views"), inputs, Tolerance::Bits, |x, _| {
        let kept = x[0].snapshot()?;
        x[0].slice(1, Some(1), None, 2)?.copy_from(&x[1])?;
        x[0].narrow(0, 3, 4)?.fill(1)?;
        x[0].slice(1, Some(3), None, 7)?.fill(Scalar::Int(0))?;
        let whole = x[0].copy()?;
        whole.fill(Scalar::Int(1))?;
        Ok(vec![x[0].clone(), kept, whole])
    }));
    all.push(Case::new(
        "copy",
        format!("{dtype} made there"),
        Vec::new(),
        Tolerance::Bits,
        move |_, device| {
            Ok(vec![
                Array::zeros_on(&[17, 5], dtype, device)?,
                Array::full_on(&[17, 5], 1, dtype, device)?,
                Array::full_on(&[0], 1, dtype, device)?,
                Array::zeros_on(&[4], dtype, device)?.ones_like()?,
            ])
        },
    ));
}
