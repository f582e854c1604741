//! Values that an element type cannot hold: counted while they are cast, so that infinities in a result are no surprise.

use super::Conversion;
use super::made::Made;
use crate::error::Result;
use crate::formats::Key;
use planaria_array::Array;
use planaria_layout::DType;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Half a step above the largest f8e4m3, which has no infinity and takes the place of everything beyond.
const E4M3: f64 = 464.0;

/// How many values of each tensor that is written had no room.
#[derive(Debug, Default)]
pub(super) struct Beyond(Vec<AtomicU64>);

impl Beyond {
    pub(super) fn of(made: &[Made]) -> Beyond {
        Beyond(made.iter().map(|_| AtomicU64::new(0)).collect())
    }

    /// Forgets what an earlier run counted.
    pub(super) fn begin(&self) {
        self.0.iter().for_each(|count| count.store(0, Relaxed));
    }

    pub(super) fn add(&self, tensor: usize, values: u64) {
        self.0[tensor].fetch_add(values, Relaxed);
    }

    /// What this rank counted, for the others.
    pub(super) fn told(&self) -> Vec<u8> {
        self.0.iter().flat_map(|count| count.load(Relaxed).to_le_bytes()).collect()
    }

    /// Adds what another rank counted.
    pub(super) fn hear(&self, told: &[u8]) {
        let counts = told.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        self.0.iter().zip(counts).for_each(|(count, more)| _ = count.fetch_add(more, Relaxed));
    }
}

impl Conversion<'_> {
    /// Tensors with values that their element type as written cannot hold, and how many: finite before, and not any more, or
    /// the largest of f8e4m3 instead of themselves. What is too small is rounded, perhaps to zero, and does not count. Known once
    /// the conversion was carried out; tensors that are computed are not looked at.
    pub fn out_of_range(&self) -> Vec<(&Key, u64)> {
        let counts = self.beyond.0.iter().map(|count| count.load(Relaxed));
        self.made.iter().map(|made| &made.key).zip(counts).filter(|(_, count)| *count > 0).collect()
    }

    /// The same in words; none where every value had room.
    pub fn out_of_range_warning(&self) -> Option<String> {
        let found = self.out_of_range();
        let (first, of_first) = found.first()?;
        let values: u64 = found.iter().map(|(_, count)| count).sum();
        let dtype = self.made.iter().find(|made| made.key == **first)?.dtype;
        let number = |n: u64, noun: &str| if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") };
        let became = if dtype == DType::F8E4M3 { "448, its largest" } else { "infinite" };
        Some(format!(
            "{} of {} had no room in {dtype} and became {became} ('{first}' has {of_first}); bf16 has the range of f32",
            number(values, "value"),
            number(found.len() as u64, "tensor"),
        ))
    }
}

/// How many values had no room on their way through the element types of `chain`.
pub(super) fn beyond(before: &Array, after: &Array, chain: &[DType]) -> Result<u64> {
    if !before.dtype().is_float() || !after.dtype().is_float() {
        return Ok(0);
    }
    let count = |flags: &[u8]| flags.iter().filter(|flag| **flag != 0).count() as u64;
    if chain.contains(&DType::F8E4M3) {
        let limit = Array::from_slice(&[E4M3], &[1])?;
        let large = before.cast(DType::F64)?.abs()?.gt(&limit)?;
        return Ok(count(&large.bytes()?));
    }
    if !has_special(&after.bytes()?, after.dtype()) {
        return Ok(0);
    }
    let (before, after) = (before.is_finite()?, after.is_finite()?);
    Ok(count(&before.logical_xor(&after)?.bytes()?))
}

/// Whether there is any infinity or NaN. Nearly always there is none, so this is all that is done for most values.
fn has_special(bytes: &[u8], dtype: DType) -> bool {
    fn any<const N: usize>(bytes: &[u8], mask: [u8; N]) -> bool {
        bytes
            .as_chunks::<N>()
            .0
            .iter()
            .any(|value| value.iter().zip(&mask).all(|(byte, mask)| byte & mask == *mask))
    }
    match dtype {
        DType::F8E5M2 => any(bytes, [0x7c]),
        DType::F16 => any(bytes, 0x7c00u16.to_le_bytes()),
        DType::BF16 => any(bytes, 0x7f80u16.to_le_bytes()),
        DType::F32 => any(bytes, 0x7f80_0000u32.to_le_bytes()),
        DType::F64 => any(bytes, 0x7ff0_0000_0000_0000u64.to_le_bytes()),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_count_where_they_were_finite_and_are_not_any_more() {
        let values =
            [1.0, 65504.0, 65519.0, 65520.0, -7e4, 1e-30, f32::INFINITY, f32::NAN, 3e38, 463.0, 465.0];
        let before = Array::from_slice(&values, &[values.len()]).unwrap();
        let counted = |chain: &[DType]| {
            let after = chain.iter().fold(before.clone(), |array, dtype| array.cast(*dtype).unwrap());
            beyond(&before, &after, chain).unwrap()
        };
        assert_eq!(counted(&[DType::F16]), 3);
        assert_eq!(counted(&[DType::F16, DType::F32]), 3, "what was lost on the way does not come back");
        assert_eq!(counted(&[DType::BF16]), 0);
        assert_eq!(counted(&[DType::F64]), 0);
        assert_eq!(counted(&[DType::F8E5M2]), 5);
        assert_eq!(counted(&[DType::F8E4M3]), 7, "an infinity is the largest value too");
        let all = [DType::F8E5M2, DType::F16, DType::BF16, DType::F32, DType::F64];
        for dtype in all {
            let finite = Array::from_slice(&[1.0f32, -2.5, 0.0], &[3]).unwrap().cast(dtype).unwrap();
            assert!(!has_special(&finite.bytes().unwrap(), dtype), "{dtype}");
            let array = before.cast(dtype).unwrap();
            assert!(has_special(&array.bytes().unwrap(), dtype), "{dtype}");
        }
    }
}
