//! An objective of one's own: what it makes of the micro-batches and its loss follow the promises like ours.

use anyhow::{Result, ensure};
use planaria_array::Array;
use planaria_array::random::{Key, Window, uniform};
use planaria_e2e::{Run, Sandbox};
use planaria_nn::models::{Activations, Loss, Network};
use planaria_train::data::{Batch, Config as DataConfig, Data, IGNORED, Tokenizer};
use planaria_train::objective::{Before, Input, NextToken};
use planaria_train::{Objective, Objectives, Trainer};
use std::sync::Arc;

/// Learns from a random part of the labels, drawn anew in every step.
#[derive(Debug)]
struct Sparse {
    kept: f32,
}

impl Objective for Sparse {
    fn name(&self) -> &str {
        "sparse"
    }

    fn open(&self, config: &DataConfig, tokenizer: &Tokenizer) -> planaria_train::Result<Data> {
        NextToken.open(config, tokenizer)
    }

    fn generate(&self, before: &Before<'_>, mut batches: Vec<Batch>) -> planaria_train::Result<Vec<Batch>> {
        for batch in &mut batches {
            let shape = batch.labels.shape().to_vec();
            let mut labels = batch.labels.to_vec::<i64>()?;
            for (row, labels) in labels.chunks_mut(shape[1]).enumerate() {
                let mut drawn = vec![0.0f32; labels.len()];
                let key = Key::new(5, before.step).fold(batch.positions.start + row as u64);
                uniform(&mut drawn, key, &Window::flat(0, labels.len()))?;
                labels.iter_mut().zip(drawn).filter(|(_, x)| *x > self.kept).for_each(|(l, _)| *l = IGNORED);
            }
            batch.labels = Array::from_slice(&labels, &shape)?;
        }
        Ok(batches)
    }

    fn input(&self, batch: &Batch) -> planaria_train::Result<Input> {
        NextToken.input(batch)
    }

    fn loss(&self, model: &dyn Network, last: &Activations, batch: &Batch) -> planaria_train::Result<Loss> {
        NextToken.loss(model, last, batch)
    }
}

fn train(sandbox: &Sandbox, until: u64, mesh: &str, more: &[&str]) -> Result<Run> {
    let config = sandbox.config("run", mesh, &[&["train.objective=sparse"], more].concat())?;
    let objectives = Objectives::default().with(Arc::new(Sparse { kept: 0.5 }));
    sandbox.finished("run", Trainer::new(config).objectives(objectives).until(until).run(None)?)
}

#[test]
fn an_objective_of_ones_own_is_the_same_bits_on_every_mesh_and_after_a_cut() -> Result<()> {
    let alone = train(&Sandbox::new()?, 4, "", &[])?;
    let plain = Sandbox::new()?.train("run", "", &[])?;
    ensure!(alone.same_tensors(&plain).is_err(), "half of the labels count");
    for (mesh, more) in [("dp=2", &["train.zero=3"][..]), ("pp=2", &[]), ("pp=2 dp=2", &[])] {
        train(&Sandbox::new()?, 4, mesh, more)?.same_bits(&alone)?;
    }
    let sandbox = Sandbox::new()?;
    let begun = train(&sandbox, 2, "pp=2", &[])?;
    let ended = train(&sandbox, 4, "dp=4", &[])?;
    ensure!([begun.outcome.losses, ended.outcome.losses.clone()].concat() == alone.outcome.losses);
    ended.same_tensors(&alone)
}

#[test]
fn an_unknown_objective_is_refused_with_those_that_are_known() -> Result<()> {
    let config = Sandbox::new()?.config("run", "", &["train.objective=next_tokens"])?;
    let error = Trainer::new(config).run(None).unwrap_err().to_string();
    ensure!(
        error.contains(
            "`train.objective` is \"next_tokens\"; expected one of next_token, sft, contrastive, dpo, grpo, ppo;"
        ),
        "{error}"
    );
    Ok(())
}
