//! Gradients of fused ops by way of the simple ops they stand for.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::{Backward, GradOptions, grad, with_grad};
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::named::{Found, found};
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_layout::Reduce;
use planaria_layout::rule::{self, Rule};
use smallvec::smallvec;

/// The same value with a history of its own.
///
/// An input of a fused op may be made from another of its inputs. Behind an alias, the gradient of the one does not
/// pass on to the other.
#[derive(Debug, Clone, Copy)]
struct Alias;

impl Op for Alias {
    fn name(&self) -> &'static str {
        "alias"
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = rule::elementwise(&[&inputs[0].shape], &outputs[0].shape);
        rule.pass(&[0], &Reduce::EVERY);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![inputs[0].clone()])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        Ok(smallvec![grads[0].clone()])
    }
}

/// Gradients of an op from `work`, which computes the same outputs (or the first of them) from the same inputs with
/// ops that are differentiable to any order. The op must have saved all inputs.
pub(crate) fn gradient(
    at: &Backward<'_>,
    grads: &[Option<Tensor>],
    work: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Grads> {
    let fresh = |i: usize| {
        let x = at.input(i)?;
        match (at.needs(i), at.is_differentiable()) {
            (false, _) => Ok(x.detach()),
            (true, false) => Ok(x.detach().requires_grad()),
            (true, true) => with_grad(|| apply1(Alias, &[&x])),
        }
    };
    let inputs = (0..at.inputs()).map(fresh).collect::<Result<Vec<Tensor>>>()?;
    let outputs = with_grad(|| work(&inputs))?;
    let arrived =
        |(y, dy): (&Tensor, &Option<Tensor>)| Some((y.clone(), dy.clone()?)).filter(|_| y.has_history());
    let (ys, dys): (Vec<Tensor>, Vec<Tensor>) = outputs.iter().zip(grads).filter_map(arrived).unzip();
    let wanted: Vec<usize> = (0..inputs.len()).filter(|&i| at.needs(i)).collect();
    let options = GradOptions { keep_history: false, differentiable: at.is_differentiable() };
    let found = grad(
        &ys.iter().collect::<Vec<_>>(),
        &dys.iter().map(Some).collect::<Vec<_>>(),
        &wanted.iter().map(|&i| &inputs[i]).collect::<Vec<_>>(),
        options,
    )?;
    let mut all: Grads = (0..inputs.len()).map(|_| None).collect();
    wanted.into_iter().zip(found).for_each(|(i, grad)| all[i] = grad);
    Ok(all)
}

/// All inputs, for ops whose gradient is [`gradient`].
pub(crate) fn saves_inputs(count: usize) -> Saves {
    Saves::inputs(&(0..count).collect::<Vec<_>>())
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, _: &Attributes) -> Found {
    if name == "alias" { found(Alias) } else { None }
}
