//! Element types as safetensors files spell them.

use planaria_layout::DType;

/// Every type we know, in the order in which the reference writer sorts tensors (backwards).
const ORDER: [(DType, &str); 15] = [
    (DType::Bool, "BOOL"),
    (DType::U8, "U8"),
    (DType::I8, "I8"),
    (DType::F8E5M2, "F8_E5M2"),
    (DType::F8E4M3, "F8_E4M3"),
    (DType::I16, "I16"),
    (DType::U16, "U16"),
    (DType::F16, "F16"),
    (DType::BF16, "BF16"),
    (DType::I32, "I32"),
    (DType::U32, "U32"),
    (DType::F32, "F32"),
    (DType::F64, "F64"),
    (DType::I64, "I64"),
    (DType::U64, "U64"),
];

/// The name a header uses, as in `BF16`.
pub fn dtype_name(dtype: DType) -> &'static str {
    ORDER[order(dtype)].1
}

/// The type a header names; `None` for types that no array has ([`super::Foreign`] holds those that are carried).
pub fn parse_dtype(name: &str) -> Option<DType> {
    ORDER.iter().find(|(_, text)| *text == name).map(|(dtype, _)| *dtype)
}

/// Place in the order of the reference writer.
pub(super) fn order(dtype: DType) -> usize {
    ORDER.iter().position(|(other, _)| *other == dtype).unwrap_or(0)
}
