//! Shapes: the extents of a tensor, checked once so that later arithmetic cannot overflow.

use crate::error::{Error, Result};
use smallvec::SmallVec;
use std::{fmt, ops::Deref};

/// A short list of extents, inline up to six dims.
pub type Dims = SmallVec<[usize; 6]>;

/// The extents of a tensor. The product of all non-zero extents fits in `isize`,
/// so strides and element counts computed from a `Shape` never overflow.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(Dims);

impl Shape {
    /// Checks the extents and keeps them.
    pub fn new(dims: &[usize]) -> Result<Shape> {
        Shape::from_dims(Dims::from_slice(dims))
    }

    /// Like [`Shape::new`] for extents already collected.
    pub fn from_dims(dims: Dims) -> Result<Shape> {
        let mut product: usize = 1;
        for &d in &dims {
            product = match product.checked_mul(d.max(1)) {
                // Eight bytes are the widest element: byte counts must fit as well.
                Some(p) if p <= isize::MAX as usize / 8 => p,
                _ => return Err(Error::ShapeTooLarge { shape: dims.to_vec() }),
            };
        }
        Ok(Shape(dims))
    }

    /// The extents.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// Number of dims.
    pub fn ndim(&self) -> usize {
        self.0.len()
    }

    /// Number of elements; 1 for a 0-d shape.
    pub fn numel(&self) -> usize {
        self.0.iter().product()
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{d}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_shapes_are_refused_even_when_empty() {
        assert!(Shape::new(&[usize::MAX, 2]).is_err());
        assert!(Shape::new(&[0, usize::MAX]).is_err());
        assert_eq!(Shape::new(&[0, 3]).unwrap().numel(), 0);
        assert_eq!(Shape::new(&[]).unwrap().numel(), 1);
        assert_eq!(Shape::new(&[4, 3]).unwrap().to_string(), "[4,3]");
    }
}
