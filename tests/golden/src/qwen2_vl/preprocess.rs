//! Pictures and videos as patches: sizes, bits after resizing, and numbers.

use super::verdict;
use crate::cases::Outcome;
use crate::checkpoints::{Expected, read_expected};
use crate::values::{field, list, number, size, sizes, text};
use anyhow::{Context, Result, ensure};
use planaria_data::pictures::{Alpha, Picture, Preprocess};
use serde_json::Value;
use std::path::Path;

pub(super) fn each(folder: &Path, outcome: &mut Outcome) -> Result<()> {
    let file: Value = serde_json::from_slice(&std::fs::read(folder.join("cases.json"))?)?;
    let expected = read_expected(&folder.join("expected.safetensors"))?;
    for case in list(&file, "cases")? {
        let name = case.get("image").and_then(Value::as_str).unwrap_or("video");
        outcome.add(&format!("preprocess/{name}"), verdict(check(folder, &file, case, &expected)));
    }
    Ok(())
}

fn check(folder: &Path, file: &Value, case: &Value, expected: &Expected) -> Result<()> {
    let object = file.as_object().context("not an object")?;
    let settings = Preprocess {
        least: size(case, "min_pixels")?,
        most: size(case, "max_pixels")?,
        ..Preprocess::from_config(object)?
    };
    let names: Vec<&str> = match case.get("video").and_then(Value::as_array) {
        Some(frames) => frames.iter().filter_map(Value::as_str).collect(),
        None => vec![text(case, "image")?],
    };
    let frames = names
        .iter()
        .map(|name| Ok(Picture::decode(&std::fs::read(folder.join(name))?, Alpha::Drop)?))
        .collect::<Result<Vec<_>>>()?;
    ensure!([frames[0].height, frames[0].width][..] == sizes(field(case, "size")?)?, "the size differs");
    let patches = settings.video(&frames)?;
    let grid = [patches.grid.frames, patches.grid.rows, patches.grid.columns];
    ensure!(grid[..] == sizes(field(case, "grid_thw")?)?, "the grid is {grid:?}");
    ensure!(patches.grid.tokens(settings.merge) == size(case, "tokens")?, "the number of tokens differs");
    let [height, width] = sizes(field(case, "resized")?)?[..] else { anyhow::bail!("no size") };
    let stem = names[0].trim_end_matches(".png");
    let mut compared = 0;
    for (what, picture) in [("rgb", frames[0].clone()), ("resized", frames[0].resized(height, width))] {
        if let Some((_, shape, bytes)) = expected.get(&format!("{stem}.{what}")) {
            ensure!([picture.height, picture.width, 3] == shape[..], "{what} is of another size");
            ensure!(picture.rgb == *bytes, "{what} has other bits");
            compared += 1;
        }
    }
    let near = number(&file["tol"]["pixel_values_abs"])?;
    let same = |at: usize, want: f64| -> Result<()> {
        let got = f64::from(patches.values[at]);
        ensure!((got - want).abs() <= near, "number {at} is {got}, expected {want}");
        Ok(())
    };
    let tensor = case.get("tensor").and_then(Value::as_str).map(str::to_string);
    if let Some((_, _, bytes)) = expected.get(&tensor.unwrap_or(format!("{stem}.pixel_values"))) {
        let values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        ensure!(bytes.len() == patches.values.len() * 4, "there are {} numbers", patches.values.len());
        values.enumerate().try_for_each(|(at, want)| same(at, f64::from(want)))?;
        compared += 1;
    }
    if let Some(values) = case.get("pixel_values") {
        for sample in list(values, "samples")? {
            let [row, column, want] = &sample.as_array().context("no sample")?[..] else { continue };
            same(number(row)? as usize * settings.width() + number(column)? as usize, number(want)?)?;
            compared += 1;
        }
        let count = patches.values.len() as f64;
        let mean = patches.values.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
        let size = patches.values.iter().map(|&x| f64::from(x).abs()).sum::<f64>() / count;
        let means = [(mean, number(&values["mean"])?), (size, number(&values["abs_mean"])?)];
        ensure!(means.iter().all(|(got, want)| (got - want).abs() <= near), "means are {means:?}");
    }
    ensure!(compared > 0, "nothing was compared");
    Ok(())
}
