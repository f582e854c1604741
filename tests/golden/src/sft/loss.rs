//! The loss of an update over data ranks and micro-batches, and its gradients.

use super::{Case, field, integer, number, tensor};
use anyhow::{Context, Result, ensure};
use planaria_array::ops::Reduction;
use planaria_data::IGNORED;
use planaria_data::chat::Json;
use planaria_tensor::Tensor;
use planaria_tensor::ops::{CrossEntropyOptions, cross_entropy};

/// The logits of a micro-batch, and the sum of the losses of all but their last place.
struct Micro {
    logits: Tensor,
    sum: Tensor,
    count: u64,
}

fn micro(given: &Json, label_smoothing: f64) -> Result<Micro> {
    let (shape, data) = tensor(field(given, "logits")?)?;
    let data: Vec<f32> = data.into_iter().map(|value| value as f32).collect();
    let logits = Tensor::from_slice(&data, &shape)?.requires_grad();
    let (places, labels) = tensor(field(given, "labels")?)?;
    let labels: Vec<i64> = labels.into_iter().map(|label| label as i64).collect();
    // What stands first in a row is predicted from nothing.
    let counted = labels.chunks(places[1]).flat_map(|row| &row[1..]).filter(|&&label| label != IGNORED);
    let count = counted.count() as u64;
    let length = places[1] - 1;
    let shifted = Tensor::from_slice(&labels, &places)?.narrow(1, 1, length)?;
    let options =
        CrossEntropyOptions { label_smoothing, reduction: Reduction::Sum, ..CrossEntropyOptions::default() };
    let sum = cross_entropy(&logits.narrow(1, 0, length)?, &shifted, &options)?;
    Ok(Micro { logits, sum, count })
}

pub(super) fn check(case: &Case) -> Result<()> {
    let smoothing = number(field(&case.given, "label_smoothing")?)?;
    let nested = |value: &Json| -> Result<Vec<Json>> {
        let ranks = value.as_list().context("not a list")?;
        Ok(ranks.iter().flat_map(|rank| rank.as_list().unwrap_or(&[])).cloned().collect())
    };
    let given = nested(field(&case.given, "ranks")?)?;
    let micros = given.iter().map(|given| micro(given, smoothing)).collect::<Result<Vec<_>>>()?;
    let count: u64 = micros.iter().map(|micro| micro.count).sum();
    let expected = integer(field(&case.out, "tokens")?)?;
    ensure!(count as i64 == expected, "{count} tokens are trained, expected {expected}");
    let mut loss = 0.0;
    for micro in &micros {
        let part = micro.sum.mul_scalar(1.0 / count.max(1) as f64)?;
        loss += part.item()?.as_f64();
        part.backward()?;
    }
    case.tol.check("loss", loss, number(field(&case.out, "loss")?)?)?;
    let grads = nested(field(&case.out, "grads")?)?;
    ensure!(
        grads.len() == micros.len(),
        "{} gradients are expected of {} micro-batches",
        grads.len(),
        micros.len()
    );
    for (micro, expected) in micros.iter().zip(&grads) {
        let found = micro.logits.grad().context("there is no gradient")?.to_vec::<f32>()?;
        let (_, expected) = tensor(expected)?;
        ensure!(found.len() == expected.len(), "a gradient has {} elements", found.len());
        for (&found, &expected) in found.iter().zip(&expected) {
            case.tol.check("a gradient", found.into(), expected)?;
        }
    }
    Ok(())
}
