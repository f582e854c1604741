//! The loss of a linear layer: equal to its two steps in any chunks and cuts, and never all scores at once.

use planaria_array::ops::Distribution::Uniform;
use planaria_array::random::Key;
use planaria_array::{Array, DType, reset_thread_peak, thread_memory_stats};
use planaria_comm::threads;
use planaria_layout::{Mesh, Placement};
use planaria_nn::{IGNORED, linear_cross_entropy, linear_cross_entropy_by};
use planaria_tensor::ops::{CrossEntropyOptions, cross_entropy, linear, linear_cross_entropy_counting};
use planaria_tensor::{Tensor, World};

fn random(shape: &[usize], dtype: DType, stream: u64) -> Array {
    Array::random(shape, Uniform { low: -1.0, high: 1.0 }, dtype, Key::new(5, stream)).unwrap()
}

struct Case {
    hidden: Array,
    weight: Array,
    labels: Array,
}

impl Case {
    fn new(batch: usize, length: usize, width: usize, vocabulary: usize, dtype: DType) -> Case {
        let label = |i: usize| if i % 5 == 3 { IGNORED } else { ((i * 7919) % vocabulary) as i64 };
        let labels: Vec<i64> = (0..batch * length).map(label).collect();
        Case {
            hidden: random(&[batch, length, width], dtype, 0)
                .mul(&Array::scalar(3.0, dtype).unwrap())
                .unwrap(),
            weight: random(&[vocabulary, width], dtype, 1),
            labels: Array::from_slice(&labels, &[batch, length]).unwrap(),
        }
    }

    /// The sum of losses, and the gradients of three times it.
    fn run(&self, sum: impl Fn(&Tensor, &Tensor, &Tensor) -> Tensor) -> [Array; 3] {
        let (hidden, weight) = (
            Tensor::new(self.hidden.clone()).requires_grad(),
            Tensor::new(self.weight.clone()).requires_grad(),
        );
        let sum = sum(&hidden, &weight, &Tensor::new(self.labels.clone()));
        sum.mul_scalar(3.0).unwrap().backward().unwrap();
        [sum.local().clone(), hidden.grad().unwrap().local().clone(), weight.grad().unwrap().local().clone()]
    }

    fn expected(&self) -> [Array; 3] {
        self.run(|h, w, l| {
            let reduction = planaria_array::ops::Reduction::Sum;
            let options = CrossEntropyOptions { reduction, ..CrossEntropyOptions::default() };
            cross_entropy(&linear(h, w, None).unwrap(), l, &options).unwrap()
        })
    }
}

fn close(found: &Array, expected: &Array, bound: f64, what: &str) {
    let values = |a: &Array| a.cast(DType::F64).unwrap().to_vec::<f64>().unwrap();
    assert_eq!(found.shape(), expected.shape(), "{what}");
    for (f, e) in values(found).into_iter().zip(values(expected)) {
        assert!((f - e).abs() <= bound * e.abs().max(1.0), "{what}: {f}, not {e}");
    }
}

#[test]
fn any_chunks_give_what_the_two_steps_give() {
    let case = Case::new(2, 9, 5, 23, DType::F64);
    let expected = case.expected();
    for rows in [1, 4, 7, 18, 1000] {
        let found = case.run(|h, w, l| linear_cross_entropy_by(rows, h, w, l).unwrap());
        found.iter().zip(&expected).for_each(|(f, e)| close(f, e, 1e-13, &format!("{rows} rows")));
    }
}

#[test]
fn narrow_hidden_states_have_wide_losses() {
    let case = Case::new(2, 9, 5, 23, DType::BF16);
    let sum = linear_cross_entropy(
        &Tensor::new(case.hidden.clone()),
        &Tensor::new(case.weight.clone()),
        &Tensor::new(case.labels.clone()),
    );
    assert_eq!(sum.unwrap().dtype(), DType::F32);
    let found = case.run(|h, w, l| linear_cross_entropy_by(5, h, w, l).unwrap());
    let wide = Case {
        hidden: case.hidden.cast(DType::F32).unwrap(),
        weight: case.weight.cast(DType::F32).unwrap(),
        labels: case.labels.clone(),
    };
    found.iter().zip(wide.expected()).for_each(|(f, e)| close(f, &e, 0.05, "bf16"));
}

/// Vocabularies cut over `tp`, unevenly, down to ranks with nothing; batches cut over `ep`.
#[test]
fn any_cut_gives_what_one_rank_gives() {
    for (mesh, vocabulary) in [("tp=2", 23), ("tp=4", 5), ("tp=4", 2), ("ep=2 tp=2", 23), ("ep=2", 7)] {
        let case = Case::new(3, 6, 5, vocabulary, DType::F64);
        let expected = case.expected();
        let mesh: Mesh = mesh.parse().unwrap();
        threads::run(mesh.size(), |comm| {
            let world = World::new(comm);
            let place = |array: &Array, ep: Placement, tp: Placement| {
                let axis = |a: &planaria_layout::Axis| if a.name == "tp" { tp } else { ep };
                let placements: Vec<Placement> = mesh.axes().iter().map(axis).collect();
                Tensor::place(array, &mesh, &placements, &world).unwrap()
            };
            let (whole, cut) = (Placement::Replicate, Placement::shard(0));
            let hidden = place(&case.hidden, cut, whole).requires_grad();
            let weight = place(&case.weight, whole, cut).requires_grad();
            let sum = linear_cross_entropy_by(4, &hidden, &weight, &place(&case.labels, cut, whole)).unwrap();
            sum.settled().unwrap().mul_scalar(3.0).unwrap().backward().unwrap();
            let found = [sum, hidden.grad().unwrap(), weight.grad().unwrap()];
            let text = format!("{vocabulary} on {mesh}");
            found.iter().zip(&expected).for_each(|(f, e)| close(&f.whole().unwrap(), e, 1e-13, &text));
        });
    }
}

#[test]
fn labels_with_the_highest_score_are_counted_on_every_cut() {
    for (mesh, vocabulary) in [("tp=1", 23), ("tp=2", 5), ("tp=4", 2), ("ep=2 tp=2", 7)] {
        let mut case = Case::new(3, 6, 5, vocabulary, DType::F32);
        let scores = Tensor::new(case.hidden.clone());
        let scores = linear(&scores, &Tensor::new(case.weight.clone()), None).unwrap();
        let best = scores.local().max(-1, planaria_array::ops::Keep::No).unwrap().1.to_vec::<i64>().unwrap();
        // A third is right, a third is wrong, a third does not count.
        let label = |(i, best): (usize, &i64)| match i % 3 {
            0 => *best,
            1 => (best + 1) % vocabulary as i64,
            _ => IGNORED,
        };
        let labels: Vec<i64> = best.iter().enumerate().map(label).collect();
        case.labels = Array::from_slice(&labels, &[3, 6]).unwrap();
        let plain = case.run(|h, w, l| linear_cross_entropy(h, w, l).unwrap());
        let mesh: Mesh = mesh.parse().unwrap();
        threads::run(mesh.size(), |comm| {
            let world = World::new(comm);
            let place = |array: &Array, ep: Placement, tp: Placement| {
                let axis = |a: &planaria_layout::Axis| if a.name == "tp" { tp } else { ep };
                let placements: Vec<Placement> = mesh.axes().iter().map(axis).collect();
                Tensor::place(array, &mesh, &placements, &world).unwrap()
            };
            let (whole, cut) = (Placement::Replicate, Placement::shard(0));
            let hidden = place(&case.hidden, cut, whole).requires_grad();
            let weight = place(&case.weight, whole, cut).requires_grad();
            let found = linear_cross_entropy_counting(&hidden, &weight, &place(&case.labels, cut, whole));
            let (sum, right) = found.unwrap();
            assert_eq!(right.settled().unwrap().whole().unwrap().to_vec::<f32>().unwrap(), [6.0], "{mesh}");
            sum.settled().unwrap().mul_scalar(3.0).unwrap().backward().unwrap();
            let found = [sum, hidden.grad().unwrap(), weight.grad().unwrap()];
            found.iter().zip(&plain).for_each(|(f, e)| close(&f.whole().unwrap(), e, 1e-5, "counting"));
        });
    }
}

#[test]
fn labels_outside_the_vocabulary_are_refused_on_every_cut() {
    let mut case = Case::new(1, 4, 3, 6, DType::F32);
    case.labels = Array::from_slice(&[0i64, 6, 1, IGNORED], &[1, 4]).unwrap();
    let mesh: Mesh = "tp=2".parse().unwrap();
    threads::run(2, |comm| {
        let world = World::new(comm);
        let weight = Tensor::place(&case.weight, &mesh, &[Placement::shard(0)], &world).unwrap();
        let hidden = Tensor::new(case.hidden.clone());
        let refused = linear_cross_entropy(&hidden, &weight, &Tensor::new(case.labels.clone()));
        assert!(refused.unwrap_err().to_string().contains("neither below 6"));
    });
}

#[test]
fn all_scores_are_never_there_at_once() {
    let (batch, length, width, vocabulary) = (4, 64, 8, 2000);
    let case = Case::new(batch, length, width, vocabulary, DType::F32);
    let peak = |rows: usize| {
        let before = thread_memory_stats().live;
        reset_thread_peak();
        case.run(|h, w, l| linear_cross_entropy_by(rows, h, w, l).unwrap());
        thread_memory_stats().peak - before
    };
    let (scores, gradients) = (batch * length * vocabulary * 4, (batch * length + vocabulary) * width * 4);
    peak(8);
    let (few, all) = (peak(8), peak(batch * length));
    assert!(all >= scores, "the counters see the scores: {all} of {scores}");
    // A few rows of scores and their gradient, and the gradients with their scaled copies.
    assert!(few < scores / 4 + 4 * gradients, "{few} bytes at the peak; all scores are {scores}");
    assert!(few < all / 4, "{few} against {all}");
}
