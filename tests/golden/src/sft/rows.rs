//! Cutting, packing, and rows in batches.

use super::{Case, field, integer, integers, same, same_error, tensor};
use anyhow::{Context, Result, bail, ensure};
use planaria_data::chat::Json;
use planaria_data::chat::fit::{self, Fitted, Joined, Overlong, Side};

fn size(case: &Case, name: &str) -> Result<usize> {
    Ok(usize::try_from(integer(field(&case.given, name)?)?)?)
}

pub(super) fn pack(case: &Case) -> Result<()> {
    let lengths: Vec<usize> =
        integers(field(&case.given, "lengths")?)?.into_iter().map(|n| n as usize).collect();
    let capacity = size(case, "capacity")?;
    let lists = |name: &str| -> Result<Vec<Json>> {
        Ok(field(&case.out, name)?.as_list().context("no list")?.to_vec())
    };
    match case.text("strategy")? {
        "best-fit" => {
            let overlong = match case.text("overflow")? {
                "truncate" => Overlong::KeepStart,
                "split" => Overlong::Split,
                other => bail!("unknown overflow '{other}'"),
            };
            let bins = fit::best_fit(&lengths, capacity, overlong);
            let piece = |piece: &fit::Piece| [piece.row, piece.start, piece.end].map(|n| n as i64).to_vec();
            let ours: Vec<Vec<Vec<i64>>> = bins.iter().map(|bin| bin.iter().map(piece).collect()).collect();
            let bin = |bin: &Json| {
                bin.as_list().context("no list")?.iter().map(integers).collect::<Result<Vec<_>>>()
            };
            same("bins", &ours, &lists("bins")?.iter().map(bin).collect::<Result<Vec<_>>>()?)
        }
        "wrapped" => {
            let mut at = 0;
            let chunk = |bin: &Vec<fit::Piece>| {
                let start = at;
                at += bin.iter().map(|piece| (piece.end - piece.start) as i64).sum::<i64>();
                vec![start, at]
            };
            let ours: Vec<Vec<i64>> = fit::wrapped(&lengths, capacity).iter().map(chunk).collect();
            same("chunks", &ours, &lists("chunks")?.iter().map(integers).collect::<Result<Vec<_>>>()?)
        }
        other => bail!("unknown strategy '{other}'"),
    }
}

fn row(value: &Json) -> Result<Fitted> {
    let tokens = integers(field(value, "input_ids")?)?.into_iter().map(|token| token as u32).collect();
    Ok(Fitted { tokens, labels: integers(field(value, "labels")?)? })
}

fn same_tensor(case: &Case, name: &str, found: Vec<i64>, shape: &[usize]) -> Result<()> {
    let (expected, data) = tensor(field(&case.out, name)?)?;
    ensure!(expected == shape, "{name} has the shape {shape:?}, expected {expected:?}");
    same(name, &found, &data.into_iter().map(|value| value as i64).collect::<Vec<_>>())
}

pub(super) fn collate(case: &Case) -> Result<()> {
    let rows = field(&case.given, "rows")?.as_list().context("`rows` is not a list")?;
    let rows = rows.iter().map(row).collect::<Result<Vec<_>>>()?;
    if field(&case.given, "padding_free")? == &Json::Bool(true) {
        let mut joined = Joined::default();
        rows.iter().for_each(|row| joined.push(&row.tokens, &row.labels));
        let shape = [1, joined.tokens.len()];
        let whole = |values: &[usize]| values.iter().map(|&value| value as i64).collect::<Vec<_>>();
        same_tensor(case, "input_ids", joined.tokens.iter().map(|&t| t.into()).collect(), &shape)?;
        same_tensor(case, "labels", joined.labels.clone(), &shape)?;
        same_tensor(case, "position_ids", whole(&joined.positions), &shape)?;
        same("segments", &whole(&joined.borders), &integers(field(&case.out, "segments")?)?)?;
        let longest = integer(field(&case.out, "max_length")?)?;
        ensure!(joined.longest() as i64 == longest, "max_length is {}, expected {longest}", joined.longest());
        return Ok(());
    }
    let side = match case.text("side")? {
        "left" => Side::Left,
        "right" => Side::Right,
        other => bail!("unknown side '{other}'"),
    };
    let multiple = match field(&case.given, "multiple_of")? {
        Json::Null => 1,
        value => usize::try_from(integer(value)?)?,
    };
    let padded = fit::pad(&rows, u32::try_from(size(case, "pad_id")?)?, side, multiple);
    let shape = [rows.len(), padded.width];
    same_tensor(case, "input_ids", padded.tokens.iter().map(|&t| t.into()).collect(), &shape)?;
    same_tensor(case, "labels", padded.labels.clone(), &shape)?;
    same_tensor(case, "attention_mask", padded.mask.iter().map(|&real| real.into()).collect(), &shape)?;
    same_tensor(case, "position_ids", padded.positions.iter().map(|&at| at as i64).collect(), &shape)
}

pub(super) fn truncate(case: &Case) -> Result<()> {
    let overlong = match case.text("mode")? {
        "keep-start" => Overlong::KeepStart,
        "keep-end" => Overlong::KeepEnd,
        "drop" => Overlong::Drop,
        other => bail!("unknown mode '{other}'"),
    };
    let cut = row(&case.given)?.cut(size(case, "max_length")?, overlong);
    let dropped = case.out.get("dropped") == Some(&Json::Bool(true));
    ensure!(cut.is_none() == dropped, "left out: {}, expected {dropped}", cut.is_none());
    let Some(cut) = cut else { return Ok(()) };
    let Some(cut) = same_error(&case.out, cut.check())? else { return Ok(()) };
    let expected = row(&case.out)?;
    same("input_ids", &cut.tokens, &expected.tokens)?;
    same("labels", &cut.labels, &expected.labels)
}
