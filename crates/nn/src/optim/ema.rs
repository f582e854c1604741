//! Running means of parameters.

use crate::error::{Error, Result};
use planaria_array::ops::Binary;
use planaria_array::{Array, DType};

/// An exponential moving average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ema {
    decay: f64,
}

impl Ema {
    /// `decay` is what the mean so far counts in the next, from 0 up to but not 1.
    pub fn new(decay: f64) -> Result<Ema> {
        if !(0.0..1.0).contains(&decay) {
            let message = format!("decay must be at least 0 and below 1, got {decay}");
            return Err(Error::Argument { what: "ema", message });
        }
        Ok(Ema { decay })
    }

    /// The mean before the first step: the parameter's values, in f32 for narrow ones.
    pub fn start(&self, param: &Array) -> Result<Array> {
        let narrow = matches!(param.dtype(), DType::BF16 | DType::F16);
        Ok(if narrow { param.cast(DType::F32)? } else { param.copy()? })
    }

    /// `mean += (1 - decay) * (param - mean)`, in place.
    pub fn update(&self, mean: &Array, param: &Array) -> Result<()> {
        let step = param.cast(mean.dtype())?.sub(mean)?;
        step.binary_in_place(Binary::Mul, &Array::scalar(1.0 - self.decay, mean.dtype())?)?;
        Ok(mean.binary_in_place(Binary::Add, &step)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_follows_its_parameter() {
        let ema = Ema::new(0.75).unwrap();
        let param = Array::from_slice(&[1.0f32, -2.0], &[2]).unwrap();
        let mean = ema.start(&param).unwrap();
        param.fill(5.0).unwrap();
        ema.update(&mean, &param).unwrap();
        assert_eq!(mean.to_vec::<f32>().unwrap(), [2.0, -0.25]);
        let narrow = ema.start(&param.cast(DType::BF16).unwrap()).unwrap();
        assert_eq!(narrow.dtype(), DType::F32);
        assert!(Ema::new(1.0).is_err());
    }
}
