//! Memory of a schedule: what a rank keeps after each of its actions follows from its own list alone.

use super::action::{Action, Step};
use super::simulate::Costs;
use super::stages::Stages;
use std::collections::{HashMap, HashSet};

/// When the inputs and outputs of stages are let go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// The input after forward, the output once it is handed over: what gradients need is kept by the history alone.
    #[default]
    Early,
    /// Both after backward: what early release is compared with.
    AfterBackward,
}

/// Bytes of one stage for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageBytes {
    /// The input from the stage before.
    pub input: u64,
    /// The output for the stage after.
    pub output: u64,
    /// The gradient of the input, where one is sent.
    pub input_grad: u64,
    /// The gradient of the output, where one comes.
    pub output_grad: u64,
    /// What the history keeps from forward to backward, the input and the output included where it keeps them.
    pub saved: u64,
    /// The part of `saved` that is the input.
    pub saved_input: u64,
    /// The part of `saved` that is the output.
    pub saved_output: u64,
    /// The part of `output` that is the input, handed on as it came.
    pub passed: u64,
    /// What is kept from [`Step::Input`] to [`Step::Weight`].
    pub held: u64,
    /// The part of `held` that is the input.
    pub held_input: u64,
    /// The part of `held` that is the output.
    pub held_output: u64,
    /// Most that forward needs above what is there when it begins.
    pub forward_peak: u64,
    /// The same for a full backward.
    pub backward_peak: u64,
    /// The same for the gradient of the input.
    pub input_peak: u64,
    /// The same for the gradients of the parameters.
    pub weight_peak: u64,
    /// Sums of the parameters' gradients, which are there from the first of them on.
    pub sums: u64,
    /// The same for the full backward of the first micro-batch, in which they grow.
    pub first_peak: u64,
    /// The same for sending the output: a copy, where it is not contiguous.
    pub send_output_peak: u64,
    /// The same for sending the gradient of the input.
    pub send_gradient_peak: u64,
}

impl StageBytes {
    /// Nothing.
    pub const NONE: StageBytes = StageBytes {
        input: 0,
        output: 0,
        input_grad: 0,
        output_grad: 0,
        saved: 0,
        saved_input: 0,
        saved_output: 0,
        passed: 0,
        held: 0,
        held_input: 0,
        held_output: 0,
        forward_peak: 0,
        backward_peak: 0,
        input_peak: 0,
        weight_peak: 0,
        sums: 0,
        first_peak: 0,
        send_output_peak: 0,
        send_gradient_peak: 0,
    };
}

impl StageBytes {
    /// The same without sums of gradients.
    pub fn without_sums(self) -> StageBytes {
        StageBytes { sums: 0, first_peak: self.backward_peak, ..self }
    }
}

/// Most activations alive at once.
pub(super) fn live(list: &[Action]) -> usize {
    let (mut live, mut peak) = (0usize, 0);
    for action in list {
        match action.step {
            Step::Forward => live += 1,
            Step::Backward | Step::Weight => live = live.saturating_sub(1),
            _ => {}
        }
        peak = peak.max(live);
    }
    peak
}

/// Most bytes alive at once.
pub(super) fn bytes(stages: &Stages, list: &[Action], costs: &Costs) -> u64 {
    let mut level = Level { stages, costs, now: 0, peak: 0, shared: HashMap::new(), summed: HashSet::new() };
    list.iter().for_each(|action| level.act(*action));
    u64::try_from(level.peak.max(0)).unwrap_or(u64::MAX)
}

/// Who keeps a tensor that goes from one stage of a rank to its next: it is one object for all of them.
#[derive(Clone, Copy)]
enum Holder {
    /// The hand-over itself.
    Way,
    /// The history of the stage that made it.
    Maker,
    /// The history of the stage that uses it.
    User,
}

/// The bytes of one rank as its list continues.
struct Level<'a> {
    stages: &'a Stages,
    costs: &'a Costs,
    now: i128,
    peak: i128,
    /// By using stage and micro-batch: how much of the tensor each holder keeps.
    shared: HashMap<(usize, usize), [u64; 3]>,
    /// Stages whose sums are there.
    summed: HashSet<usize>,
}

impl Level<'_> {
    /// What a holder keeps of a shared tensor from now on.
    fn share(&mut self, user: usize, micro: usize, holder: Holder, bytes: u64) {
        let kept = self.shared.entry((user, micro)).or_default();
        let largest = |kept: &[u64; 3]| i128::from(kept.iter().copied().max().unwrap_or(0));
        let before = largest(kept);
        kept[holder as usize] = bytes;
        self.now += largest(kept) - before;
        if *kept == [0; 3] {
            self.shared.remove(&(user, micro));
        }
    }

    fn act(&mut self, action: Action) {
        let own = self.costs.of(action.stage).bytes;
        let sums = matches!(action.step, Step::Backward | Step::Weight) && self.summed.insert(action.stage);
        let during = match action.step {
            Step::Forward => own.forward_peak,
            Step::Backward if sums => own.backward_peak.max(own.first_peak),
            Step::Backward => own.backward_peak,
            Step::Input => own.input_peak,
            Step::Weight => own.weight_peak,
            Step::SendOutput => own.send_output_peak,
            Step::SendGradient => own.send_gradient_peak,
            Step::ReceiveInput | Step::ReceiveGradient => 0,
        };
        self.peak = self.peak.max(self.now + i128::from(during));
        let part = Part::new(self.stages, action.stage, &own, self.costs.release);
        self.now += if sums { i128::from(own.sums) } else { 0 };
        match action.step {
            Step::ReceiveInput => self.now += part.input,
            Step::Forward => self.forward(action, &own, &part),
            Step::SendOutput => self.now -= part.let_go_by_send,
            Step::ReceiveGradient => self.now += part.output_grad,
            Step::Backward => self.backward(action, &part, [0; 2]),
            Step::Input => {
                self.backward(action, &part, [own.held_input, own.held_output]);
                self.now += part.held;
            }
            Step::Weight => {
                self.now -= part.held;
                self.keep(action, &part, [0; 2]);
            }
            Step::SendGradient => self.now -= part.input_grad,
        }
        self.peak = self.peak.max(self.now);
    }

    /// What the history of a stage keeps of the tensors it shares with its neighbours on this rank.
    fn keep(&mut self, action: Action, part: &Part, [input, output]: [u64; 2]) {
        if part.from_here {
            self.share(action.stage, action.micro, Holder::User, input);
        }
        if part.to_here {
            self.share(action.stage + 1, action.micro, Holder::Maker, output);
        }
    }

    fn forward(&mut self, action: Action, own: &StageBytes, part: &Part) {
        self.now += part.saved + part.output - part.let_go_by_forward;
        let held = self.costs.release == Release::AfterBackward;
        if part.to_here {
            self.share(action.stage + 1, action.micro, Holder::Way, own.output);
        }
        self.keep(action, part, [own.saved_input, if held { own.output } else { own.saved_output }]);
        if part.from_here && !held {
            self.share(action.stage, action.micro, Holder::Way, 0);
        }
    }

    fn backward(&mut self, action: Action, part: &Part, kept: [u64; 2]) {
        self.now += part.input_grad - part.output_grad - part.let_go_by_backward;
        self.keep(action, part, kept);
        if part.from_here {
            self.share(action.stage, action.micro, Holder::Way, 0);
        }
    }
}

/// Bytes of a stage that count on its rank, without the tensors it shares with neighbours there.
struct Part {
    /// The stage before is on this rank.
    from_here: bool,
    /// The stage after is on this rank.
    to_here: bool,
    /// Came by message.
    input: i128,
    /// What keeps the output besides the history, until it is sent.
    output: i128,
    input_grad: i128,
    output_grad: i128,
    saved: i128,
    held: i128,
    let_go_by_forward: i128,
    let_go_by_send: i128,
    let_go_by_backward: i128,
}

impl Part {
    fn new(stages: &Stages, stage: usize, own: &StageBytes, release: Release) -> Part {
        let wide = |bytes: u64| i128::from(bytes);
        let (first, last) = (stage == 0, stage + 1 == stages.len());
        let from_here = !first && stages.before(stage).is_none();
        let to_here = !last && stages.after(stage).is_none();
        let apart = |all: u64, input: u64, output: u64| {
            wide(all) - if from_here { wide(input) } else { 0 } - if to_here { wide(output) } else { 0 }
        };
        let input = if first || from_here { 0 } else { wide(own.input) };
        let open = wide(own.output.saturating_sub(own.saved_output));
        let output = match release {
            _ if last || to_here => 0,
            Release::Early => open,
            // What was handed on is counted as the input already.
            Release::AfterBackward => (open - wide(own.passed)).max(0),
        };
        let saved = apart(own.saved, own.saved_input, own.saved_output);
        // An input that is held until backward costs nothing more by being saved too.
        let twice = if first || from_here { 0 } else { wide(own.saved_input.min(own.input)) };
        let (saved, let_go_by_forward, let_go_by_send, boundary) = match release {
            Release::Early => (saved, input, output, 0),
            Release::AfterBackward => (saved - twice, 0, 0, input + output),
        };
        Part {
            from_here,
            to_here,
            input,
            output,
            input_grad: if first { 0 } else { wide(own.input_grad) },
            output_grad: if last { 0 } else { wide(own.output_grad) },
            saved,
            held: apart(own.held, own.held_input, own.held_output),
            let_go_by_forward,
            let_go_by_send,
            let_go_by_backward: saved + boundary,
        }
    }
}
