//! The main idea on one page: a model spread over eight ranks loses four of them and grows back on six, exactly.
//!
//! `cargo run --example 01_cut_and_regrow`

use planaria::prelude::*;
use std::collections::HashMap;

type Error = Box<dyn std::error::Error>;
/// What each rank holds of one tensor.
type Shards = HashMap<Rank, Array>;

fn main() -> Result<(), Error> {
    let mesh: Mesh = "dp=2 tp=4".parse()?;
    // Ranks 4 to 7 die. Each tensor is whole on the ranks with dp = 0, because dp holds copies.
    let survivors = mesh.fix(&[("dp", 0)])?;
    let regrown: Mesh = "dp=3 tp=2".parse()?;
    println!("{mesh}  loses its second half, keeps  {survivors}  and grows back as  {regrown}\n");

    let model = [
        ("embed_tokens.weight", "f32[1000,64] @ tp:S0", "f32[1000,64] @ tp:S0"),
        ("layers.0.q_proj.weight", "f32[64,64] @ tp:S0", "f32[64,64] @ dp:S1 tp:S0"),
        ("layers.0.down_proj.weight", "f32[64,172] @ tp:S1", "f32[64,172] @ dp:S0 tp:S1"),
        ("layers.0.norm.weight", "f32[64]", "f32[64]"),
    ];
    println!("{:<28}{:<26}{:<30}{:>10}{:>8}", "tensor", "from", "to", "bytes", "boxes");
    for (stream, (name, from, to)) in model.into_iter().enumerate() {
        let (spec, new_spec): (TensorSpec, TensorSpec) = (from.parse()?, to.parse()?);
        let (old, new) = (spec.on(&survivors)?, new_spec.on(&regrown)?);
        let key = Key { seed: 42, stream: stream as u64 };
        let held = grow(&old, key)?;
        let (shards, boxes, bytes) = reshard(&held, &old, &new)?;
        check(&shards, &new, key)?;
        println!("{name:<28}{from:<26}{to:<30}{bytes:>10}{boxes:>8}");
    }
    println!(
        "\nevery shard of every tensor is equal, bit for bit, to the one a run started on {regrown} would have"
    );
    Ok(())
}

/// Initial values. Random numbers are keyed by global index, so each rank makes its own box alone.
fn grow(layout: &Layout, key: Key) -> Result<Shards, Error> {
    layout.mesh().ranks().map(|rank| Ok((rank, values(layout, rank, key)?))).collect()
}

fn values(layout: &Layout, rank: Rank, key: Key) -> Result<Array, Error> {
    let piece = layout.piece(rank)?;
    let out = Array::zeros(&piece.extents(), DType::F32)?;
    for region in piece.boxes() {
        let local = piece.locate(&region).ok_or("a rank's own box lies outside its shard")?;
        let mut fresh = vec![0f32; region.numel()];
        uniform(&mut fresh, key, &Window::of_box(layout.shape(), region.lo(), region.hi())?)?;
        out.region(&local)?.copy_from(&Array::from_slice(&fresh, &region.extents())?)?;
    }
    Ok(out)
}

/// Every rank of `to` plans alone and copies its boxes from the ranks that hold them.
fn reshard(held: &Shards, from: &Layout, to: &Layout) -> Result<(Shards, usize, usize), Error> {
    let (mut shards, mut boxes, mut bytes) = (Shards::new(), 0, 0);
    for rank in to.mesh().ranks() {
        let piece = to.piece(rank)?;
        let out = Array::zeros(&piece.extents(), DType::F32)?;
        for tile in receive(from, to, &rank)? {
            let source = from
                .piece(tile.holder)?
                .locate(&tile.region)
                .ok_or("the plan names a box its holder lacks")?;
            let target = piece.locate(&tile.region).ok_or("the plan names a box its reader lacks")?;
            out.region(&target)?.copy_from(&held[&tile.holder].region(&source)?)?;
            if tile.holder != rank {
                boxes += 1;
                bytes += tile.region.numel() * DType::F32.size();
            }
        }
        shards.insert(rank, out);
    }
    Ok((shards, boxes, bytes))
}

fn check(shards: &Shards, layout: &Layout, key: Key) -> Result<(), Error> {
    for (&rank, shard) in shards {
        if shard.to_vec::<f32>()? != values(layout, rank, key)?.to_vec::<f32>()? {
            return Err(format!("rank {rank} of {layout} did not grow back").into());
        }
    }
    Ok(())
}
