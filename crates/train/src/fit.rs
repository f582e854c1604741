//! Whether a model can be trained as a configuration divides it: one answer for `plan` and for the trainer, before anything is built.

use crate::config::{Config, MeshSection, require};
use crate::error::Result;
use crate::freeze::Frozen;
use planaria_layout::Mesh;
use planaria_nn::Parallel;
use planaria_nn::models::Architecture;
use planaria_tensor::World;

/// Refuses sizes that the model does not have, and meshes that it cannot be divided over.
pub(crate) fn check(config: &Config, model: &dyn Architecture) -> Result<()> {
    let (train, layers) = (&config.train, model.blocks());
    if let Some(block) = train.recompute_blocks.iter().find(|block| **block >= layers) {
        let expected = format!("blocks from 0 to {}", layers.saturating_sub(1));
        require("train.recompute_blocks", false, block, &expected)?;
    }
    let alone = config.mesh.pp == 1;
    require("train.chunks", !alone || train.chunks == 1, train.chunks, "1 without pipeline stages (`pp`)")?;
    let (most, sequence) = (model.positions(), config.data.sequence);
    let expected = format!("at least the {sequence} of `data.sequence`");
    require("model.max_position_embeddings", most >= sequence, most, &expected)?;
    Frozen::new(&train.freeze, model)?;
    let MeshSection { ep, tp, .. } = config.mesh;
    let mesh = Mesh::new(&[("ep", ep), ("tp", tp)])?;
    Ok(model.check_parallel(&Parallel { world: World::supposed(0), mesh, sequence: false })?)
}
