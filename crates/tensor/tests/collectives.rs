//! A reshard makes the collective that its route names, copies no more than it must, and gives the bits of one rank: in
//! every dtype, under every reduction, on even, uneven and empty pieces.

use planaria_array::{Array, DType};
use planaria_comm::{Call, Comm, Pending, threads};
use planaria_layout::{Collective, Combine, Layout, Mesh, Placement, Rank, Reduce, Route};
use planaria_tensor::{Tensor, World};
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
