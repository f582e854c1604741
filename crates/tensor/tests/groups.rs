//! Experts that get exactly the rows that chose them: the same values and gradients on any number of ranks.

use planaria_array::ops::{Keep, Which};
use planaria_array::{Array, DType};
use planaria_comm::threads;
use planaria_layout::{Layout, Mesh, Placement, Reduce};
use planaria_tensor::ops::sample::Draw;
use planaria_tensor::{GradOptions, Tensor, World, grad, ops};

const CHOICES: usize = 2;
const WIDTH: usize = 3;

struct Case {
    x: Array,
    gates: Array,
    weight: Array,
}

impl Case {
    /// With favourites everyone chooses the first two experts.
    fn new(tokens: usize, experts: usize, favoured: bool) -> Case {
        let mut draw = Draw::new(11);
        let gates = draw.normal(&[tokens, experts]).unwrap();
        if favoured {
            gates.narrow(1, 0, 2).unwrap().fill(9.0).unwrap();
        }
        Case {
            x: draw.normal(&[tokens, WIDTH]).unwrap(),
            gates,
            weight: draw.normal(&[experts, WIDTH, WIDTH]).unwrap(),
        }
    }

    /// Result, gradients, and gradients of the squares of gradients; `place` puts a whole value on the ranks.
    fn run(&self, on: Option<(&Mesh, &World)>) -> Vec<Array> {
        let leaf = |a: &Array| match on {
            Some((mesh, world)) => Tensor::place(a, mesh, &[Placement::shard(0)], world).unwrap(),
            None => Tensor::new(a.clone()),
        };
        let (x, gates, weight) = (
            leaf(&self.x).requires_grad(),
            leaf(&self.gates).requires_grad(),
            leaf(&self.weight).requires_grad(),
        );
        let piece = |t: &Tensor| t.to_piece(&vec![Placement::shard(0); usize::from(on.is_some())]).unwrap();
        let (best, chosen) = gates.topk(CHOICES, 1, Which::Largest).unwrap();
        let groups = ops::moe_group(&Tensor::new(chosen.local().clone()), &weight).unwrap();
        let sent = groups.dispatch(&piece(&x)).unwrap();
        // A rank without experts computes with none of them, so that all record the same.
        let own = piece(&weight);
        let (own, loads) = match groups.loads() {
            [] => (vec![own.sum(&[0], Keep::No).unwrap()], vec![0]),
            loads => (own.unbind(0).unwrap(), loads.to_vec()),
        };
        let parts = sent.split_sizes(&loads, 0).unwrap();
        let done: Vec<Tensor> =
            parts.iter().zip(&own).map(|(rows, w)| rows.matmul(w).unwrap().tanh().unwrap()).collect();
        let done = ops::concat(&done.iter().collect::<Vec<_>>(), 0).unwrap();
        let sums = groups.combine(&done, &piece(&best)).unwrap();
        let y = match on {
            Some((mesh, world)) => {
                let layout = Layout::new(mesh, x.shape(), &[Placement::shard(0)]).unwrap();
                sums.as_piece(&layout, world).unwrap()
            }
            None => sums,
        };
        let leaves = [&x, &gates, &weight];
        let total = y.square().unwrap().sum(&[], Keep::No).unwrap();
        let options = GradOptions { keep_history: true, differentiable: true };
        let first = grad(&[&total], &[None], &leaves, options).unwrap();
        let first: Vec<Tensor> = first.into_iter().flatten().collect();
        let squares = first.iter().map(|g| g.square().unwrap().sum(&[], Keep::No).unwrap());
        let squares = squares.reduce(|a, b| a.add(&b).unwrap()).unwrap();
        let second = grad(&[&squares], &[None], &leaves, GradOptions::default()).unwrap();
        let all = std::iter::once(&y).chain(&first).chain(second.iter().flatten());
        all.map(|t| t.whole().unwrap()).collect()
    }
}

fn values(array: &Array) -> Vec<f64> {
    array.cast(DType::F64).unwrap().to_vec().unwrap()
}

/// More ranks than tokens, more ranks than experts, experts and whole ranks that nobody chooses, no token at all.
#[test]
fn any_number_of_ranks_gives_the_bits_of_one() {
    for (tokens, experts, favoured) in
        [(9, 5, false), (1, 3, false), (8, 2, false), (7, 6, true), (0, 3, false)]
    {
        let case = Case::new(tokens, experts, favoured);
        let expected = case.run(None);
        assert_eq!(expected.len(), 7);
        for ranks in [2, 3, 4] {
            threads::run(ranks, |comm| {
                let (mesh, world) = (Mesh::new(&[("x", ranks)]).unwrap(), World::new(comm));
                for (i, (found, expected)) in
                    case.run(Some((&mesh, &world))).iter().zip(&expected).enumerate()
                {
                    let what = format!("result {i}, {tokens} tokens, {experts} experts on {ranks} ranks");
                    assert_eq!(values(found), values(expected), "{what}");
                }
            });
        }
    }
}

/// Ranks that have the same experts and tokens exchange nothing between them.
#[test]
fn other_axes_only_repeat_the_work() {
    let case = Case::new(6, 4, false);
    let chosen = Tensor::new(case.gates.clone()).topk(CHOICES, 1, Which::Largest).unwrap().1;
    let alone = ops::moe_group(&chosen, &Tensor::new(case.weight.clone())).unwrap();
    let mesh: Mesh = "ep=2 tp=2".parse().unwrap();
    threads::run(4, |comm| {
        let world = World::new(comm);
        let (s0, s2, sum) = (Placement::shard(0), Placement::shard(2), Placement::Partial(Reduce::Sum));
        let weight = Tensor::place(&case.weight, &mesh, &[s0, s2], &world).unwrap();
        let put = |a: &Array| Tensor::place(a, &mesh, &[s0, Placement::Replicate], &world).unwrap();
        let own = put(chosen.local()).local().clone();
        let groups = ops::moe_group(&Tensor::new(own), &weight).unwrap();
        let first = world.rank() / 2 * 2;
        assert_eq!(groups.loads(), &alone.loads()[first..first + 2]);
        let sent = groups.dispatch(&put(&case.x).to_piece(&[s0, sum]).unwrap()).unwrap();
        let before: usize = alone.loads()[..first].iter().sum();
        let whole = alone.dispatch(&Tensor::new(case.x.clone())).unwrap();
        let part = whole.narrow(0, before, sent.shape()[0]).unwrap();
        assert_eq!(values(sent.local()), values(part.local()));
    });
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let case = Case::new(4, 3, false);
    let weight = Tensor::new(case.weight.clone());
    let chosen = Tensor::new(case.gates.clone()).topk(CHOICES, 1, Which::Largest).unwrap().1;
    let groups = ops::moe_group(&chosen, &weight).unwrap();
    let x = |rows: usize| Tensor::zeros(&[rows, WIDTH], DType::F64).unwrap();
    assert!(groups.dispatch(&x(5)).unwrap_err().to_string().contains("[4, width]"));
    assert!(groups.combine(&x(7), &x(4)).unwrap_err().to_string().contains("[8, width]"));
    assert!(groups.combine(&x(8), &x(4)).unwrap_err().to_string().contains("[4, 2]"));
    assert!(ops::moe_group(&x(2).sum(&[], Keep::No).unwrap(), &weight).is_err());
}
