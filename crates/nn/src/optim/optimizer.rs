//! An optimizer over the parameters of a module: what one rank, or ranks that share a model, need to train it.

use super::rule::{OptimState, Rule, Shard};
use crate::error::Result;
use crate::param::{Module, Param};
use planaria_array::Array;
use planaria_array::ops::{AdamW, Sgd};

/// Moves the trainable parameters of a module by their gradients. On a mesh every rank moves its own pieces.
///
/// ```
/// use planaria_nn::Init;
/// use planaria_nn::layers::Linear;
/// use planaria_nn::optim::{Optimizer, Sgd};
/// use planaria_tensor::{Keep, Tensor};
///
/// let line = Linear::with_bias("line", 1, 1, &Init::default())?;
/// let mut optimizer = Optimizer::over(&line, Sgd { lr: 0.1, momentum: 0.0, weight_decay: 0.0, ..Sgd::default() })?;
/// let x = Tensor::from_slice(&[-1.0f32, 0.0, 1.0, 2.0], &[4, 1])?;
/// let y = Tensor::from_slice(&[-2.0f32, 1.0, 4.0, 7.0], &[4, 1])?;
/// for _ in 0..200 {
///     line.forward(&x)?.sub(&y)?.square()?.mean(&[], Keep::No)?.backward()?;
///     optimizer.step()?;
/// }
/// assert!((line.weight.leaf().to_vec::<f32>()?[0] - 3.0).abs() < 1e-3);
/// # Ok::<(), planaria_nn::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Optimizer {
    rule: Rule,
    lr: f64,
    steps: u64,
    rows: Vec<Row>,
}

/// One parameter, what the rule keeps for it, and those that share its elements.
#[derive(Clone, Debug)]
struct Row {
    param: Param,
    state: OptimState,
    twins: Vec<Param>,
}

impl From<AdamW> for Rule {
    fn from(adamw: AdamW) -> Rule {
        Rule::AdamW(adamw)
    }
}

impl From<Sgd> for Rule {
    fn from(sgd: Sgd) -> Rule {
        Rule::Sgd(sgd)
    }
}

impl Optimizer {
    /// An optimizer over what is trainable now, with the learning rate of the rule. Tied parameters move together.
    pub fn over(module: &dyn Module, rule: impl Into<Rule>) -> Result<Optimizer> {
        let rule = rule.into();
        let lr = match rule {
            Rule::AdamW(AdamW { lr, .. }) | Rule::Sgd(Sgd { lr, .. }) => lr,
        };
        let mut rows: Vec<Row> = Vec::new();
        for param in module.params().into_iter().filter(Param::is_trainable) {
            let twin = param.tied().and_then(|twin| rows.iter().position(|row| row.param.name() == twin));
            match twin {
                Some(twin) => rows[twin].twins.push(param),
                None => {
                    let state = rule.state(param.leaf().local())?;
                    rows.push(Row { param, state, twins: Vec::new() });
                }
            }
        }
        Ok(Optimizer { rule, lr, steps: 0, rows })
    }

    /// Sets the learning rate of the steps to come.
    pub fn set_lr(&mut self, lr: f64) {
        self.lr = lr;
    }

    /// Moves every parameter that has a gradient, and takes the gradients away. Collective over the inner mesh.
    pub fn step(&mut self) -> Result<()> {
        self.step_scaled(1.0)
    }

    /// The same with gradients multiplied by `scale`, as where a loss is a sum and its mean is meant.
    pub fn step_scaled(&mut self, scale: f64) -> Result<()> {
        let mut grads: Vec<Option<Array>> = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let mut sum = row.param.take_grad()?.map(|grad| grad.local().clone());
            for twin in &row.twins {
                let more = twin.take_grad()?.map(|grad| grad.local().clone());
                sum = match (sum, more) {
                    (Some(a), Some(b)) => Some(a.add(&b)?),
                    (a, b) => a.or(b),
                };
            }
            grads.push(sum);
        }
        self.steps += 1;
        let mut shards = Vec::with_capacity(self.rows.len());
        for (Row { param, state, .. }, grad) in self.rows.iter().zip(&grads) {
            if let Some(grad) = grad {
                shards.push(Shard { param: param.leaf().local(), grad, state, kind: param.kind() });
            }
        }
        self.rule.step(self.steps, self.lr, scale, &shards)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::Parts;
    use crate::param::Init;
    use crate::table::Table;

    #[test]
    fn tied_parameters_move_by_the_sum_of_their_gradients() {
        let mut table = Table::new(0.5);
        table.embedding("tokens", [2, 2]).unwrap();
        table.tied("head", "tokens", [2, 2]).unwrap();
        let parts = Parts::new(table.into_specs(), &Init::default(), None).unwrap();
        let both = vec![parts.take("tokens.weight").unwrap(), parts.take("head.weight").unwrap()];
        let before = both[0].leaf().to_vec::<f32>().unwrap();
        let rule = Sgd { lr: 0.5, momentum: 0.0, weight_decay: 0.0, ..Sgd::default() };
        let mut optimizer = Optimizer::over(&both, rule).unwrap();
        for (param, times) in both.iter().zip([1.0, 3.0]) {
            let sum = param.leaf().mul_scalar(times).unwrap().sum(&[], planaria_tensor::Keep::No).unwrap();
            sum.backward().unwrap();
        }
        optimizer.step().unwrap();
        let after = both[1].leaf().to_vec::<f32>().unwrap();
        let moved: Vec<f32> = before.iter().zip(&after).map(|(a, b)| a - b).collect();
        assert!(moved.iter().all(|m| (m - 2.0).abs() < 1e-6), "{moved:?}");
        assert!(both.iter().all(|param| param.leaf().grad().is_none()));
    }
}
