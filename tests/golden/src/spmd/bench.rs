//! A place to run ops on layouts alone, adding up what moves.

use super::SIZE;
use anyhow::{Result, ensure};
use planaria_layout::rule::{self, Kind, LINEAR, Operand, Rule, decide};
use planaria_layout::{Layout, Mesh, Placement, Reduce, Shape};
use serde_json::Value;

/// What ops have moved so far.
pub(super) struct Bench {
    pub(super) mesh: Mesh,
    pub(super) bytes: u64,
    /// One text per op that moved something.
    pub(super) log: Vec<String>,
    /// The reductions that may be pending behind some op that ran.
    reduces: Vec<Reduce>,
}

impl Bench {
    pub(super) fn new(mesh: &Mesh) -> Bench {
        Bench { mesh: mesh.clone(), bytes: 0, log: Vec::new(), reduces: Vec::new() }
    }

    /// Runs an op of any number of outputs.
    pub(super) fn run(&mut self, rule: &Rule, inputs: &[&Layout], outputs: &[Shape]) -> Result<Vec<Layout>> {
        let operands: Vec<Operand<'_>> = inputs.iter().map(|layout| Operand { layout, size: SIZE }).collect();
        let sized: Vec<(&Shape, usize)> = outputs.iter().map(|shape| (shape, SIZE)).collect();
        let decision = decide(rule, &operands, &sized)?;
        self.reduces.extend(rule.through.iter().flat_map(|through| through.reduces));
        self.reduces.extend(rule.factors.iter().filter_map(|f| match f.kind {
            Kind::Reduce(reduce) => Some(reduce),
            Kind::Free => None,
        }));
        let again = decide(rule, &operands, &sized)?;
        ensure!(decision == again, "two decisions differ");
        self.bytes += decision.cost.bytes;
        if decision.cost.bytes > 0 {
            self.log.push(format!("{inputs:?} -> {:?} for {} bytes", decision.inputs, decision.cost.bytes));
        }
        Ok(decision.outputs)
    }

    /// False when an output waits for a reduction that no op here can leave behind, such as the maximum of sums.
    pub(super) fn explains(&self, outputs: &Value) -> bool {
        let known = |name: &str| match name.parse::<Reduce>() {
            Ok(Reduce::Sum | Reduce::Avg) => true,
            Ok(reduce) => self.reduces.contains(&reduce),
            Err(_) => false,
        };
        match outputs {
            Value::Array(list) => list.iter().all(|output| self.explains(output)),
            spec => {
                spec["partial"].as_object().into_iter().flatten().all(|(_, r)| r.as_str().is_some_and(known))
            }
        }
    }

    /// Runs an op of one output.
    pub(super) fn one(&mut self, rule: &Rule, inputs: &[&Layout], output: &Shape) -> Result<Layout> {
        Ok(self.run(rule, inputs, std::slice::from_ref(output))?.swap_remove(0))
    }

    /// An op that works element by element; reductions pass as `pass` says.
    pub(super) fn pointwise(
        &mut self,
        inputs: &[&Layout],
        output: &Shape,
        pass: &[(&[usize], &'static [Reduce])],
    ) -> Result<Layout> {
        let shapes: Vec<&Shape> = inputs.iter().map(|layout| layout.shape()).collect();
        let mut rule = rule::elementwise(&shapes, output);
        pass.iter().for_each(|(inputs, reduces)| rule.pass(inputs, reduces));
        self.one(&rule, inputs, output)
    }

    /// Sums over dims, which go away or stay as 1.
    pub(super) fn sum(&mut self, x: &Layout, dims: &[usize], output: &Shape) -> Result<Layout> {
        let mut rule = rule::reduction(x.shape(), dims, output, Reduce::Sum);
        rule.pass(&[0], LINEAR);
        self.one(&rule, &[x], output)
    }

    /// Sums over the dims along which a tensor of this shape was repeated.
    pub(super) fn sum_to(&mut self, x: &Layout, shape: &Shape) -> Result<Layout> {
        let skip = x.shape().ndim() - shape.ndim();
        let is_repeated = |dim: &usize| *dim < skip || x.shape()[*dim] != shape[*dim - skip];
        let dims: Vec<usize> = (0..x.shape().ndim()).filter(is_repeated).collect();
        if dims.is_empty() {
            return Ok(x.clone());
        }
        let kept: Vec<usize> =
            x.shape().iter().enumerate().map(|(d, &n)| if dims.contains(&d) { 1 } else { n }).collect();
        let summed = self.sum(x, &dims, &Shape::new(&kept)?)?;
        self.reshape(&summed, shape)
    }

    pub(super) fn reshape(&mut self, x: &Layout, shape: &Shape) -> Result<Layout> {
        let mut rule = rule::reshape(x.shape(), shape);
        rule.pass(&[0], &Reduce::EVERY);
        self.one(&rule, &[x], shape)
    }

    pub(super) fn permute(&mut self, x: &Layout, order: &[usize]) -> Result<Layout> {
        let dims: Vec<usize> = order.iter().map(|&d| x.shape()[d]).collect();
        let mut rule = rule::permute(x.shape(), order);
        rule.pass(&[0], &Reduce::EVERY);
        self.one(&rule, &[x], &Shape::new(&dims)?)
    }

    pub(super) fn expand(&mut self, x: &Layout, shape: &Shape) -> Result<Layout> {
        let mut rule = rule::expand(x.shape(), shape);
        rule.pass(&[0], &Reduce::EVERY);
        self.one(&rule, &[x], shape)
    }

    pub(super) fn matmul(&mut self, x: &Layout, y: &Layout) -> Result<Layout> {
        let output = matmul_shape(x.shape(), y.shape())?;
        let mut rule = rule::matmul(x.shape(), y.shape(), &output);
        rule.pass(&[0], LINEAR);
        rule.pass(&[1], LINEAR);
        self.one(&rule, &[x, y], &output)
    }

    /// The same tensor with its contributions taken as they are: only its shape and cuts matter.
    pub(super) fn only_shape(&self, x: &Layout) -> Result<Layout> {
        let whole =
            |p: &Placement| if matches!(p, Placement::Partial(_)) { Placement::Replicate } else { *p };
        let placements: Vec<Placement> = x.placements().iter().map(whole).collect();
        Ok(Layout::new(x.mesh(), x.shape(), &placements)?)
    }
}

/// The shape of `x @ y`, as in numpy.
fn matmul_shape(x: &Shape, y: &Shape) -> Result<Shape> {
    let batch = |s: &Shape| s[..s.ndim().saturating_sub(2)].to_vec();
    let mut dims = broadcast(&batch(x), &batch(y));
    if x.ndim() > 1 {
        dims.push(x[x.ndim() - 2]);
    }
    if y.ndim() > 1 {
        dims.push(y[y.ndim() - 1]);
    }
    Ok(Shape::new(&dims)?)
}

/// The extents of two shapes together, as in numpy.
pub(super) fn broadcast(x: &[usize], y: &[usize]) -> Vec<usize> {
    let ndim = x.len().max(y.len());
    let at = |s: &[usize], dim: usize| if dim + s.len() < ndim { 1 } else { s[dim + s.len() - ndim] };
    (0..ndim).map(|dim| if at(x, dim) == 1 { at(y, dim) } else { at(x, dim) }).collect()
}
