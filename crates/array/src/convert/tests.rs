//! Conversions against an independent nearest-even search, and against tables made with torch.

use super::*;
use crate::element::with_dtype;
use flate2::read::GzDecoder;
use std::{fs::File, io::Read, path::PathBuf};

/// A float format, described by numbers only.
struct Format {
    bias: i32,
    man: u32,
    /// Code of the largest finite value.
    max: u32,
    saturates: bool,
}

const F16: Format = Format { bias: 15, man: 10, max: 0x7bff, saturates: false };
const BF16: Format = Format { bias: 127, man: 7, max: 0x7f7f, saturates: false };
const E4M3: Format = Format { bias: 7, man: 3, max: 0x7e, saturates: true };
const E5M2: Format = Format { bias: 15, man: 2, max: 0x7b, saturates: false };

impl Format {
    /// The value of a non-negative code by the definition of the format; exact in f64.
    fn value(&self, code: u32) -> f64 {
        let fraction = f64::from(code & ((1 << self.man) - 1)) / f64::from(1u32 << self.man);
        match code >> self.man {
            0 => fraction * 2f64.powi(1 - self.bias),
            e => (1.0 + fraction) * 2f64.powi(e as i32 - self.bias),
        }
    }

    /// All finite values, and one past the end where infinity or saturation begins.
    fn table(&self) -> Vec<f64> {
        (0..=self.max + 1).map(|c| self.value(c)).collect()
    }

    /// Nearest code to `x >= 0`, ties to the even code, by search.
    fn nearest(&self, table: &[f64], x: f64) -> u32 {
        let above = table.partition_point(|&v| v < x) as u32;
        let code = if above == 0 {
            0
        } else if above > self.max + 1 {
            self.max + 1
        } else {
            let (lo, hi) = (table[above as usize - 1], table[above as usize]);
            // Both gaps are exact: the values are within a factor of two, or subnormal.
            match (x - lo).total_cmp(&(hi - x)) {
                std::cmp::Ordering::Less => above - 1,
                std::cmp::Ordering::Greater => above,
                std::cmp::Ordering::Equal => above - 1 + (above - 1) % 2,
            }
        };
        if self.saturates { code.min(self.max) } else { code }
    }
}

/// f32 values at, between and beside all neighbouring codes of a format.
fn boundaries(table: &[f64]) -> Vec<f32> {
    let mut out = vec![f32::INFINITY, f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1)];
    for pair in table.windows(2) {
        for v in [pair[0], (pair[0] + pair[1]) / 2.0] {
            let v = v as f32;
            out.extend([v, v.next_up(), v.next_down().abs()]);
        }
    }
    out
}

fn check_format(format: &Format, encode: impl Fn(f32) -> u32, decode: impl Fn(u32) -> f32, sign: u32) {
    let table = format.table();
    for code in 0..=format.max {
        assert_eq!(f64::from(decode(code)), table[code as usize], "code {code:#x}");
        assert_eq!(f64::from(decode(code | sign)), -table[code as usize], "code {code:#x}");
        assert!(decode(code | sign).is_sign_negative());
        assert_eq!(encode(decode(code)), code);
        assert_eq!(encode(decode(code | sign)), code | sign);
    }
    let mut state = 1u32;
    let random = (0..200_000).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from_bits(state & 0x7fff_ffff)
    });
    for x in boundaries(&table).into_iter().chain(random).filter(|x| !x.is_nan()) {
        let want = format.nearest(&table, f64::from(x));
        assert_eq!(encode(x), want, "{x:e} ({:#x})", x.to_bits());
        assert_eq!(encode(-x), want | sign, "-{x:e}");
    }
    for nan in [0x7f80_0001, 0x7fc0_0000, 0x7fff_ffff, 0xff80_0001, 0xffff_ffff].map(f32::from_bits) {
        assert!(decode(encode(nan)).is_nan(), "{:#x}", nan.to_bits());
        assert_eq!(encode(nan) & sign != 0, nan.is_sign_negative());
    }
}

#[test]
fn f16_rounds_to_nearest_even_at_every_boundary() {
    let encode = |x: f32| u32::from(f16::from_f32(x).to_bits());
    let ours = |x: f32| u32::from(<f16 as Number>::from_f32(x).to_bits());
    check_format(&F16, ours, |c| f16::from_bits(c as u16).cast(), 0x8000);
    // The crate whose type we share must agree bit for bit, NaN included.
    for bits in (0..=u32::MAX).step_by(4093) {
        assert_eq!(ours(f32::from_bits(bits)), encode(f32::from_bits(bits)), "{bits:#x}");
    }
    for code in 0..=u16::MAX {
        let ours: f32 = f16::from_bits(code).cast();
        assert_eq!(ours.to_bits(), f16::from_bits(code).to_f32().to_bits(), "{code:#x}");
    }
}

#[test]
fn bf16_rounds_to_nearest_even_at_every_boundary() {
    let ours = |x: f32| u32::from(<bf16 as Number>::from_f32(x).to_bits());
    check_format(&BF16, ours, |c| bf16::from_bits(c as u16).cast(), 0x8000);
    for bits in (0..=u32::MAX).step_by(4093) {
        let x = f32::from_bits(bits);
        assert_eq!(ours(x), u32::from(bf16::from_f32(x).to_bits()), "{bits:#x}");
    }
}

#[test]
fn f8e4m3_saturates_and_rounds_to_nearest_even() {
    let encode = |x: f32| u32::from(F8E4M3::from_f32(x).to_bits());
    check_format(&E4M3, encode, |c| F8E4M3::from_bits(c as u8).to_f32(), 0x80);
    for x in [464.0, 480.0, 1e30, f32::INFINITY] {
        assert_eq!(F8E4M3::from_f32(x).to_f32(), 448.0);
        assert_eq!(F8E4M3::from_f32(-x).to_f32(), -448.0);
    }
    assert!((0..=255).filter(|&c| F8E4M3::from_bits(c).to_f32().is_nan()).eq([0x7f, 0xff]));
    assert!((0..=255).filter(|&c| F8E4M3::from_bits(c).is_nan()).eq([0x7f, 0xff]));
}

#[test]
fn f8e5m2_overflows_to_infinity_and_rounds_to_nearest_even() {
    let encode = |x: f32| u32::from(F8E5M2::from_f32(x).to_bits());
    check_format(&E5M2, encode, |c| F8E5M2::from_bits(c as u8).to_f32(), 0x80);
    assert_eq!(F8E5M2::from_f32(61439.996).to_f32(), 57344.0);
    assert_eq!(F8E5M2::from_f32(-61440.0).to_f32(), f32::NEG_INFINITY);
    let nans = [0x7d, 0x7e, 0x7f, 0xfd, 0xfe, 0xff];
    assert!((0..=255).filter(|&c| F8E5M2::from_bits(c).to_f32().is_nan()).eq(nans));
    assert!((0..=255).filter(|&c| F8E5M2::from_bits(c).is_nan()).eq(nans));
}

fn oracle(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/convert").join(name);
    let mut out = Vec::new();
    GzDecoder::new(File::open(path).unwrap()).read_to_end(&mut out).unwrap();
    out
}

/// Takes the next column of `len` values.
fn take<T: bytemuck::Pod>(rest: &mut &[u8], len: usize) -> Vec<T> {
    let (head, tail) = rest.split_at(len * size_of::<T>());
    *rest = tail;
    head.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// Equal bits, or NaN on both sides: torch's NaN payloads differ between its own vector paths.
fn same<D: Number>(ours: D, want: D) -> bool {
    let nan = |x: D| x.cast::<f64>().is_nan();
    bytemuck::bytes_of(&ours) == bytemuck::bytes_of(&want) || (nan(ours) && nan(want))
}

fn check_column<S: Number, D: Number>(sources: &[S], rest: &mut &[u8]) {
    for (&source, want) in sources.iter().zip(take::<D>(rest, sources.len())) {
        let ours: D = source.cast();
        assert!(same(ours, want), "{source:?} as {}: {ours:?}, torch {want:?}", D::DTYPE);
    }
}

/// Checks one column of a table and steps past it.
type Column<S> = fn(&[S], &mut &[u8]);

/// Runs the columns of one table; a table without source column holds every code in order.
fn check_table<S: Number>(name: &str, sources: Option<Vec<S>>, columns: &[Column<S>]) {
    let bytes = oracle(name);
    let mut rest = &bytes[..];
    let sources = sources.unwrap_or_else(|| {
        let len = take::<u32>(&mut rest, 1)[0] as usize;
        assert!(len > 4000, "{name} holds only {len} values");
        take(&mut rest, len)
    });
    for column in columns {
        column(&sources, &mut rest);
    }
    assert!(rest.is_empty(), "{name} has columns nobody checked");
}

#[test]
fn torch_agrees_on_every_16_bit_code() {
    let f16_codes = (0..=u16::MAX).map(f16::from_bits).collect();
    check_table::<f16>(
        "f16.bin.gz",
        Some(f16_codes),
        &[check_column::<_, F8E4M3>, check_column::<_, F8E5M2>],
    );
    let bf16_codes = (0..=u16::MAX).map(bf16::from_bits).collect();
    check_table::<bf16>(
        "bf16.bin.gz",
        Some(bf16_codes),
        &[check_column::<_, F8E4M3>, check_column::<_, F8E5M2>],
    );
}

#[test]
fn torch_agrees_on_wide_sources() {
    check_table::<f32>(
        "f32.bin.gz",
        None,
        &[
            check_column::<_, f16>,
            check_column::<_, bf16>,
            check_column::<_, F8E4M3>,
            check_column::<_, F8E5M2>,
            check_column::<_, f64>,
        ],
    );
    check_table::<f64>(
        "f64.bin.gz",
        None,
        &[
            check_column::<_, f32>,
            check_column::<_, f16>,
            check_column::<_, bf16>,
            check_column::<_, F8E4M3>,
            check_column::<_, F8E5M2>,
        ],
    );
    check_table::<i64>(
        "i64.bin.gz",
        None,
        &[
            check_column::<_, f32>,
            check_column::<_, f64>,
            check_column::<_, f16>,
            check_column::<_, bf16>,
            check_column::<_, F8E4M3>,
            check_column::<_, F8E5M2>,
            check_column::<_, i32>,
            check_column::<_, u8>,
            check_column::<_, u64>,
        ],
    );
}

#[test]
fn floats_truncate_and_saturate_into_integers() {
    assert_eq!((-1.7f32).cast::<i8>(), -1);
    assert_eq!((-1.7f64).cast::<u8>(), 0);
    assert_eq!(1e10f32.cast::<i32>(), i32::MAX);
    assert_eq!(f64::NEG_INFINITY.cast::<i64>(), i64::MIN);
    assert_eq!(f64::NAN.cast::<u16>(), 0);
    assert_eq!(f16::INFINITY.cast::<u64>(), u64::MAX);
    assert_eq!(F8E4M3::from_f32(-3.5).cast::<i16>(), -3);
    assert_eq!(u64::MAX.cast::<f32>(), 18_446_744_073_709_551_616.0);
    assert_eq!(u64::MAX.cast::<i64>(), -1);
    assert_eq!((-1i8).cast::<u64>(), u64::MAX);
    assert_eq!(300i32.cast::<u8>(), 44);
}

#[test]
fn truth_is_being_different_from_zero() {
    assert!(
        f32::NAN.cast::<Bool>().get() && bf16::NAN.cast::<Bool>().get() && F8E5M2::NAN.cast::<Bool>().get()
    );
    assert!(!(-0.0f32).cast::<Bool>().get() && !F8E4M3::from_bits(0x80).cast::<Bool>().get());
    assert!(256i32.cast::<Bool>().get() && (1u64 << 63).cast::<Bool>().get());
    assert!(f32::from_bits(1).cast::<Bool>().get());
    assert_eq!(Bool::new(true).cast::<f16>(), f16::ONE);
    assert_eq!(Bool::new(true).cast::<F8E4M3>(), F8E4M3::ONE);
    assert_eq!(Bool::new(true).cast::<F8E5M2>(), F8E5M2::ONE);
    assert_eq!(Bool::new(false).cast::<u64>(), 0);
}

/// Values where wrapping, sign, saturation and double rounding show, in each dtype.
fn telling_values<S: Number>() -> Vec<S> {
    let ints = [
        0,
        1,
        -1,
        7,
        127,
        -128,
        255,
        300,
        65_535,
        -40_000,
        1 << 31,
        (1 << 40) + (1 << 16) + 1,
        i64::MIN,
        i64::MAX,
    ];
    let floats =
        [0.0, -0.0, 0.3, -1.7, 448.0, 61_440.0, 65_520.0, 3e9, -1e20, 1e-42, f64::NAN, f64::INFINITY];
    let doubled = [1.0 + 2f64.powi(-11) + 2f64.powi(-40), 1.0 + 2f64.powi(-4) + 2f64.powi(-40)];
    let mut out: Vec<S> = ints.iter().map(|&i| S::from_i64(i)).collect();
    out.extend(floats.iter().chain(&doubled).map(|&x| S::from_f64(x)));
    // More than one block of the middle type, and a tail.
    out.iter().copied().cycle().take(2 * BLOCK + 37).collect()
}

/// Converts one value by itself, given and given back as bytes: all that is compiled for each pair.
fn alone<S: Number, D: Number>(source: &[u8], out: &mut [u8]) {
    let source: S = bytemuck::pod_read_unaligned(source);
    out.copy_from_slice(bytemuck::bytes_of(&source.cast::<D>()));
}

fn is_nan<D: Number>(value: &[u8]) -> bool {
    bytemuck::pod_read_unaligned::<D>(value).cast::<f64>().is_nan()
}

/// Whether the kernels convert `src` to `to` as `alone` converts each value of it.
fn check_pair(from: DType, src: &[u8], to: DType, alone: fn(&[u8], &mut [u8]), is_nan: fn(&[u8]) -> bool) {
    let count = src.len() / from.size();
    let mut dst = vec![0u64; (count * to.size()).div_ceil(8)];
    let dst = &mut bytemuck::cast_slice_mut(&mut dst)[..count * to.size()];
    convert_bytes(from, src, to, dst);
    let mut want = [0; 8];
    let want = &mut want[..to.size()];
    for (source, got) in src.chunks_exact(from.size()).zip(dst.chunks_exact(to.size())) {
        alone(source, want);
        let same = got == want || (is_nan(got) && is_nan(want));
        assert!(same, "{source:x?} of {from} as {to}: {got:x?} or {want:x?}");
    }
}

#[test]
fn kernels_of_every_pair_convert_like_single_values() {
    for from in DType::ALL {
        with_dtype!(from, S => {
            let values = telling_values::<S>();
            for to in DType::ALL {
                with_dtype!(to, D => {
                    check_pair(from, bytemuck::cast_slice(&values), to, alone::<S, D>, is_nan::<D>)
                });
            }
        });
    }
}
