//! Kind `reshard`: what each rank holds after a reshard, against Paddle 3.3.1.
//!
//! Every case is simulated along our route and must keep the value under the placements asked for; then it is carried
//! out by tensors on thread ranks, which must end with the simulated buffers.
//! The reference's local buffers are compared as well, unless it is wrong or silent:
//! - it raised an error (its CPU backend lacks all-to-all and reduce-scatter, and it has no
//!   conversion between some pending reductions): the source is then built as its other cases are;
//! - it returned other placements than asked for, because it forgets the type of a pending
//!   reduction and always makes a sum.

use crate::cases::{Outcome, Verdict, each_case};
use anyhow::{Context, Result, bail, ensure};
use planaria_array::Array;
use planaria_comm::{Comm, CommExt, threads};
use planaria_layout::simulate::{self, Locals};
use planaria_layout::{Layout, Mesh, Placement, Plan, Route, Shape, Shard};
use planaria_tensor::{Tensor, World};
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// One line of the file.
#[derive(Deserialize)]
struct Case {
    mesh_shape: Vec<usize>,
    shape: Vec<usize>,
    src: Vec<String>,
    dst: Vec<String>,
    src_locals: Option<Vec<Value>>,
    dst_locals: Option<Vec<Value>>,
    /// What the reference says it made; absent when it made nothing new.
    dst_placements: Option<Vec<String>>,
    value_preserved: Option<bool>,
}

pub(crate) fn run(path: &Path) -> Result<Outcome> {
    each_case(path, |case| check(case).unwrap_or_else(|error| Verdict::Failed(format!("{error:#}"))))
}

/// Both layouts, and what the ranks have at first.
fn source(case: &Case) -> Result<(Layout, Layout, Locals)> {
    let names: Vec<String> = (0..case.mesh_shape.len()).map(|i| format!("m{i}")).collect();
    let axes: Vec<(&str, usize)> =
        names.iter().map(String::as_str).zip(case.mesh_shape.iter().copied()).collect();
    let mesh = Mesh::new(&axes)?;
    let shape = Shape::new(&case.shape)?;
    let from = layout(&mesh, &shape, &case.src)?;
    let to = layout(&mesh, &shape, &case.dst)?;
    let locals = match &case.src_locals {
        Some(locals) => flatten(locals)?,
        None => fixture(&from)?,
    };
    Ok((from, to, locals))
}

fn check(case: &Value) -> Result<Verdict> {
    let case = Case::deserialize(case).context("reading the case")?;
    let (from, to, locals) = source(&case)?;
    let (mesh, shape) = (from.mesh().clone(), from.shape().clone());
    let ours = simulate::run(&Route::find(&from, &to, 4)?, &locals)?;
    check_value(&from, &locals, &to, &ours)?;
    check_agreement(&from, &to)?;
    let ends = threads::run(mesh.size(), |comm| carry_out(&from, &to, &locals, &ours, comm));
    ends.into_iter().collect::<Result<Vec<_>>>()?;

    let Some(theirs) = &case.dst_locals else {
        return Ok(Verdict::PassedAlone("without an answer from the reference"));
    };
    let made = case.dst_placements.as_ref().unwrap_or(&case.dst);
    if layout(&mesh, &shape, made)? != to || case.value_preserved != Some(true) {
        return Ok(Verdict::PassedAlone("answered for another reduction than asked"));
    }
    let theirs = flatten(theirs)?;
    ensure!(same(&ours, &theirs), "{from} -> {to}: ours {ours:?}, reference {theirs:?}");
    Ok(Verdict::Passed)
}

/// Every case that has as many ranks as `comm`, carried out on it; how many there were.
pub fn run_reshards(path: &Path, comm: &Arc<dyn Comm>) -> Result<usize> {
    let count = std::cell::Cell::new(0);
    let outcome = each_case(path, |case| {
        let on_comm = || -> Result<Verdict> {
            let case = Case::deserialize(case)?;
            let (from, to, locals) = source(&case)?;
            if from.mesh().size() != comm.size() {
                return Ok(Verdict::PassedAlone("has another number of ranks"));
            }
            count.set(count.get() + 1);
            let expected = simulate::run(&Route::find(&from, &to, 4)?, &locals)?;
            carry_out(&from, &to, &locals, &expected, comm.clone())?;
            Ok(Verdict::Passed)
        };
        on_comm().unwrap_or_else(|error| Verdict::Failed(format!("{error:#}")))
    })?;
    ensure!(outcome.failed == 0, "{} reshards failed: {}", outcome.failed, outcome.failures.join("; "));
    Ok(count.get())
}

/// Reshards this rank's buffer as a tensor; it must become the expected one.
fn carry_out(
    from: &Layout,
    to: &Layout,
    locals: &Locals,
    expected: &Locals,
    comm: Arc<dyn Comm>,
) -> Result<()> {
    let rank = comm.ranks()[comm.rank()];
    let world = World::new(comm);
    let values: Vec<f32> = locals[rank].iter().map(|&v| v as f32).collect();
    let piece = Array::from_slice(&values, &from.piece(rank)?.extents())?;
    let moved = Tensor::from_piece(piece, from, &world)?.reshard(to)?;
    let found: Vec<f64> = moved.local().to_vec::<f32>()?.iter().map(|&v| v.into()).collect();
    ensure!(
        same(std::slice::from_ref(&found), std::slice::from_ref(&expected[rank])),
        "{from} -> {to} on ranks: rank {rank} has {found:?} instead of {:?}",
        expected[rank]
    );
    Ok(())
}

/// The tensor behind our buffers is the tensor we started from.
fn check_value(from: &Layout, locals: &Locals, to: &Layout, ours: &Locals) -> Result<()> {
    let before = simulate::gather(from, locals)?.context("source copies differ")?;
    let after = simulate::gather(to, ours)?.with_context(|| format!("{from} -> {to}: copies differ"))?;
    ensure!(same(&[before], &[after]), "{from} -> {to}: the value changed");
    Ok(())
}

/// What ranks plan to send is what others plan to receive.
fn check_agreement(from: &Layout, to: &Layout) -> Result<()> {
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    for rank in from.mesh().ranks() {
        sent.extend(Plan::send(from, to, rank)?.into_iter().map(|tile| (rank, tile.holder, tile.region)));
        let parts = Plan::receive(from, to, rank)?.parts;
        received.extend(
            parts.into_iter().flat_map(|p| p.from.into_iter().map(move |s| (s, rank, p.region.clone()))),
        );
    }
    sent.sort();
    received.sort();
    ensure!(sent == received, "{from} -> {to}: senders and receivers disagree");
    Ok(())
}

/// Counting numbers, times `coordinate + 1` along every pending axis, as the reference's cases are.
fn fixture(from: &Layout) -> Result<Locals> {
    let value: Vec<f64> = (0..from.shape().numel()).map(|i| i as f64).collect();
    let axes: Vec<usize> = from.partial_axes().iter().collect();
    Ok(simulate::scatter(from, &value, |at| axes.iter().map(|&a| (at[a] + 1) as f64).product())?)
}

fn layout(mesh: &Mesh, shape: &Shape, placements: &[String]) -> Result<Layout> {
    let placements: Vec<Placement> = placements.iter().map(|text| placement(text)).collect::<Result<_>>()?;
    Ok(Layout::new(mesh, shape, &placements)?)
}

/// `S(0,order=1)` and `Shard(dim=0, shard_order=1)` alike.
fn placement(text: &str) -> Result<Placement> {
    let (name, args) = text.split_once('(').unwrap_or((text, ")"));
    let args = args.strip_suffix(')').with_context(|| format!("placement '{text}'"))?;
    let args: Vec<(&str, &str)> = args
        .split(',')
        .filter(|arg| !arg.trim().is_empty())
        .map(|arg| arg.split_once('=').map_or(("", arg.trim()), |(key, value)| (key.trim(), value.trim())))
        .collect();
    match name {
        "R" | "Replicate" => Ok(Placement::Replicate),
        "P" | "Partial" => {
            let reduce = args.first().map_or("sum".to_string(), |(_, value)| value.to_lowercase());
            Ok(Placement::Partial(reduce.parse()?))
        }
        "S" | "Shard" => {
            let mut shard = Shard { dim: 0, sections: 1, order: 0 };
            for (key, value) in args {
                let value: usize = value.parse().with_context(|| format!("placement '{text}'"))?;
                match key {
                    "" | "dim" => shard.dim = value,
                    "order" | "shard_order" => shard.order = value,
                    "split_factor" => shard.sections = value,
                    _ => bail!("placement '{text}': unknown argument '{key}'"),
                }
            }
            Ok(Placement::Shard(shard))
        }
        _ => bail!("unknown placement '{text}'"),
    }
}

fn flatten(locals: &[Value]) -> Result<Locals> {
    let mut flat = Vec::new();
    for local in locals {
        let mut values = Vec::new();
        push_numbers(local, &mut values)?;
        flat.push(values);
    }
    Ok(flat)
}

fn push_numbers(value: &Value, out: &mut Vec<f64>) -> Result<()> {
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| push_numbers(item, out)),
        other => {
            out.push(other.as_f64().with_context(|| format!("expected a number, found {other}"))?);
            Ok(())
        }
    }
}

/// Equal up to the rounding of 32-bit floats.
fn same(ours: &[Vec<f64>], theirs: &[Vec<f64>]) -> bool {
    let close = |(x, y): (&f64, &f64)| (x - y).abs() <= 1e-6 * x.abs().max(1.0);
    ours.len() == theirs.len()
        && ours.iter().zip(theirs).all(|(a, b)| a.len() == b.len() && a.iter().zip(b).all(close))
}
