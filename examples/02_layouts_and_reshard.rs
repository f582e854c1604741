//! Layouts and reshard: a model on `dp=2 tp=3` moves to `dp=3 tp=2`, exactly, each tensor by the cheapest route.
//!
//! `cargo run --example 02_layouts_and_reshard`

use planaria::array::ops::Distribution::Uniform;
use planaria::prelude::*;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Name, layout before and layout after.
const MODEL: &[(&str, &str, &str)] = &[
    ("embed_tokens.weight", "f32[1000,64] @ tp:S0", "f32[1000,64] @ tp:S0"),
    ("layers.0.q_proj.weight", "f32[64,64] @ tp:S0", "f32[64,64] @ dp:S1 tp:S0"),
    ("layers.0.down_proj.weight", "f32[64,172] @ dp:S0 tp:S1", "f32[64,172] @ tp:S1"),
    ("layers.0.norm.weight", "f32[64] @ dp:S0", "f32[64]"),
];

fn main() -> Result<(), Error> {
    let (before, after): (Mesh, Mesh) = ("dp=2 tp=3".parse()?, "dp=3 tp=2".parse()?);
    println!("{before}  becomes  {after}\n");
    for (name, from, to) in MODEL {
        let (from, to) = (from.parse::<TensorSpec>()?.on(&before)?, to.parse::<TensorSpec>()?.on(&after)?);
        // A layout says which box of the tensor each rank holds.
        println!("{name}");
        println!("  {from}: rank 5 holds {}", from.piece(5)?.boxes()[0]);
        println!("  {to}: rank 5 holds {}", to.piece(5)?.boxes()[0]);
        // Planning is a pure function of the two layouts: it needs no ranks.
        let route = Route::find(&from, &to, DType::F32.size())?;
        println!("  {route}: {} bytes leave a rank on average", route.cost().bytes);
    }
    // Six ranks carry it out. Each compares its piece with that of a model that was born on the new mesh.
    for moved in threads::run(6, |comm| regrow(&World::new(comm), &before, &after)) {
        moved?;
    }
    println!("\nevery piece on {after} is equal, bit for bit, to that of a model that was born there");
    Ok(())
}

fn regrow(world: &World, before: &Mesh, after: &Mesh) -> Result<(), Error> {
    for (stream, (name, from, to)) in MODEL.iter().enumerate() {
        let (from, to) = (from.parse::<TensorSpec>()?.on(before)?, to.parse::<TensorSpec>()?.on(after)?);
        // Random values are keyed by global index: they do not depend on the layout.
        let born = |layout: &Layout| {
            let (range, key) = (Uniform { low: -1.0, high: 1.0 }, Key::new(42, stream as u64));
            Tensor::random_with(layout, range, DType::F32, key, world)
        };
        let moved = born(&from)?.reshard(&to)?;
        if moved.local().to_vec::<f32>()? != born(&to)?.local().to_vec::<f32>()? {
            return Err(format!("rank {}: {name} did not grow back", world.rank()).into());
        }
    }
    Ok(())
}
