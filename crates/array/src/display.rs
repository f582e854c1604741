//! How arrays print: dtype, shape and, when small, the values.

use crate::array::Array;
use crate::element::{Element, with_dtype};
use std::fmt;

/// Arrays with more elements print without their values.
const SHOWN: usize = 1000;

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype(), self.shape())?;
        if self.is_meta() {
            return f.write_str(" on meta");
        }
        if self.numel() > SHOWN {
            return Ok(());
        }
        let texts: Vec<String> = with_dtype!(self.dtype(), T => {
            let values = self.values::<T>("display").map_err(|_| fmt::Error)?;
            values.iter().map(|v| v.to_scalar().to_string()).collect()
        });
        f.write_str(" ")?;
        let mut texts = texts.into_iter();
        nested(f, self.shape(), &mut texts)
    }
}

fn nested(
    f: &mut fmt::Formatter<'_>,
    shape: &[usize],
    values: &mut impl Iterator<Item = String>,
) -> fmt::Result {
    let [len, inner @ ..] = shape else { return f.write_str(&values.next().unwrap_or_default()) };
    f.write_str("[")?;
    for i in 0..*len {
        if i > 0 {
            f.write_str(", ")?;
        }
        nested(f, inner, values)?;
    }
    f.write_str("]")
}
