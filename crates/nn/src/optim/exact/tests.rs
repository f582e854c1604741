//! Exactness, independence of splits, and rounding at the ends of the range.

use super::*;
use proptest::prelude::*;

fn of(values: &[f32]) -> ExactNorm {
    let mut sum = ExactNorm::new();
    sum.add(&Array::from_slice(values, &[values.len()]).unwrap()).unwrap();
    sum
}

fn of_f64(values: &[f64]) -> ExactNorm {
    let mut sum = ExactNorm::new();
    sum.add(&Array::from_slice(values, &[values.len()]).unwrap()).unwrap();
    sum
}

#[test]
fn one_square_is_exact_over_the_whole_range() {
    let tiny = f32::from_bits(1);
    for x in [0.0, tiny, 3.0 * tiny, f32::MIN_POSITIVE, 1e-20, 0.1, 1.0, -7.25, 1e20, f32::MAX] {
        assert_eq!(of(&[x]).squared(), f64::from(x) * f64::from(x), "{x}");
        assert_eq!(of_f64(&[f64::from(x)]).squared(), f64::from(x) * f64::from(x), "{x}");
    }
    let low = f64::from_bits(1);
    for x in [1e-162, 1.6e-162, 2.3e-160, 1e150, low, 1.0 / 3.0] {
        assert_eq!(of_f64(&[x]).squared(), x * x, "{x}");
    }
}

#[test]
fn rounding_happens_once_and_to_even() {
    // 1 + 2^-54: below half of the last place. With one more tiny square it is above.
    let (half, tiny) = (2f32.powi(-27), f32::MIN_POSITIVE);
    assert_eq!(of(&[1.0, half]).squared(), 1.0);
    // 2^-53 is a tie, which goes to the even one; anything on top goes up.
    assert_eq!(of(&[1.0, half, half]).squared(), 1.0);
    assert_eq!(of(&[1.0, half, half, tiny]).squared(), 1.0 + f64::EPSILON);
    assert_eq!(of_f64(&[1e154; 3]).squared(), f64::INFINITY.min(3.0 * 1e154f64.powi(2)));
    assert_eq!(of_f64(&[f64::MAX.sqrt() * 0.99; 2]).squared(), f64::INFINITY);
}

#[test]
fn what_is_not_finite_is_said() {
    assert!(of(&[1.0, f32::NAN]).squared().is_nan());
    assert_eq!(of(&[1.0, f32::NEG_INFINITY]).squared(), f64::INFINITY);
    assert!(of(&[f32::NAN, f32::INFINITY]).norm().is_nan());
    assert_eq!(of_f64(&[1e300]).squared(), f64::INFINITY);
    assert_eq!(ExactNorm::new().squared(), 0.0);
}

#[test]
fn many_elements_fill_no_limb() {
    let values = vec![f32::from_bits(0x3fff_ffff); 3 * BLOCK + 5];
    let square = f64::from(values[0]).powi(2);
    assert_eq!(of(&values).squared(), square * values.len() as f64);
}

#[test]
fn narrow_elements_count_as_they_are() {
    let x = Array::from_slice(&[1.5f32, 0.1, -3.0], &[3]).unwrap();
    for dtype in [DType::BF16, DType::F16] {
        let narrow = x.cast(dtype).unwrap();
        let mut sum = ExactNorm::new();
        sum.add(&narrow).unwrap();
        assert_eq!(sum, of(&narrow.cast(DType::F32).unwrap().to_vec::<f32>().unwrap()));
    }
    assert!(ExactNorm::new().add(&Array::zeros(&[1], DType::I32).unwrap()).is_err());
    assert!(ExactNorm::from_array(&Array::zeros(&[5], DType::I64).unwrap()).is_err());
}

fn any_finite() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |x| x.is_finite())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_split_and_order_gives_the_same(values in prop::collection::vec(any_finite(), 0..80), cuts in 1usize..6) {
        let whole = of(&values);
        let mut reversed = values.clone();
        reversed.reverse();
        prop_assert_eq!(&of(&reversed), &whole);
        // Over ranks: integers are added up.
        let parts: Vec<ExactNorm> = values.chunks(values.len().div_ceil(cuts).max(1)).map(of).collect();
        let mut words = Array::zeros(&[LIMBS + 2], DType::I64).unwrap();
        for part in parts.iter().rev() {
            words = words.add(&part.to_array().unwrap()).unwrap();
        }
        prop_assert_eq!(&ExactNorm::from_array(&words).unwrap(), &whole);
        let mut merged = ExactNorm::new();
        parts.iter().for_each(|part| merged.merge(part));
        prop_assert_eq!(&merged, &whole);
        prop_assert_eq!(merged.norm().to_bits(), whole.norm().to_bits());
        // Close to what f64 gives.
        let plain: f64 = values.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        prop_assert!((whole.squared() - plain).abs() <= plain * 1e-13);
        let wide: Vec<f64> = values.iter().map(|&v| f64::from(v)).collect();
        prop_assert_eq!(&of_f64(&wide), &whole);
    }
}
