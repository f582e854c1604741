//! Kind `spmd`: what our ops decide about layouts, against the rules of Paddle 3.3.1.
//!
//! A case gives the layouts of an op's inputs, and of its gradient's, with those that the reference would reshard them
//! to. For each we write the program that a user would write, run it on a world that only plans, and add up what its ops
//! paid: inputs moved, messages of kernels, and in the end the cheapest settlement of what is pending. That is held
//! against the same price of the reference's answer. Small calls also run on thread ranks, against one rank.
//!
//! A gradient is what backward runs for the program, with the inputs where the reference has them. It is compared where
//! our forward takes them there; else its inputs are others. A program or gradient of several ops may move one tensor for
//! each of them; where that makes it dearer than the reference's one op it is counted as such, and not as passed. A reverse
//! answer (given output layouts, which inputs?) is compared for programs of one op: both answers are priced by what it
//! costs to reach the given outputs from them.
//!
//! Where nothing could be compared the case has *passed alone*, and the reason is counted.

mod call;
mod elements;
mod execute;
mod moves;
mod picks;
mod price;
mod products;
mod program;

use crate::cases::{Outcome, Verdict, each_case};
use anyhow::{Context, Result};
use call::{Call, tensor};
use planaria_layout::{Layout, Mesh, Reduce};
use price::{Paid, reference};
use serde_json::Value;
use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::Path;

/// How the calls compare, by word.
type Tally = BTreeMap<String, usize>;

/// What became of one question.
enum Compared {
    /// Ours costs no more; how it is in words.
    With(&'static str),
    /// Ours costs more.
    Dearer(String),
    /// Ours costs more because it is several ops, each of which moves what the reference's one op moves once.
    DearerInSteps,
    /// There was nothing to compare with, and why.
    Not(&'static str),
}

const NO_SUCH_OP: &str = "not applicable: product has no such op";

pub(crate) fn run(path: &Path) -> Result<Outcome> {
    let tally: RefCell<Tally> = RefCell::default();
    let mut outcome = each_case(path, |case| {
        check(case, &mut tally.borrow_mut()).unwrap_or_else(|error| Verdict::Failed(format!("{error:#}")))
    })?;
    let tally = tally.into_inner();
    outcome.notes.extend(tally.iter().map(|(word, count)| format!("{word}: {count}")));
    Ok(outcome)
}

fn check(case: &Value, tally: &mut Tally) -> Result<Verdict> {
    let tags: Vec<&str> = case["tags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if tags.contains(&"dup_mesh_dim") {
        return Ok(Verdict::Skipped("one mesh axis on two dims of a tensor"));
    }
    let sizes: Vec<usize> = serde_json::from_value(case["mesh_shape"].clone()).context("mesh_shape")?;
    let names: Vec<String> = (0..sizes.len()).map(|i| format!("m{i}")).collect();
    let axes: Vec<(&str, usize)> = names.iter().map(String::as_str).zip(sizes).collect();
    let mesh = Mesh::new(&axes)?;
    if is_mixed(&case["inputs"]) || is_mixed(&case["backward"]["given_inputs"]) {
        return Ok(Verdict::Skipped("one tensor with pending reductions whose order matters"));
    }
    let name = case["op"].as_str().context("op")?;
    let call = Call::new(&mesh, name, &case["inputs"], &case["attrs"])?;
    let mut dearer = Vec::new();
    let mut compared = 0;
    // Why nothing was compared, as the first part says.
    let mut why = None;
    let mut in_steps = false;
    let mut count = |part: &str, answer: Compared| match answer {
        Compared::With(word) => {
            compared += 1;
            *tally.entry(format!("{part}, {word}")).or_default() += 1;
        }
        Compared::Not(reason) => {
            why.get_or_insert(reason);
            *tally.entry(format!("{part}, not compared: {reason}")).or_default() += 1;
        }
        Compared::DearerInSteps => {
            in_steps = true;
            *tally.entry(format!("{part}, dearer as several ops")).or_default() += 1;
        }
        Compared::Dearer(how) => {
            *tally.entry(format!("{part}, dearer")).or_default() += 1;
            dearer.push(format!("{} {part}: {how}", case["id"]));
        }
    };
    let forward = price::forward(&mesh, &call).with_context(|| format!("{} forward", case["id"]))?;
    count("forward", compare(&mesh, &call, forward.as_ref(), &case["forward"])?);
    if case["backward"].is_object() {
        let answer = backward(&mesh, &call, case).with_context(|| format!("{} backward", case["id"]))?;
        count("backward", answer);
    }
    if case["reverse"].is_object() {
        let answer =
            reverse(&mesh, &call, &case["reverse"]).with_context(|| format!("{} reverse", case["id"]))?;
        count("reverse", answer);
    }
    let ran = execute::against_one_rank(&mesh, &call).with_context(|| format!("{} on ranks", case["id"]))?;
    *tally.entry(format!("execution, {}", ran.word())).or_default() += 1;
    Ok(match (dearer.is_empty(), compared > 0) {
        (false, _) => Verdict::Failed(dearer.join("; ")),
        // Beside answers that are no dearer or not: it is not as the reference has it.
        (true, _) if in_steps => Verdict::PassedAlone("ours is several ops and dearer"),
        (true, true) => Verdict::Passed,
        (true, false) => Verdict::PassedAlone(why.unwrap_or("nothing was asked")),
    })
}

/// True when some tensor waits for reductions that do not commute; a layout of ours cannot say that.
fn is_mixed(inputs: &Value) -> bool {
    let mut flat = Vec::new();
    flatten(inputs, &mut flat);
    flat.into_iter().any(|spec| {
        let named = spec["partial"].as_object().into_iter().flatten().filter_map(|(_, r)| r.as_str());
        let reduces: Vec<Reduce> = named.filter_map(|r| r.parse().ok()).collect();
        reduces.windows(2).any(|pair| !pair[0].commutes_with(pair[1]))
    })
}

fn flatten<'a>(value: &'a Value, into: &mut Vec<&'a Value>) {
    match value {
        Value::Array(list) => list.iter().for_each(|item| flatten(item, into)),
        other => into.push(other),
    }
}

/// Why an answer of the reference says nothing, if so.
fn is_unusable(theirs: &Value) -> Option<&'static str> {
    if theirs["error"] == Value::Bool(true) {
        Some("the reference raised")
    } else if theirs["sound"] == Value::Bool(false) {
        Some("the reference is wrong")
    } else if theirs["sound"] != Value::Bool(true) {
        Some("the reference is not verified")
    } else {
        None
    }
}

/// Why no program of ours answers for an op.
fn missing(name: &str) -> &'static str {
    match name {
        "nonzero" | "unique" => "shapes follow values: there is nothing to plan",
        "adam_" | "adamw_" | "sgd_" | "check_finite_and_unscale_" => {
            "a step of ours places its tensors itself"
        }
        "moe_gate_dispatch" | "moe_combine" => "rows of ours travel by an exchange, not by a rule",
        _ => NO_SUCH_OP,
    }
}

/// Our price against that of the reference.
fn compare(mesh: &Mesh, call: &Call<'_, Layout>, ours: Option<&Paid>, theirs: &Value) -> Result<Compared> {
    let Some(ours) = ours else { return Ok(Compared::Not(missing(call.name))) };
    if let Some(reason) = is_unusable(theirs) {
        return Ok(Compared::Not(reason));
    }
    let Some(wanted) = call.wanted(mesh, &theirs["inputs"])? else {
        return Ok(Compared::Not("the reference answers about other tensors"));
    };
    let Some(price) = reference(mesh, call, &wanted, &ours.outputs, &theirs["outputs"])? else {
        return Ok(Compared::Not("the reference leaves a reduction pending that the op cannot"));
    };
    Ok(match ours.total().cmp(&price) {
        Ordering::Equal => Compared::With("equal"),
        Ordering::Less => Compared::With("cheaper"),
        Ordering::Greater if ours.ran.len() > 1 => Compared::DearerInSteps,
        Ordering::Greater => {
            let given: Vec<String> = call.items().map(Layout::to_string).collect();
            let (total, outputs) = (ours.total(), &theirs["outputs"]);
            Compared::Dearer(format!(
                "ours {total}, reference {price} bytes\n  given {given:?}\n  reference takes {wanted:?} and gives {outputs}\n  {ours}"
            ))
        }
    })
}

/// The gradient, with the inputs where the reference's gradient has them.
fn backward(mesh: &Mesh, call: &Call<'_, Layout>, case: &Value) -> Result<Compared> {
    let (theirs, back) = (&case["forward"], &case["backward"]);
    if let Some(reason) = is_unusable(back) {
        return Ok(Compared::Not(reason));
    }
    let taken =
        if theirs["error"] == Value::Bool(true) { None } else { call.wanted(mesh, &theirs["inputs"])? };
    let Some(taken) = taken else { return Ok(Compared::Not("the reference has no forward to go back from")) };
    let grad_call = Call::new(mesh, call.name, &back["given_inputs"], &back["attrs"])?;
    let Some(dy) = grad_call.items().last() else { return Ok(Compared::Not("no gradient is given")) };
    let leaves = saved(call, &grad_call, taken);
    match price::backward(mesh, &call.with(&leaves)?, dy)? {
        price::Back::NoSuchOp => Ok(Compared::Not(missing(call.name))),
        price::Back::Elsewhere => Ok(Compared::Not("our forward takes the inputs elsewhere")),
        price::Back::NoGradient => Ok(Compared::Not("no gradient of ours")),
        price::Back::Paid(paid) => compare(mesh, &grad_call, Some(&paid), back),
    }
}

/// How the forward inputs lie in the gradient's question: as the first saved tensor of the same shape that is not yet
/// taken, else as the reference's forward takes them.
fn saved(call: &Call<'_, Layout>, grad: &Call<'_, Layout>, taken: Vec<Layout>) -> Vec<Layout> {
    let mut held: Vec<Option<&Layout>> = grad.items().map(Some).collect();
    held.pop();
    let mut find = |(input, taken): (&Layout, Layout)| {
        let same = |slot: &&mut Option<&Layout>| slot.is_some_and(|other| other.shape() == input.shape());
        held.iter_mut().find(same).and_then(Option::take).cloned().unwrap_or(taken)
    };
    call.items().zip(taken).map(&mut find).collect()
}

/// Which inputs give these outputs: ours and theirs, by what it costs to get there from them.
fn reverse(mesh: &Mesh, call: &Call<'_, Layout>, theirs: &Value) -> Result<Compared> {
    if theirs["error"] == Value::Bool(true) {
        return Ok(Compared::Not("the reference raised"));
    }
    if is_mixed(&theirs["given_outputs"]) {
        return Ok(Compared::Not("pending reductions whose order matters"));
    }
    let outputs = theirs["given_outputs"].as_array().context("given_outputs")?;
    let mut flat = Vec::new();
    outputs.iter().for_each(|output| flatten(output, &mut flat));
    let given = flat.into_iter().map(|spec| tensor(mesh, spec)).collect::<Result<Vec<_>>>();
    let Ok(given) = given else { return Ok(Compared::Not("one mesh axis on two dims of an output")) };
    let Some(wanted) = call.wanted(mesh, &theirs["inputs"]).ok().flatten() else {
        return Ok(Compared::Not("the reference answers about other tensors"));
    };
    Ok(match price::reverse(mesh, call, &given, &wanted)? {
        price::Reverse::NoSuchOp => Compared::Not(missing(call.name)),
        price::Reverse::Several => Compared::Not("several ops of ours answer, or outputs of other shapes"),
        price::Reverse::Prices { same: true, .. } => Compared::With("the same inputs"),
        price::Reverse::Prices { ours, theirs, .. } if ours <= theirs => {
            Compared::With("other inputs, no dearer")
        }
        price::Reverse::Prices { ours, theirs, .. } => {
            Compared::Dearer(format!("ours {ours}, reference {theirs} bytes for {given:?}"))
        }
    })
}
