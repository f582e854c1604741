//! Every op of the table gives the same value and gradients on every layout as on one rank: the same bits where no
//! sum is split, else within what rounding allows.

use planaria_array::{Array, DType};
use planaria_comm::threads;
use planaria_layout::{Layout, Mesh, Placement, Reduce, Route};
use planaria_tensor::ops::sample::{Draw, Sample};
use planaria_tensor::ops::{Entry, TABLE};
use planaria_tensor::trace::{Moved, Ran, decisions, implicit_reshards};
use planaria_tensor::{GradOptions, Result, Tensor, World, grad};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Calls of each family on a mesh of one axis; fewer on those of several, where deciding takes longer.
const CALLS: u64 = 40;

/// The worst relative difference that splitting a sum of a few f64 values may make.
const BOUND: f64 = 1e-10;

/// Results compared bit by bit, and all of them.
static SAME_BITS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

#[test]
fn every_op_is_the_same_on_every_layout() {
    for mesh in ["x=2", "x=3", "x=2 y=2", "x=4 y=2", "x=2 y=2 z=2"] {
        let mesh: Mesh = mesh.parse().unwrap();
        let failures = threads::run(mesh.size(), |comm| {
            let world = World::new(comm);
            TABLE.iter().flat_map(|entry| family(entry, &mesh, &world)).collect::<Vec<_>>()
        });
        let failures: Vec<_> = failures.into_iter().flatten().collect();
        assert!(
            failures.is_empty(),
            "{} failures, first:\n{}",
            failures.len(),
            failures[..failures.len().min(4)].join("\n")
        );
    }
    let [exact, all] = [0, 1].map(|i| SAME_BITS[i].load(Relaxed));
    println!("{exact} of {all} results compared bit by bit");
    assert!(4 * exact > all, "in more than a quarter of the calls no sum is split");
}

fn family(entry: &Entry, mesh: &Mesh, world: &World) -> Vec<String> {
    let mut failures = Vec::new();
    for seed in 0..CALLS / mesh.naxes() as u64 {
        let mut draw = Draw::new(seed);
        let sample = (entry.sample)(&mut draw).unwrap();
        let layouts: Vec<Layout> =
            sample.inputs.iter().map(|array| any_layout(&mut draw, mesh, array)).collect();
        if let Err(message) = check(&sample, &layouts, &mut draw, world) {
            let inputs: Vec<String> = layouts.iter().map(|l| l.to_string()).collect();
            let rank = world.rank();
            failures.push(format!(
                "{} seed {seed} rank {rank} {} {:?}: {message}",
                entry.family, sample.name, inputs
            ));
        }
    }
    failures
}

/// Any placements that are legal for the array, uneven and pending ones included.
fn any_layout(draw: &mut Draw, mesh: &Mesh, array: &Array) -> Layout {
    let mut placements = Vec::new();
    // Truth values have no noise that cancels.
    let may_wait = array.dtype() != DType::Bool;
    let pending = draw.pick(&[Reduce::Sum, Reduce::Avg, Reduce::Max, Reduce::Min]);
    for _ in 0..mesh.naxes() {
        placements.push(match draw.below(5) {
            0 => Placement::Replicate,
            1 if may_wait => Placement::Partial(pending),
            _ if array.ndim() > 0 => Placement::shard(draw.below(array.ndim())),
            _ => Placement::Replicate,
        });
    }
    Layout::new(mesh, array.shape(), &placements).unwrap()
}

/// A tensor with this value; pending sums have contributions on every rank that cancel.
fn placed(array: &Array, layout: &Layout, draw: &mut Draw, world: &World) -> Result<Tensor> {
    let tensor = Tensor::place(array, layout.mesh(), layout.placements(), world)?;
    let coords = layout.mesh().coords(world.rank()).unwrap();
    let mut local = tensor.local().copy()?;
    for axis in layout.partial_axes().iter() {
        if layout.mesh().axis_size(axis) == 1 {
            continue;
        }
        // Whole numbers: adding and taking them away again leaves ties between elements as they are.
        let noise = draw.integers(9, array.shape())?;
        let noise = Tensor::place(&noise, layout.mesh(), &without_pending(layout), world)?
            .local()
            .cast(array.dtype())?;
        local = match (layout.reduce(axis).unwrap(), coords[axis]) {
            (Reduce::Sum | Reduce::Avg, 0) => local.add(&noise)?,
            (Reduce::Sum | Reduce::Avg, 1) => local.sub(&noise)?,
            (Reduce::Max, 1) => local.sub(&noise.abs()?)?,
            (Reduce::Min, 1) => local.add(&noise.abs()?)?,
            _ => local,
        };
    }
    Tensor::from_piece(local, layout, world)
}

fn without_pending(layout: &Layout) -> Vec<Placement> {
    let settle = |p: &Placement| if matches!(p, Placement::Partial(_)) { Placement::Replicate } else { *p };
    layout.placements().iter().map(settle).collect()
}

/// How a result may differ from that of one rank.
#[derive(Clone, Copy)]
enum Allowed {
    /// Not at all.
    Nothing,
    /// Relative to the largest value.
    Rounding(f64),
}

/// True when values wait for a sum over ranks.
fn pending(layout: &Layout) -> bool {
    !layout.partial_axes().is_empty()
}

/// True when a sum over ranks took place: what a kernel reduces itself is listed with equal ends.
fn sums(moved: &[Moved]) -> bool {
    moved.iter().any(|m| m.from == m.to || pending(&m.from))
}

fn check(
    sample: &Sample,
    layouts: &[Layout],
    draw: &mut Draw,
    world: &World,
) -> std::result::Result<(), String> {
    let text = |e: planaria_tensor::Error| e.to_string();
    let alone: Vec<Tensor> = sample.inputs.iter().map(|a| leaf(Tensor::new(a.clone()))).collect();
    let inputs = sample
        .inputs
        .iter()
        .zip(layouts)
        .map(|(array, layout)| Ok(leaf(placed(array, layout, draw, world)?)));
    let many = inputs.collect::<Result<Vec<Tensor>>>().map_err(text)?;
    let expected = sample.run(&alone.iter().collect::<Vec<_>>()).map_err(|e| format!("alone: {e}"))?;
    let ((found, moved), ran) =
        decisions(|| implicit_reshards(|| sample.run(&many.iter().collect::<Vec<_>>())));
    // The first rank of a mesh has the largest pieces, by which prices go.
    if let Some(ran) =
        ran.iter().find(|ran| world.rank() == 0 && ran.exchanged != ran.weighed[0].price.exchanged)
    {
        return Err(format!("the kernel sent {} bytes: {:?}", ran.exchanged, ran.weighed[0]));
    }
    ran.iter().try_for_each(no_dearer_than_whole)?;
    let found = found.map_err(|e| format!("forward: {e}"))?;
    let places = layouts.iter().chain(found.iter().filter_map(|t| t.layout()));
    let rounding = Allowed::Rounding(bound_of(&alone, &expected));
    let allowed = if places.into_iter().any(pending) || sums(&moved) { rounding } else { Allowed::Nothing };
    for (output, (e, f)) in expected.iter().zip(&found).enumerate() {
        let whole = f.whole().map_err(text)?;
        close(e.local(), &whole, allowed).map_err(|m| format!("output {output} as {f:?}: {m}"))?;
    }
    gradients(&alone, &many, &expected, &found, allowed, draw, world)
}

/// No op costs more than giving every rank all of its inputs.
fn no_dearer_than_whole(ran: &Ran) -> std::result::Result<(), String> {
    let whole = |(layout, dtype): (&Layout, &DType)| {
        let whole = Layout::replicated(layout.mesh(), layout.shape());
        Route::find(layout, &whole, dtype.size()).unwrap().cost().bytes
    };
    let most: u64 = ran.given.iter().zip(&ran.dtypes).map(whole).sum();
    let price = ran.weighed[0].price;
    // What a program asks for is no decision.
    if ran.op == "reshard" || ran.given.is_empty() || price.total() <= most {
        return Ok(());
    }
    Err(format!("{} costs {price:?}, and {most} bytes give every rank all of its inputs", ran.op))
}

fn leaf(tensor: Tensor) -> Tensor {
    if tensor.dtype().is_float() { tensor.requires_grad() } else { tensor }
}

fn gradients(
    alone: &[Tensor],
    many: &[Tensor],
    expected: &[Tensor],
    found: &[Tensor],
    forward: Allowed,
    draw: &mut Draw,
    world: &World,
) -> std::result::Result<(), String> {
    let text = |e: planaria_tensor::Error| e.to_string();
    let mut outputs: Vec<usize> = (0..expected.len()).filter(|&i| expected[i].has_history()).collect();
    // Fused gradients often know only that of the first output.
    if draw.coin() {
        outputs.truncate(1);
    }
    let inputs: Vec<usize> = (0..alone.len()).filter(|&i| alone[i].has_history()).collect();
    if outputs.is_empty() || inputs.is_empty() {
        return Ok(());
    }
    let mut cotangents = Vec::new();
    for &i in &outputs {
        let whole = draw
            .normal(expected[i].shape())
            .map_err(text)?
            .cast(expected[i].dtype())
            .map_err(|e| e.to_string())?;
        let layout = any_layout(draw, found[i].layout().unwrap().mesh(), &whole);
        cotangents.push((Tensor::new(whole.clone()), placed(&whole, &layout, draw, world).map_err(text)?));
    }
    let run = |outs: &[Tensor], ins: &[Tensor], which: fn(&(Tensor, Tensor)) -> &Tensor| {
        let outs: Vec<&Tensor> = outputs.iter().map(|&i| &outs[i]).collect();
        let ins: Vec<&Tensor> = inputs.iter().map(|&i| &ins[i]).collect();
        let grads: Vec<Option<&Tensor>> = cotangents.iter().map(|pair| Some(which(pair))).collect();
        grad(&outs, &grads, &ins, GradOptions { keep_history: true, differentiable: false })
    };
    let rounding = Allowed::Rounding(bound_of(alone, expected));
    let expected = run(expected, alone, |pair| &pair.0).map_err(|e| format!("gradient alone: {e}"))?;
    let (found, moved) = implicit_reshards(|| run(found, many, |pair| &pair.1));
    let found = found.map_err(|e| format!("gradient: {e}"))?;
    let given = cotangents.iter().map(|pair| &pair.1);
    let split = given.chain(found.iter().flatten()).filter_map(|t| t.layout()).any(pending) || sums(&moved);
    let allowed = if split { rounding } else { forward };
    for (i, pair) in inputs.iter().zip(expected.iter().zip(&found)) {
        match pair {
            (Some(e), Some(f)) => {
                let whole = f.whole().map_err(text)?;
                close(e.local(), &whole, allowed)
                    .map_err(|m| format!("gradient of input {i} as {f:?}: {m}"))?;
            }
            (None, None) => {}
            _ => return Err(format!("gradient of input {i} is there only on one side")),
        }
    }
    Ok(())
}

/// What rounding allows, by the narrowest float that values go through.
fn bound_of(inputs: &[Tensor], outputs: &[Tensor]) -> f64 {
    if inputs.iter().chain(outputs).any(|t| t.dtype() == DType::F32) { 1e-5 } else { BOUND }
}

fn close(expected: &Array, found: &Array, allowed: Allowed) -> std::result::Result<(), String> {
    if (expected.shape(), expected.dtype()) != (found.shape(), found.dtype()) {
        return Err(format!(
            "{}{} instead of {}{}",
            found.dtype(),
            found.shape(),
            expected.dtype(),
            expected.shape()
        ));
    }
    SAME_BITS[0].fetch_add(usize::from(matches!(allowed, Allowed::Nothing)), Relaxed);
    SAME_BITS[1].fetch_add(1, Relaxed);
    let values = |a: &Array| a.cast(DType::F64).unwrap().to_vec::<f64>().unwrap();
    let (e, f) = (values(expected), values(found));
    let scale = e.iter().filter(|v| v.is_finite()).fold(1.0f64, |m, v| m.max(v.abs()));
    for (i, (a, b)) in e.iter().zip(&f).enumerate() {
        let same = match allowed {
            _ if a.is_nan() && b.is_nan() => true,
            Allowed::Nothing => a.to_bits() == b.to_bits(),
            Allowed::Rounding(bound) => a == b || (a - b).abs() <= bound * scale,
        };
        if !same {
            return Err(format!("element {i} is {b} instead of {a}"));
        }
    }
    Ok(())
}
