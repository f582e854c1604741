//! What a captured program depends on: kinds of inputs and parameters, settings and modes, and nothing else.

use super::Function;
use planaria_array::Device;
use planaria_tensor::{Tensor, is_recording};
use std::fmt;

/// Everything that can change the program of a function, as names and texts. Two equal keys stand for one program;
/// values of inputs and parameters are not part of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramKey {
    parts: Vec<(String, String)>,
}

impl ProgramKey {
    /// Of a function in the mode that this thread is in.
    pub fn of(function: &Function) -> ProgramKey {
        let tensor =
            |group: &str, (name, tensor): &(String, Tensor)| (format!("{group} {name}"), kind(tensor));
        let inputs = function.inputs.iter().map(|pair| tensor("input", pair));
        let parameters = function.parameters.iter().map(|pair| tensor("parameter", pair));
        let settings =
            function.settings.iter().map(|(name, value)| (format!("setting {name}"), value.clone()));
        let mode =
            ("gradients".to_string(), if is_recording() { "recorded" } else { "not recorded" }.to_string());
        ProgramKey { parts: inputs.chain(parameters).chain(settings).chain([mode]).collect() }
    }

    /// What is different in `later`, in words; none if nothing is.
    pub fn changes(&self, later: &ProgramKey) -> Vec<String> {
        let find = |key: &ProgramKey, name: &str| {
            key.parts.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        };
        let mut changes = Vec::new();
        for (name, value) in &later.parts {
            match find(self, name) {
                None => changes.push(format!("{name} is new: {value}")),
                Some(before) if before != *value => changes.push(format!("{name}: {before} -> {value}")),
                Some(_) => {}
            }
        }
        let gone = self.parts.iter().filter(|(name, _)| find(later, name).is_none());
        changes.extend(gone.map(|(name, _)| format!("{name} is gone")));
        if changes.is_empty() && self != later {
            changes.push("the order of inputs or parameters".to_string());
        }
        changes
    }
}

/// Element type, shape, layout, device and whether a gradient is wanted.
fn kind(tensor: &Tensor) -> String {
    let spec = match tensor.layout() {
        Some(layout) => format!("{} on {}", layout.to_spec(tensor.dtype()), layout.mesh()),
        None => format!("{}{}", tensor.dtype(), tensor.shape()),
    };
    let device = match tensor.local().device() {
        // Which one of them it is, or that there are no elements, changes no op.
        Device::Cuda(_) => " on cuda",
        _ => "",
    };
    let wanted = if tensor.has_history() { ", gradient wanted" } else { "" };
    format!("{spec}{device}{wanted}")
}

impl fmt::Display for ProgramKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.iter().try_for_each(|(name, value)| writeln!(f, "{name}: {value}"))
    }
}
