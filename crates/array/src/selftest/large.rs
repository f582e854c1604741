//! Arrays of more elements than 32 bits count: what is written past 2^31 is read there again. Elements are one or two bytes wide,
//! and what is compared are sums and places, so that little time and memory goes into it.

use super::report::Report;
use crate::array::Array;
use crate::device::Device;
use crate::error::Result;
use crate::index::Index;
use crate::ops::Keep;
use planaria_layout::DType;

const FAMILY: &str = "large";

/// Answers what was wrong, if anything.
type Check = fn(Device, usize) -> Result<Option<String>>;

/// Elements of the arrays: past 2^31 and odd where there is room for them.
fn count(large: bool) -> usize {
    if large { (1 << 31) + 70_007 } else { 70_007 }
}

pub(super) fn run(device: Device, large: bool, report: &mut Report) {
    let checks: [(&str, Check); 6] = [
        ("fill and sum", fill),
        ("copy", copy),
        ("cast", cast),
        ("read by positions", read),
        ("write by positions", write),
        ("transposed", turned),
    ];
    for (name, check) in checks {
        match check(device, count(large)) {
            Ok(None) => report.pass(FAMILY, 0.0),
            Ok(Some(what)) => report.fail(FAMILY, name, what),
            Err(error) => report.fail(FAMILY, name, error.to_string()),
        }
    }
}

fn differs(what: &str, found: i64, wanted: i64) -> Option<String> {
    (found != wanted).then(|| format!("{what}: {found} instead of {wanted}"))
}

fn sum(x: &Array) -> Result<i64> {
    Ok(x.sum(&[], Keep::No)?.item()?.as_int() as i64)
}

/// Zeros, but for a few places before and after 2^31, which hold 1, 2, ... The places are answered too.
fn marked(device: Device, count: usize, dtype: DType) -> Result<(Array, Vec<i64>)> {
    let x = Array::zeros_on(&[count], dtype, device)?;
    let last = count as i64 - 1;
    let mut places = vec![0, 1, last / 2, last - 40_000, last - 1, last];
    places.extend([(1i64 << 31) - 1, 1 << 31, (1 << 31) + 1].into_iter().filter(|&at| at < last - 1));
    for (i, &at) in places.iter().enumerate() {
        x.narrow(0, at as usize, 1)?.fill(i as i64 + 1)?;
    }
    Ok((x, places))
}

/// What the marked places hold.
fn at_places(x: &Array, places: &[i64]) -> Result<Vec<i64>> {
    let one = |&at: &i64| Ok(x.narrow(0, at as usize, 1)?.cast(DType::I64)?.to_vec::<i64>()?[0]);
    places.iter().map(one).collect()
}

/// The marks are there, and nothing else is.
fn holds_marks(x: &Array, places: &[i64]) -> Result<Option<String>> {
    let wanted: Vec<i64> = (1..=places.len() as i64).collect();
    let found = at_places(x, places)?;
    if found != wanted {
        return Ok(Some(format!("{found:?} at {places:?}")));
    }
    // Halves add exactly as integers.
    let total = if x.dtype().is_float() { sum(&x.cast(DType::U8)?)? } else { sum(x)? };
    Ok(differs("the sum", total, wanted.iter().sum()))
}

fn fill(device: Device, count: usize) -> Result<Option<String>> {
    let x = Array::full_on(&[count], 3, DType::U8, device)?;
    Ok(differs("the sum", sum(&x)?, 3 * count as i64))
}

fn copy(device: Device, count: usize) -> Result<Option<String>> {
    let (x, places) = marked(device, count, DType::BF16)?;
    let y = x.copy()?;
    drop(x);
    holds_marks(&y, &places)
}

fn cast(device: Device, count: usize) -> Result<Option<String>> {
    let (x, places) = marked(device, count, DType::U8)?;
    let y = x.cast(DType::F16)?;
    drop(x);
    holds_marks(&y, &places)
}

fn read(device: Device, count: usize) -> Result<Option<String>> {
    let (x, places) = marked(device, count, DType::I16)?;
    let index = Array::from_slice(&places, &[places.len()])?.to(device)?;
    let found = x.get(&[Index::Take(index)])?.cast(DType::I64)?.to_vec::<i64>()?;
    let wanted: Vec<i64> = (1..=places.len() as i64).collect();
    if found != wanted {
        return Ok(Some(format!("{found:?} instead of {wanted:?}")));
    }
    let mask = x.ne(&Array::scalar(0, DType::I16)?)?;
    Ok(differs("marks", sum(&mask)?, places.len() as i64))
}

fn write(device: Device, count: usize) -> Result<Option<String>> {
    let x = Array::zeros_on(&[count], DType::U8, device)?;
    let (_, places) = marked(device, count, DType::U8)?;
    let values: Vec<u8> = (1..=places.len() as u8).collect();
    let index = Array::from_slice(&places, &[places.len()])?.to(device)?;
    x.set(&[Index::Take(index)], &Array::from_slice(&values, &[values.len()])?.to(device)?)?;
    holds_marks(&x, &places)
}

/// Strides past 2^31: three rows seen as columns.
fn turned(device: Device, count: usize) -> Result<Option<String>> {
    let (x, places) = marked(device, count, DType::U8)?;
    let rows = x.narrow(0, 0, count / 3 * 3)?.reshape(&[3, count / 3])?;
    let y = rows.transpose(0, 1)?.contiguous()?;
    let (columns, mut wanted, mut found) = (count as i64 / 3, Vec::new(), Vec::new());
    for (mark, at) in (1..).zip(&places).filter(|(_, at)| **at < columns * 3) {
        let there = y.narrow(0, (at % columns) as usize, 1)?.narrow(1, (at / columns) as usize, 1)?;
        found.push(there.cast(DType::I64)?.to_vec::<i64>()?[0]);
        wanted.push(mark);
    }
    if found != wanted {
        return Ok(Some(format!("{found:?} instead of {wanted:?}")));
    }
    Ok(differs("the sum", sum(&y)?, wanted.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_passes_with_few_elements_and_a_lost_mark_is_noticed() {
        let mut report = Report::new(Device::Cpu);
        run(Device::Cpu, false, &mut report);
        assert_eq!((report.families["large"].passed, report.failed.as_slice()), (6, &[][..]));
        let (x, places) = marked(Device::Cpu, 70_007, DType::I16).unwrap();
        assert_eq!(holds_marks(&x, &places), Ok(None));
        x.narrow(0, 12_345, 1).unwrap().fill(1).unwrap();
        assert!(holds_marks(&x, &places).unwrap().is_some());
    }
}
