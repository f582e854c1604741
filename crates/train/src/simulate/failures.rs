//! When failures come.

use crate::error::Result;
use planaria_array::random::{Key, Window, uniform_f64};

/// When failures come, in seconds from the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Failures {
    /// Never.
    #[default]
    Never,
    /// At random, independently of each other, so long apart on average; this part of them takes a machine.
    Random {
        /// Mean seconds between two of the whole job.
        mtbf: f64,
        /// From 0 to 1.
        machines: f64,
    },
    /// Just then.
    At(Vec<Failure>),
}

/// One failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failure {
    /// When.
    pub time: f64,
    /// Whether a machine is lost with it.
    pub machine: bool,
}

/// Failures one after the other.
pub(super) struct Stream<'a> {
    failures: &'a Failures,
    key: Key,
    number: u64,
    time: f64,
}

impl Failures {
    pub(super) fn stream(&self, seed: u64) -> Stream<'_> {
        Stream { failures: self, key: Key::new(seed, 0), number: 0, time: 0.0 }
    }
}

impl Stream<'_> {
    /// The next one; at no time where there is none.
    pub(super) fn next(&mut self) -> Failure {
        let none = Failure { time: f64::INFINITY, machine: false };
        let number = self.number;
        self.number += 1;
        match self.failures {
            Failures::Never => none,
            Failures::At(list) => list.get(number as usize).copied().unwrap_or(none),
            Failures::Random { mtbf, machines } => match draw(self.key, number) {
                Ok([gap, machine]) => {
                    self.time += -mtbf * (1.0 - gap).ln();
                    Failure { time: self.time, machine: machine < *machines }
                }
                Err(_) => none,
            },
        }
    }
}

fn draw(key: Key, number: u64) -> Result<[f64; 2]> {
    let mut out = [0.0; 2];
    uniform_f64(&mut out, key, &Window::flat(2 * number, 2))?;
    Ok(out)
}
