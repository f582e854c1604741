//! The mesh to continue with when there are fewer ranks than the run began with, or more again.

use super::{Plan, PlanOptions};
use crate::config::{Config, MeshSection};
use crate::error::{Error, Result};
use planaria_nn::models::Architecture;

/// What a mesh must keep to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Fewest ranks; 0 and 1 are the same.
    pub least: usize,
    /// Bytes that a rank has, where that is a limit.
    pub memory: Option<u64>,
}

/// The mesh for at most `ranks` ranks: the first of `heal.meshes` that fits, or without that list the largest mesh that the
/// model, the batch and the memory allow. Of several that are as large, the one that changes fewest axes other than `dp`.
pub fn choose(
    config: &Config,
    model: &dyn Architecture,
    ranks: usize,
    choice: &Choice,
) -> Result<MeshSection> {
    let listed = &config.heal.meshes;
    let mut last = None;
    let mut fits = |mesh: MeshSection, size: usize| {
        let config = Config { mesh, ..config.clone() };
        let plan = Plan::new(&config, model, size, &PlanOptions::default());
        let needed = plan.map(|plan| plan.largest().map_or(0, |rank| rank.memory.total));
        match (needed, choice.memory) {
            (Err(error), _) => drop(last.get_or_insert(error.to_string())),
            (Ok(needed), Some(limit)) if needed > limit => {
                last.get_or_insert(format!("\"{mesh}\" needs {needed} bytes a rank, more than {limit}"));
            }
            _ => return true,
        }
        false
    };
    let sizes = choice.least.max(1)..=ranks;
    let own = config.mesh;
    if own.dp.is_some() && own.ranks() == ranks && listed.is_empty() && fits(own, ranks) {
        return Ok(own);
    }
    if listed.is_empty() {
        for size in sizes.clone().rev() {
            if let Some(mesh) = of_size(own, size).into_iter().find(|&mesh| fits(mesh, size)) {
                return Ok(mesh);
            }
        }
    }
    let own = |mesh: &&MeshSection| sizes.contains(&mesh.ranks());
    if let Some(&mesh) = listed.iter().filter(own).find(|mesh| fits(**mesh, mesh.ranks())) {
        return Ok(mesh);
    }
    let list = if listed.is_empty() { "no mesh" } else { "no mesh of `heal.meshes`" };
    let why = last.map(|why| format!("; the first reason: {why}")).unwrap_or_default();
    Err(Error::Value {
        key: "mesh".into(),
        found: config.mesh.to_string(),
        expected: format!("one that {} to {ranks} ranks can make, but {list} fits{why}", sizes.start()),
    })
}

/// All meshes of a size, those first that keep what the configuration says.
fn of_size(own: MeshSection, size: usize) -> Vec<MeshSection> {
    let divisors = |n: usize| (1..=n).filter(move |d| n.is_multiple_of(*d));
    let mut all = Vec::new();
    for pp in divisors(size) {
        for tp in divisors(size / pp) {
            for ep in divisors(size / pp / tp) {
                all.push(MeshSection { pp, dp: Some(size / pp / tp / ep), ep, tp });
            }
        }
    }
    let changes = |mesh: &MeshSection| {
        let axes = [(mesh.pp, own.pp), (mesh.ep, own.ep), (mesh.tp, own.tp)];
        let changed = axes.iter().filter(|(a, b)| a != b).count();
        // Axes that grow need more from the model than those that shrink.
        let grown = axes.iter().filter(|(a, b)| a > b).count();
        (changed, grown, mesh.pp, mesh.tp, mesh.ep)
    };
    all.sort_by_key(changes);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sources;
    use crate::plan::model_of;
    use planaria_nn::models::Models;

    fn config(more: &str) -> Config {
        let text = format!(
            "mesh = \"pp=2 dp=2\"\n{more}\n[model]\nhidden_size = 16\nintermediate_size = 24\nnum_hidden_layers = 2\n\
             num_attention_heads = 2\n[data]\nsequence = 16\ntokenizer = \"bytes\"\n[[data.source]]\npath = \"x\"\n\
             [train]\nglobal_batch = 4\n"
        );
        Sources::text("test", &text).resolve().unwrap().config
    }

    fn chosen(config: &Config, ranks: usize, choice: &Choice) -> Result<String> {
        let model = model_of(config, &Models::default())?;
        choose(config, &*model, ranks, choice).map(|mesh| mesh.to_string())
    }

    #[test]
    fn the_largest_mesh_that_fits_keeps_what_it_can() {
        let (config, any) = (config(""), Choice::default());
        let of = |ranks| chosen(&config, ranks, &any).unwrap();
        assert_eq!(of(4), "pp=2 dp=2");
        // Three replicas do not share four samples; of three stages one has no block, but the embedding or the head.
        assert_eq!(of(3), "pp=3 dp=1");
        assert_eq!(of(2), "pp=2 dp=1");
        assert_eq!(of(1), "dp=1");
        assert_eq!(of(8), "pp=2 dp=4");
    }

    #[test]
    fn the_users_list_and_the_limits_are_kept() {
        let listed = config("heal.meshes = [\"dp=4\", \"tp=2\", \"dp=1\"]");
        assert_eq!(chosen(&listed, 4, &Choice::default()).unwrap(), "dp=4");
        assert_eq!(chosen(&listed, 3, &Choice::default()).unwrap(), "tp=2");
        assert_eq!(chosen(&listed, 1, &Choice::default()).unwrap(), "dp=1");
        let error = chosen(&listed, 1, &Choice { least: 1, memory: Some(1000) }).unwrap_err().to_string();
        assert!(error.contains("more than 1000"), "{error}");
        let least = Choice { least: 3, memory: Some(1000) };
        let error = chosen(&config(""), 3, &least).unwrap_err().to_string();
        assert!(error.contains("3 to 3 ranks"), "{error}");
    }
}
