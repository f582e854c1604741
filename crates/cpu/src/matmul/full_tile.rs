//! The full AVX-512 tile in assembly: 14 rows by 2 registers of sums.
//!
//! The compiler's own loop waits for its operands: panels of `b` come from the second-level cache and those of `a`
//! from further away. Here both are asked for well before they are multiplied.
#![allow(unsafe_code)]

use super::arch::{Order, Tile};
use super::vector::Vector;
use super::vector::x86::{F32x16, F64x8};
use std::arch::asm;

/// Rows of the tile.
pub(super) const ROWS: usize = 14;

/// One broadcast for two multiplications.
macro_rules! row {
    ($fma:literal, $broadcast:literal, $left:literal, $right:literal, $at:expr) => {
        concat!(
            $broadcast,
            " zmm30, [",
            $at,
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

/// The loop over depth: where the values of the fourteen rows are, what else is asked for, and more operands.
macro_rules! products {
    ($tile:ident, $sums:ident, $elem:ty, $load:literal, $fma:literal, $broadcast:literal, $ahead:literal,
     [$a0:expr, $a1:expr, $a2:expr, $a3:expr, $a4:expr, $a5:expr, $a6:expr, $a7:expr, $a8:expr, $a9:expr, $a10:expr, $a11:expr, $a12:expr, $a13:expr], $($more:tt)*) => {
        asm!(
            "2:",
            concat!($load, " zmm28, [{b}]"),
            concat!($load, " zmm29, [{b} + 64]"),
            // Sixteen rows on; behind the panel lies the next one. A prefetch never faults.
            "prefetcht0 [{b} + 2048]",
            "prefetcht0 [{b} + 2112]",
            $ahead,
            row!($fma, $broadcast, "0", "1", $a0),
            row!($fma, $broadcast, "2", "3", $a1),
            row!($fma, $broadcast, "4", "5", $a2),
            row!($fma, $broadcast, "6", "7", $a3),
            row!($fma, $broadcast, "8", "9", $a4),
            row!($fma, $broadcast, "10", "11", $a5),
            row!($fma, $broadcast, "12", "13", $a6),
            row!($fma, $broadcast, "14", "15", $a7),
            row!($fma, $broadcast, "16", "17", $a8),
            row!($fma, $broadcast, "18", "19", $a9),
            row!($fma, $broadcast, "20", "21", $a10),
            row!($fma, $broadcast, "22", "23", $a11),
            row!($fma, $broadcast, "24", "25", $a12),
            row!($fma, $broadcast, "26", "27", $a13),
            "add {a}, {step}",
            "add {b}, {ldb}",
            "dec {n}",
            "jnz 2b",
            a = inout(reg) $tile.a => _,
            b = inout(reg) $tile.b => _,
            n = inout(reg) $tile.depth => _,
            ldb = in(reg) $tile.ldb * size_of::<$elem>(),
            $($more)*
            inout("zmm0") $sums[0][0].0, inout("zmm1") $sums[0][1].0,
            inout("zmm2") $sums[1][0].0, inout("zmm3") $sums[1][1].0,
            inout("zmm4") $sums[2][0].0, inout("zmm5") $sums[2][1].0,
            inout("zmm6") $sums[3][0].0, inout("zmm7") $sums[3][1].0,
            inout("zmm8") $sums[4][0].0, inout("zmm9") $sums[4][1].0,
            inout("zmm10") $sums[5][0].0, inout("zmm11") $sums[5][1].0,
            inout("zmm12") $sums[6][0].0, inout("zmm13") $sums[6][1].0,
            inout("zmm14") $sums[7][0].0, inout("zmm15") $sums[7][1].0,
            inout("zmm16") $sums[8][0].0, inout("zmm17") $sums[8][1].0,
            inout("zmm18") $sums[9][0].0, inout("zmm19") $sums[9][1].0,
            inout("zmm20") $sums[10][0].0, inout("zmm21") $sums[10][1].0,
            inout("zmm22") $sums[11][0].0, inout("zmm23") $sums[11][1].0,
            inout("zmm24") $sums[12][0].0, inout("zmm25") $sums[12][1].0,
            inout("zmm26") $sums[13][0].0, inout("zmm27") $sums[13][1].0,
            out("zmm28") _, out("zmm29") _, out("zmm30") _,
            options(nostack, readonly)
        )
    };
}

/// The sums of a tile of full height and width.
type Sums<V> = [[V; 2]; ROWS];

/// The sums of a tile of full height and width.
///
/// # Safety
/// The CPU has AVX-512; `tile` is as its type says, with at least one of depth.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn single(tile: &Tile<f32>) -> Option<Sums<F32x16>> {
    // SAFETY: the CPU has the instruction.
    let mut sums = [[unsafe { <F32x16 as Vector>::zero() }; 2]; ROWS];
    // SAFETY: reads `depth` groups of 14, or `depth` of 14 rows, from `a` and two registers from each row of `b`;
    // every register it changes is an operand.
    unsafe {
        match tile.order {
            Order::Groups(step) => products!(
                tile, sums, f32, "vmovups", "vfmadd231ps", "vbroadcastss", "prefetcht0 [{a} + 896]",
                ["{a}", "{a} + 4", "{a} + 8", "{a} + 12", "{a} + 16", "{a} + 20", "{a} + 24", "{a} + 28", "{a} + 32",
                 "{a} + 36", "{a} + 40", "{a} + 44", "{a} + 48", "{a} + 52"],
                step = in(reg) step * size_of::<f32>(),
            ),
            Order::Rows(stride) => {
                // One, two, four and eight times a register are addressing modes.
                let stride = stride * size_of::<f32>() as isize;
                products!(
                    tile, sums, f32, "vmovups", "vfmadd231ps", "vbroadcastss", "",
                    ["{a}", "{a} + {one}", "{a} + 2*{one}", "{a} + {three}", "{a} + 4*{one}", "{a} + {five}",
                     "{a} + 2*{three}", "{a} + {seven}", "{a} + 8*{one}", "{a} + {nine}", "{a} + 2*{five}",
                     "{a} + {eleven}", "{a} + 4*{three}", "{a} + {thirteen}"],
                    step = const size_of::<f32>(),
                    one = in(reg) stride, three = in(reg) 3 * stride, five = in(reg) 5 * stride,
                    seven = in(reg) 7 * stride, nine = in(reg) 9 * stride, eleven = in(reg) 11 * stride,
                    thirteen = in(reg) 13 * stride,
                );
            }
        }
    }
    Some(sums)
}

/// The same of eight bytes, which are not read in rows.
///
/// # Safety
/// As for [`single`].
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn double(tile: &Tile<f64>) -> Option<Sums<F64x8>> {
    let Order::Groups(step) = tile.order else { return None };
    // SAFETY: the CPU has the instruction.
    let mut sums = [[unsafe { <F64x8 as Vector>::zero() }; 2]; ROWS];
    // SAFETY: as above.
    unsafe {
        products!(
            tile, sums, f64, "vmovupd", "vfmadd231pd", "vbroadcastsd", "prefetcht0 [{a} + 896]",
            ["{a}", "{a} + 8", "{a} + 16", "{a} + 24", "{a} + 32", "{a} + 40", "{a} + 48", "{a} + 56", "{a} + 64",
             "{a} + 72", "{a} + 80", "{a} + 88", "{a} + 96", "{a} + 104"],
            step = in(reg) step * size_of::<f64>(),
        );
    }
    Some(sums)
}
