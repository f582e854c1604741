//! The full AVX-512 tile in assembly: 14 rows by 2 registers of sums.
//!
//! The compiler's own loop waits for its operands: panels of `b` come from the second-level cache and those of `a`
//! from further away. Here both are asked for well before they are multiplied.
#![allow(unsafe_code)]

use super::arch::Tile;
use super::vector::Vector;
use super::vector::x86::{F32x16, F64x8};
use std::arch::asm;

/// Rows of the tile.
pub(super) const ROWS: usize = 14;

/// One broadcast for two multiplications.
macro_rules! row {
    ($fma:literal, $broadcast:literal, $left:literal, $right:literal, $at:literal, $size:literal) => {
        concat!(
            $broadcast,
            " zmm30, [{a} + ",
            $at,
            $size,
            "]\n",
            $fma,
            " zmm",
            $left,
            ", zmm28, zmm30\n",
            $fma,
            " zmm",
            $right,
            ", zmm29, zmm30",
        )
    };
}

macro_rules! full_tile {
    ($name:ident, $elem:ty, $vector:ident, $load:literal, $fma:literal, $broadcast:literal, $size:literal) => {
/// The sums of a tile of full height and width whose left groups lie `step` apart.
        ///
        /// # Safety
        /// The CPU has AVX-512; `tile` is as its type says, in groups, with at least one of depth.
        #[inline]
        #[target_feature(enable = "avx512f")]
        #[rustfmt::skip]
        pub(super) unsafe fn $name(tile: &Tile<$elem>, step: usize) -> [[$vector; 2]; ROWS] {
            // SAFETY: the CPU has the instruction.
            let mut sums = [[unsafe { <$vector as Vector>::zero() }; 2]; ROWS];
            // SAFETY: reads `depth` groups of 14 from `a` and two registers from each row of `b`; every
            // register it changes is an operand.
            unsafe {
                asm!(
                    "2:",
                    concat!($load, " zmm28, [{b}]"),
                    concat!($load, " zmm29, [{b} + 64]"),
                    // Sixteen rows on; behind the panel lies the next one. A prefetch never faults.
                    "prefetcht0 [{b} + 2048]",
                    "prefetcht0 [{b} + 2112]",
                    "prefetcht0 [{a} + 896]",
                    row!($fma, $broadcast, "0", "1", "0*", $size),
                    row!($fma, $broadcast, "2", "3", "1*", $size),
                    row!($fma, $broadcast, "4", "5", "2*", $size),
                    row!($fma, $broadcast, "6", "7", "3*", $size),
                    row!($fma, $broadcast, "8", "9", "4*", $size),
                    row!($fma, $broadcast, "10", "11", "5*", $size),
                    row!($fma, $broadcast, "12", "13", "6*", $size),
                    row!($fma, $broadcast, "14", "15", "7*", $size),
                    row!($fma, $broadcast, "16", "17", "8*", $size),
                    row!($fma, $broadcast, "18", "19", "9*", $size),
                    row!($fma, $broadcast, "20", "21", "10*", $size),
                    row!($fma, $broadcast, "22", "23", "11*", $size),
                    row!($fma, $broadcast, "24", "25", "12*", $size),
                    row!($fma, $broadcast, "26", "27", "13*", $size),
                    "add {a}, {step}",
                    "add {b}, {ldb}",
                    "dec {n}",
                    "jnz 2b",
                    a = inout(reg) tile.a => _,
                    b = inout(reg) tile.b => _,
                    n = inout(reg) tile.depth => _,
                    ldb = in(reg) tile.ldb * size_of::<$elem>(),
                    step = in(reg) step * size_of::<$elem>(),
                    inout("zmm0") sums[0][0].0, inout("zmm1") sums[0][1].0,
                    inout("zmm2") sums[1][0].0, inout("zmm3") sums[1][1].0,
                    inout("zmm4") sums[2][0].0, inout("zmm5") sums[2][1].0,
                    inout("zmm6") sums[3][0].0, inout("zmm7") sums[3][1].0,
                    inout("zmm8") sums[4][0].0, inout("zmm9") sums[4][1].0,
                    inout("zmm10") sums[5][0].0, inout("zmm11") sums[5][1].0,
                    inout("zmm12") sums[6][0].0, inout("zmm13") sums[6][1].0,
                    inout("zmm14") sums[7][0].0, inout("zmm15") sums[7][1].0,
                    inout("zmm16") sums[8][0].0, inout("zmm17") sums[8][1].0,
                    inout("zmm18") sums[9][0].0, inout("zmm19") sums[9][1].0,
                    inout("zmm20") sums[10][0].0, inout("zmm21") sums[10][1].0,
                    inout("zmm22") sums[11][0].0, inout("zmm23") sums[11][1].0,
                    inout("zmm24") sums[12][0].0, inout("zmm25") sums[12][1].0,
                    inout("zmm26") sums[13][0].0, inout("zmm27") sums[13][1].0,
                    out("zmm28") _, out("zmm29") _, out("zmm30") _,
                    options(nostack, readonly)
                );
            }
            sums
        }
    };
}
full_tile!(single, f32, F32x16, "vmovups", "vfmadd231ps", "vbroadcastss", "4");
full_tile!(double, f64, F64x8, "vmovupd", "vfmadd231pd", "vbroadcastsd", "8");
