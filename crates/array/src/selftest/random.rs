//! Random numbers: the host's bits.

use super::case::Case;
use super::compare::Tolerance;
use crate::array::Array;
use crate::ops::Distribution;
use crate::random::{Key, Normal, TruncatedNormal, Window};
use planaria_layout::DType;

pub(super) fn cases() -> Vec<Case> {
    let truncated = |mean, std, low, high| {
        Distribution::TruncatedNormal(TruncatedNormal { normal: Normal { mean, std }, low, high })
    };
    let distributions = [
        Distribution::Uniform { low: 0.0, high: 1.0 },
        Distribution::Uniform { low: -3.5, high: 2.25 },
        Distribution::Normal(Normal::STANDARD),
        Distribution::Normal(Normal { mean: 1.5, std: 0.02 }),
        truncated(0.0, 0.02, -0.04, 0.04),
        truncated(0.0, 1.0, 3.0, 9.0),
        Distribution::Bernoulli { p: 0.3 },
        Distribution::Bernoulli { p: 1.0 },
        Distribution::Integers { low: -7, high: 100 },
        Distribution::Integers { low: 0, high: 1 << 40 },
        Distribution::Integers { low: i64::MIN, high: i64::MAX },
    ];
    let boxes = Window::of_box(&[40, 30, 20], &[3, 5, 2], &[33, 29, 19]);
    let windows = [Some(Window::flat(0, 20_001)), Some(Window::flat(u64::MAX / 2 + 3, 777)), boxes.ok()];
    let mut all = Vec::new();
    for (w, window) in windows.into_iter().flatten().enumerate() {
        for distribution in distributions {
            for dtype in DType::ALL {
                let window = window.clone();
                let key = Key::new(0x1234_5678_9abc_def0, 77 + w as u64);
                let name = format!("{distribution:?} {dtype} window {w}");
                all.push(Case::new("random", name, Vec::new(), Tolerance::Bits, move |_, device| {
                    Ok(vec![Array::random_on(&window, distribution, dtype, key, device)?])
                }));
            }
        }
    }
    all
}
