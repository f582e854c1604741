//! One comparison: inputs, what is done with them, and how close the results must be.

use super::compare::{Tolerance, compare, same_bits};
use super::report::Report;
use crate::array::Array;
use crate::device::Device;
use crate::error::{Error, Result};
use std::sync::Arc;

/// How an input is seen: kernels meet every kind of stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// As it is.
    Plain,
    /// With its last two dims swapped.
    Turned,
    /// Every second element of the last dim, from the second on.
    Stepped,
    /// Without its first element: not aligned to packs.
    Shifted,
    /// Repeated along a new first dim.
    Repeated,
}

impl View {
    /// Every view.
    pub const ALL: [View; 5] = [View::Plain, View::Turned, View::Stepped, View::Shifted, View::Repeated];

    fn of(self, x: &Array) -> Result<Array> {
        let last = x.ndim() as i64 - 1;
        match self {
            View::Turned if x.ndim() >= 2 => x.transpose(last - 1, last),
            View::Stepped if x.ndim() >= 1 => x.slice(last, Some(1), None, 2),
            View::Shifted if x.ndim() >= 1 => x.slice(last, Some(1), None, 1),
            View::Repeated => {
                let mut shape = vec![3];
                shape.extend_from_slice(x.shape());
                x.broadcast_to(&shape)
            }
            _ => Ok(x.clone()),
        }
    }
}

/// An input: host values, and how the operation sees them.
#[derive(Clone, Debug)]
pub struct Input {
    /// The values.
    pub base: Array,
    /// The view of them.
    pub view: View,
    /// Stays on the host beside operands of the device.
    pub on_host: bool,
}

impl Input {
    /// Values as they are.
    pub fn plain(base: Array) -> Input {
        Input::seen(base, View::Plain)
    }

    /// Values under a view.
    pub fn seen(base: Array, view: View) -> Input {
        Input { base, view, on_host: false }
    }

    /// A 0-d value of the host.
    pub fn host(base: Array) -> Input {
        Input { base, view: View::Plain, on_host: true }
    }

    fn on(&self, device: Device) -> Result<Array> {
        let device = if self.on_host { Device::Cpu } else { device };
        // A copy of its own, so that cases that write do not see each other.
        let moved = if device == Device::Cpu { self.base.copy()? } else { self.base.to(device)? };
        self.view.of(&moved)
    }
}

/// What a case computes.
type Work = Arc<dyn Fn(&[Array], Device) -> Result<Vec<Array>> + Send + Sync>;

/// One comparison of a device with the host.
#[derive(Clone)]
pub struct Case {
    /// The family it belongs to.
    pub family: &'static str,
    /// What is compared.
    pub name: String,
    inputs: Vec<Input>,
    work: Work,
    tolerance: Tolerance,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Case({} {})", self.family, self.name)
    }
}

impl Case {
    /// `work` on these inputs.
    pub fn new(
        family: &'static str,
        name: impl Into<String>,
        inputs: Vec<Input>,
        tolerance: Tolerance,
        work: impl Fn(&[Array], Device) -> Result<Vec<Array>> + Send + Sync + 'static,
    ) -> Case {
        Case { family, name: name.into(), inputs, work: Arc::new(work), tolerance }
    }

    fn results(&self, device: Device) -> Result<Vec<Array>> {
        let inputs = self.inputs.iter().map(|input| input.on(device)).collect::<Result<Vec<_>>>()?;
        (self.work)(&inputs, device)
    }

    /// Runs the case and notes the outcome.
    pub fn run(&self, device: Device, report: &mut Report) {
        let want = self.results(Device::Cpu);
        let outcome = self.results(device).and_then(|first| {
            let here = |x: &Array| x.to(Device::Cpu);
            let (first, second) = (first, self.results(device)?);
            let placed = first.iter().find(|x| x.device() != device).map(Array::device);
            let got = first.iter().map(here).collect::<Result<Vec<_>>>()?;
            let again = second.iter().map(here).collect::<Result<Vec<_>>>()?;
            Ok((placed, got, again))
        });
        match (want, outcome) {
            (_, Err(Error::NotOnDevice { op, .. })) => report.missing(self.family, op, &self.name),
            (Err(want), Err(got)) if want == got => report.pass(self.family, 0.0),
            (Err(want), Err(got)) => {
                report.fail(self.family, &self.name, format!("the host says {want:?}, the device {got:?}"));
            }
            (Err(want), Ok(_)) => {
                report.fail(
                    self.family,
                    &self.name,
                    format!("the host refuses ({want}), the device does not"),
                );
            }
            (Ok(_), Err(got)) => report.fail(self.family, &self.name, format!("{got}")),
            (Ok(_), Ok((Some(placed), _, _))) => {
                report.fail(self.family, &self.name, format!("the result lives on {placed}"));
            }
            (Ok(want), Ok((None, got, again))) => self.judge(&want, &got, &again, report),
        }
    }

    fn judge(&self, want: &[Array], got: &[Array], again: &[Array], report: &mut Report) {
        if let Some(text) = got.iter().zip(again).find_map(|(a, b)| same_bits(a, b)) {
            return report.fail(self.family, &self.name, format!("two runs differ: {text}"));
        }
        let mut worst = 0.0f64;
        for (want, got) in want.iter().zip(got) {
            match compare(want, got, self.tolerance) {
                Ok(error) => worst = worst.max(error),
                Err(text) => return report.fail(self.family, &self.name, text),
            }
        }
        if want.len() != got.len() {
            return report.fail(
                self.family,
                &self.name,
                format!("{} results, not {}", got.len(), want.len()),
            );
        }
        report.pass(self.family, worst);
    }
}
