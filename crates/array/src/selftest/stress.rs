//! Memory and streams under load: many sizes, several threads, arrays handed from one to another, snapshots.

use super::figures;
use super::report::Report;
use crate::array::Array;
use crate::device::Device;
use crate::error::Result;
use crate::random::Key;
use planaria_layout::DType;
use std::sync::mpsc::sync_channel;

const FAMILY: &str = "stress";

/// Answers whether all values were right.
type Check = fn(Device) -> Result<bool>;

pub(super) fn run(device: Device, report: &mut Report) {
    let checks: [(&str, Check); 5] = [
        ("copies of every length come and go whole", lengths),
        ("blocks of many sizes keep their values", sizes),
        ("arrays handed between threads keep their values", handed),
        ("a snapshot keeps its values while the array is written", snapshots),
        ("an array of another device is refused", refused),
    ];
    for (name, check) in checks {
        match check(device) {
            Ok(true) => report.pass(FAMILY, 0.0),
            Ok(false) => report.fail(FAMILY, name, "wrong values".into()),
            Err(error) => report.fail(FAMILY, name, error.to_string()),
        }
    }
    if matches!(device, Device::Cuda(_))
        && super::is_large(device)
        && let Err(error) = figures::run(device, report)
    {
        report.fail(FAMILY, "figures", error.to_string());
    }
}

/// Random sizes, freed in random order; each array holds its own number all the while.
fn sizes(device: Device) -> Result<bool> {
    let draw = |i: u64, high: u64| -> Result<u64> {
        let of = crate::ops::Distribution::Integers { low: 0, high: high as i64 };
        let drawn = Array::random(&[1], of, DType::I64, Key::new(5, i))?.item()?;
        Ok(drawn.as_int() as u64)
    };
    let mut live: Vec<(Array, i32)> = Vec::new();
    for i in 0..600 {
        let size = match i % 3 {
            0 => draw(i, 300)?,
            1 => draw(i, 40_000)?,
            _ => draw(i, 1_000_000)?,
        };
        live.push((Array::full_on(&[size as usize], i as i64, DType::I32, device)?, i as i32));
        if live.len() > 24 {
            let at = draw(i + 10_000, live.len() as u64)? as usize;
            let (array, value) = live.swap_remove(at);
            if array.add(&Array::scalar(1, DType::I32)?)?.to_vec::<i32>()?.iter().any(|&x| x != value + 1) {
                return Ok(false);
            }
        }
    }
    Ok(live.iter().all(|(array, value)| array.to_vec::<i32>().is_ok_and(|v| v.iter().all(|x| x == value))))
}

/// There and back, in lengths around those at which copies are cut.
fn lengths(device: Device) -> Result<bool> {
    for bytes in [1, (1 << 20) - 1, 1 << 20, (16 << 20) - 1, (16 << 20) + 1, (33 << 20) + 5] {
        let sent: Vec<u8> = (0..bytes).map(|i: usize| (i * 31 + (i >> 13)) as u8).collect();
        let there = Array::from_slice(&sent, &[bytes])?.to(device)?;
        if there.to_vec::<u8>()? != sent {
            return Ok(false);
        }
    }
    Ok(true)
}

/// One thread makes, the next adds, the third looks; each drops what it got at once.
fn handed(device: Device) -> Result<bool> {
    let (to_second, from_first) = sync_channel::<(Array, f32)>(4);
    let (to_third, from_second) = sync_channel::<(Array, f32)>(4);
    std::thread::scope(|scope| {
        let first = scope.spawn(move || -> Result<()> {
            for i in 0..200u16 {
                let x = Array::full_on(&[100_000 + usize::from(i)], f32::from(i), DType::F32, device)?;
                let kept = x.snapshot()?;
                x.fill(-1.0)?;
                if to_second.send((kept, f32::from(i))).is_err() {
                    break;
                }
            }
            Ok(())
        });
        let second = scope.spawn(move || -> Result<()> {
            for (x, value) in from_first {
                let y = x.add(&Array::scalar(0.5, DType::F32)?)?;
                drop(x);
                if to_third.send((y, value + 0.5)).is_err() {
                    break;
                }
            }
            Ok(())
        });
        let third = scope.spawn(move || -> Result<bool> {
            let mut right = true;
            for (y, value) in from_second {
                let z = y.mul(&y)?;
                drop(y);
                right &= z.to_vec::<f32>()?.iter().all(|&z| z == value * value);
            }
            Ok(right)
        });
        let lost = || crate::Error::argument("selftest", "a thread of the stress panicked");
        first.join().map_err(|_| lost())??;
        second.join().map_err(|_| lost())??;
        third.join().map_err(|_| lost())?
    })
}

fn snapshots(device: Device) -> Result<bool> {
    let x = Array::full_on(&[1 << 20], 1, DType::F32, device)?;
    let mut kept = Vec::new();
    for _ in 0..6 {
        kept.push(x.snapshot()?);
        x.binary_in_place(crate::ops::Binary::Add, &Array::scalar(1.0, DType::F32)?)?;
    }
    let holds = |array: &Array, value: f32| array.to_vec::<f32>().map(|v| v.iter().all(|&x| x == value));
    let mut right = holds(&x, 7.0)?;
    for (i, snapshot) in kept.iter().enumerate() {
        right &= holds(snapshot, i as f32 + 1.0)?;
    }
    Ok(right)
}

fn refused(device: Device) -> Result<bool> {
    let (here, there) = (Array::zeros(&[3], DType::F32)?, Array::zeros_on(&[3], DType::F32, device)?);
    let mixed = here.add(&there);
    Ok(device == Device::Cpu || matches!(mixed, Err(crate::Error::MixedDevices { .. })))
}
