//! The kernel sources, with the defines each is compiled with.

use crate::cuda::walk::MAX_DIMS;
use crate::error::Result;
use planaria_cuda::{Kernel, Lane, Program};
use planaria_layout::DType;
use std::sync::Arc;

const _: () = assert!(MAX_DIMS == 8, "DIMS of walk.cuh and random.cu");

/// Files that sources may include.
const HEADERS: &[(&str, &str)] = &[
    ("number.cuh", include_str!("kernels/number.cuh")),
    ("walk.cuh", include_str!("kernels/walk.cuh")),
    ("math.cuh", include_str!("kernels/math.cuh")),
    ("late.cuh", include_str!("kernels/late.cuh")),
];

/// One rounding an operation, so that results have the CPU's bits.
const EXACT: &[&str] = &["--fmad=false"];

const fn program(name: &'static str, text: &'static str) -> Program {
    Program { name, text, headers: HEADERS, options: EXACT }
}

pub(crate) const COPY: Program = program("copy.cu", include_str!("kernels/copy.cu"));
pub(crate) const CAST: Program = program("cast.cu", include_str!("kernels/cast.cu"));
pub(crate) const UNARY: Program = program("unary.cu", include_str!("kernels/unary.cu"));
pub(crate) const BINARY: Program = program("binary.cu", include_str!("kernels/binary.cu"));
pub(crate) const COMPARE: Program = program("compare.cu", include_str!("kernels/compare.cu"));
pub(crate) const RANDOM: Program = program("random.cu", include_str!("kernels/random.cu"));
pub(crate) const FOLD: Program = program("fold.cu", include_str!("kernels/fold.cu"));
pub(crate) const CHECK: Program = program("check.cu", include_str!("kernels/check.cu"));

const DTYPES: [DType; 15] = [
    DType::Bool,
    DType::U8,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
    DType::F8E4M3,
    DType::F8E5M2,
];

/// The name of a dtype in kernels.
pub(crate) fn c_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "truth",
        DType::U8 => "u8",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::U16 => "u16",
        DType::U32 => "u32",
        DType::U64 => "u64",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::F8E4M3 => "e4m3",
        DType::F8E5M2 => "e5m2",
    }
}

/// Defines of kernels that only move elements.
pub(crate) fn moved(dtype: DType) -> String {
    format!("T=u{}", dtype.size() * 8)
}

/// Defines of kernels that compute with elements.
pub(crate) fn computed(dtype: DType) -> String {
    let signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    let (float, truth) = (dtype.is_float(), dtype == DType::Bool);
    format!("T={} FLOAT={} TRUTH={} SIGNED={}", c_name(dtype), float as u8, truth as u8, signed as u8)
}

/// Defines of conversions from a dtype.
pub(crate) fn converted(dtype: DType) -> String {
    format!("S={}", c_name(dtype))
}

/// A kernel on the lane's device.
pub(crate) fn kernel(lane: &Lane, program: &Program, defines: &str, function: &str) -> Result<Arc<Kernel>> {
    Ok(lane.context().kernel(program, defines, function)?)
}

/// A program with one set of defines.
#[derive(Clone, Debug)]
pub struct Build {
    /// The source.
    pub program: Program,
    /// Its defines.
    pub defines: String,
}

/// Everything there is to compile: what an archive of kernels holds.
pub fn builds() -> Vec<Build> {
    let build = |program: Program, defines: String| Build { program, defines };
    let mut all = vec![build(RANDOM, String::new())];
    all.extend([DType::U8, DType::U16, DType::U32, DType::U64].map(|word| build(COPY, moved(word))));
    for dtype in DTYPES {
        all.push(build(CAST, converted(dtype)));
        all.extend([UNARY, BINARY, COMPARE, FOLD].map(|program| build(program, computed(dtype))));
        if dtype.is_int() {
            all.push(build(CHECK, computed(dtype)));
        }
    }
    all
}
