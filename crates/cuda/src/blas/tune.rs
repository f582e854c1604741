//! Times the algorithms that the library offers for each product of a run, for the table.

use super::{Algorithm, Blas, Plan, Product, Raw, set_bias, table};
use crate::block::Block;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::stream::Event;
use std::sync::{Arc, PoisonError};

/// Algorithms that are timed for a product, at most.
const CHOICES: usize = 24;
/// Calls of each, in turn with the others.
const ROUNDS: usize = 25;
/// Random bytes that operands are filled with, again and again.
const RANDOM: usize = 8 << 20;
/// Bytes at the start, in the middle and at the end of two results that are compared.
const WINDOW: usize = 16 << 20;
/// A table lists what is faster by this much.
const GAIN: f64 = 0.99;

/// What was found for one product.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// The product.
    pub product: Product,
    /// Algorithms that were timed.
    pub tried: usize,
    /// Milliseconds of the library's first choice, the median.
    pub first: f64,
    /// Those of the fastest with the same bits.
    pub best: f64,
    /// Faster ones whose results differ in their bits.
    pub others: usize,
    /// A line for the table, where the fastest is worth it.
    pub line: Option<String>,
}

/// Times the algorithms of each product that this process has asked of a device; `told` hears of each.
pub fn tune(ordinal: u32, told: &mut dyn FnMut(&Tuned)) -> Result<()> {
    let context = Context::of(ordinal)?;
    let lane = Lane::current(ordinal)?;
    lane.synchronize("tune")?;
    context.release_cached()?;
    let blas = context.blas.0.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(blas) = &*blas else {
        return Err(Error::Library { library: "cublasLt", reason: "no product was asked of it".into() });
    };
    let asked = blas.plans.iter().filter_map(|(product, plan)| Some((product, plan.as_ref()?)));
    let mut asked: Vec<(&Product, &Plan)> = asked.collect();
    asked.sort_by_key(|(p, _)| (p.m * p.n * p.k * p.batch, p.to_string()));
    for (product, plan) in asked.into_iter().rev() {
        told(&Timing::new(&lane, blas, product, plan)?.run()?);
    }
    Ok(())
}

/// One product with operands of its own.
struct Timing<'a> {
    lane: &'a Arc<Lane>,
    blas: &'a Blas,
    product: &'a Product,
    plan: &'a Plan,
    a: Block,
    b: Block,
    bias: Block,
    /// Of the first choice, and of another.
    out: [Block; 2],
}

impl<'a> Timing<'a> {
    fn new(lane: &'a Arc<Lane>, blas: &'a Blas, product: &'a Product, plan: &'a Plan) -> Result<Timing<'a>> {
        let p = product;
        let size = p.kind.bytes() as usize;
        let length = |matrix: super::Matrix, rows: u64, columns: u64| {
            let lines = if matrix.by_rows { rows } else { columns };
            (matrix.step * lines + matrix.batch_step * (p.batch - 1)) as usize * size
        };
        let values = random(p);
        let filled = |bytes: usize| -> Result<Block> {
            let block = lane.block("tune", bytes)?;
            for start in (0..bytes).step_by(values.len()) {
                let end = (start + values.len()).min(bytes);
                lane.copy_in("tune", block.address() + start as u64, &values[..end - start])?;
            }
            Ok(block)
        };
        let result = || lane.block("tune", (p.m * p.n * p.batch * p.out.bytes()) as usize);
        Ok(Timing {
            a: filled(length(p.a, p.m, p.k))?,
            b: filled(length(p.b, p.k, p.n))?,
            bias: filled(p.n as usize * size)?,
            out: [result()?, result()?],
            lane,
            blas,
            product,
            plan,
        })
    }

    fn call(&self, algorithm: &Algorithm, out: &Block) -> Result<()> {
        let addresses = [self.a.address(), self.b.address(), out.address()];
        let handle = Raw(self.blas.handle.0);
        self.lane.multiply("tune", self.product, &handle, (self.plan, algorithm), addresses)
    }

    fn run(&self) -> Result<Tuned> {
        if self.product.bias {
            set_bias(self.plan, self.bias.address())?;
        }
        let choices = self.blas.choices(self.product, self.plan.desc.0, &self.plan.layouts, CHOICES)?;
        let mut choices: Vec<Algorithm> = choices;
        if choices.is_empty() {
            choices.push(self.plan.algorithm);
        }
        let times = self.times(&choices)?;
        let mut order: Vec<usize> = (0..choices.len()).collect();
        order.sort_by(|&x, &y| times[x].total_cmp(&times[y]));
        self.fresh(&choices[0], 0)?;
        let (mut best, mut others) = (0, 0);
        for place in order {
            if place == 0 || times[place] >= times[0] * GAIN {
                break;
            }
            self.fresh(&choices[place], 1)?;
            if self.same()? {
                best = place;
                break;
            }
            others += 1;
        }
        let line = (best > 0).then(|| {
            let line = table::line(self.blas.machine, self.product, &choices[best]);
            format!("{line}  # {:.4} ms, was {:.4}", times[best], times[0])
        });
        let (first, best) = (times[0], times[best]);
        Ok(Tuned { product: *self.product, tried: choices.len(), first, best, others, line })
    }

    /// Medians in milliseconds, the algorithms in turn.
    fn times(&self, choices: &[Algorithm]) -> Result<Vec<f64>> {
        let mut times = vec![Vec::with_capacity(ROUNDS); choices.len()];
        for round in 0..ROUNDS {
            // Each in another place every time, behind calls that keep the device busy while the host queues.
            let order: Vec<usize> = (0..choices.len()).map(|i| (i + round) % choices.len()).collect();
            for place in [order[0], order[0]] {
                self.call(&choices[place], &self.out[0])?;
            }
            let mut marks = vec![Event::record_timed("tune", self.lane.compute())?];
            for &place in &order {
                self.call(&choices[place], &self.out[0])?;
                marks.push(Event::record_timed("tune", self.lane.compute())?);
            }
            self.lane.synchronize("tune")?;
            for (&place, pair) in order.iter().zip(marks.windows(2)) {
                times[place].push(pair[1].seconds_since(&pair[0])? * 1e3);
            }
        }
        let median = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        Ok(times.into_iter().map(median).collect())
    }

    /// The product in a result that held zeros.
    fn fresh(&self, algorithm: &Algorithm, out: usize) -> Result<()> {
        let out = &self.out[out];
        self.lane.fill_bytes("tune", out.address(), 0, out.bytes())?;
        self.call(algorithm, out)
    }

    /// Whether both results have the same bits where they are compared.
    fn same(&self) -> Result<bool> {
        let bytes = self.out[0].bytes();
        let window = WINDOW.min(bytes);
        for start in [0, (bytes - window) / 2, bytes - window] {
            let mut parts = [vec![0; window], vec![0; window]];
            for (part, out) in parts.iter_mut().zip(&self.out) {
                self.lane.copy_out("tune", part, out.address() + start as u64)?;
            }
            if parts[0] != parts[1] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Values between -2 and 2 that differ in all their bits, as bytes: what real operands look like decides how fast a device may run.
fn random(p: &Product) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let size = p.kind.bytes() as usize;
    let mut bytes = Vec::with_capacity(RANDOM);
    while bytes.len() < RANDOM {
        let word = next();
        let value = (word >> 11) as f64 / (1u64 << 53) as f64 * 4.0 - 2.0;
        let wide = match p.kind {
            super::ProductType::F64 => value.to_bits(),
            super::ProductType::F32 => u64::from((value as f32).to_bits()),
            // The upper half of an f32.
            super::ProductType::BF16 => u64::from((value as f32).to_bits() >> 16),
            super::ProductType::F16 => half_bits(value as f32),
        };
        bytes.extend_from_slice(&wide.to_le_bytes()[..size]);
    }
    bytes
}

/// A value of ordinary size as 16 bits, cut off.
fn half_bits(value: f32) -> u64 {
    let bits = value.to_bits();
    let exponent = (bits >> 23 & 0xff) as i32 - 127 + 15;
    let sign = u64::from(bits >> 16 & 0x8000);
    if exponent <= 0 { sign } else { sign | (exponent as u64) << 10 | u64::from(bits >> 13 & 0x3ff) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_those_of_the_values() {
        for (value, bits) in [(1.0, 0x3c00), (-1.5, 0xbe00), (0.25, 0x3400), (1e-30, 0), (-1e-30, 0x8000)] {
            assert_eq!(half_bits(value), bits, "{value}");
        }
    }
}
