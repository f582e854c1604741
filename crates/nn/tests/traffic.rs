//! What a step sends between ranks: what the lanes ask for, and nothing else.

use crate::common::Golden;
use planaria_array::DType;
use planaria_comm::{Call, Comm, Pending, Result, threads};
use planaria_layout::{Mesh, Rank};
use planaria_nn::Parallel;
use planaria_nn::models::{Network, Run};
use planaria_tensor::World;
use planaria_tensor::trace::{Moved, implicit_reshards};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Calls of one kind and number of elements received, counted.
type Counts = Arc<Mutex<BTreeMap<(&'static str, usize), usize>>>;

#[derive(Debug)]
struct Counting {
    comm: Arc<dyn Comm>,
    counts: Counts,
}

impl Counting {
    fn note(&self, call: &Call) {
        let what = match call {
            Call::AllReduce(call) => ("all-reduce", call.recv.numel()),
            Call::AllGather(call) => ("all-gather", call.recv.numel()),
            Call::ReduceScatter(call) => ("reduce-scatter", call.send.numel()),
            Call::AllToAll(call) => ("all-to-all", call.recv.numel()),
            _ => ("other", 0),
        };
        *self.counts.lock().unwrap().entry(what).or_default() += 1;
    }
}

impl Comm for Counting {
    fn rank(&self) -> usize {
        self.comm.rank()
    }

    fn ranks(&self) -> &[Rank] {
        self.comm.ranks()
    }

    fn start(&self, call: Call) -> Result<Pending> {
        self.note(&call);
        self.comm.start(call)
    }

    fn run(&self, call: Call) -> Result<()> {
        self.note(&call);
        self.comm.run(call)
    }

    fn split(&self, groups: &[Vec<Rank>]) -> Result<Option<Arc<dyn Comm>>> {
        self.comm.split(groups)
    }

    fn group(&self, ranks: &[Rank]) -> Result<Arc<dyn Comm>> {
        Ok(Arc::new(Counting { comm: self.comm.group(ranks)?, counts: self.counts.clone() }))
    }

    fn barrier(&self) -> Result<()> {
        self.comm.barrier()
    }

    fn abort(&self, reason: &str) {
        self.comm.abort(reason);
    }
}

/// Calls in forward (with the loss) and in backward, and the moves that no line asks for.
fn traffic(name: &str, mesh: &str, sequence: bool) -> [BTreeMap<(&'static str, usize), usize>; 2] {
    let golden = Golden::read(name);
    // A batch and a length that the ranks can share out evenly.
    let ids = |name: &str| golden.tensor(name).narrow(0, 0, 2).unwrap().narrow(1, 0, LENGTH).unwrap();
    let mesh: Mesh = mesh.parse().unwrap();
    let all = threads::run(mesh.size(), |comm| {
        let counts = Counts::default();
        let comm = Arc::new(Counting { comm, counts: counts.clone() });
        let parallel = Parallel { world: World::new(comm), mesh: mesh.clone(), sequence };
        let model = golden.model(Some(&parallel), DType::F32);
        let take = || std::mem::take(&mut *counts.lock().unwrap());
        take();
        let (found, moved) = implicit_reshards(|| {
            let last = model.forward(ids("input_ids"), &Run::default()).unwrap();
            let loss = model.loss(&last, &ids("labels")).unwrap();
            let forward = take();
            loss.total().unwrap().backward().unwrap();
            [forward, take()]
        });
        // The loss exchanges two numbers per row: the largest logsumexp of a window, and the sum of shares.
        let rows = |m: &&Moved| m.op == "linear_cross_entropy" && m.to.shape()[..] == [ROWS];
        // The gradients of the reshards that the model asks for; the counts below hold them too.
        let asked = |m: &&Moved| m.op == "reshard";
        let others: Vec<&Moved> = moved.iter().filter(|m| m.bytes > 0 && !rows(m) && !asked(m)).collect();
        assert!(others.is_empty(), "{name}: {others:?}");
        found
    });
    all.into_iter().next().unwrap()
}

/// Positions of a row, of the batch, and elements of its hidden states.
const LENGTH: usize = 8;
const ROWS: usize = 2 * LENGTH;
const HIDDEN: usize = ROWS * 16;

/// Models and their layers.
const MODELS: [(&str, usize); 3] = [("llama", 2), ("llama-bias", 1), ("qwen2-tied", 2)];

/// The loss of a cut vocabulary: two numbers per row, and the sum.
fn of_loss() -> BTreeMap<(&'static str, usize), usize> {
    [(("all-reduce", 1), 1), (("all-reduce", ROWS), 2)].into()
}

/// One head of keys and values on all ranks: their gradients are added up.
fn of_keys(name: &str) -> BTreeMap<(&'static str, usize), usize> {
    if name == "llama-bias" { [(("all-reduce", ROWS * 6), 2)].into() } else { BTreeMap::new() }
}

#[test]
fn tensor_parallel_sends_two_sums_per_block_each_way() {
    for (name, layers) in MODELS {
        let [forward, backward] = traffic(name, "tp=2", false);
        let sums = (("all-reduce", HIDDEN), 2 * layers + 1);
        let (mut there, mut back) = (of_loss(), of_keys(name));
        there.extend([sums]);
        back.extend([sums]);
        assert_eq!((forward, backward), (there, back), "{name}");
    }
}

#[test]
fn sequence_parallel_gathers_and_scatters_twice_per_block_each_way() {
    for (name, layers) in MODELS {
        let [forward, backward] = traffic(name, "tp=2", true);
        let each = ["all-gather", "reduce-scatter"].map(|call| ((call, HIDDEN), 2 * layers + 1));
        let (mut there, mut back) = (of_loss(), of_keys(name));
        there.extend(each);
        back.extend(each);
        assert_eq!((forward, backward), (there, back), "{name}");
    }
}

#[test]
fn fewer_heads_of_keys_than_ranks_are_gathered_in_backward_only() {
    let [forward, backward] = traffic("qwen2", "tp=4", false);
    let sums = (("all-reduce", HIDDEN), 5);
    let mut there = of_loss();
    there.extend([sums]);
    assert_eq!(forward, there);
    // Keys and values of two layers, four copies of heads of four elements.
    assert_eq!(backward, [sums, (("all-gather", ROWS * 4 * 4), 4)].into());
}

/// Rows go to their experts and come back, in forward and in backward; counts go ahead of them.
#[test]
fn experts_cost_two_uneven_exchanges_per_layer_each_way() {
    let [mut forward, backward] = traffic("qwen2-moe", "ep=2", false);
    let exchanges = |counts: &mut BTreeMap<(&'static str, usize), usize>| {
        let (found, rest): (BTreeMap<_, _>, _) =
            std::mem::take(counts).into_iter().partition(|((call, _), _)| *call == "all-to-all");
        *counts = rest;
        let rows: usize = found.iter().map(|((_, elements), times)| elements / 16 * times).sum();
        (found.values().sum::<usize>(), rows)
    };
    let (calls, rows) = exchanges(&mut forward);
    assert_eq!(calls, 2 * 2);
    // What comes back is this rank's own pairs of token and choice; what comes in is at most everyone's.
    let own = 2 * LENGTH * 2;
    assert!((own..=3 * own).contains(&rows), "{rows} rows of {own} pairs");
    // Per layer: counts of five experts from both ranks, and statistics; of the loss: count and sum.
    let expected = [(("all-gather", 10), 2), (("all-reduce", 10), 2), (("all-reduce", 1), 2)];
    assert_eq!(forward, expected.into());
    let mut backward = backward;
    assert_eq!(exchanges(&mut backward), (calls, rows));
    assert!(backward.is_empty(), "{backward:?}");
}
