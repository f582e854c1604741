//! Memory of a schedule: what a rank keeps after each of its actions follows from its own list alone.

use super::action::{Action, Step};
use super::simulate::Costs;
use super::stages::Stages;

/// When the inputs and outputs of stages are let go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// The input after forward, the output once it is handed over: what gradients need is kept by the history alone.
    #[default]
    Early,
    /// Both after backward.
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
    /// Most that forward needs above what is there when it begins.
    pub forward_peak: u64,
    /// The same for a full backward.
    pub backward_peak: u64,
    /// The same for the gradient of the input.
    pub input_peak: u64,
    /// The same for the gradients of the parameters.
    pub weight_peak: u64,
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
        forward_peak: 0,
        backward_peak: 0,
        input_peak: 0,
        weight_peak: 0,
        send_output_peak: 0,
        send_gradient_peak: 0,
    };
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
    let (mut now, mut peak) = (0i128, 0i128);
    for action in list {
        let (during, after) = change(stages, *action, costs);
        peak = peak.max(now + during).max(now + after);
        now += after;
    }
    u64::try_from(peak.max(0)).unwrap_or(u64::MAX)
}

/// The most above the level before an action, and the level after it, both relative to the level before.
fn change(stages: &Stages, action: Action, costs: &Costs) -> (i128, i128) {
    let size = Sizes::new(stages, action.stage, costs);
    let own = costs.of(action.stage).bytes;
    let (during, after) = match action.step {
        Step::ReceiveInput => (0, size.input),
        Step::Forward => (own.forward_peak, size.saved + size.output - size.let_go_by_forward),
        Step::SendOutput => (own.send_output_peak, -size.let_go_by_send),
        Step::ReceiveGradient => (0, size.output_grad),
        Step::Backward => (own.backward_peak, size.input_grad - size.output_grad - size.let_go_by_backward),
        Step::Input => {
            let kept = i128::from(own.held);
            (own.input_peak, size.input_grad - size.output_grad - size.let_go_by_backward + kept)
        }
        Step::Weight => (own.weight_peak, -i128::from(own.held)),
        Step::SendGradient => (own.send_gradient_peak, -size.input_grad),
    };
    (i128::from(during), after)
}

/// Bytes of a stage as they count on its rank.
struct Sizes {
    /// Came by message.
    input: i128,
    /// What keeps the output besides the history.
    output: i128,
    input_grad: i128,
    output_grad: i128,
    /// Kept by the history, without what is counted elsewhere.
    saved: i128,
    let_go_by_forward: i128,
    let_go_by_send: i128,
    let_go_by_backward: i128,
}

impl Sizes {
    fn new(stages: &Stages, stage: usize, costs: &Costs) -> Sizes {
        let own = costs.of(stage).bytes;
        let wide = |bytes: u64| i128::from(bytes);
        let open = |bytes: &StageBytes| wide(bytes.output.saturating_sub(bytes.saved_output));
        let (first, last) = (stage == 0, stage + 1 == stages.len());
        // A neighbour on the same rank hands over the tensor itself: it is one object for both.
        let before = (!first && stages.before(stage).is_none()).then(|| costs.of(stage - 1).bytes);
        let input = if first || before.is_some() { 0 } else { wide(own.input) };
        let output = match (last, costs.release) {
            (true, _) => 0,
            (false, Release::Early) => open(&own),
            // What was handed on is counted as the input already.
            (false, Release::AfterBackward) => (open(&own) - wide(own.passed)).max(0),
        };
        let same = if first { 0 } else { wide(own.saved_input.min(own.input)) };
        let (saved, let_go_by_forward) = match (costs.release, &before) {
            (Release::Early, None) => (wide(own.saved), input),
            (Release::Early, Some(before)) => {
                (wide(own.saved) - same.min(wide(before.saved_output)), open(before))
            }
            // Somebody holds the input until backward, so the history keeps nothing more by keeping it too.
            (Release::AfterBackward, _) => (wide(own.saved) - same, 0),
        };
        let (let_go_by_send, boundary) = match costs.release {
            Release::Early => (output, 0),
            Release::AfterBackward => (0, input + output),
        };
        Sizes {
            input,
            output,
            input_grad: if first { 0 } else { wide(own.input_grad) },
            output_grad: if last { 0 } else { wide(own.output_grad) },
            saved,
            let_go_by_forward,
            let_go_by_send,
            let_go_by_backward: saved + boundary,
        }
    }
}
