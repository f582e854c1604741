//! `dispatch`: what an op costs beside its kernel, on one rank and on a mesh where nothing moves; and what a decision
//! costs the first time, where the inputs of a product disagree on every axis of a mesh.
//!
//! Bars: under 2 microseconds on one rank, under 5 on a mesh. The kernel's own time is taken off.

use anyhow::{Context, Result};
use planaria_array::{Array, DType};
use planaria_comm::threads;
use planaria_layout::rule::{Operand, Terms, decide, matmul};
use planaria_layout::{Layout, Placement, Shape};
use planaria_tensor::{Mesh, Tensor, World};
use std::time::Instant;

const CALLS: usize = 20_000;
const ROUNDS: usize = 9;

fn main() -> Result<()> {
    let x = Array::full(&[8], 1.0, DType::F32)?;
    let kernel = fastest(|| x.add(&x).map(drop).map_err(Into::into))?;
    let plain = Tensor::new(x.clone());
    let alone = fastest(|| plain.add(&plain).map(drop).map_err(Into::into))?;
    let leaf = plain.requires_grad();
    let recorded = fastest(|| leaf.add(&leaf).map(drop).map_err(Into::into))?;
    println!("kernel                        {kernel:7.3} us");
    report("one rank", alone - kernel, 2.0);
    report("one rank, history recorded", recorded - kernel, 2.0);
    for (mesh, ranks) in [("x=2", 2), ("x=2 y=1", 2)] {
        let (kernel, mesh_time, recorded) = on_mesh(mesh, ranks)?;
        report(&format!("mesh {mesh}"), mesh_time - kernel, 5.0);
        report(&format!("mesh {mesh}, history recorded"), recorded - kernel, 5.0);
    }
    for axes in 1..=4 {
        println!("{:<30}{:7.1} us", format!("first decision, {axes} axes"), first_decision(axes)?);
    }
    Ok(())
}

/// Microseconds to decide a product whose inputs disagree on every axis, from the fastest round.
fn first_decision(axes: usize) -> Result<f64> {
    let mesh = Mesh::new(&[("a", 2), ("b", 2), ("c", 2), ("d", 2)][..axes])?;
    let shapes = [Shape::new(&[64, 128, 96])?, Shape::new(&[64, 96, 160])?, Shape::new(&[64, 128, 160])?];
    let rule = matmul(&shapes[0], &shapes[1], &shapes[2]);
    let cut = |shift: usize| (0..axes).map(|axis| Placement::shard((axis + shift) % 3)).collect::<Vec<_>>();
    let layouts = [Layout::new(&mesh, &shapes[0], &cut(0))?, Layout::new(&mesh, &shapes[1], &cut(2))?];
    let inputs = layouts.each_ref().map(|layout| Operand { layout, size: 4 });
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        decide(&rule, &inputs, &[(&shapes[2], 4)], &Terms::default())?;
        best = best.min(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(best)
}

fn report(what: &str, microseconds: f64, bar: f64) {
    let verdict = if microseconds <= bar { "ok" } else { "over" };
    println!("{what:<30}{microseconds:7.3} us, bar {bar} us: {verdict}");
}

/// Microseconds of one call, from the fastest round.
fn fastest(mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..CALLS {
            call()?;
        }
        best = best.min(start.elapsed().as_secs_f64() / CALLS as f64 * 1e6);
    }
    Ok(best)
}

/// The kernel on a piece, the op on a mesh, and the same with history; the slowest rank counts.
fn on_mesh(mesh: &str, ranks: usize) -> Result<(f64, f64, f64)> {
    let mesh: Mesh = mesh.parse()?;
    let times = threads::run(ranks, |comm| -> Result<(f64, f64, f64)> {
        let world = World::new(comm);
        let whole = Array::full(&[16], 1.0, DType::F32)?;
        let mut placements = vec![Placement::Replicate; mesh.naxes()];
        placements[0] = Placement::shard(0);
        let layout = Layout::new(&mesh, whole.shape(), &placements)?;
        let x = Tensor::place(&whole, &mesh, layout.placements(), &world)?;
        let piece = x.local().clone();
        let kernel = fastest(|| piece.add(&piece).map(drop).map_err(Into::into))?;
        let plain = fastest(|| x.add(&x).map(drop).map_err(Into::into))?;
        let leaf = x.requires_grad();
        Ok((kernel, plain, fastest(|| leaf.add(&leaf).map(drop).map_err(Into::into))?))
    });
    let times = times.into_iter().collect::<Result<Vec<_>>>()?;
    times.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).context("no ranks")
}
