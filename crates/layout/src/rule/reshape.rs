//! The rule of a reshape: the factors that two shapes have in common.

use super::{DimFactors, FactorId, Rule};
use crate::shape::Shape;

/// The same elements in the same order under another shape.
///
/// Both shapes are divided into common factors as far as their extents allow: `[6,4] -> [2,12]` has the factors
/// 2, 3 and 4. Where extents have no common divisor (`[3,4] -> [4,3]`) the dims involved are never cut.
pub fn reshape(from: &Shape, to: &Shape) -> Rule {
    let mut rule = Rule::default();
    let mut a = Side::new(from);
    let mut b = Side::new(to);
    if from.numel() == 0 {
        // Row-major order says nothing about no elements; dims alike at the front stay together.
        let same = from.iter().zip(to.iter()).take_while(|(x, y)| x == y).count();
        for dim in 0..same {
            let factor = rule.free(from[dim]);
            a.dims[dim].push(factor);
            b.dims[dim].push(factor);
        }
    } else {
        while !a.is_done() || !b.is_done() {
            step(&mut rule, &mut a, &mut b);
        }
    }
    rule.inputs.push(a.dims);
    rule.outputs.push(b.dims);
    rule
}

/// One of the shapes on the way from its first dim to its last.
struct Side<'a> {
    shape: &'a Shape,
    dim: usize,
    /// What is left of the current dim.
    left: usize,
    dims: Vec<DimFactors>,
}

impl<'a> Side<'a> {
    fn new(shape: &'a Shape) -> Side<'a> {
        Side {
            shape,
            dim: 0,
            left: shape.first().copied().unwrap_or(1),
            dims: vec![DimFactors::new(); shape.ndim()],
        }
    }

    fn is_done(&self) -> bool {
        self.dim >= self.shape.ndim()
    }

    fn take(&mut self, factor: FactorId, size: usize) {
        if let Some(dim) = self.dims.get_mut(self.dim) {
            dim.push(factor);
        }
        self.left /= size;
        if self.left == 1 {
            self.next();
        }
    }

    fn next(&mut self) {
        self.dim += 1;
        self.left = self.shape.get(self.dim).copied().unwrap_or(1);
    }
}

fn step<'a>(rule: &mut Rule, a: &mut Side<'a>, b: &mut Side<'a>) {
    if a.left == b.left && !a.is_done() && !b.is_done() {
        let size = a.left;
        let factor = rule.free(size);
        a.take(factor, size);
        b.take(factor, size);
    } else if a.left == 1 && !a.is_done() {
        a.next();
    } else if b.left == 1 && !b.is_done() {
        b.next();
    } else {
        let size = gcd(a.left, b.left);
        if size > 1 {
            let factor = rule.free(size);
            a.take(factor, size);
            b.take(factor, size);
        } else {
            entangled(rule, a, b);
        }
    }
}

/// Goes on to the next place where both shapes have a boundary; nothing before it is cut.
fn entangled<'a>(rule: &mut Rule, a: &mut Side<'a>, b: &mut Side<'a>) {
    let (mut x, mut y) = (1u128, 1u128);
    loop {
        let behind = if x < y || x == 1 { &mut *a } else { &mut *b };
        let (size, is_a) = (behind.left, x < y || x == 1);
        if behind.is_done() {
            return;
        }
        let factor = rule.fixed(size);
        behind.take(factor, size);
        *(if is_a { &mut x } else { &mut y }) *= size as u128;
        if x == y {
            return;
        }
    }
}

fn gcd(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
