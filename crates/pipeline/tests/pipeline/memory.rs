//! Measured bytes of each rank equal those of the simulator.
//!
//! The stages are measured one by one, without the engine; the simulator puts the schedule together from that; the
//! engine's ranks are then measured as they run. The communicator copies what is sent into memory of its own, as a
//! network does: thread ranks share it otherwise, and would keep it until the receiver comes.

use crate::stack::{Layer, Plan, Stack, WIDTH, ranks};
use planaria_array::{Array, reset_thread_peak, thread_memory_stats};
use planaria_comm::{Call, Comm, Pending, Send};
use planaria_layout::Rank;
use planaria_pipeline::engine::{At, Engine, Options, StageWork};
use planaria_pipeline::{Costs, Failure, Release, Schedule, ScheduleKind, StageBytes, StageCost};
use planaria_tensor::{GradOptions, History, Tensor, backward_from, backward_inputs};
use std::sync::Arc;

/// Bytes this thread has allocated and not freed.
fn live() -> u64 {
    thread_memory_stats().live as u64
}

fn peak_above(level: u64) -> u64 {
    (thread_memory_stats().peak as u64).saturating_sub(level)
}

/// A communicator that copies what is sent, on nobody's account.
#[derive(Debug)]
struct Copying(Arc<dyn Comm>);

impl Comm for Copying {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn ranks(&self) -> &[Rank] {
        self.0.ranks()
    }
    fn start(&self, call: Call) -> planaria_comm::Result<Pending> {
        match call {
            Call::Send(Send { data, to, tag }) => {
                let copy = std::thread::scope(|scope| scope.spawn(|| data.copy()).join().unwrap())?;
                self.0.start(Call::Send(Send { data: copy, to, tag }))
            }
            call => self.0.start(call),
        }
    }
    fn run(&self, call: Call) -> planaria_comm::Result<()> {
        self.start(call)?.wait()
    }
    fn split(&self, groups: &[Vec<Rank>]) -> planaria_comm::Result<Option<Arc<dyn Comm>>> {
        self.0.split(groups)
    }
    fn group(&self, ranks: &[Rank]) -> planaria_comm::Result<Arc<dyn Comm>> {
        self.0.group(ranks)
    }
    fn barrier(&self) -> planaria_comm::Result<()> {
        self.0.barrier()
    }
    fn abort(&self, reason: &str) {
        self.0.abort(reason);
    }
}

/// A stack whose data and sums are there before and after, so that only the pipeline's own memory moves.
struct Steady {
    stack: Stack,
    data: Vec<Tensor>,
}

impl Steady {
    fn new(plan: &Plan, stages: impl Iterator<Item = usize>) -> Steady {
        let data = (0..plan.rows.len()).map(|micro| plan.data(micro)).collect();
        Steady { stack: Stack::new(plan, stages), data }
    }

    fn drop_grads(&self, stage: usize) {
        self.stack.parameters[&stage].iter().for_each(|parameter| drop(parameter.take_grad()));
    }
}

impl StageWork for Steady {
    fn forward(&mut self, at: At, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, Failure> {
        let inputs = if at.stage == 0 { vec![self.data[at.micro].clone()] } else { inputs };
        Ok(self.stack.plan.apply(at.stage, &self.stack.parameters[&at.stage], &inputs)?)
    }
    fn finish(&mut self, at: At) -> Result<(), Failure> {
        self.drop_grads(at.stage);
        Ok(())
    }
}

/// A tensor as it comes from the stage before.
fn received(like: &Tensor) -> Tensor {
    let fresh = Tensor::new(Array::zeros(like.shape(), like.dtype()).unwrap());
    if like.has_history() { fresh.requires_grad() } else { fresh }
}

fn size(tensors: &[Tensor]) -> u64 {
    tensors.iter().map(|t| (t.numel() * t.dtype().size()).next_multiple_of(64) as u64).sum()
}

/// The largest copy that is made to send these.
fn copied<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> u64 {
    tensors.filter(|t| !t.local().is_contiguous()).map(|t| size(std::slice::from_ref(t))).max().unwrap_or(0)
}

/// Places to start backward from, with their gradients.
type Roots = Vec<(History, Option<Tensor>)>;

/// Forward of one stage alone, and what is alive around it.
struct Probe<'a> {
    work: &'a mut Steady,
    stage: usize,
    like: &'a [Tensor],
}

impl Probe<'_> {
    /// Runs forward; gives the slots of inputs, the places of outputs, what comes out, and the level before.
    fn forward(&mut self) -> (Vec<History>, Roots, Vec<Tensor>, u64) {
        let inputs: Vec<Tensor> =
            if self.stage == 0 { vec![] } else { self.like.iter().map(received).collect() };
        let slots = inputs.iter().filter_map(Tensor::history).collect();
        let level = live();
        reset_thread_peak();
        let outputs = self.work.forward(At { stage: self.stage, micro: 0 }, inputs).unwrap();
        let roots =
            outputs.iter().filter(|t| t.dtype().is_float()).filter_map(|t| Some((t.history()?, None)));
        (slots, roots.collect(), outputs, level)
    }

    fn seeded(roots: Roots, is_last: bool) -> Roots {
        let grad =
            |place: &History| Tensor::new(Array::zeros(&place.spec().shape, place.spec().dtype).unwrap());
        roots
            .into_iter()
            .map(|(at, _)| if is_last { (at, None) } else { (at.clone(), Some(grad(&at))) })
            .collect()
    }

    fn measure(&mut self) -> (StageBytes, Vec<Tensor>) {
        let is_last = self.stage + 1 == self.work.stack.plan.layers.len();
        let mut bytes = StageBytes::NONE;
        let start = live();
        let (slots, roots, outputs, level) = self.forward();
        bytes.input = level - start;
        bytes.forward_peak = peak_above(level);
        bytes.output = if is_last { 0 } else { size(&outputs) };
        bytes.send_output_peak = copied(outputs.iter());
        let with_output = live();
        drop(outputs);
        bytes.saved = live() - start;
        bytes.saved_output = if is_last { 0 } else { bytes.output - (with_output - live()) };

        let roots = Probe::seeded(roots, is_last);
        let level = live();
        bytes.output_grad = level - start - bytes.saved;
        reset_thread_peak();
        backward_from(&roots, GradOptions::default()).unwrap();
        let grads: Vec<_> = slots.iter().map(History::take_grad).collect();
        self.work.drop_grads(self.stage);
        bytes.backward_peak = peak_above(level);
        drop((roots, slots));
        bytes.input_grad = live() - start;
        bytes.send_gradient_peak = copied(grads.iter().flatten());
        drop(grads);

        let (slots, roots, outputs, _) = self.forward();
        let kinds: Vec<Tensor> = outputs.iter().map(kind_of).collect();
        drop(outputs);
        let base = live() - bytes.saved;
        let roots = Probe::seeded(roots, is_last);
        let level = live();
        reset_thread_peak();
        let (grads, later) = backward_inputs(&roots, &slots).unwrap();
        drop((roots, slots));
        bytes.input_peak = peak_above(level);
        drop(grads);
        let level = live();
        bytes.held = level - base;
        reset_thread_peak();
        later.run().unwrap();
        self.work.drop_grads(self.stage);
        bytes.weight_peak = peak_above(level);
        assert_eq!(live(), base, "stage {} leaves nothing", self.stage);
        if self.stage > 0 {
            self.measure_held(&mut bytes, is_last);
        }
        self.measure_waiting(&mut bytes, is_last);
        (bytes, kinds)
    }

    /// How much of what is saved, and of what comes out, is the input: holding the input costs that much less.
    fn measure_held(&mut self, bytes: &mut StageBytes, is_last: bool) {
        let start = live();
        let inputs: Vec<Tensor> = self.like.iter().map(received).collect();
        let outputs = self.work.forward(At { stage: self.stage, micro: 0 }, inputs.clone()).unwrap();
        let roots: Vec<Option<History>> = outputs.iter().map(Tensor::history).collect();
        let both = live() - start;
        drop(outputs);
        let held = live() - start;
        drop((inputs, roots));
        bytes.saved_input = bytes.saved + bytes.input - held;
        bytes.passed = if is_last { 0 } else { bytes.output - bytes.saved_output - (both - held) };
    }

    /// How much of what waits for the second part of backward is the input or the output.
    fn measure_waiting(&mut self, bytes: &mut StageBytes, is_last: bool) {
        let inputs: Vec<Tensor> = match self.stage {
            0 => vec![],
            _ => self.like.iter().map(received).collect(),
        };
        let slots: Vec<History> = inputs.iter().filter_map(Tensor::history).collect();
        let outputs = self.work.forward(At { stage: self.stage, micro: 0 }, inputs.clone()).unwrap();
        let places =
            outputs.iter().filter(|t| t.dtype().is_float()).filter_map(|t| Some((t.history()?, None)));
        let roots = Probe::seeded(places.collect(), is_last);
        let (grads, later) = backward_inputs(&roots, &slots).unwrap();
        drop((roots, grads, slots));
        let all = live();
        drop(inputs);
        let without_inputs = live();
        drop(outputs);
        let without_both = live();
        if self.stage > 0 {
            bytes.held_input = bytes.input - (all - without_inputs) - bytes.passed;
        }
        if !is_last {
            bytes.held_output = bytes.output - (without_inputs - without_both);
        }
        drop(later);
    }
}

/// Shape, dtype and whether it has history; the values are elsewhere, so that they are nobody's.
fn kind_of(tensor: &Tensor) -> Tensor {
    let meta = Tensor::new(Array::meta(tensor.shape(), tensor.dtype()).unwrap());
    if tensor.has_history() { meta.requires_grad() } else { meta }
}

fn profile(plan: &Plan) -> Vec<StageBytes> {
    let plan = plan.clone();
    let measure = move || {
        let mut work = Steady::new(&plan, 0..plan.layers.len());
        let (mut all, mut like) = (Vec::new(), Vec::new());
        for stage in 0..plan.layers.len() {
            let (bytes, next) = Probe { work: &mut work, stage, like: &like }.measure();
            all.push(bytes);
            like = next;
        }
        all
    };
    std::thread::spawn(measure).join().unwrap()
}

/// The most each rank had alive in the second step, above what it had before.
fn measured(plan: &Plan, schedule: &Schedule, release: Release) -> Vec<u64> {
    let schedule = Arc::new(schedule.clone());
    ranks(schedule.ranks(), |comm| {
        let mut work = Steady::new(plan, schedule.stages().of(comm.rank()));
        let options = Options { release, ..Options::default() };
        let mut engine = Engine::new(schedule.clone(), Arc::new(Copying(comm)), options).unwrap();
        engine.run(&mut work).unwrap();
        let level = live();
        reset_thread_peak();
        engine.run(&mut work).unwrap();
        assert_eq!(live(), level, "a step leaves nothing");
        peak_above(level)
    })
}

fn simulated(bytes: &[StageBytes], schedule: &Schedule, release: Release) -> Vec<u64> {
    let stage = |bytes: &StageBytes| StageCost { bytes: *bytes, ..StageCost::UNIT };
    let costs = Costs { release, stages: bytes.iter().map(stage).collect(), ..Costs::unit() };
    schedule.simulate(&costs).unwrap().bytes
}

fn plan_of(layers: Vec<Layer>, micros: usize) -> Plan {
    Plan { layers, rows: vec![16; micros], ..Plan::new(0, 0) }
}

const LAYERS: [Layer; 9] = [
    Layer::Plain,
    Layer::FullRecompute,
    Layer::Residual,
    Layer::Identity,
    Layer::Tanh,
    Layer::Plain,
    Layer::Recomputed,
    Layer::View,
    Layer::Window,
];

#[test]
fn measured_peaks_equal_the_simulator() {
    for kind in ScheduleKind::ALL {
        let (least, most) = kind.chunks();
        let sizes = [(1, 1), (2, 1), (4, 1), (2, 2), (3, 2)];
        for (p, chunks) in sizes.into_iter().filter(|(_, chunks)| (least..=most).contains(chunks)) {
            for (m, shift) in [(1, 0), (4, 0), (4, 3), (4, 4), (4, 7)] {
                let layers = (0..p * chunks).map(|stage| LAYERS[(stage + shift) % LAYERS.len()]).collect();
                let plan = plan_of(layers, m);
                let bytes = profile(&plan);
                let schedule = kind.build(p, m, chunks).unwrap();
                // The peaks inside the work were measured with early release; holding on moves them where backward
                // would have freed an output on its way, and neighbours on one rank hold some tensors twice.
                let moved = kind == ScheduleKind::ZeroBubbleV || plan.layers.contains(&Layer::Tanh);
                let both = [Release::Early, Release::AfterBackward];
                for &release in &both[..if moved { 1 } else { 2 }] {
                    let expected = simulated(&bytes, &schedule, release);
                    let found = measured(&plan, &schedule, release);
                    assert_eq!(
                        found, expected,
                        "{kind} p={p} m={m} v={chunks} {release:?} {:?}",
                        plan.layers
                    );
                }
            }
        }
    }
}

#[test]
fn full_recompute_halves_the_boundary_memory_of_f_then_b() {
    let (p, m) = (4, 8);
    let plan = Plan { tuple: false, ..plan_of(vec![Layer::FullRecompute; p], m) };
    let bytes = profile(&plan);
    let tensor = (16 * WIDTH * 4) as u64;
    assert_eq!((bytes[1].input, bytes[1].saved, bytes[1].saved_input), (tensor, tensor, tensor));
    let schedule = ScheduleKind::ForwardThenBackward.build(p, m, 1).unwrap();
    // Above the work of one micro-batch: the boundary tensors of all.
    let boundary = |release| {
        let one = ScheduleKind::ForwardThenBackward.build(p, 1, 1).unwrap();
        let one_plan = Plan { rows: vec![16], ..plan.clone() };
        let (all, one) = (measured(&plan, &schedule, release), measured(&one_plan, &one, release));
        all[1] - one[1]
    };
    let (early, held) = (boundary(Release::Early), boundary(Release::AfterBackward));
    assert_eq!((early, held), ((m as u64 - 1) * tensor, 2 * (m as u64 - 1) * tensor));
}

#[test]
fn what_nobody_saved_is_gone_after_the_hand_over() {
    // Neither saves anything: however many micro-batches are under way, one tensor is alive; backward of a view makes its
    // gradient beside the one that came.
    for (layer, alive) in [(Layer::Identity, 1), (Layer::Window, 2)] {
        let plan = Plan { tuple: false, ..plan_of(vec![Layer::Plain, layer, Layer::Plain], 6) };
        let schedule = ScheduleKind::ForwardThenBackward.build(3, 6, 1).unwrap();
        let tensor = (16 * WIDTH * 4) as u64;
        assert_eq!(measured(&plan, &schedule, Release::Early)[1], alive * tensor, "{layer:?}");
    }
}
