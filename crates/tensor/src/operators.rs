//! `+ - * /` and unary `-` on tensors. They give a `Result`, like the methods they stand for: no operator panics.
//!
//! ```
//! use planaria_tensor::Tensor;
//!
//! let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[3])?;
//! let y = Tensor::from_slice(&[10.0f32, 20.0, 30.0], &[3])?;
//! // What one operator gives may stand on either side of the next; one `?` at the end says it all.
//! let z = (&x * &y + &x)?;
//! assert_eq!(z.to_vec::<f32>()?, [11.0, 42.0, 93.0]);
//! // Numbers take the dtype of the tensor.
//! assert_eq!((2.0 * &x - &y)?.to_vec::<f32>()?, [-8.0, -16.0, -24.0]);
//! // Shapes that do not fit are an error, not a panic.
//! assert!((&x + Tensor::from_slice(&[1.0f32, 2.0], &[2])?).is_err());
//! # Ok::<(), planaria_tensor::Error>(())
//! ```

use crate::error::Result;
use crate::tensor::Tensor;
use planaria_array::ops::Binary;
use planaria_array::{Array, Scalar};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// What may stand beside a tensor: a tensor, what another operator gave, or a number.
pub trait Operand {
    /// It as a tensor; a number takes the dtype of the tensor it stands beside.
    ///
    /// # Errors
    /// Those of the operator that should have given it, or a number that the dtype cannot hold.
    fn beside(self, other: &Tensor) -> Result<Tensor>;
}

impl Operand for &Tensor {
    fn beside(self, _: &Tensor) -> Result<Tensor> {
        Ok(self.clone())
    }
}

impl Operand for Tensor {
    fn beside(self, _: &Tensor) -> Result<Tensor> {
        Ok(self)
    }
}

impl Operand for Result<Tensor> {
    fn beside(self, _: &Tensor) -> Result<Tensor> {
        self
    }
}

impl Operand for f64 {
    fn beside(self, other: &Tensor) -> Result<Tensor> {
        number(self, other)
    }
}

impl Operand for i64 {
    fn beside(self, other: &Tensor) -> Result<Tensor> {
        number(self, other)
    }
}

fn number(value: impl Into<Scalar>, other: &Tensor) -> Result<Tensor> {
    Ok(Tensor::new(Array::scalar(value, other.dtype())?))
}

fn right(x: &Tensor, op: Binary, y: impl Operand) -> Result<Tensor> {
    x.binary(op, &y.beside(x)?)
}

fn left(x: impl Operand, op: Binary, y: &Tensor) -> Result<Tensor> {
    x.beside(y)?.binary(op, y)
}

impl<Y: Operand> Add<Y> for &Tensor {
    type Output = Result<Tensor>;

    fn add(self, y: Y) -> Result<Tensor> {
        right(self, Binary::Add, y)
    }
}

impl<Y: Operand> Add<Y> for Tensor {
    type Output = Result<Tensor>;

    fn add(self, y: Y) -> Result<Tensor> {
        right(&self, Binary::Add, y)
    }
}

impl Add<&Tensor> for Result<Tensor> {
    type Output = Result<Tensor>;

    fn add(self, y: &Tensor) -> Result<Tensor> {
        left(self, Binary::Add, y)
    }
}

impl Add<Tensor> for Result<Tensor> {
    type Output = Result<Tensor>;

    fn add(self, y: Tensor) -> Result<Tensor> {
        left(self, Binary::Add, &y)
    }
}

impl Add<&Tensor> for f64 {
    type Output = Result<Tensor>;

    fn add(self, y: &Tensor) -> Result<Tensor> {
        left(self, Binary::Add, y)
    }
}

impl Add<Tensor> for f64 {
    type Output = Result<Tensor>;

    fn add(self, y: Tensor) -> Result<Tensor> {
        left(self, Binary::Add, &y)
    }
}

impl<Y: Operand> Sub<Y> for &Tensor {
    type Output = Result<Tensor>;

    fn sub(self, y: Y) -> Result<Tensor> {
        right(self, Binary::Sub, y)
    }
}

impl<Y: Operand> Sub<Y> for Tensor {
    type Output = Result<Tensor>;

    fn sub(self, y: Y) -> Result<Tensor> {
        right(&self, Binary::Sub, y)
    }
}

impl Sub<&Tensor> for Result<Tensor> {
    type Output = Result<Tensor>;

    fn sub(self, y: &Tensor) -> Result<Tensor> {
        left(self, Binary::Sub, y)
    }
}

impl Sub<Tensor> for Result<Tensor> {
    type Output = Result<Tensor>;

    fn sub(self, y: Tensor) -> Result<Tensor> {
        left(self, Binary::Sub, &y)
    }
}

impl Sub<&Tensor> for f64 {
    type Output = Result<Tensor>;

    fn sub(self, y: &Tensor) -> Result<Tensor> {
        left(self, Binary::Sub, y)
    }
}

impl Sub<Tensor> for f64 {
    type Output = Result<Tensor>;

    fn sub(self, y: Tensor) -> Result<Tensor> {
        left(self, Binary::Sub, &y)
    }
}

impl<Y: Operand> Mul<Y> for &Tensor {
    type Output = Result<Tensor>;

    fn mul(self, y: Y) -> Result<Tensor> {
        right(self, Binary::Mul, y)
    }
}

impl<Y: Operand> Mul<Y> for Tensor {
    type Output = Result<Tensor>;

    fn mul(self, y: Y) -> Result<Tensor> {
        right(&self, Binary::Mul, y)
    }
}

impl Mul<&Tensor> for Result<Tensor> {
    type Output = Result<Tensor>;

    fn mul(self, y: &Tensor) -> Result<Tensor> {
        left(self, Binary::Mul, y)
    }
}

impl Mul<Tensor> for Result<Tensor> {
    type Output = Result<Tensor>;

    fn mul(self, y: Tensor) -> Result<Tensor> {
        left(self, Binary::Mul, &y)
    }
}

impl Mul<&Tensor> for f64 {
    type Output = Result<Tensor>;

    fn mul(self, y: &Tensor) -> Result<Tensor> {
        left(self, Binary::Mul, y)
    }
}

impl Mul<Tensor> for f64 {
    type Output = Result<Tensor>;

    fn mul(self, y: Tensor) -> Result<Tensor> {
        left(self, Binary::Mul, &y)
    }
}

impl<Y: Operand> Div<Y> for &Tensor {
    type Output = Result<Tensor>;

    fn div(self, y: Y) -> Result<Tensor> {
        right(self, Binary::Div, y)
    }
}

impl<Y: Operand> Div<Y> for Tensor {
    type Output = Result<Tensor>;

    fn div(self, y: Y) -> Result<Tensor> {
        right(&self, Binary::Div, y)
    }
}

impl Div<&Tensor> for Result<Tensor> {
    type Output = Result<Tensor>;

    fn div(self, y: &Tensor) -> Result<Tensor> {
        left(self, Binary::Div, y)
    }
}

impl Div<Tensor> for Result<Tensor> {
    type Output = Result<Tensor>;

    fn div(self, y: Tensor) -> Result<Tensor> {
        left(self, Binary::Div, &y)
    }
}

impl Div<&Tensor> for f64 {
    type Output = Result<Tensor>;

    fn div(self, y: &Tensor) -> Result<Tensor> {
        left(self, Binary::Div, y)
    }
}

impl Div<Tensor> for f64 {
    type Output = Result<Tensor>;

    fn div(self, y: Tensor) -> Result<Tensor> {
        left(self, Binary::Div, &y)
    }
}

impl Neg for &Tensor {
    type Output = Result<Tensor>;

    fn neg(self) -> Result<Tensor> {
        Tensor::neg(self)
    }
}

impl Neg for Tensor {
    type Output = Result<Tensor>;

    fn neg(self) -> Result<Tensor> {
        Tensor::neg(&self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_the_methods() {
        let tensor = |values: &[f64]| Tensor::from_slice(values, &[values.len()]).unwrap();
        let (x, y) = (tensor(&[1.0, -2.0]), tensor(&[4.0, 8.0]));
        let values = |z: Result<Tensor>| z.unwrap().to_vec::<f64>().unwrap();
        assert_eq!(values(&x + &y), [5.0, 6.0]);
        assert_eq!(values(&x - &y), [-3.0, -10.0]);
        assert_eq!(values(&x * &y), [4.0, -16.0]);
        assert_eq!(values(&x / &y), [0.25, -0.25]);
        assert_eq!(values(-&x), [-1.0, 2.0]);
        assert_eq!(values(8.0 / &x - &y), [4.0, -12.0]);
        assert_eq!(values(&y - &x * &y), [0.0, 24.0]);
        let integers = Tensor::from_slice(&[3i64, 4], &[2]).unwrap();
        assert_eq!((&integers * 2).unwrap().to_vec::<i64>().unwrap(), [6, 8]);
    }

    #[test]
    fn the_first_error_goes_through_a_chain() {
        let (x, y) = (
            Tensor::from_slice(&[1.0f32], &[1]).unwrap(),
            Tensor::from_slice(&[1.0f32; 6], &[2, 3]).unwrap(),
        );
        let wrong = Tensor::from_slice(&[1.0f32; 4], &[4]).unwrap();
        let error = (&y + &wrong) * &x;
        assert_eq!(error.unwrap_err().to_string(), y.binary(Binary::Add, &wrong).unwrap_err().to_string());
        assert!((&x - (&y / &wrong)).is_err());
    }
}
