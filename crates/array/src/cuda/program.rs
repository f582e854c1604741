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
    ("prelude.cuh", include_str!("kernels/prelude.cuh")),
];

/// Those of attention with tensor cores besides.
const ATTENTION_HEADERS: &[(&str, &str)] = &[
    ("number.cuh", include_str!("kernels/number.cuh")),
    ("late.cuh", include_str!("kernels/late.cuh")),
    ("prelude.cuh", include_str!("kernels/prelude.cuh")),
    ("tensor_core.cuh", include_str!("kernels/tensor_core.cuh")),
    ("warpgroup.cuh", include_str!("kernels/warpgroup.cuh")),
    ("attention.cuh", include_str!("kernels/attention.cuh")),
];

/// One rounding an operation, so that results have the CPU's bits.
const EXACT: &[&str] = &["--fmad=false"];

const fn program(name: &'static str, text: &'static str) -> Program {
    Program { name, text, headers: HEADERS, options: EXACT }
}

/// Products and sums may become one operation.
const fn fused(name: &'static str, text: &'static str) -> Program {
    Program { name, text, headers: HEADERS, options: &[] }
}

const fn attention(name: &'static str, text: &'static str) -> Program {
    Program { name, text, headers: ATTENTION_HEADERS, options: &[] }
}

pub(crate) const COPY: Program = program("copy.cu", include_str!("kernels/copy.cu"));
pub(crate) const CAST: Program = program("cast.cu", include_str!("kernels/cast.cu"));
pub(crate) const UNARY: Program = program("unary.cu", include_str!("kernels/unary.cu"));
pub(crate) const BINARY: Program = program("binary.cu", include_str!("kernels/binary.cu"));
pub(crate) const COMPARE: Program = program("compare.cu", include_str!("kernels/compare.cu"));
pub(crate) const RANDOM: Program = program("random.cu", include_str!("kernels/random.cu"));
pub(crate) const FOLD: Program = program("fold.cu", include_str!("kernels/fold.cu"));
pub(crate) const CHECK: Program = program("check.cu", include_str!("kernels/check.cu"));
pub(crate) const MASK: Program = program("mask.cu", include_str!("kernels/mask.cu"));
pub(crate) const INDEX: Program = program("index.cu", include_str!("kernels/index.cu"));
pub(crate) const RADIX: Program = program("radix.cu", include_str!("kernels/radix.cu"));
pub(crate) const SEGMENT: Program = program("segment.cu", include_str!("kernels/segment.cu"));
pub(crate) const SORT: Program = program("sort.cu", include_str!("kernels/sort.cu"));
pub(crate) const LINES: Program = program("lines.cu", include_str!("kernels/lines.cu"));
pub(crate) const SCAN: Program = program("scan.cu", include_str!("kernels/scan.cu"));
pub(crate) const NORM: Program = fused("norm.cu", include_str!("kernels/norm.cu"));
pub(crate) const COLUMNS: Program = fused("columns.cu", include_str!("kernels/columns.cu"));
pub(crate) const CROSS_ENTROPY: Program = fused("cross_entropy.cu", include_str!("kernels/cross_entropy.cu"));
pub(crate) const ROTARY: Program = fused("rotary.cu", include_str!("kernels/rotary.cu"));
pub(crate) const GATED: Program = fused("gated.cu", include_str!("kernels/gated.cu"));
pub(crate) const ADAMW: Program = program("adamw.cu", include_str!("kernels/adamw.cu"));
pub(crate) const EXACT_NORM: Program = program("exact_norm.cu", include_str!("kernels/exact_norm.cu"));
pub(crate) const SGD: Program = program("sgd.cu", include_str!("kernels/sgd.cu"));
pub(crate) const MATMUL: Program = fused("matmul.cu", include_str!("kernels/matmul.cu"));
pub(crate) const ATTENTION_PLAIN: Program =
    fused("attention_plain.cu", include_str!("kernels/attention_plain.cu"));
pub(crate) const ATTENTION_FORWARD: Program =
    attention("attention_forward.cu", include_str!("kernels/attention_forward.cu"));
pub(crate) const ATTENTION_KEYS: Program =
    attention("attention_grad_keys.cu", include_str!("kernels/attention_grad_keys.cu"));
pub(crate) const ATTENTION_QUERIES: Program =
    attention("attention_grad_queries.cu", include_str!("kernels/attention_grad_queries.cu"));
pub(crate) const ATTENTION_FORWARD_TMA: Program =
    attention("attention_forward_tma.cu", include_str!("kernels/attention_forward_tma.cu"));
pub(crate) const ATTENTION_KEYS_TMA: Program =
    attention("attention_grad_keys_tma.cu", include_str!("kernels/attention_grad_keys_tma.cu"));
pub(crate) const ATTENTION_QUERIES_TMA: Program =
    attention("attention_grad_queries_tma.cu", include_str!("kernels/attention_grad_queries_tma.cu"));
pub(crate) const LINEARS: Program = fused("linears.cu", include_str!("kernels/linears.cu"));
pub(crate) const GEMV: Program = attention("gemv.cu", include_str!("kernels/gemv.cu"));
pub(crate) const GENERATE: Program = fused("generate.cu", include_str!("kernels/generate.cu"));
pub(crate) const DECODE: Program = attention("decode.cu", include_str!("kernels/decode.cu"));
pub(crate) const SOFTMAX: Program = fused("softmax.cu", include_str!("kernels/softmax.cu"));

/// The name of a dtype in kernels: its own, but for the one that is a keyword there.
pub(crate) fn c_name(dtype: DType) -> &'static str {
    if dtype == DType::Bool { "truth" } else { dtype.name() }
}

/// Defines of kernels that only move elements.
pub(crate) fn moved(dtype: DType) -> String {
    words(dtype.size())
}

/// Defines of kernels that move words of so many bytes.
pub(crate) fn words(bytes: usize) -> String {
    format!("T=u{}", bytes * 8)
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

/// Keys, positions and offsets in a kernel: 32 bits where everything reached lies below 2^31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Short,
    Long,
}

impl Word {
    /// The word for offsets up to `most`.
    pub(crate) fn reaching(most: usize) -> Word {
        if most < 1 << 31 { Word::Short } else { Word::Long }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Word::Short => "u32",
            Word::Long => "u64",
        }
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Word::Short => 4,
            Word::Long => 8,
        }
    }
}

/// Defines of kernels that move elements chosen by a mask.
pub(crate) fn elements(dtype: DType) -> String {
    format!("ELEMENT=u{}", dtype.size() * 8)
}

/// Defines of kernels that move rows named by words.
pub(crate) fn rows(dtype: DType, word: Word, packets: bool) -> String {
    format!("{} WORD={} PACKETS={}", elements(dtype), word.name(), packets as u8)
}

/// Defines of sums over equal keys.
pub(crate) fn segments(dtype: DType, word: Word, packets: bool) -> String {
    format!("ELEMENT={} WORD={} PACKETS={}", c_name(dtype), word.name(), packets as u8)
}

/// Defines of a sort of keys with their positions.
pub(crate) fn sorted(key: Word, payload: Word) -> String {
    format!("KEY={} PAYLOAD={}", key.name(), payload.name())
}

/// Defines of the order of elements.
pub(crate) fn ordered(dtype: DType, payload: Word) -> String {
    let (bits, signed) =
        (dtype.size() * 8, matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64));
    let infinity = match dtype {
        DType::F16 => "0x7c00",
        DType::BF16 => "0x7f80",
        DType::F32 => "0x7f800000",
        DType::F64 => "0x7ff0000000000000ull",
        // These have no infinity, or one whose code is the greatest but for NaN.
        DType::F8E4M3 => "0x7e",
        DType::F8E5M2 => "0x7c",
        _ => "0",
    };
    let (float, payload) = (dtype.is_float(), payload.name());
    format!(
        "ELEMENT={} KEY=u64 BITS={bits} FLOAT={} SIGNED={} INFINITY_BITS={infinity} PAYLOAD={payload}",
        c_name(dtype),
        float as u8,
        signed as u8
    )
}

/// Defines of running sums and products.
pub(crate) fn running(dtype: DType, op: u8) -> String {
    format!("ELEMENT={0} OUT={0} OP={op} LEAST=0 GREATEST=0", c_name(dtype))
}

/// Defines of softmax: whether its logarithm, how many threads a row has.
pub(crate) fn softmaxed(dtype: DType, log: bool, lanes: u32, packets: bool) -> String {
    format!("ELEMENT={} LOG={} LANES={lanes} PACKETS={}", c_name(dtype), log as u8, packets as u8)
}

/// How a norm holds a row: threads a row, packets a thread, rows at a time in the gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) lanes: usize,
    pub(crate) per: usize,
    pub(crate) groups: usize,
}

const fn span(lanes: usize, per: usize, groups: usize) -> Span {
    Span { lanes, per, groups }
}

/// Spans by what they hold, the shortest first.
const PACKET_SPANS: [Span; 6] =
    [span(32, 1, 8), span(128, 1, 8), span(64, 3, 8), span(256, 2, 2), span(256, 4, 2), span(256, 8, 1)];
const ELEMENT_SPANS: [Span; 2] = [span(32, 4, 8), span(256, 8, 1)];

impl Span {
    fn all(packets: bool) -> &'static [Span] {
        if packets { &PACKET_SPANS } else { &ELEMENT_SPANS }
    }

    /// The span for rows of `cols` elements, if there is one.
    pub(crate) fn of(cols: usize, dtype: DType, packets: bool) -> Option<Span> {
        let len = if packets { 16 / dtype.size() } else { 1 };
        Span::all(packets).iter().copied().find(|span| span.lanes * span.per * len >= cols)
    }
}

/// The computing type of a float.
fn wide(dtype: DType) -> &'static str {
    if dtype == DType::F64 { "f64" } else { "f32" }
}

/// Defines of norms.
pub(crate) fn normed(dtype: DType, center: bool, span: Span, packets: bool) -> String {
    let Span { lanes, per, groups } = span;
    let (element, weight) = (c_name(dtype), wide(dtype));
    let (center, packets) = (center as u8, packets as u8);
    format!(
        "ELEMENT={element} WEIGHT={weight} CENTER={center} LANES={lanes} PER={per} PACKETS={packets} GROUPS={groups}"
    )
}

/// Defines of sums down columns.
pub(crate) fn column_sums(dtype: DType, packets: bool) -> String {
    format!("ELEMENT={} OUT={} PACKETS={}", c_name(dtype), wide(dtype), packets as u8)
}

/// Defines of sums of squares without rounding.
pub(crate) fn squared(dtype: DType) -> String {
    format!("ELEMENT={}", c_name(dtype))
}

/// Defines of cross-entropy: 0 the loss, 1 both, 2 the gradient.
pub(crate) fn entropy(dtype: DType, grad: u8, packets: bool) -> String {
    format!("ELEMENT={} GRAD={grad} THREADS=256 PACKETS={}", c_name(dtype), packets as u8)
}

/// Defines of rotations of neighbours or of halves.
pub(crate) fn rotated(dtype: DType, pairs: bool, packets: bool) -> String {
    format!("ELEMENT={} PAIRS={} PACKETS={}", c_name(dtype), pairs as u8, packets as u8)
}

/// Defines of gated activations.
pub(crate) fn gated_by(dtype: DType, act: u8, packets: bool) -> String {
    format!("ELEMENT={} ACT={act} PACKETS={}", c_name(dtype), packets as u8)
}

/// Defines of optimizer steps.
pub(crate) fn stepped(param: DType, grad: DType, moment: DType, master: bool, max: bool) -> String {
    let [param, grad, moment] = [param, grad, moment].map(c_name);
    format!("PARAM={param} GRAD={grad} MOMENT={moment} MASTER={} MAX={}", master as u8, max as u8)
}

/// Defines of products.
pub(crate) fn multiplied(dtype: DType) -> String {
    format!("ELEMENT={}", c_name(dtype))
}

/// Defines of attention for every type: dims up to 32 times `span`; mask 0 none, 1 bools, 2 numbers.
pub(crate) fn attend_plain(dtype: DType, span: usize, mask: u8) -> String {
    // Few spans, so that few kernels are compiled.
    let span = [1, 2, 3, 4, 8].into_iter().find(|&s| s >= span).unwrap_or(8);
    format!("ELEMENT={} SPAN={span} MASK={mask}", c_name(dtype))
}

/// Defines of attention by warps: queries and keys of a block, warps.
pub(crate) fn attend_forward(dtype: DType, dim: usize, mask: bool) -> (String, [usize; 3]) {
    let (bm, bn, warps, blocks, held) = if dim == 64 { (128, 64, 4, 2, 1) } else { (128, 64, 4, 2, 0) };
    let (element, mask) = (c_name(dtype), mask as u8);
    let defines = format!(
        "ELEMENT={element} DIM={dim} MASK={mask} BM={bm} BN={bn} WARPS={warps} BLOCKS={blocks} Q_IN_REGISTERS={held}"
    );
    (defines, [bm, bn, warps])
}

/// Defines of its gradient of keys: queries at a time, warps.
pub(crate) fn attend_keys(dtype: DType, dim: usize, mask: bool) -> (String, [usize; 2]) {
    let (bm, warps, blocks, held) = if dim == 64 { (64, 4, 2, 1) } else { (64, 4, 2, 0) };
    let (element, mask) = (c_name(dtype), mask as u8);
    let defines = format!(
        "ELEMENT={element} DIM={dim} MASK={mask} BM={bm} WARPS={warps} BLOCKS={blocks} KEYS_IN_REGISTERS={held}"
    );
    (defines, [bm, warps])
}

/// Defines of its gradient of queries: keys at a time, warps.
pub(crate) fn attend_queries(dtype: DType, dim: usize, mask: bool) -> (String, [usize; 2]) {
    let (bn, warps, blocks, held) = if dim == 64 { (64, 4, 3, 1) } else { (64, 8, 1, 1) };
    let (element, mask) = (c_name(dtype), mask as u8);
    let defines = format!(
        "ELEMENT={element} DIM={dim} MASK={mask} BN={bn} WARPS={warps} BLOCKS={blocks} QUERIES_IN_REGISTERS={held}"
    );
    (defines, [bn, warps])
}

/// Defines of attention by warpgroups: groups, keys at a time, stages.
pub(crate) fn attend_forward_tma(dtype: DType, dim: usize) -> (String, [usize; 3]) {
    let (groups, bn, stages) = if dim == 64 { (3, 128, 2) } else { (2, 128, 2) };
    let element = c_name(dtype);
    let defines =
        format!("ELEMENT={element} DIM={dim} GROUPS={groups} BN={bn} STAGES={stages} TURNS=1 POLYNOMIAL=0");
    (defines, [groups, bn, stages])
}

/// Defines of its gradient of keys: groups, queries at a time, stages.
pub(crate) fn attend_keys_tma(dtype: DType, dim: usize) -> (String, [usize; 3]) {
    let (groups, bm, stages) = if dim == 64 { (2, 64, 4) } else { (2, 64, 3) };
    let defines = format!("ELEMENT={} DIM={dim} GROUPS={groups} BM={bm} STAGES={stages}", c_name(dtype));
    (defines, [groups, bm, stages])
}

/// Defines of its gradient of queries: groups, keys at a time, stages.
pub(crate) fn attend_queries_tma(dtype: DType, dim: usize) -> (String, [usize; 3]) {
    let (groups, bn, stages) = (2, 128, 2);
    let defines = format!("ELEMENT={} DIM={dim} GROUPS={groups} BN={bn} STAGES={stages}", c_name(dtype));
    (defines, [groups, bn, stages])
}

/// Defines of products of few rows: rows held, warps an output, whether the first of two matrices gates the other.
pub(crate) fn few_rows(dtype: DType, rows: usize, split: usize, gated: bool) -> String {
    format!("ELEMENT={} ROWS={rows} SPLIT={split} GATED={}", c_name(dtype), gated as u8)
}

/// Defines of products of up to eight rows a tile by tensor cores.
pub(crate) fn some_rows(dtype: DType, tiles: usize) -> String {
    format!("ELEMENT={} TILES={tiles} WARPS=8", c_name(dtype))
}

/// Defines of the small steps of generation.
pub(crate) fn generated(dtype: DType) -> String {
    format!("ELEMENT={}", c_name(dtype))
}

/// Defines of attention over a cache by tensor cores.
pub(crate) fn decoded(dtype: DType, dim: usize, warps: usize) -> String {
    format!("ELEMENT={} DIM={dim} WARPS={warps}", c_name(dtype))
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
    /// Whether the emulated device can run it: it has no tensor cores, and no room for offsets past 2^31.
    pub emulated: bool,
}

fn build(program: Program, defines: String) -> Build {
    let cores = program.headers.iter().any(|(name, _)| *name == "tensor_core.cuh");
    let emulated = !cores;
    // Nor are other sizes and types of a text compiled that the self-test runs anyway.
    let spared = [
        "WORD=u64",
        "PAYLOAD=u64",
        "SPAN=3 ",
        "SPAN=8 ",
        "MOMENT=bf16",
        "MOMENT=f16",
        "PER=3 ",
        "PER=8 PACKETS=1",
    ];
    let emulated = emulated && !spared.iter().any(|define| defines.contains(define));
    Build { program, defines, emulated }
}

/// Everything there is to compile: what an archive of kernels holds.
pub fn builds() -> Vec<Build> {
    let mut all = vec![build(RANDOM, String::new())];
    let (words, both) = ([Word::Short, Word::Long], [false, true]);
    for dtype in [DType::U8, DType::U16, DType::U32, DType::U64] {
        all.extend([build(COPY, moved(dtype)), build(MASK, elements(dtype))]);
        all.extend(words.iter().flat_map(|&w| both.map(|p| build(INDEX, rows(dtype, w, p)))));
    }
    for payload in words {
        all.extend(words.map(|key| build(RADIX, sorted(key, payload))));
    }
    for dtype in DType::ALL {
        all.push(build(CAST, converted(dtype)));
        all.extend([UNARY, BINARY, COMPARE, FOLD, LINES].map(|program| build(program, computed(dtype))));
        if dtype.is_int() {
            all.push(build(CHECK, computed(dtype)));
        }
        all.extend(words.iter().flat_map(|&w| both.map(|p| build(SEGMENT, segments(dtype, w, p)))));
        all.extend(words.map(|payload| build(SORT, ordered(dtype, payload))));
    }
    for dtype in [DType::F32, DType::F64, DType::I64] {
        all.extend((0..2).map(|op| build(SCAN, running(dtype, op))));
    }
    for dtype in FLOATS {
        all.extend(both.map(|packets| build(COLUMNS, column_sums(dtype, packets))));
        all.extend(trained(dtype));
        for (log, lanes) in [(false, 32), (false, 256), (true, 32), (true, 256)] {
            all.extend(both.map(|packets| build(SOFTMAX, softmaxed(dtype, log, lanes, packets))));
        }
    }
    all
}

/// What training needs for one dtype.
fn trained(dtype: DType) -> Vec<Build> {
    let mut all = vec![build(MATMUL, multiplied(dtype))];
    for packets in [false, true] {
        for center in [false, true] {
            let norms = Span::all(packets).iter().map(|&span| normed(dtype, center, span, packets));
            all.extend(norms.map(|defines| build(NORM, defines)));
            all.push(build(ROTARY, rotated(dtype, center, packets)));
        }
        all.extend([0, 1, 2].map(|grad| build(CROSS_ENTROPY, entropy(dtype, grad, packets))));
        all.extend([0, 1, 2].map(|act| build(GATED, gated_by(dtype, act, packets))));
    }
    for span in [1, 2, 3, 4, 8] {
        all.extend([0, 1, 2].map(|mask| build(ATTENTION_PLAIN, attend_plain(dtype, span, mask))));
    }
    if dtype != DType::F64 {
        all.push(build(EXACT_NORM, squared(dtype)));
    }
    let narrow = matches!(dtype, DType::BF16 | DType::F16);
    all.push(build(GENERATE, generated(dtype)));
    for rows in [1, 2, 4, 8].into_iter().filter(|_| dtype != DType::F64) {
        let kinds = [(1, false), (4, false), (1, true), (4, true)];
        all.extend(kinds.map(|(split, gated)| build(LINEARS, few_rows(dtype, rows, split, gated))));
    }
    for dim in [64, 128].into_iter().filter(|_| narrow) {
        all.push(build(DECODE, decoded(dtype, dim, 2)));
    }
    all.extend([2, 4, 8].into_iter().filter(|_| narrow).map(|tiles| build(GEMV, some_rows(dtype, tiles))));
    for dim in [64, 128].into_iter().filter(|_| narrow) {
        for mask in [false, true] {
            all.push(build(ATTENTION_FORWARD, attend_forward(dtype, dim, mask).0));
            all.push(build(ATTENTION_KEYS, attend_keys(dtype, dim, mask).0));
            all.push(build(ATTENTION_QUERIES, attend_queries(dtype, dim, mask).0));
        }
        all.push(build(ATTENTION_FORWARD_TMA, attend_forward_tma(dtype, dim).0));
        all.push(build(ATTENTION_KEYS_TMA, attend_keys_tma(dtype, dim).0));
        all.push(build(ATTENTION_QUERIES_TMA, attend_queries_tma(dtype, dim).0));
    }
    let kinds: &[DType] = if narrow { &[dtype, DType::F32] } else { &[dtype] };
    for (&grad, &moment) in kinds.iter().flat_map(|grad| kinds.iter().map(move |moment| (grad, moment))) {
        all.push(build(SGD, stepped(dtype, grad, moment, false, false)));
        for max in [false, true] {
            all.push(build(ADAMW, stepped(dtype, grad, moment, false, max)));
            if narrow {
                all.push(build(ADAMW, stepped(dtype, grad, moment, true, max)));
            }
        }
    }
    all
}

/// The dtypes of training.
const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::BF16, DType::F16];
