//! Actions: what a rank does next, for which stage and micro-batch.

use std::fmt;

/// What kind of thing an action is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// Waits for the stage's input from the stage before.
    ReceiveInput,
    /// Runs the stage.
    Forward,
    /// Hands the stage's output to the stage after.
    SendOutput,
    /// Waits for the gradient of the stage's output from the stage after.
    ReceiveGradient,
    /// Gradients of the input and of the parameters.
    Backward,
    /// The gradient of the input only.
    Input,
    /// The gradients of the parameters, which [`Step::Input`] put off.
    Weight,
    /// Hands the gradient of the stage's input to the stage before.
    SendGradient,
}

impl Step {
    /// All steps.
    pub const ALL: [Step; 8] = [
        Step::ReceiveInput,
        Step::Forward,
        Step::SendOutput,
        Step::ReceiveGradient,
        Step::Backward,
        Step::Input,
        Step::Weight,
        Step::SendGradient,
    ];

    /// True for what computes; the others move tensors.
    pub fn is_work(self) -> bool {
        matches!(self, Step::Forward | Step::Backward | Step::Input | Step::Weight)
    }

    /// True for [`Step::Backward`] and [`Step::Input`]: they make the gradient of the stage's input.
    pub fn makes_gradient(self) -> bool {
        matches!(self, Step::Backward | Step::Input)
    }

    /// The step in words.
    pub fn words(self) -> &'static str {
        match self {
            Step::ReceiveInput => "receive of the input",
            Step::Forward => "forward",
            Step::SendOutput => "send of the output",
            Step::ReceiveGradient => "receive of the gradient",
            Step::Backward => "backward",
            Step::Input => "gradient of the input",
            Step::Weight => "gradients of the parameters",
            Step::SendGradient => "send of the gradient",
        }
    }

    /// What stands before, between and after the numbers of stage and micro-batch.
    pub(super) fn marks(self) -> (&'static str, char, &'static str) {
        match self {
            Step::ReceiveInput => (">", 'F', ""),
            Step::Forward => ("", 'F', ""),
            Step::SendOutput => ("", 'F', ">"),
            Step::ReceiveGradient => (">", 'B', ""),
            Step::Backward => ("", 'B', ""),
            Step::Input => ("", 'I', ""),
            Step::Weight => ("", 'W', ""),
            Step::SendGradient => ("", 'B', ">"),
        }
    }
}

/// One step of one stage on one micro-batch. Written as stage, letter, micro-batch: `2F0` is forward of stage 2 on
/// micro-batch 0, `>2F0` the receive it needs, `2F0>` the send of its output; `B`, `I`, `W` are backward and its two
/// parts, `>2B0` and `2B0>` the gradients that come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Action {
    /// What is done.
    pub step: Step,
    /// The stage, counted along the model.
    pub stage: usize,
    /// The micro-batch.
    pub micro: usize,
}

impl Action {
    /// An action.
    pub fn new(step: Step, stage: usize, micro: usize) -> Action {
        Action { step, stage, micro }
    }

    /// The same stage and micro-batch with another step.
    pub(super) fn with(self, step: Step) -> Action {
        Action { step, ..self }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, letter, after) = self.step.marks();
        f.pad(&format!("{before}{}{letter}{}{after}", self.stage, self.micro))
    }
}
