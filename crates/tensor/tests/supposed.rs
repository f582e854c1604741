//! Planning: on a world that is only supposed to exist every op gives the layouts, shapes and movements of a real one.

use planaria_array::Array;
use planaria_comm::threads;
use planaria_layout::{Layout, Mesh, Placement, Reduce};
use planaria_tensor::ops::TABLE;
use planaria_tensor::ops::sample::{Draw, Sample};
use planaria_tensor::{GradOptions, Result, Tensor, World, grad, trace};

/// Calls of each family.
const CALLS: u64 = 12;

fn any_layout(draw: &mut Draw, mesh: &Mesh, array: &Array) -> Layout {
    let mut any = |_| match draw.below(4) {
        0 if array.dtype().is_float() => Placement::Partial(Reduce::Sum),
        1 => Placement::Replicate,
        _ if array.ndim() > 0 => Placement::shard(draw.below(array.ndim())),
        _ => Placement::Replicate,
    };
    let placements: Vec<Placement> = (0..mesh.naxes()).map(&mut any).collect();
    Layout::new(mesh, array.shape(), &placements).unwrap()
}

/// Forward and backward: what came out where, and what was moved for it.
fn outcome(sample: &Sample, layouts: &[Layout], world: &World) -> Result<Vec<String>> {
    let (text, moved) = trace::implicit_reshards(|| {
        let leaf = |(array, layout): (&Array, &Layout)| {
            let extents = layout.piece(world.rank())?.extents();
            let piece = match world.is_supposed() {
                true => Array::meta(&extents, array.dtype())?,
                false => Tensor::place(array, layout.mesh(), layout.placements(), world)?.local().clone(),
            };
            let tensor = Tensor::from_piece(piece, layout, world)?;
            Ok(if array.dtype().is_float() { tensor.requires_grad() } else { tensor })
        };
        let inputs = sample.inputs.iter().zip(layouts).map(leaf).collect::<Result<Vec<_>>>()?;
        let outputs = sample.run(&inputs.iter().collect::<Vec<_>>())?;
        let show = |t: &Tensor| format!("{t:?} {}", t.local().shape());
        let mut text: Vec<String> = outputs.iter().map(show).collect();
        let ends: Vec<&Tensor> = outputs.iter().filter(|t| t.has_history()).collect();
        let starts: Vec<&Tensor> = inputs.iter().filter(|t| t.has_history()).collect();
        if !ends.is_empty() && !starts.is_empty() {
            let ones = ends.iter().map(|t| t.ones_like()).collect::<Result<Vec<_>>>()?;
            let ones: Vec<Option<&Tensor>> = ones.iter().map(Some).collect();
            let grads = grad(&ends, &ones, &starts, GradOptions::default())?;
            text.extend(grads.iter().flatten().map(show));
        }
        Ok::<_, planaria_tensor::Error>(text)
    });
    let mut text = text?;
    text.extend(moved.iter().map(ToString::to_string));
    Ok(text)
}

#[test]
fn a_supposed_world_plans_what_a_real_one_does() {
    let mesh: Mesh = "x=2 y=2".parse().unwrap();
    let failures = threads::run(mesh.size(), |comm| {
        let (real, supposed) = (World::new(comm.clone()), World::supposed(comm.ranks()[comm.rank()]));
        let mut failures = Vec::new();
        for (entry, seed) in TABLE.iter().flat_map(|entry| (0..CALLS).map(move |seed| (entry, seed))) {
            let mut draw = Draw::new(seed);
            let sample = (entry.sample)(&mut draw).unwrap();
            let layouts: Vec<Layout> =
                sample.inputs.iter().map(|a| any_layout(&mut draw, &mesh, a)).collect();
            if sample.follows_values {
                continue;
            }
            let done = outcome(&sample, &layouts, &real).unwrap();
            match outcome(&sample, &layouts, &supposed) {
                Ok(planned) if planned == done => {}
                Ok(planned) => {
                    failures.push(format!("{} {layouts:?}: {planned:#?} instead of {done:#?}", sample.name))
                }
                Err(error) => failures.push(format!("{} {layouts:?}: {error}", sample.name)),
            }
        }
        failures
    });
    let failures: Vec<String> = failures.into_iter().flatten().collect();
    assert!(
        failures.is_empty(),
        "{} failures, first:\n{}",
        failures.len(),
        failures[..failures.len().min(6)].join("\n")
    );
}
