//! Running means of parameters.

use crate::error::{Error, Result};
use planaria_array::ops::Binary;
use planaria_array::{Array, DType};

/// How the values of a parameter count in its mean, by their age.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ema {
    /// Each counts this much of the one after it.
    Decay(f64),
    /// As this power of the time at which it was: the mean stretches with the run.
    Power(f64),
}

impl Ema {
    /// `decay` is what the mean so far counts in the next, from 0 up to but not 1.
    pub fn new(decay: f64) -> Result<Ema> {
        match (0.0..1.0).contains(&decay) {
            true => Ok(Ema::Decay(decay)),
            false => Err(refused(format!("decay must be at least 0 and below 1, got {decay}"))),
        }
    }

    /// The power function whose standard deviation is this part of the time so far; 0.1 averages about the last tenth.
    pub fn power(sigma: f64) -> Result<Ema> {
        let most = width(0.0);
        if !(sigma > 1e-4 && sigma <= most) {
            return Err(refused(format!("sigma must be above 0.0001 and at most {most:.4}, got {sigma}")));
        }
        // The width falls as the power grows.
        let (mut low, mut high) = (0.0, 1e9);
        for _ in 0..200 {
            let middle = 0.5 * (low + high);
            if width(middle) > sigma { low = middle } else { high = middle }
        }
        Ok(Ema::Power(low))
    }

    /// The mean before the first step: the parameter's values, in f32 for narrow ones. It counts for nothing once there is a value.
    pub fn start(&self, param: &Array) -> Result<Array> {
        let narrow = matches!(param.dtype(), DType::BF16 | DType::F16);
        Ok(if narrow { param.cast(DType::F32)? } else { param.copy()? })
    }

    /// What value number `number`, from 1, counts in the mean of it and all before it. The first counts for all, so that no start is
    /// left in the mean.
    pub fn gain(&self, number: u64) -> f64 {
        let number = number.max(1) as f64;
        match *self {
            // 1 - d over 1 - d^n, which is exact also where both are close to 0.
            Ema::Decay(decay) if decay > 0.0 => (1.0 - decay) / -(number * decay.ln()).exp_m1(),
            Ema::Decay(_) => 1.0,
            // 1 - (1 - 1/n)^(power + 1).
            Ema::Power(_) if number == 1.0 => 1.0,
            Ema::Power(power) => -((power + 1.0) * (-1.0 / number).ln_1p()).exp_m1(),
        }
    }

    /// `mean += gain * (param - mean)` in place, for value number `number` from 1.
    pub fn update(&self, mean: &Array, param: &Array, number: u64) -> Result<()> {
        let gain = self.gain(number);
        let now = param.cast(mean.dtype())?;
        if gain == 1.0 {
            return Ok(mean.copy_from(&now)?);
        }
        let step = now.sub(mean)?;
        step.binary_in_place(Binary::Mul, &Array::scalar(gain, mean.dtype())?)?;
        Ok(mean.binary_in_place(Binary::Add, &step)?)
    }
}

fn refused(message: String) -> Error {
    Error::Argument { what: "ema", message }
}

/// Standard deviation of the ages that a power function counts, as part of the time so far.
fn width(power: f64) -> f64 {
    (power + 1.0).sqrt() / ((power + 2.0) * (power + 3.0).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_is_the_mean_and_narrow_ones_are_kept_wide() {
        let ema = Ema::new(0.75).unwrap();
        let param = Array::from_slice(&[1.0f32, -2.0], &[2]).unwrap();
        let mean = ema.start(&param).unwrap();
        param.fill(5.0).unwrap();
        ema.update(&mean, &param, 1).unwrap();
        assert_eq!(mean.to_vec::<f32>().unwrap(), [5.0, 5.0]);
        let narrow = ema.start(&param.cast(DType::BF16).unwrap()).unwrap();
        assert_eq!(narrow.dtype(), DType::F32);
        assert!(Ema::new(1.0).is_err() && Ema::power(0.3).is_err() && Ema::power(0.0).is_err());
    }

    #[test]
    fn widths_give_the_powers_of_the_literature() {
        // Karras et al. 2024: sigma 0.05 and 0.1 are powers 16.97 and 6.94.
        let power = |sigma| match Ema::power(sigma).unwrap() {
            Ema::Power(power) => power,
            Ema::Decay(_) => f64::NAN,
        };
        assert!((power(0.05) - 16.97).abs() < 0.01 && (power(0.1) - 6.94).abs() < 0.01);
        assert!((width(power(0.2)) - 0.2).abs() < 1e-12);
    }

    #[test]
    fn means_of_a_thousand_values_are_those_of_float64() {
        let value =
            |step: u64, at: usize| ((step as f64 * 0.37 + at as f64).sin() + step as f64 / 500.0) as f32;
        for ema in [
            Ema::new(0.999).unwrap(),
            Ema::new(0.5).unwrap(),
            Ema::power(0.05).unwrap(),
            Ema::power(0.1).unwrap(),
        ] {
            let param = Array::from_slice(&[0.0f32; 5], &[5]).unwrap();
            let mean = ema.start(&param).unwrap();
            // Values weighted as the definition says, summed once at the end.
            let weight = |step: u64, last: u64| match ema {
                Ema::Decay(decay) => decay.powi((last - step) as i32),
                // The product of what later values leave.
                Ema::Power(_) => {
                    (step + 1..=last).fold(ema.gain(step), |w, later| w * (1.0 - ema.gain(later)))
                }
            };
            for step in 1..=1000 {
                let now: Vec<f32> = (0..5).map(|at| value(step, at)).collect();
                param.copy_from(&Array::from_slice(&now, &[5]).unwrap()).unwrap();
                ema.update(&mean, &param, step).unwrap();
            }
            let weights: Vec<f64> = (1..=1000).map(|step| weight(step, 1000)).collect();
            let total: f64 = weights.iter().sum();
            for (at, found) in mean.to_vec::<f32>().unwrap().into_iter().enumerate() {
                let sum: f64 = weights.iter().zip(1..).map(|(w, step)| w * f64::from(value(step, at))).sum();
                assert!(
                    (f64::from(found) - sum / total).abs() < 2e-6 * (1.0 + sum.abs() / total),
                    "{ema:?} {found} {}",
                    sum / total
                );
            }
        }
    }
}
