//! Which dtype two operands of different dtypes meet in.

use crate::error::{Error, Result};
use planaria_layout::{DType, DTypeKind};

/// The dtype that holds both: the wider of one kind, the narrowest signed integer that holds a signed and an unsigned one,
/// and the float where an integer or a truth value meets one. Refused where no dtype of the kind holds both
/// (`u64` and a signed integer).
pub fn promote(op: &'static str, a: DType, b: DType) -> Result<DType> {
    let (low, high) = if a.kind() <= b.kind() { (a, b) } else { (b, a) };
    let joined = match (low.kind(), high.kind()) {
        _ if low == high => Some(low),
        (DTypeKind::Bool, _) => Some(high),
        (DTypeKind::Unsigned, DTypeKind::Unsigned) | (DTypeKind::Signed, DTypeKind::Signed) => {
            Some(wider(low, high))
        }
        (DTypeKind::Unsigned, DTypeKind::Signed) if low.size() < high.size() => Some(high),
        (DTypeKind::Unsigned, DTypeKind::Signed) => signed(2 * low.size()),
        (DTypeKind::Float, DTypeKind::Float) => Some(float(low, high)),
        (_, DTypeKind::Float) => Some(high),
        _ => None,
    };
    joined.ok_or(Error::DTypeMismatch { op, lhs: a, rhs: b })
}

fn wider(a: DType, b: DType) -> DType {
    if a.size() >= b.size() { a } else { b }
}

/// Two formats of one size have no order: they meet in the next size that holds both.
fn float(a: DType, b: DType) -> DType {
    match (a.size(), b.size()) {
        (1, 1) => DType::F16,
        (2, 2) => DType::F32,
        _ => wider(a, b),
    }
}

fn signed(size: usize) -> Option<DType> {
    [DType::I16, DType::I32, DType::I64].into_iter().find(|d| d.size() == size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotion_is_symmetric_and_never_narrows() {
        for a in DType::ALL {
            for b in DType::ALL {
                let (there, back) = (promote("test", a, b), promote("test", b, a));
                assert_eq!(there.as_ref().ok(), back.as_ref().ok(), "{a} {b}");
                let refused =
                    [a, b].contains(&DType::U64) && [a.kind(), b.kind()].contains(&DTypeKind::Signed);
                match there {
                    Ok(c) => assert!(c.kind() >= a.kind().max(b.kind()) && !refused, "{a} {b} {c}"),
                    Err(error) => assert!(refused, "{error}"),
                }
            }
        }
        let case = |a, b| promote("test", a, b).unwrap();
        assert_eq!(case(DType::U8, DType::I8), DType::I16);
        assert_eq!(case(DType::U32, DType::I64), DType::I64);
        assert_eq!(case(DType::F16, DType::BF16), DType::F32);
        assert_eq!(case(DType::I64, DType::BF16), DType::BF16);
        assert_eq!(case(DType::F8E4M3, DType::F8E5M2), DType::F16);
    }
}
