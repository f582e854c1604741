//! A mixed program of many ops and gradients, and a digest of every bit it computes: engines must agree on it.

use anyhow::Result;
use planaria_array::Array;
use planaria_comm::{Comm, CommExt};
use planaria_layout::{Mesh, Placement, Reduce};
use planaria_tensor::ops::TABLE;
use planaria_tensor::ops::sample::Draw;
use planaria_tensor::{GradOptions, Tensor, World, grad};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Calls of each family of the op table.
const CALLS: u64 = 6;

/// Runs ops of every family on random layouts, and their gradients; a digest of this rank's pieces, and the number of
/// ops run.
pub fn mixed_program(comm: &Arc<dyn Comm>) -> Result<(u64, usize)> {
    let world = World::new(comm.clone());
    let ranks = comm.size();
    let mesh = match ranks.is_multiple_of(2) {
        true => Mesh::new(&[("x", ranks / 2), ("y", 2)])?,
        false => Mesh::new(&[("x", ranks)])?,
    };
    let mut digest = DefaultHasher::new();
    let mut count = 0;
    for entry in TABLE {
        for seed in 0..CALLS {
            count += 1;
            one_call(entry.sample, seed, &mesh, &world, &mut digest)?;
        }
    }
    Ok((digest.finish(), count))
}

type Sampler = fn(&mut Draw) -> planaria_tensor::Result<planaria_tensor::ops::sample::Sample>;

fn one_call(
    sampler: Sampler,
    seed: u64,
    mesh: &Mesh,
    world: &World,
    digest: &mut DefaultHasher,
) -> Result<()> {
    let mut draw = Draw::new(seed);
    let sample = sampler(&mut draw)?;
    let mut inputs = Vec::new();
    for array in &sample.inputs {
        let tensor = Tensor::place(array, mesh, &placements(&mut draw, mesh, array), world)?;
        inputs.push(if array.dtype().is_float() { tensor.requires_grad() } else { tensor });
    }
    let outputs = sample.run(&inputs.iter().collect::<Vec<_>>())?;
    outputs.iter().try_for_each(|t| add(digest, t))?;
    let differentiable: Vec<&Tensor> = outputs.iter().filter(|t| t.has_history()).collect();
    let leaves: Vec<&Tensor> = inputs.iter().filter(|t| t.has_history()).collect();
    if differentiable.is_empty() || leaves.is_empty() {
        return Ok(());
    }
    let mut ones = Vec::new();
    for output in &differentiable {
        ones.push(output.ones_like()?);
    }
    let given: Vec<Option<&Tensor>> = ones.iter().map(Some).collect();
    let grads = grad(&differentiable, &given, &leaves, GradOptions::default())?;
    grads.iter().flatten().try_for_each(|t| add(digest, t))
}

fn placements(draw: &mut Draw, mesh: &Mesh, array: &Array) -> Vec<Placement> {
    let any = |draw: &mut Draw| match draw.below(4) {
        0 => Placement::Replicate,
        1 if array.dtype().is_float() => Placement::Partial(Reduce::Sum),
        _ if array.ndim() > 0 => Placement::shard(draw.below(array.ndim())),
        _ => Placement::Replicate,
    };
    (0..mesh.naxes()).map(|_| any(draw)).collect()
}

fn add(digest: &mut DefaultHasher, tensor: &Tensor) -> Result<()> {
    tensor.local().shape().dims().hash(digest);
    tensor.local().contiguous()?.bytes()?.hash(digest);
    Ok(())
}
