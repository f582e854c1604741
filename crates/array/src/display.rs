//! How arrays print: dtype, shape and, when small, the values.

use crate::array::Array;
use crate::element::{Element, with_dtype};
use crate::error::Result;
use std::fmt;

/// Arrays with more elements print the first and the last few along every dim.
const SHOWN: usize = 1000;

/// How many at either end.
const EDGE: usize = 3;

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
        let texts: Vec<String> = with_dtype!(self.dtype(), T => {
            let seen = self.edges().map_err(|_| fmt::Error)?;
            let values = seen.to_vec::<T>().map_err(|_| fmt::Error)?;
            values.iter().map(|v| v.to_scalar().to_string()).collect()
        });
        f.write_str(" ")?;
        nested(f, self.shape(), self.numel() > SHOWN, &mut texts.into_iter())
    }
}

impl Array {
    /// The elements that print: both ends of every dim of a large array, which is not read beyond them.
    pub fn edges(&self) -> Result<Array> {
        let mut seen = self.clone();
        if self.numel() <= SHOWN {
            return Ok(seen);
        }
        for (dim, &len) in self.shape().iter().enumerate().filter(|(_, len)| **len > 2 * EDGE) {
            let ends = [seen.narrow(dim as i64, 0, EDGE)?, seen.narrow(dim as i64, len - EDGE, EDGE)?];
            seen = crate::ops::concat(&[&ends[0], &ends[1]], dim as i64)?;
        }
        Ok(seen)
    }
}

fn nested(
    f: &mut fmt::Formatter<'_>,
    shape: &[usize],
    short: bool,
    values: &mut impl Iterator<Item = String>,
) -> fmt::Result {
    let [len, inner @ ..] = shape else { return f.write_str(&values.next().unwrap_or_default()) };
    let gap = (short && *len > 2 * EDGE).then_some(EDGE);
    f.write_str("[")?;
    for i in 0..if gap.is_some() { 2 * EDGE } else { *len } {
        if i > 0 {
            f.write_str(", ")?;
        }
        if gap == Some(i) {
            f.write_str("..., ")?;
        }
        nested(f, inner, short, values)?;
    }
    f.write_str("]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn small_arrays_print_whole_and_large_ones_their_ends() {
        let count = |shape: &[usize]| {
            let numel = shape.iter().product::<usize>() as i64;
            Array::arange(0i64, numel, 1i64, DType::I64).unwrap().reshape(shape).unwrap()
        };
        assert_eq!(count(&[2, 3]).to_string(), "i64[2,3] [[0, 1, 2], [3, 4, 5]]");
        assert_eq!(count(&[0, 3]).to_string(), "i64[0,3] []");
        assert_eq!(count(&[2000]).to_string(), "i64[2000] [0, 1, 2, ..., 1997, 1998, 1999]");
        let text = count(&[2, 1000]).transpose(0, 1).unwrap().to_string();
        assert_eq!(
            text,
            "i64[1000,2] [[0, 1000], [1, 1001], [2, 1002], ..., [997, 1997], [998, 1998], [999, 1999]]"
        );
    }
}
