//! Long histories: backward holds few gradients at a time, and dropping them needs no stack. One test: the counter of
//! bytes is the process's.

use planaria_array::{DType, memory_stats, reset_peak};
use planaria_tensor::{Keep, Tensor};

/// Ops in the chain.
const DEEP: usize = 100_000;

/// Elements of its tensors.
const WIDE: usize = 64;

#[test]
fn a_deep_chain_holds_few_gradients_and_is_dropped_without_stack() {
    let x = Tensor::ones(&[WIDE], DType::F64).unwrap().requires_grad();
    let chain = |x: &Tensor| {
        let mut y = x.neg().unwrap();
        for _ in 1..DEEP {
            y = y.neg().unwrap();
        }
        y
    };
    let before = memory_stats().live;
    let y = chain(&x);
    let one = WIDE * 8;
    assert!(memory_stats().live - before <= 2 * one, "a chain that saves nothing keeps its last value only");
    let loss = y.sum(&[], Keep::No).unwrap();
    reset_peak();
    let start = memory_stats().live;
    loss.backward().unwrap();
    let extra = memory_stats().peak - start;
    assert!(extra <= 6 * one, "backward held {extra} bytes more, which is {} gradients", extra / one);
    assert_eq!(
        x.grad().unwrap().to_vec::<f64>().unwrap()[0],
        if DEEP.is_multiple_of(2) { 1.0 } else { -1.0 }
    );

    let saved = (0..DEEP).fold(x.clone(), |y, _| y.sin().unwrap());
    drop(saved);
    drop(chain(&x));
}
