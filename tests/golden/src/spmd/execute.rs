//! Programs on thread ranks against one rank.

use super::call::Call;
use super::program::{self, Holds, Outputs};
use anyhow::{Context, Result, bail};
use planaria_array::random::Key;
use planaria_array::{Array, DType};
use planaria_comm::threads;
use planaria_layout::{Layout, Mesh};
use planaria_tensor::{Tensor, World};

/// Most elements of all inputs together, and most ranks, of calls that are run.
const MOST: usize = 1 << 14;
const RANKS: usize = 8;

/// What became of it.
pub(super) enum Ran {
    Same,
    NotRun(&'static str),
}

impl Ran {
    pub(super) fn word(&self) -> String {
        match self {
            Ran::Same => "as on one rank".to_string(),
            Ran::NotRun(why) => format!("not run: {why}"),
        }
    }
}

/// Runs a call on as many ranks as its mesh has, and on one; an error where they differ.
pub(super) fn against_one_rank(mesh: &Mesh, call: &Call<'_, Layout>) -> Result<Ran> {
    let elements: usize = call.items().map(|layout| layout.shape().numel()).sum();
    if mesh.size() > RANKS || elements > MOST {
        return Ok(Ran::NotRun("too large"));
    }
    let holds = program::holds(call);
    let pending = |layout: &Layout| !layout.partial_axes().is_empty();
    if call.items().zip(&holds).any(|(layout, h)| *h != Holds::Floats && pending(layout)) {
        return Ok(Ran::NotRun("positions or truths that are pending"));
    }
    // Of equal positions the last write wins, which rank writes last is nobody's promise.
    if call.name.contains("put") || call.name == "scatter" || call.name.contains("dropout") {
        return Ok(Ran::NotRun("the result depends on order or chance"));
    }
    let bound = bound_of(call);
    let (mut at, mut places) = (0, holds.iter());
    let arrays: Call<'_, Array> = call.map(|layout| {
        at += 1;
        values(layout, *places.next().context("what a tensor holds")?, bound, at)
    })?;
    let alone = arrays.map(|array| Ok(Tensor::new(array.clone())))?;
    let Some(expected) = program::run(&alone)? else { return Ok(Ran::NotRun("product has no such op")) };
    let layouts: Vec<&Layout> = call.items().collect();
    let found = threads::run(mesh.size(), |comm| -> Result<Vec<Option<Array>>> {
        let world = World::new(comm);
        let mut layouts = layouts.iter();
        let placed = arrays.map(|array| {
            let layout = layouts.next().context("a layout")?;
            Ok(Tensor::place(array, layout.mesh(), layout.placements(), &world)?)
        })?;
        let outputs = program::run(&placed)?.context("the op is there")?;
        outputs.iter().map(|t| Ok(t.as_ref().map(Tensor::whole).transpose()?)).collect()
    });
    for outputs in found {
        same(&expected, &outputs?)?;
    }
    Ok(Ran::Same)
}

/// What positions of a call stay below.
fn bound_of(call: &Call<'_, Layout>) -> usize {
    let shape = |place: usize| call.maybe(place).map(|l| l.shape().to_vec()).unwrap_or_default();
    let first = |dims: Vec<usize>| dims.first().copied().unwrap_or(1);
    match call.name {
        "embedding" | "embedding_static" => first(shape(1)),
        "one_hot" => usize::try_from(call.int("num_classes").unwrap_or(1)).unwrap_or(1),
        _ => shape(0).into_iter().min().unwrap_or(1),
    }
}

fn values(layout: &Layout, holds: Holds, bound: usize, salt: usize) -> Result<Array> {
    let count = layout.shape().numel();
    let whole = |bound: usize| -> Vec<i64> {
        (0..count).map(|i| ((i * 7 + salt * 3) % bound.max(1)) as i64).collect()
    };
    Ok(match holds {
        Holds::Floats => {
            // Away from 0 and 1, where functions of interest have their edges, and without ties.
            let values = Array::normal(layout.shape(), DType::F64, Key::new(salt as u64, 7))?;
            values.sigmoid()?.mul(&Array::scalar(0.8, DType::F64)?)?.add(&Array::scalar(0.1, DType::F64)?)?
        }
        Holds::Truths => Array::from_slice(&whole(2), layout.shape())?.cast(DType::Bool)?,
        Holds::Bits => Array::from_slice(&whole(64), layout.shape())?,
        Holds::Positions => Array::from_slice(&whole(bound), layout.shape())?,
    })
}

fn same(expected: &Outputs, found: &[Option<Array>]) -> Result<()> {
    for (place, pair) in expected.iter().zip(found).enumerate() {
        let (Some(e), Some(f)) = pair else { continue };
        let list = |a: &Array| -> Result<Vec<f64>> { Ok(a.cast(DType::F64)?.to_vec()?) };
        let (e, f) = (list(e.local())?, list(f)?);
        let scale = e.iter().filter(|v| v.is_finite()).fold(1.0f64, |m, v| m.max(v.abs()));
        let close = |a: &f64, b: &f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-4 * scale;
        if let Some(at) = e.iter().zip(&f).position(|(a, b)| !close(a, b)) {
            bail!("output {place}: element {at} is {} on ranks and {} on one", f[at], e[at]);
        }
        if e.len() != f.len() {
            bail!("output {place} has {} elements on ranks and {} on one", f.len(), e.len());
        }
    }
    Ok(())
}
