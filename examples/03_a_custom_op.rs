//! An op of your own: its rule, its kernel and its gradient. Ranks, layouts and history come for free.
//!
//! `cargo run --example 03_a_custom_op`

use planaria::array::ops::Distribution::Uniform;
use planaria::layout::rule::{self, Rule};
use planaria::prelude::*;
use planaria::tensor::{Arrays, Backward, Grads, Local, Op, Places, Result, Saves, Spec, apply1, trace};

/// `Σⱼ weightⱼ (xᵢⱼ - yᵢⱼ)²`: one distance for each row.
#[derive(Debug)]
struct Distance;

impl Op for Distance {
    fn name(&self) -> &'static str {
        "weighted_distance"
    }

    /// The letters of its einsum are all that dispatch needs: `i` may be cut anywhere, and where `j` is cut each
    /// rank has a part of the sum.
    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        Ok(rule::einsum("ij,ij,j->i", &[&inputs[0].shape, &inputs[1].shape, &inputs[2].shape])?)
    }

    /// The kernel sees arrays: whole, or the pieces of one rank.
    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let [x, y, weight] = inputs else { return Err(planaria::tensor::Error::Bug("three inputs")) };
        let difference = x.sub(y)?;
        Ok([difference.mul(&difference)?.mul(weight)?.sum(&[1], Keep::No)?].into_iter().collect())
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::inputs(&[0, 1, 2])
    }

    /// The gradient is written with other ops, so it has a gradient itself.
    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dz) = &grads[0] else { return Ok([None, None, None].into_iter().collect()) };
        let difference = (at.input(0)? - at.input(1)?)?;
        let dz = dz.unsqueeze(1)?;
        let dx = (2.0 * &difference * &at.input(2)? * &dz)?;
        let dweight = (difference.square()? * &dz)?.sum(&[0], Keep::No)?;
        Ok([Some(dx.clone()), Some(Tensor::neg(&dx)?), Some(dweight)].into_iter().collect())
    }
}

/// The distances' sum and the gradient of the weights, with `x` and `y` placed as given.
fn run(world: &World, layouts: [&str; 3]) -> Result<(f64, Vec<f64>)> {
    let value = |stream: u64, text: &str| {
        let layout: Layout = text.parse()?;
        Tensor::random_with(&layout, Uniform { low: 0.0, high: 1.0 }, DType::F64, Key::new(1, stream), world)
    };
    let (x, y) = (value(0, layouts[0])?, value(1, layouts[1])?);
    let weight = value(2, layouts[2])?.requires_grad();
    let (z, moves) = trace::implicit_reshards(|| apply1(Distance, &[&x, &y, &weight]));
    let z = z?;
    if world.rank() == 0 {
        println!("{:?} x {:?} gives {z:?}, {} inputs moved", x, y, moves.len());
    }
    let loss = z.sum(&[], Keep::No)?;
    loss.backward()?;
    let grad = weight.grad().ok_or(planaria::tensor::Error::Bug("no gradient"))?;
    Ok((loss.whole()?.to_vec::<f64>()?[0], grad.whole()?.to_vec::<f64>()?))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let alone = run(&World::new(planaria::comm::alone()), ["[6,8] on x=1", "[6,8] on x=1", "[8] on x=1"])?;
    let layouts = ["[6,8] @ a:S0 b:S1 on a=2 b=2", "[6,8] @ b:S1 on a=2 b=2", "[8] @ b:S0 on a=2 b=2"];
    for result in threads::run(4, |comm| run(&World::new(comm), layouts)) {
        let (loss, grad) = result?;
        let far = grad.iter().zip(&alone.1).any(|(a, b)| (a - b).abs() > 1e-12);
        if far || (loss - alone.0).abs() > 1e-12 {
            return Err("four ranks find another answer than one".into());
        }
    }
    println!("one rank and four agree: {:.6}", alone.0);
    Ok(())
}
