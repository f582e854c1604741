//! Programs that train: steps on recorded batches against recorded losses and the state after the last one.

use super::numbers::{self, Expected};
use super::{bytes, load};
use anyhow::{Context, Result, ensure};
use planaria_array::Array;
use planaria_ckpt::formats::{OpenOptions, open};
use planaria_program::{self as program, Attr, Datum, Name, Node, Op, Program, ProgramState, Value, ValueId};
use planaria_store::{Object, Store, StoreExt};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub(super) fn trains(stem: &Path) -> Result<()> {
    // Parameters lie in pickles beside; there is no combined file.
    let (mut program, _) = load(stem)?;
    let loss = fetch_loss(&mut program)?;
    let mut state = initial(stem, &program)?;
    let trace = numbers::read(&bytes(stem, ".trace.safetensors")?)?;
    let mut losses = Vec::new();
    while let Some(inputs) = batch(&program, &trace, losses.len())? {
        let answers = program::run(&program, &mut state, &inputs)?;
        let answer = answers.into_iter().find(|(name, _)| *name == loss).context("no loss")?.1;
        losses.push(answer.array().context("the loss is not a tensor")?.item()?.as_f32());
    }
    let recorded = trace.get("losses").context("no losses are recorded")?;
    let found = Array::from_slice(&losses, &[losses.len()])?;
    numbers::compare(&found, recorded).context("losses")?;
    for (name, expected) in
        trace.iter().filter_map(|(name, value)| Some((name.strip_prefix("final.")?, value)))
    {
        let held = state.get(name).with_context(|| format!("{name} is not in the state"))?;
        numbers::compare(held.array().context("no tensor")?, expected).with_context(|| name.to_string())?;
    }
    Ok(())
}

/// The inputs of a step, or none after the last.
fn batch(program: &Program, trace: &BTreeMap<String, Expected>, step: usize) -> Result<Option<Vec<Datum>>> {
    let inputs = program.inputs();
    if inputs.iter().any(|input| !trace.contains_key(&format!("step{step}.{}", input.name))) {
        return Ok(None);
    }
    let each =
        |input: &program::Input| Ok(Datum::Array(trace[&format!("step{step}.{}", input.name)].array()?));
    inputs.iter().map(each).collect::<Result<_>>().map(Some)
}

/// Makes the mean that gradients start from an output.
fn fetch_loss(program: &mut Program) -> Result<Name> {
    let name: Name = "loss".into();
    let block = program.block_mut().context("an empty program")?;
    let mean = block.ops.iter().find(|op| op.is("pd_op", "mean")).context("no mean in the program")?;
    let value = mean.results.first().context("a mean without a result")?.clone();
    let last = block.ops.iter().flat_map(|op| &op.results).map(|value| value.id.0).max().unwrap_or(0);
    let attr = |name: &str, node: Node| Attr { name: name.into(), value: Arc::new(node) };
    block.ops.push(Op {
        name: "1.fetch".into(),
        operands: vec![value.id],
        results: vec![Value { id: ValueId(last + 1), ty: value.ty }],
        attrs: vec![attr("name", Node::text(&name)), attr("col", Node::i32(0))],
        result_attrs: None,
        regions: Vec::new(),
        parameter: None,
    });
    Ok(name)
}

/// Parameters and optimizer state from the pickles beside the program.
fn initial(stem: &Path, program: &Program) -> Result<ProgramState> {
    let mut state = ProgramState::default();
    for ending in [".pdparams", ".pdopt"] {
        let store: Arc<dyn Store> = Arc::new(Object::memory());
        let name = format!("state{ending}");
        store.write(&name, &bytes(stem, ending)?)?;
        let source = open(&store, &name, &OpenOptions::default())?;
        for key in source.tensors.keys() {
            let entry = source.get(key)?;
            let array = Array::from_bytes(&source.read(key)?, &entry.shape, entry.dtype)?;
            state.insert(key.name.as_str().into(), Datum::Array(array));
        }
    }
    for held in program.held() {
        ensure!(state.get(&held.name).is_some(), "{} is in neither pickle", held.name);
    }
    Ok(state)
}
