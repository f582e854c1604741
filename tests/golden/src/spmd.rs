//! Kind `spmd`: layouts decided for an op, against the rules of Paddle 3.3.1.
//!
//! A case gives the layouts of an op's inputs, and of its gradient's, with those that the reference would reshard them
//! to. We decide on our own and compare what moves: our inputs, and our outputs on to the layouts that the reference
//! promises, against its inputs. Where its answer was found wrong by execution, or it raised, there is nothing to
//! compare with, but we must decide. Some of its rules see only one of several axes on a dim, or look at some inputs
//! only, and so give up cuts that cost nothing to keep. Where that is so, we send no more, and only undoing the cuts
//! that we kept would make up for it, the call is counted as *cuts given up* (by the reference). Averages and sums that are pending count as the same: either is made into the
//! other without sending anything.

mod bench;
mod call;
mod contract;
mod fused;
mod index;
mod norm;
mod pointwise;
mod reduce;
mod shape;
mod table;

use crate::cases::{Outcome, Verdict, each_case};
use anyhow::{Context, Result, bail};
use bench::Bench;
use call::{Call, layout_of};
use planaria_layout::{Layout, Mesh, Placement, Reduce, Route};
use serde_json::Value;
use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::Path;

/// Bytes of one element; the cases do not say.
const SIZE: usize = 4;

/// How the calls compare, by word.
type Tally = BTreeMap<&'static str, usize>;

pub(crate) fn run(path: &Path) -> Result<Outcome> {
    let words = ["equal", "cheaper", "cuts given up", "dearer", "reference wrong", "reference not verified"];
    let tally: RefCell<Tally> = RefCell::new(words.into_iter().map(|word| (word, 0)).collect());
    let mut outcome = each_case(path, |case| {
        check(case, &mut tally.borrow_mut()).unwrap_or_else(|error| Verdict::Failed(format!("{error:#}")))
    })?;
    let tally = tally.into_inner();
    let counts: Vec<String> = words.iter().map(|word| format!("{word} {}", tally[word])).collect();
    outcome.notes.push(counts.join(", "));
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
    let mut dearer = Vec::new();
    let mut one = |call: Call<'_>, theirs: &Value| -> Result<()> {
        let shown = call.name.to_string();
        let (word, how) = compare(&mesh, call, theirs).with_context(|| format!("{} {shown}", case["id"]))?;
        *tally.entry(word).or_default() += 1;
        if word == "dearer" {
            dearer.push(format!("{} {shown}: {how}", case["id"]));
        }
        Ok(())
    };
    one(Call::new(&mesh, name, &case["inputs"], &case["attrs"])?, &case["forward"])?;
    let back = &case["backward"];
    if let Some(name) = back["op"].as_str() {
        one(Call::new(&mesh, name, &back["given_inputs"], &back["attrs"])?, back)?;
    }
    Ok(if dearer.is_empty() { Verdict::Passed } else { Verdict::Failed(dearer.join("; ")) })
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

/// Decides one call and says how it compares.
fn compare(mesh: &Mesh, call: Call<'_>, theirs: &Value) -> Result<(&'static str, String)> {
    let mut bench = Bench::new(mesh);
    let outputs = table::run(&mut bench, &call)?;
    let ours = bench.bytes;
    if theirs["error"] == Value::Bool(true) || theirs["sound"] == Value::Bool(false) {
        return Ok(("reference wrong", String::new()));
    }
    if theirs["sound"] != Value::Bool(true) {
        return Ok(("reference not verified", String::new()));
    }
    let Some(wanted) = call.wanted(mesh, &theirs["inputs"])? else {
        return Ok(("reference wrong", String::new()));
    };
    if !bench.explains(&theirs["outputs"]) {
        return Ok(("reference wrong", String::new()));
    }
    let mut price = 0;
    for (from, to) in call.tensors().zip(&wanted) {
        price += Route::find(from, to, SIZE)?.cost().bytes;
    }
    let brought = bring(mesh, &outputs, &theirs["outputs"])?;
    let how = || {
        let given: Vec<String> = call.tensors().map(Layout::to_string).collect();
        let made: Vec<String> = outputs.iter().flatten().map(Layout::to_string).collect();
        format!(
            "ours {ours} + {brought}, reference {price} bytes\n  given {given:?}\n  reference takes {wanted:?} and gives {}\n  {}\n  we give {made:?}",
            theirs["outputs"],
            bench.log.join("\n  "),
        )
    };
    let finer = pieces(mesh, &outputs) > reference_pieces(mesh, &outputs, &theirs["outputs"])?;
    let given_up =
        ours <= price && (finer || call.tensors().zip(&wanted).any(|(from, to)| falls_back(from, to)));
    Ok(match (ours + brought).cmp(&price) {
        Ordering::Greater if given_up => ("cuts given up", String::new()),
        Ordering::Equal => ("equal", String::new()),
        Ordering::Less => ("cheaper", String::new()),
        Ordering::Greater => ("dearer", how()),
    })
}

/// True when the reference saw only one of several axes on a dim: it answers for another input than was given.
fn falls_back(from: &Layout, to: &Layout) -> bool {
    (0..from.shape().ndim()).any(|dim| {
        let kept = from.axes_on(dim).filter(|axis| to.axes_on(dim).any(|other| other == *axis)).count();
        from.axes_on(dim).count() > 1 && kept < 2
    })
}

/// Into how many pieces outputs are cut, all together.
fn pieces(mesh: &Mesh, outputs: &[Option<Layout>]) -> usize {
    outputs.iter().flatten().map(|layout| mesh.span(layout.sharded_axes())).sum()
}

/// The same for the outputs of the reference.
fn reference_pieces(mesh: &Mesh, ours: &[Option<Layout>], theirs: &Value) -> Result<usize> {
    let mut flat = Vec::new();
    flatten(theirs, &mut flat);
    let mut made = Vec::new();
    for (ours, theirs) in ours.iter().zip(flat) {
        made.push(match ours {
            Some(ours) => layout_of(mesh, ours.shape(), theirs)?,
            None => None,
        });
    }
    Ok(pieces(mesh, &made))
}

/// Bytes to bring our outputs to the layouts that the reference promises.
fn bring(mesh: &Mesh, ours: &[Option<Layout>], theirs: &Value) -> Result<u64> {
    let mut flat = Vec::new();
    flatten(theirs, &mut flat);
    let mut bytes = 0;
    for (ours, theirs) in ours.iter().zip(flat) {
        let Some(ours) = ours else { continue };
        let Some(theirs) = layout_of(mesh, ours.shape(), theirs)? else { continue };
        bytes += Route::find(&same_linear(ours, &theirs)?, &theirs, SIZE)?.cost().bytes;
    }
    Ok(bytes)
}

fn flatten<'a>(value: &'a Value, into: &mut Vec<&'a Value>) {
    match value {
        Value::Array(list) => list.iter().for_each(|item| flatten(item, into)),
        other => into.push(other),
    }
}

/// Ours with pending averages and sums named as theirs.
fn same_linear(ours: &Layout, theirs: &Layout) -> Result<Layout> {
    let linear = |r: Reduce| matches!(r, Reduce::Sum | Reduce::Avg);
    let mut named = ours.placements().to_vec();
    for (axis, placement) in named.iter_mut().enumerate() {
        if let (Some(a), Some(b)) = (ours.reduce(axis), theirs.reduce(axis))
            && linear(a)
            && linear(b)
        {
            *placement = Placement::Partial(b);
        }
    }
    match Layout::new(ours.mesh(), ours.shape(), &named) {
        Ok(layout) => Ok(layout),
        Err(error) => bail!("{error}"),
    }
}
