//! First and second gradients of every op of the table against central differences.

use planaria_array::{Array, DType};
use planaria_tensor::ops::sample::{Draw, Sample};
use planaria_tensor::ops::{Entry, TABLE};
use planaria_tensor::{GradOptions, Result, Tensor, grad};

/// Calls of each family.
const CALLS: u64 = 40;

/// Half the distance of the two points of a difference.
const STEP: f64 = 1e-5;

/// The worst difference, relative to the size of what is compared.
const BOUND: f64 = 3e-6;

#[test]
fn gradients_are_those_of_finite_differences() {
    let failures: Vec<String> = TABLE.iter().flat_map(family).collect();
    assert!(
        failures.is_empty(),
        "{} failures, first:\n{}",
        failures.len(),
        failures[..failures.len().min(8)].join("\n")
    );
}

fn family(entry: &Entry) -> Vec<String> {
    let mut failures = Vec::new();
    for seed in 0..CALLS {
        let mut draw = Draw::new(seed);
        let sample = (entry.sample)(&mut draw).unwrap();
        if let Err(message) = check(&sample, &mut draw) {
            let shapes: Vec<String> =
                sample.inputs.iter().map(|a| format!("{}{}", a.dtype(), a.shape())).collect();
            failures.push(format!("{} seed {seed} {} {shapes:?}: {message}", entry.family, sample.name));
        }
    }
    failures
}

/// A number made from the sample's inputs, and its gradients.
struct Function<'a> {
    sample: &'a Sample,
    /// Inputs that are varied.
    varied: Vec<usize>,
    /// A weight for each output; absent for outputs without derivative.
    weights: Vec<Option<Array>>,
}

impl Function<'_> {
    fn inputs(&self, arrays: &[Array]) -> Vec<Tensor> {
        let leaf = |(i, a): (usize, &Array)| {
            let tensor = Tensor::new(a.clone());
            if self.varied.contains(&i) { tensor.requires_grad() } else { tensor }
        };
        arrays.iter().enumerate().map(leaf).collect()
    }

    fn value(&self, arrays: &[Array]) -> Result<f64> {
        let inputs: Vec<Tensor> = arrays.iter().map(|a| Tensor::new(a.clone())).collect();
        let outputs = self.sample.run(&inputs.iter().collect::<Vec<_>>())?;
        Ok(outputs
            .iter()
            .zip(&self.weights)
            .map(|(y, w)| w.as_ref().map_or(0.0, |w| dot(y.local(), w)))
            .sum())
    }

    /// Gradients of the inputs that are varied; zeros where there are none.
    fn gradients(&self, inputs: &[Tensor], differentiable: bool) -> Result<Vec<Option<Tensor>>> {
        let outputs = self.sample.run(&inputs.iter().collect::<Vec<_>>())?;
        let weights: Vec<Option<Tensor>> = self.weights.iter().map(|w| w.clone().map(Tensor::new)).collect();
        let used: Vec<usize> =
            (0..outputs.len()).filter(|&i| weights[i].is_some() && outputs[i].has_history()).collect();
        let varied: Vec<&Tensor> = self.varied.iter().map(|&i| &inputs[i]).collect();
        grad(
            &used.iter().map(|&i| &outputs[i]).collect::<Vec<_>>(),
            &used.iter().map(|&i| weights[i].as_ref()).collect::<Vec<_>>(),
            &varied,
            GradOptions { keep_history: true, differentiable },
        )
    }
}

fn check(sample: &Sample, draw: &mut Draw) -> std::result::Result<(), String> {
    let text = |e: planaria_tensor::Error| e.to_string();
    let leaves: Vec<Tensor> = sample.inputs.iter().map(|a| Tensor::new(a.clone())).collect();
    let outputs = sample.run(&leaves.iter().collect::<Vec<_>>()).map_err(text)?;
    let varied: Vec<usize> = (0..leaves.len()).filter(|&i| leaves[i].dtype() == DType::F64).collect();
    let narrow = |t: &Tensor| t.dtype().is_float() && t.dtype() != DType::F64;
    if varied.is_empty() || outputs.iter().any(narrow) || !outputs.iter().any(|y| y.dtype() == DType::F64) {
        return Ok(());
    }
    let weight = |y: &Tensor| (y.dtype() == DType::F64).then(|| draw.normal(y.shape())).transpose();
    let mut weights = outputs.iter().map(weight).collect::<Result<Vec<_>>>().map_err(text)?;
    // Fused gradients often know only that of the first output.
    if draw.coin() {
        weights[1..].iter_mut().for_each(|w| *w = None);
    }
    let function = Function { sample, varied, weights };
    let directions: Vec<Array> = function
        .varied
        .iter()
        .map(|&i| draw.normal(sample.inputs[i].shape()))
        .collect::<Result<_>>()
        .map_err(text)?;
    first(&function, &directions).map_err(|m| format!("first gradient, {m}"))?;
    if sample.differentiable_once {
        return Ok(());
    }
    second(&function, &directions, draw).map_err(|m| format!("second gradient, {m}"))
}

/// Inputs with input `place` of the varied ones moved along its direction.
fn moved(function: &Function<'_>, place: usize, direction: &Array, by: f64) -> Vec<Array> {
    let mut arrays = function.sample.inputs.clone();
    let at = function.varied[place];
    let step = direction.mul(&Array::scalar(by, DType::F64).unwrap()).unwrap();
    arrays[at] = arrays[at].add(&step).unwrap();
    arrays
}

fn first(function: &Function<'_>, directions: &[Array]) -> std::result::Result<(), String> {
    let text = |e: planaria_tensor::Error| e.to_string();
    let kinds: &[bool] = if function.sample.differentiable_once { &[false] } else { &[false, true] };
    for &differentiable in kinds {
        let inputs = function.inputs(&function.sample.inputs);
        let gradients = function.gradients(&inputs, differentiable).map_err(text)?;
        for (place, direction) in directions.iter().enumerate() {
            let up = function.value(&moved(function, place, direction, STEP)).map_err(text)?;
            let down = function.value(&moved(function, place, direction, -STEP)).map_err(text)?;
            let expected = (up - down) / (2.0 * STEP);
            compare(place, gradients[place].as_ref(), direction, expected, up.abs().max(down.abs()))
                .map_err(|m| format!("differentiable: {differentiable}, {m}"))?;
        }
    }
    Ok(())
}

/// Differences of `Σ <gradient, direction>`.
fn second(function: &Function<'_>, directions: &[Array], draw: &mut Draw) -> std::result::Result<(), String> {
    let text = |e: planaria_tensor::Error| e.to_string();
    let inputs = function.inputs(&function.sample.inputs);
    let gradients = function.gradients(&inputs, true).map_err(text)?;
    let used: Vec<usize> =
        (0..gradients.len()).filter(|&i| gradients[i].as_ref().is_some_and(Tensor::has_history)).collect();
    let probes: Vec<Tensor> = directions.iter().map(|d| Tensor::new(d.clone())).collect();
    let found = match used.is_empty() {
        true => directions.iter().map(|_| None).collect(),
        false => grad(
            &used.iter().filter_map(|&i| gradients[i].as_ref()).collect::<Vec<_>>(),
            &used.iter().map(|&i| Some(&probes[i])).collect::<Vec<_>>(),
            &function.varied.iter().map(|&i| &inputs[i]).collect::<Vec<_>>(),
            GradOptions { keep_history: true, differentiable: true },
        )
        .map_err(text)?,
    };
    let slope = |arrays: &[Array]| -> Result<f64> {
        let gradients = function.gradients(&function.inputs(arrays), false)?;
        let parts = gradients.iter().zip(directions);
        Ok(parts.map(|(g, d)| g.as_ref().map_or(0.0, |g| dot(g.local(), d))).sum())
    };
    for place in 0..directions.len() {
        let direction = draw.normal(directions[place].shape()).map_err(text)?;
        let up = slope(&moved(function, place, &direction, STEP)).map_err(text)?;
        let down = slope(&moved(function, place, &direction, -STEP)).map_err(text)?;
        let expected = (up - down) / (2.0 * STEP);
        compare(place, found[place].as_ref(), &direction, expected, up.abs().max(down.abs()))?;
    }
    Ok(())
}

fn dot(a: &Array, b: &Array) -> f64 {
    let values = |x: &Array| x.cast(DType::F64).unwrap().to_vec::<f64>().unwrap();
    values(a).iter().zip(values(b)).map(|(x, y)| x * y).sum()
}

/// The slope along a direction by gradient and by differences of values of about `size`.
fn compare(
    place: usize,
    gradient: Option<&Tensor>,
    direction: &Array,
    expected: f64,
    size: f64,
) -> std::result::Result<(), String> {
    let found = gradient.map_or(0.0, |g| dot(g.local(), direction));
    let scale = gradient
        .map_or(0.0, |g| g.local().to_vec::<f64>().unwrap().iter().fold(0.0f64, |m, v| m.max(v.abs())));
    let bound = BOUND * (1.0 + scale + expected.abs()) + 4.0 * f64::EPSILON * size / STEP;
    if (found - expected).abs() <= bound {
        return Ok(());
    }
    Err(format!("input {place} changes by {found} instead of {expected}"))
}
