//! Which part of a model each pipeline stage has.

use planaria_nn::models::Stage;
use std::ops::Range;

/// Divides `layers` blocks over `stages` stages: contiguous, equal up to one; the later stages have the shorter ones,
/// because the last also has the head.
pub(crate) fn stages(layers: usize, stages: usize) -> Vec<Stage> {
    let count = stages.max(1);
    let stage = |stage: usize| Stage {
        layers: share(layers, count, stage),
        embed: stage == 0,
        head: stage + 1 == count,
    };
    (0..count).map(stage).collect()
}

fn share(layers: usize, stages: usize, stage: usize) -> Range<usize> {
    let (each, longer) = (layers / stages, layers % stages);
    let at = |stage: usize| stage * each + stage.min(longer);
    at(stage)..at(stage + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_follow_each_other_and_cover_the_model() {
        for layers in 0..9 {
            for count in 1..6 {
                let all = stages(layers, count);
                let joined: Vec<usize> = all.iter().flat_map(|s| s.layers.clone()).collect();
                assert_eq!(joined, (0..layers).collect::<Vec<_>>());
                assert_eq!(all.iter().filter(|s| s.embed).count(), 1);
                assert!(all[0].embed && all[count - 1].head);
                let lens: Vec<usize> = all.iter().map(|s| s.layers.len()).collect();
                assert!(lens.windows(2).all(|w| w[0] >= w[1]) && lens[0] - lens[count - 1] <= 1);
            }
        }
    }
}
