//! Accuracy of the elementary functions against the platform's f64 library.

use super::*;

fn relative(ours: f64, want: f64) -> f64 {
    if ours == want { 0.0 } else { ((ours - want) / want).abs() }
}

#[test]
fn logarithms_are_accurate_to_a_few_units_in_the_last_place() {
    let mut x = 2f64.powi(-53);
    while x < 1.0 {
        assert!(relative(ln_f64(x), x.ln()) < 5e-16, "ln {x}: {} {}", ln_f64(x), x.ln());
        let y = x as f32;
        assert!(relative(ln_f32(y).into(), f64::from(y).ln()) < 2.5e-7 || y == 1.0, "ln {y}: {}", ln_f32(y));
        x *= 1.000_37;
    }
    for k in 1..2000 {
        let x = 1.0 - f64::from(k) * 2f64.powi(-24);
        assert!(relative(ln_f64(x), (x - 1.0).ln_1p()) < 5e-16);
        assert!(relative(ln_f32(x as f32).into(), (x - 1.0).ln_1p()) < 2.5e-7);
    }
    assert_eq!((ln_f32(1.0), ln_f64(1.0)), (0.0, 0.0));
}

#[test]
fn sines_and_cosines_of_turns_are_accurate() {
    for i in 0..200_000u64 {
        let turn = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let angle = turn as f64 / 2f64.powi(64) * TAU;
        let (sin, cos) = sin_cos_turn_f64(turn);
        // The reference's own angle is only good to 7e-16 in the last quarter.
        assert!((sin - angle.sin()).abs() < 2e-15 && (cos - angle.cos()).abs() < 2e-15, "turn {turn}");
        let word = (turn >> 32) as u32;
        let angle = f64::from(word) / 2f64.powi(32) * TAU;
        let (sin, cos) = sin_cos_turn_f32(word);
        assert!((f64::from(sin) - angle.sin()).abs() < 1.2e-7, "turn {word}: {sin}");
        assert!((f64::from(cos) - angle.cos()).abs() < 1.2e-7, "turn {word}: {cos}");
    }
    assert_eq!(sin_cos_turn_f32(0), (0.0, 1.0));
    assert_eq!(sin_cos_turn_f32(1 << 30), (1.0, 0.0));
    assert_eq!(sin_cos_turn_f64(1 << 63), (0.0, -1.0));
    assert_eq!(sin_cos_turn_f64(3 << 62), (-1.0, 0.0));
}

#[test]
fn quantiles_match_published_values() {
    // Standard tables of the normal distribution, to the digits they print.
    for (p, x) in [
        (0.5, 0.0),
        (0.841_344_746_068_542_9, 1.0),
        (0.975, 1.959_963_984_540_054),
        (0.995, 2.575_829_303_548_900_4),
        (0.999, 3.090_232_306_167_813_5),
        (0.022_750_131_948_179_21, -2.0),
        (2.866_515_718_791_933e-7, -5.0),
        (6.220_960_574_271_785e-16, -8.0),
        (7.619_853_024_160_527e-24, -10.0),
        (2.753_624_118_606_233e-89, -20.0),
    ] {
        assert!(
            (normal_quantile(p) - x).abs() <= 4e-15 * x.abs().max(1.0),
            "{p}: {} {x}",
            normal_quantile(p)
        );
        assert!(relative(normal_below(x), p) < 1e-13 * (1.0 + x * x), "{x}: {} {p}", normal_below(x));
    }
}
