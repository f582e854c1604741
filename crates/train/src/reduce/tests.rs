//! The sum is one left fold, whatever the number of ranks, the order of arrival and the buckets.

use super::*;
use planaria_comm::threads;
use planaria_layout::{FlatShards, Layout, Mesh, Shape};
use proptest::prelude::*;

fn options(mode: Reduction, bucket_bytes: usize) -> ReduceOptions {
    ReduceOptions { mode, bucket_bytes, device: Device::Cpu }
}

/// Gradient of a lane in a micro-batch: values whose sum depends on its order; some micro-batches have none.
fn gradient(micro: usize, lane: usize, numel: usize) -> Option<Vec<f32>> {
    let value = |i: usize| {
        let mixed = (micro * 31 + lane * 17 + i * 7 + 3).wrapping_mul(0x9e37_79b9) % 10_007;
        (mixed as f32 - 5000.0) * 10f32.powi((mixed % 9) as i32 - 4)
    };
    (!(micro + lane).is_multiple_of(5)).then(|| (0..numel).map(value).collect())
}

fn expected(micros: usize, lane: usize, numel: usize) -> Vec<u32> {
    let of = |micro| gradient(micro, lane, numel).unwrap_or_else(|| vec![0.0; numel]);
    let mut sum = of(0);
    for micro in 1..micros {
        sum.iter_mut().zip(of(micro)).for_each(|(s, g)| *s += g);
    }
    sum.iter().map(|v| v.to_bits()).collect()
}

/// The shares of rows that are divided as one, as ZeRO divides small tensors.
fn end_to_end(numels: &[usize], ranks: usize) -> Vec<Share> {
    let mesh = Mesh::new(&[("dp", ranks)]).unwrap();
    let row = |&numel: &usize| Layout::replicated(&mesh, &Shape::new(&[numel]).unwrap());
    let rows: Vec<Layout> = numels.iter().map(row).collect();
    FlatShards::bundle(&rows, "dp").unwrap().iter().map(|row| row.share(0).unwrap()).collect()
}

/// The sums by lane, in bits, over all ranks.
fn reduced(
    ranks: usize,
    micros: usize,
    numels: &[usize],
    bucket_bytes: usize,
    order: &[usize],
    flat: bool,
) -> Vec<Vec<u32>> {
    let shares = match flat {
        true => end_to_end(numels, ranks),
        false => numels.iter().map(|&numel| Share::even(numel, ranks)).collect(),
    };
    let lanes: Vec<Lane> = shares.into_iter().map(|share| Lane { share, dtype: DType::F32 }).collect();
    let parts = threads::run(ranks, |comm| {
        let rank = comm.rank();
        let reducer = Reducer::new(comm, &lanes, options(Reduction::Exact, bucket_bytes));
        let rounds = micros / ranks;
        // Rounds may end in any order, as pipeline schedules do.
        let mut turn: Vec<usize> = (0..rounds).collect();
        turn.sort_by_key(|round| order[round % order.len()]);
        for &round in &turn {
            for lane in (0..lanes.len()).rev() {
                reducer.expect(round, lane);
            }
            for lane in (0..lanes.len()).rev() {
                if let Some(grad) = gradient(round * ranks + rank, lane, numels[lane]) {
                    reducer.give(round, lane, &Array::from_slice(&grad, &[numels[lane]]).unwrap()).unwrap();
                }
            }
            reducer.finish_round(round).unwrap();
        }
        let sums = reducer.finish_step(rounds).unwrap();
        sums.iter().map(|a| a.to_vec::<f32>().unwrap()).collect::<Vec<_>>()
    });
    let whole = |lane: usize| parts.iter().flat_map(|rank| rank[lane].iter().map(|v| v.to_bits())).collect();
    (0..numels.len()).map(whole).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_split_gives_the_bits_of_the_left_fold(
        ranks in 1usize..5,
        rounds in 1usize..4,
        numels in prop::collection::vec(0usize..40, 1..6),
        bucket_bytes in prop::sample::select(vec![1usize, 100, 1 << 20]),
        order in prop::collection::vec(0usize..4, 1..4),
        flat in any::<bool>(),
    ) {
        let micros = ranks * rounds;
        let found = reduced(ranks, micros, &numels, bucket_bytes, &order, flat);
        for (lane, &numel) in numels.iter().enumerate() {
            prop_assert_eq!(&found[lane], &expected(micros, lane, numel));
        }
    }
}

#[test]
fn two_gradients_of_one_parameter_are_added_before_the_fold() {
    let lanes = [Lane { share: Share::even(2, 2), dtype: DType::F32 }];
    let sums = threads::run(2, |comm| {
        let reducer = Reducer::new(comm, &lanes, options(Reduction::Exact, 1));
        reducer.expect(0, 0);
        reducer.expect(0, 0);
        let grad = Array::from_slice(&[1.0f32, 2.0], &[2]).unwrap();
        reducer.give(0, 0, &grad).unwrap();
        reducer.give(0, 0, &grad).unwrap();
        assert_eq!(grad.to_vec::<f32>().unwrap(), [1.0, 2.0], "the gradient itself is not written to");
        reducer.finish_round(0).unwrap();
        assert!(reducer.give(0, 0, &grad).is_err(), "too late");
        reducer.finish_step(1).unwrap()[0].to_vec::<f32>().unwrap()
    });
    assert_eq!(sums, [[4.0], [8.0]]);
}

#[test]
fn sums_of_narrow_floats_are_kept_in_f32() {
    for (ranks, rounds) in [(1, 4), (2, 2), (4, 1)] {
        let lanes = [Lane { share: Share::even(1, ranks), dtype: DType::BF16 }];
        let sums = threads::run(ranks, |comm| {
            let reducer = Reducer::new(comm, &lanes, options(Reduction::Exact, 1));
            for round in 0..rounds {
                let grad = Array::full(&[1], 1.0f32 / 256.0 + 1.0, DType::BF16).unwrap();
                reducer.expect(round, 0);
                reducer.give(round, 0, &grad).unwrap();
                reducer.finish_round(round).unwrap();
            }
            reducer.finish_step(rounds).unwrap()[0].to_vec::<f32>().unwrap()
        });
        let one = Array::full(&[1], 1.0f32 / 256.0 + 1.0, DType::BF16).unwrap().cast(DType::F32).unwrap();
        let one = one.to_vec::<f32>().unwrap()[0];
        assert_eq!(sums.concat(), [one * 4.0]);
    }
}

#[test]
fn sums_once_a_step_are_the_same_value_and_sent_once() {
    let lanes = [3, 2].map(|numel| Lane { share: Share::even(numel, 2), dtype: DType::F32 });
    let sums = threads::run(2, |comm| {
        let reducer = Reducer::new(comm, &lanes, options(Reduction::Step, 1 << 20));
        for round in 0..3 {
            for lane in [1, 0] {
                reducer.expect(round, lane);
                let grad = Array::full(&[lanes[lane].share.numel()], round as f64 + 1.0, DType::F32).unwrap();
                reducer.give(round, lane, &grad).unwrap();
            }
            reducer.finish_round(round).unwrap();
        }
        let sums = reducer.finish_step(3).unwrap();
        sums.iter().map(|a| a.to_vec::<f32>().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(sums, [[vec![12.0, 12.0], vec![12.0]], [vec![12.0], vec![12.0]]]);
}

/// A rank that is ahead waits for the others instead of piling up what it has sent.
#[test]
fn no_more_than_a_few_buckets_are_in_flight() {
    let behind = std::sync::Barrier::new(2);
    let lanes = vec![Lane { share: Share::even(64, 2), dtype: DType::F32 }; 12];
    let most = threads::run(2, |comm| {
        let ahead = comm.rank() == 0;
        let options = options(Reduction::Exact, 1);
        let reducer = Reducer::new(comm, &lanes, options);
        let mut most = 0;
        if !ahead {
            behind.wait();
        }
        for lane in (0..lanes.len()).rev() {
            reducer.expect(0, lane);
            reducer.give(0, lane, &Array::from_slice(&[1f32; 64], &[64]).unwrap()).unwrap();
            most = most.max(reducer.lock().flying.len());
            if ahead && lanes.len() - lane == IN_FLIGHT {
                behind.wait();
            }
        }
        reducer.finish_round(0).unwrap();
        let sums = reducer.finish_step(1).unwrap();
        assert!(sums.iter().all(|sum| sum.to_vec::<f32>().unwrap() == [2f32; 32]));
        most
    });
    assert_eq!(most[0], IN_FLIGHT, "{most:?}");
    assert!(most[1] <= IN_FLIGHT, "{most:?}");
}
