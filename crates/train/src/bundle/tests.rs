//! Bundles keep to blocks and sizes, and bring back exactly what the ranks had.

use super::*;
use planaria_comm::threads;
use proptest::prelude::*;

/// A row of elements that all data ranks have.
fn layout(numel: usize, ranks: usize) -> Layout {
    format!("[{numel}] @ dp:R on dp={ranks}").parse().unwrap()
}

fn row(block: Option<usize>, layout: &Layout) -> Option<Row<'_>> {
    Some(Row { block, layout, dtype: DType::F32, trainable: true, alone: false })
}

#[test]
fn a_bundle_stays_in_its_block_and_below_its_size() {
    let (small, big) = (&layout(4, 2), &layout(ALONE / 4, 2));
    let rows = [
        row(None, small),
        row(Some(0), small),
        row(Some(0), big),
        row(Some(0), small),
        row(Some(10), small),
        row(Some(10), small),
        row(None, small),
        None,
    ];
    let options = |sharding| BundleOptions { sharding, bytes: 1 << 30 };
    let flat = groups(&rows, options(Sharding::Flat));
    assert_eq!(flat, [vec![vec![0]], vec![vec![1, 2, 3]], vec![vec![4, 5]], vec![vec![6]]]);
    let each = groups(&rows, options(Sharding::Parameter));
    assert_eq!(each[1], [vec![1], vec![2], vec![3]], "a long one travels alone");
    let small = BundleOptions { bytes: 20, ..options(Sharding::Flat) };
    assert_eq!(groups(&rows, small)[2], [vec![4], vec![5]]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_is_gathered_is_what_was_shared_out(
        numels in prop::collection::vec(0usize..9, 1..6),
        ranks in 1usize..5,
        flat in any::<bool>(),
    ) {
        let layouts: Vec<Layout> = numels.iter().map(|&numel| layout(numel, ranks)).collect();
        let rows: Vec<_> = layouts.iter().map(|layout| row(Some(0), layout)).collect();
        let sharding = if flat { Sharding::Flat } else { Sharding::Parameter };
        let blocks = blocks(&rows, BundleOptions { sharding, bytes: 1 << 20 }, 0).unwrap();
        let [bundle] = &blocks[0][..] else { panic!("one bundle") };
        prop_assert!(!flat || bundle.is_straight());
        let value = |member: usize, i: usize| (member * 100 + i) as f32;
        let found = threads::run(ranks, |comm| {
            let part = |member: usize| {
                let range = bundle.share(member).range(comm.rank());
                let values: Vec<f32> = range.map(|i| value(member, i)).collect();
                Array::from_slice(&values, &[values.len()]).unwrap()
            };
            let parts: Vec<Array> = (0..numels.len()).map(part).collect();
            let recv = bundle.start(&comm, &parts, None).unwrap().finish().unwrap();
            bundle.members_of(&recv).unwrap().iter().map(|a| a.to_vec::<f32>().unwrap()).collect::<Vec<_>>()
        });
        let whole = |(member, &numel): (usize, &usize)| (0..numel).map(|i| value(member, i)).collect();
        let whole: Vec<Vec<f32>> = numels.iter().enumerate().map(whole).collect();
        prop_assert!(found.iter().all(|of_rank| *of_rank == whole));
    }
}
