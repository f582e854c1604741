//! A reshard makes the collective that its route names, copies no more than it must, and gives the bits of one rank: in
//! every dtype, under every reduction, on even, uneven and empty pieces.

use planaria_array::{Array, DType};
use planaria_comm::{Call, Comm, Pending, threads};
use planaria_layout::{Collective, Combine, Layout, Mesh, Placement, Rank, Reduce, Route};
use planaria_tensor::{GradOptions, Tensor, World, grad};
use std::sync::{Arc, Mutex};

/// A communicator that writes down what it is asked for.
#[derive(Debug)]
struct Recorded {
    comm: Arc<dyn Comm>,
    calls: Arc<Mutex<Vec<&'static str>>>,
}

impl Recorded {
    fn again(&self, comm: Arc<dyn Comm>) -> Arc<dyn Comm> {
        Arc::new(Recorded { comm, calls: self.calls.clone() })
    }

    fn note(&self, call: &Call) {
        self.calls.lock().unwrap().push(call.name());
    }
}

impl Comm for Recorded {
    fn rank(&self) -> usize {
        self.comm.rank()
    }

    fn ranks(&self) -> &[Rank] {
        self.comm.ranks()
    }

    fn start(&self, call: Call) -> planaria_comm::Result<Pending> {
        self.note(&call);
        self.comm.start(call)
    }

    fn run(&self, call: Call) -> planaria_comm::Result<()> {
        self.note(&call);
        self.comm.run(call)
    }

    fn split(&self, groups: &[Vec<Rank>]) -> planaria_comm::Result<Option<Arc<dyn Comm>>> {
        Ok(self.comm.split(groups)?.map(|comm| self.again(comm)))
    }

    fn group(&self, ranks: &[Rank]) -> planaria_comm::Result<Arc<dyn Comm>> {
        Ok(self.again(self.comm.group(ranks)?))
    }

    fn barrier(&self) -> planaria_comm::Result<()> {
        self.comm.barrier()
    }

    fn abort(&self, reason: &str) {
        self.comm.abort(reason);
    }
}

/// Values that tell positions apart.
fn numbered(shape: &[usize], dtype: DType) -> Array {
    let count = shape.iter().product::<usize>() as i64;
    Array::arange(0, count, 1, DType::I64).unwrap().cast(dtype).unwrap().reshape(shape).unwrap()
}

fn bits(array: &Array) -> Vec<u8> {
    array.contiguous().unwrap().bytes().unwrap().to_vec()
}

/// The piece of `whole` that this rank has in a layout.
fn piece(whole: &Array, layout: &Layout, world: &World) -> Array {
    Tensor::place(whole, layout.mesh(), layout.placements(), world).unwrap().local().clone()
}

fn layout(text: &str) -> Layout {
    text.parse().unwrap()
}

/// Moves a plain value on thread ranks, compares every piece, and gives the calls that each rank made.
fn moved(from: &Layout, to: &Layout, ranks: usize) -> Vec<Vec<&'static str>> {
    threads::run(ranks, |comm| {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let world = World::new(Arc::new(Recorded { comm, calls: calls.clone() }));
        let (whole, rank) = (numbered(from.shape(), DType::I32), world.rank());
        let on = |layout: &Layout| layout.mesh().coords(rank).is_some();
        let local = match on(from) {
            true => piece(&whole, from, &world),
            false => Array::empty(&[0], DType::I32).unwrap(),
        };
        let result = Tensor::from_piece(local, from, &world).unwrap().reshard(to).unwrap();
        if on(to) {
            assert_eq!(bits(result.local()), bits(&piece(&whole, to, &world)), "{from} to {to}, rank {rank}");
        }
        calls.lock().unwrap().clone()
    })
}

#[test]
fn a_reshard_makes_the_collective_that_its_route_names() {
    let cases = [
        ("[8,6] @ x:S0 on x=4", "[8,6] @ x:R on x=4", "all_gather"),
        ("[8,6] @ x:S1 on x=4", "[8,6] @ x:R on x=4", "all_gather"),
        ("[7,6] @ x:S0 on x=4", "[7,6] @ x:R on x=4", "all_gather"),
        ("[3,5] @ x:S1x2 on x=4", "[3,5] @ x:R on x=4", "all_gather"),
        ("[2,3] @ x:S0 on x=4", "[2,3] @ x:R on x=4", "all_gather"),
        ("[4,0] @ x:S0 on x=4", "[4,0] @ x:R on x=4", "all_gather"),
        ("[8,6] @ x:S0 y:S1 on x=2 y=2", "[8,6] @ x:R y:S1 on x=2 y=2", "all_gather"),
        ("[8,6] @ x:S0 y:S0 on x=2 y=2", "[8,6] @ x:R y:R on x=2 y=2", "all_gather"),
        ("[8,8] @ x:S0 on x=4", "[8,8] @ x:S1 on x=4", "all_to_all"),
        ("[8,8] @ x:S1 on x=4", "[8,8] @ x:S0 on x=4", "all_to_all"),
        ("[5,7] @ x:S1 on x=4", "[5,7] @ x:S0 on x=4", "all_to_all"),
        ("[16,8] @ x:S0x2 on x=4", "[16,8] @ x:S1 on x=4", "all_to_all"),
    ];
    for (from, to, call) in cases {
        let calls = moved(&layout(from), &layout(to), 4);
        assert!(calls.iter().all(|calls| calls == &[call]), "{from} to {to}: {calls:?}");
    }
}

/// Meshes that share ranks, in another order: one rank gives its piece and gets another.
#[test]
fn pieces_that_several_ranks_want_are_broadcast() {
    let to_mesh = Mesh::with_ranks(&[("x", 2), ("y", 2)], &[1, 3, 0, 2]).unwrap();
    for shape in [vec![6, 5], vec![3, 5], vec![1, 4], vec![0, 4]] {
        let (from_mesh, shape) =
            (Mesh::new(&[("x", 2)]).unwrap(), planaria_array::Shape::new(&shape).unwrap());
        let from = Layout::new(&from_mesh, &shape, &[Placement::shard(0)]).unwrap();
        let to = Layout::new(&to_mesh, &shape, &[Placement::shard(0), Placement::Replicate]).unwrap();
        let steps = Route::find(&from, &to, 4).unwrap().steps;
        let calls = moved(&from, &to, 4);
        if steps.iter().map(|step| step.collective).eq([Collective::Broadcast]) && shape[0] > 1 {
            assert!(calls.iter().all(|calls| calls.iter().all(|&call| call == "broadcast")), "{calls:?}");
            assert!(calls.iter().any(|calls| calls.len() == 2), "some rank gives and gets: {calls:?}");
        } else {
            assert!(shape[0] <= 1, "{shape}: {steps:?}");
        }
    }
}

/// Some ranks are on the first mesh only and some on the second: each leaves out the steps of the mesh that it is not on.
#[test]
fn a_route_between_meshes_has_steps_on_one_of_them() {
    let far = |size: usize| Mesh::with_ranks(&[("x", size)], &[4, 5, 6, 7][..size]).unwrap();
    let (from, shape) = (Mesh::new(&[("a", 2)]).unwrap(), planaria_array::Shape::new(&[8, 8]).unwrap());
    let at = |mesh: &Mesh, p: Placement| Layout::new(mesh, &shape, &[p]).unwrap();
    let (cut, pending) = (Placement::shard(0), Placement::Partial(Reduce::Sum));
    for (given, wanted, size, steps) in
        [(cut, Placement::Replicate, 4, 2), (pending, cut, 4, 2), (pending, Placement::Replicate, 2, 2)]
    {
        let (given, wanted) = (at(&from, given), at(&far(size), wanted));
        let found = Route::find(&given, &wanted, 4).unwrap().steps.len();
        assert_eq!(found, steps, "{given} to {wanted}");
        let sums = threads::run(8, |comm| {
            let world = World::new(comm);
            let on = |layout: &Layout| layout.mesh().coords(world.rank()).is_some();
            if !on(&given) && !on(&wanted) {
                return 0.0;
            }
            let whole = numbered(&[8, 8], DType::F32);
            let local = match (on(&given), given.partial_axes().is_empty()) {
                (true, true) => piece(&whole, &given, &world),
                (true, false) => whole.clone(),
                (false, _) => Array::empty(&[0], DType::F32).unwrap(),
            };
            let start = Tensor::from_piece(local.clone(), &given, &world).unwrap().requires_grad();
            let result = start.reshard(&wanted).unwrap();
            if on(&wanted) {
                let times = if given.partial_axes().is_empty() { 1.0 } else { 2.0 };
                let expected = whole.mul(&Array::scalar(times, DType::F32).unwrap()).unwrap();
                assert_eq!(bits(result.local()), bits(&piece(&expected, &wanted, &world)), "{given}");
            }
            // The gradient goes the same way back.
            let seed = match on(&wanted) {
                true => result.ones_like(),
                false => Tensor::from_piece(Array::empty(&[0], DType::F32).unwrap(), &wanted, &world),
            };
            let seed = seed.unwrap();
            let back = grad(&[&result], &[Some(&seed)], &[&start], GradOptions::default()).unwrap();
            let back = back[0].clone().unwrap();
            if on(&given) {
                back.settled().unwrap().local().to_vec::<f32>().unwrap().iter().sum()
            } else {
                0.0
            }
        });
        assert!(sums[..2].iter().all(|&sum: &f32| sum > 0.0) && sums[2..].iter().all(|&sum| sum == 0.0));
    }
}

/// A sum along one axis and an average along the other: wrapped and rounded once, whole and cut alike.
#[test]
fn sums_of_averages_are_rounded_once() {
    let mesh: Mesh = "s=2 a=2".parse().unwrap();
    let shape = planaria_array::Shape::new(&[4]).unwrap();
    let at = |ps: &[Placement]| Layout::new(&mesh, &shape, ps).unwrap();
    let pending = at(&[Placement::Partial(Reduce::Sum), Placement::Partial(Reduce::Avg)]);
    for dtype in [DType::U8, DType::I8, DType::BF16, DType::F32] {
        threads::run(4, |comm| {
            let world = World::new(comm);
            // 200 and 100 at the first place of the average, which u8 does not hold together, and nothing at the other.
            let values = [[200, 0], [100, 1]];
            let number = |rank: usize| Array::scalar(values[rank / 2][rank % 2], DType::I64)?.cast(dtype);
            let all: Vec<Array> = (0..4).map(|rank| number(rank).unwrap()).collect();
            let all: Vec<Array> =
                all.iter().map(|x| x.broadcast_to(&[4]).unwrap().contiguous().unwrap()).collect();
            let want = Array::empty(&[4], dtype).unwrap();
            want.fold_from(Combine { reduce: Reduce::Sum, divisor: 2 }, &all).unwrap();
            let tensor = Tensor::from_piece(all[world.rank()].clone(), &pending, &world).unwrap();
            for target in [[Placement::Replicate; 2], [Placement::shard(0), Placement::Replicate]] {
                let target = at(&target);
                let found = tensor.reshard(&target).unwrap();
                assert_eq!(bits(found.local()), bits(&piece(&want, &target, &world)), "{dtype} to {target}");
            }
        });
    }
}

/// An axis that is pending before and after is left alone while a sum and an average are folded.
#[test]
fn what_stays_pending_is_not_reduced() {
    let mesh: Mesh = "k=2 s=2 a=2".parse().unwrap();
    let shape = planaria_array::Shape::new(&[4, 2]).unwrap();
    let at = |texts: [&str; 3]| {
        let placements: Vec<Placement> = texts.iter().map(|text| text.parse().unwrap()).collect();
        Layout::new(&mesh, &shape, &placements).unwrap()
    };
    let (from, to) = (at(["P(sum)", "P(sum)", "P(avg)"]), at(["P(sum)", "S1", "R"]));
    threads::run(8, |comm| {
        let world = World::new(comm);
        let mine = Array::full(&[4, 2], 2f64.powi(world.rank() as i32), DType::F32).unwrap();
        let found = Tensor::from_piece(mine, &from, &world).unwrap().reshard(&to).unwrap();
        let want = if world.rank() < 4 { 15.0 / 2.0 } else { 240.0 / 2.0 };
        assert_eq!(found.local().to_vec::<f32>().unwrap(), [want; 4]);
    });
}

/// What the contributions of all ranks make, by the fold that the reference describes, and its cut for each rank.
#[test]
fn pending_values_reduce_alike_in_every_dtype_however_they_are_cut() {
    let mesh: Mesh = "x=3".parse().unwrap();
    for dtype in DType::ALL {
        for op in Reduce::EVERY {
            for (shape, dim) in [([7, 4], 0), ([4, 7], 1), ([2, 3], 0), ([0, 3], 1)] {
                let defined = op != Reduce::Avg || dtype != DType::Bool;
                let ends = threads::run(3, |comm| pending(&World::new(comm), &mesh, op, dtype, &shape, dim));
                assert!(ends.iter().all(|end| end.is_ok() == defined), "{op:?} {dtype} {shape:?}: {ends:?}");
            }
        }
    }
}

/// One rank's part: P to S and P to R against the fold of all contributions.
fn pending(
    world: &World,
    mesh: &Mesh,
    op: Reduce,
    dtype: DType,
    shape: &[usize],
    dim: usize,
) -> planaria_tensor::Result<()> {
    // Signs, odd sums and zeros, so that rounding, wrapping and truth values show.
    let contribution = |rank: i64| -> planaria_tensor::Result<Array> {
        let numbers = numbered(shape, DType::F64).mul(&Array::scalar(7 * rank - 8, DType::F64)?)?;
        Ok(numbers.add(&Array::scalar(rank * 3 - 2, DType::F64)?)?.cast(dtype)?)
    };
    let all = (0..3).map(contribution).collect::<planaria_tensor::Result<Vec<_>>>()?;
    let layout = |p| Layout::new(mesh, &planaria_array::Shape::new(shape)?, &[p]);
    let partial = layout(Placement::Partial(op))?;
    let tensor = Tensor::from_piece(all[world.rank()].clone(), &partial, world)?;
    let whole = tensor.reshard(&layout(Placement::Replicate)?)?;
    let want = Array::empty(shape, dtype)?;
    want.fold_from(Combine::of(op, 3), &all)?;
    assert_eq!(bits(whole.local()), bits(&want), "{op:?} {dtype} whole");
    let cut = layout(Placement::shard(dim))?;
    let part = tensor.reshard(&cut)?;
    assert_eq!(bits(part.local()), bits(&piece(&want, &cut, world)), "{op:?} {dtype} cut along {dim}");
    Ok(())
}
