//! What is asked for comes, two blocks at most are here at a time, and ranks that are out of step do not hang.

use super::*;
use crate::bundle::{self, BundleOptions, Row};
use crate::config::Sharding;
use planaria_array::{DType, reset_thread_peak, thread_memory_stats};
use planaria_comm::{CommExt, threads};
use planaria_layout::Layout;

const LAYERS: usize = 6;

/// Elements of a layer's two weights.
const NUMELS: [usize; 2] = [1 << 16, 1 << 18];

/// A gatherer of layers only, every element of a weight being the weight's number.
fn layers(comm: Arc<dyn Comm>, sharding: Sharding) -> Gatherer {
    let layouts: Vec<Layout> =
        NUMELS.iter().map(|n| format!("[{n}] @ dp:R on dp={}", comm.size()).parse().unwrap()).collect();
    let row = |i: usize| {
        let (block, layout) = (Some(i / 2), &layouts[i % 2]);
        Some(Row { block, layout, dtype: DType::F32, trainable: true, alone: false })
    };
    let rows: Vec<Option<Row<'_>>> = (0..2 * LAYERS).map(row).collect();
    let options = BundleOptions { sharding, bytes: 1 << 30 };
    let blocks = bundle::blocks(&rows, options, comm.rank()).unwrap();
    let mut homes = vec![[0; 3]; rows.len()];
    for (block, bundles) in blocks.iter().enumerate() {
        for (place, bundle) in bundles.iter().enumerate() {
            bundle.members.iter().enumerate().for_each(|(k, &weight)| homes[weight] = [block, place, k]);
        }
    }
    let held = |bundle: Bundle| {
        let part =
            |(k, &weight): (usize, &usize)| vec![weight as f32; bundle.share(k).range(comm.rank()).len()];
        let own: Vec<f32> = bundle.members.iter().enumerate().flat_map(part).collect();
        Held { own: Array::from_slice(&own, &[own.len()]).unwrap(), bundle }
    };
    let blocks = blocks.into_iter().map(|bundles| bundles.into_iter().map(held).collect()).collect();
    let stop = |block| Stop { part: 0, block, turns: block + 1 == LAYERS, both_ways: true };
    Gatherer::new(comm.clone(), blocks, homes, (0..LAYERS).map(stop).collect())
}

fn check(gatherer: &Gatherer, layer: usize) {
    for (k, numel) in NUMELS.into_iter().enumerate() {
        let found = gatherer.get(2 * layer + k).unwrap().to_vec::<f32>().unwrap();
        assert!(found.len() == numel && found.iter().all(|&v| v == (2 * layer + k) as f32), "layer {layer}");
    }
}

#[test]
fn two_blocks_are_here_at_most_in_both_directions() {
    for sharding in [Sharding::Flat, Sharding::Parameter] {
        threads::run(2, |comm| {
            let gatherer = layers(comm, sharding);
            let near = || {
                let mut blocks: Vec<usize> = gatherer.lock().near.iter().map(|near| near.block).collect();
                blocks.sort_unstable();
                blocks
            };
            let block = 4 * NUMELS.iter().sum::<usize>();
            reset_thread_peak();
            let before = thread_memory_stats().live;
            for _ in 0..2 {
                gatherer.enter(Pass::Forward);
                for layer in 0..LAYERS {
                    check(&gatherer, layer);
                    let next = if layer + 1 < LAYERS { layer + 1 } else { layer - 1 };
                    assert_eq!(near(), [layer.min(next), layer.max(next)]);
                }
                gatherer.enter(Pass::Backward);
                for layer in (0..LAYERS).rev() {
                    check(&gatherer, layer);
                    assert_eq!(near(), Vec::from_iter(layer.saturating_sub(1)..=layer));
                }
            }
            let used = thread_memory_stats().peak - before;
            // Size classes waste a quarter at most; ranges that come packed are put in order beside the rest.
            let bound = if sharding == Sharding::Flat { 2 * block } else { 3 * block };
            assert!(used <= bound + bound / 4, "{used} bytes of blocks of {block}");
            gatherer.clear().unwrap();
            assert!(near().is_empty());
        });
    }
}

#[test]
fn any_way_through_the_blocks_gives_their_weights() {
    threads::run(3, |comm| {
        let rank = comm.rank() as u64;
        let gatherer = layers(comm, Sharding::Flat);
        for (i, layer) in [0, 1, 4, 2, 2, 5, 0, 3].into_iter().enumerate() {
            gatherer.enter(if i % 3 == 0 { Pass::Backward } else { Pass::Forward });
            std::thread::sleep(std::time::Duration::from_millis((rank * 7 + i as u64 * 5) % 11));
            check(&gatherer, layer);
        }
        gatherer.clear().unwrap();
    });
}

#[test]
fn a_block_with_other_bundles_gives_what_is_in_them() {
    threads::run(2, |comm| {
        let gatherer = layers(comm.clone(), Sharding::Flat);
        check(&gatherer, 0);
        check(&gatherer, 1);
        // The second weight leaves layer 1, and something that is no weight comes.
        let held = gatherer.blocks().swap_remove(1).swap_remove(0);
        let left = held.bundle.only(|weight| weight == 2).unwrap();
        let own = held.own.narrow(0, 0, left.share(0).range(comm.rank()).len()).unwrap();
        let layout: Layout = "[10] @ dp:R on dp=2".parse().unwrap();
        let row = Row { block: None, layout: &layout, dtype: DType::U8, trainable: false, alone: false };
        let options = BundleOptions { sharding: Sharding::Flat, bytes: 1 << 20 };
        let mut bytes = bundle::blocks(&[Some(row)], options, comm.rank()).unwrap().remove(0).remove(0);
        bytes.members = vec![99];
        let part = bytes.share(0).range(comm.rank()).map(|i| i as u8).collect::<Vec<_>>();
        let part = Array::from_slice(&part, &[part.len()]).unwrap();
        let others = vec![Held { bundle: left, own }, Held { bundle: bytes, own: part }];
        gatherer.replace(1, others).unwrap();
        check(&gatherer, 2);
        assert_eq!(gatherer.get(99).unwrap().to_vec::<u8>().unwrap(), Vec::from_iter(0..10));
        assert!(gatherer.get(2).unwrap().to_vec::<f32>().unwrap().iter().all(|&v| v == 2.0));
        assert!(gatherer.get(3).is_err() && gatherer.get(50).is_err());
        gatherer.clear().unwrap();
    });
}
