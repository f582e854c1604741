//! Programs of our own ops on tensors: on one rank, or on a mesh, where every op decides layouts as it does outside.

use super::plan::Plan;
use crate::error::{Error, Result};
use crate::native::{DIALECT, tensor_op};
use crate::node::{Name, Node};
use crate::program::{Op, Program, ValueId};
use crate::run::{Datum, infer};
use planaria_layout::{Layout, Mesh, TensorSpec};
use planaria_tensor::{Array, Tensor, World, apply_shared};
use std::collections::{BTreeMap, HashMap};

/// Where a program runs.
#[derive(Clone, Debug)]
pub struct Ranks {
    /// The mesh that its tensors lie on.
    pub mesh: Mesh,
    /// The ranks, as seen by one of them.
    pub world: World,
}

/// Runs a program of our own ops on tensors, those it holds by name and its inputs in their order. Gradients flow through
/// it. What it moves between ranks itself, it moves on `ranks`. Memory is freed at the last use. Collective.
///
/// # Errors
/// Tensors that are not given, ops of other dialects that are not constants, and what tensors refuse.
pub fn run_tensors(
    program: &Program,
    held: &BTreeMap<String, Tensor>,
    inputs: &[Tensor],
    ranks: Option<&Ranks>,
) -> Result<Vec<(Name, Tensor)>> {
    let plan = Plan::new(program)?;
    let mut values: HashMap<ValueId, Tensor> = HashMap::new();
    let wanted = program.inputs();
    if wanted.len() != inputs.len() {
        let what = format!("the program takes {} inputs, {} are given", wanted.len(), inputs.len());
        return Err(Error::State { what });
    }
    for (input, tensor) in wanted.iter().zip(inputs) {
        values.insert(input.value.id, tensor.clone());
    }
    for own in program.held() {
        let missing = || Error::State { what: format!("parameter {} is not given", own.name) };
        values.insert(own.value.id, held.get(&*own.name).cloned().ok_or_else(missing)?);
    }
    let mut outputs = Vec::new();
    for op in program.block().into_iter().flat_map(|block| &block.ops) {
        if op.is("pd_op", "fetch") {
            let name = op.attr("name").and_then(Node::as_text).unwrap_or_default();
            let column = op.attr("col").and_then(Node::as_int).unwrap_or(0);
            outputs.push((column, Name::from(name), operand(&values, op, 0)?.clone()));
            continue;
        }
        if op.held().is_some() || op.is("pd_op", "data") {
            continue;
        }
        let made = one(op, &values, ranks)?;
        values.extend(op.results.iter().map(|value| value.id).zip(made));
        plan.last_uses(op).iter().for_each(|id| drop(values.remove(id)));
    }
    outputs.sort_by_key(|(column, ..)| *column);
    Ok(outputs.into_iter().map(|(_, name, tensor)| (name, tensor)).collect())
}

fn operand<'v>(values: &'v HashMap<ValueId, Tensor>, op: &Op, at: usize) -> Result<&'v Tensor> {
    let found = op.operands.get(at).and_then(|id| values.get(id));
    found.ok_or_else(|| Error::Run { place: op.place(), what: format!("operand {at} is missing") })
}

fn one(op: &Op, values: &HashMap<ValueId, Tensor>, ranks: Option<&Ranks>) -> Result<Vec<Tensor>> {
    let failed = |source| Error::Tensor { place: op.place(), source };
    let refuse = |what: &str| Error::Run { place: op.place(), what: what.to_string() };
    match op.parts() {
        (DIALECT, "reshard") => {
            let x = operand(values, op, 0)?;
            let layout =
                layout_of(op, ranks).ok_or_else(|| refuse("it does not say where its value goes"))?;
            let world = &ranks.ok_or_else(|| refuse("it moves a value, and there are no ranks"))?.world;
            let placed = match x.layout() {
                Some(_) => x.clone(),
                None => {
                    let whole = Layout::replicated(layout.mesh(), x.shape());
                    Tensor::from_piece(x.local().clone(), &whole, world).map_err(failed)?
                }
            };
            Ok(vec![placed.reshard(&layout).map_err(failed)?])
        }
        (DIALECT, _) => {
            let known = tensor_op(op).ok_or_else(|| refuse("there is no op of ours like this"))?;
            let inputs = (0..op.operands.len()).map(|at| operand(values, op, at));
            let inputs = inputs.collect::<Result<Vec<&Tensor>>>()?;
            Ok(apply_shared(known, &inputs).map_err(failed)?.into_iter().collect())
        }
        ("pd_op", "full" | "full_int_array" | "assign_value") => {
            let made: Option<Vec<Array>> =
                infer_constant(op)?.into_iter().map(|datum| datum.array().cloned()).collect();
            Ok(made.ok_or_else(|| refuse("it is not a constant"))?.into_iter().map(Tensor::new).collect())
        }
        _ => Err(refuse("only our own ops run on tensors; run the program on arrays")),
    }
}

/// The elements of a constant, also of a large one.
fn infer_constant(op: &Op) -> Result<Vec<Datum>> {
    let found = infer(op, Vec::new())?;
    if found.iter().any(|datum| datum.array().is_some_and(Array::is_meta)) {
        return super::evaluate(op, Vec::new());
    }
    Ok(found)
}

/// The layout that an op gives its first result.
fn layout_of(op: &Op, ranks: Option<&Ranks>) -> Option<Layout> {
    let texts = op.attr("layouts")?.items()?;
    let spec: TensorSpec = texts.first()?.as_text()?.parse().ok()?;
    spec.on(&ranks?.mesh).ok()
}
