//! The description of the tensors of a message, as text: one line for each, `grad f32[2,4] @ tp:R` or `only i64[2]`.

use planaria_layout::{Layout, TensorSpec};
use planaria_tensor::{History, Tensor};
use std::fmt;
use std::str::FromStr;

/// One tensor of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wire {
    pub(super) spec: TensorSpec,
    /// A gradient comes back for it.
    pub(super) grad: bool,
}

impl Wire {
    pub(super) fn of(tensor: &Tensor) -> Wire {
        let grad = super::gradient_place(tensor).is_some();
        Wire { spec: described(tensor.spec(), tensor.layout()), grad }
    }
}

/// A gradient as it travels: in the layout of its input, whole where that is pending.
pub(super) fn gradient_spec(place: &History) -> TensorSpec {
    let mut spec = described(place.spec().clone(), place.layout());
    for (_, placement) in &mut spec.placements {
        if matches!(placement, planaria_layout::Placement::Partial(_)) {
            *placement = planaria_layout::Placement::Replicate;
        }
    }
    spec
}

fn described(spec: planaria_tensor::Spec, layout: Option<&Layout>) -> TensorSpec {
    match layout {
        Some(layout) => layout.to_spec(spec.dtype),
        None => TensorSpec { dtype: spec.dtype, shape: spec.shape, placements: Vec::new() },
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", if self.grad { "grad" } else { "only" }, self.spec)
    }
}

impl FromStr for Wire {
    type Err = String;

    fn from_str(text: &str) -> Result<Wire, String> {
        let (flag, spec) = text.split_once(' ').ok_or("a tensor without a flag")?;
        let grad = match flag {
            "grad" => true,
            "only" => false,
            _ => return Err(format!("unknown flag `{flag}`")),
        };
        Ok(Wire { spec: spec.parse().map_err(|e: planaria_layout::Error| e.to_string())?, grad })
    }
}
