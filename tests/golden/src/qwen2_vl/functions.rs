//! The functions that a line of a case file names.

use crate::values::{Case, field, list, maybe, number, numbers, size, sizes, text};
use anyhow::{Context, Result, ensure};
use planaria_array::Array;
use planaria_data::pictures::{Refusal, Wanted, fitting_size, sample_frames};
use planaria_nn::models::qwen2_vl::{
    Grid, Marks, Scenes, axes, frame_borders, fused_rows, patch_angles, patch_places, rotation_rows,
};
use serde_json::Value;

/// The refusal that is expected, if one is.
fn refusal(case: &Case) -> Option<&str> {
    case.out.get("error").and_then(|error| text(error, "kind").ok())
}

fn given(case: &Case, name: &str) -> Result<usize> {
    size(&case.given, name)
}

fn size_of(case: &Case) -> Result<(usize, usize), Refusal> {
    let read = |name: &str| given(case, name).unwrap_or_default();
    fitting_size((read("height"), read("width")), read("factor"), (read("min_pixels"), read("max_pixels")))
}

pub(super) fn fitting(case: &Case) -> Result<()> {
    match (size_of(case), refusal(case)) {
        (Err(Refusal::Ratio { .. }), Some("aspect-ratio")) => Ok(()),
        (Ok((height, width)), None) => {
            case.is_number("height", height as f64)?;
            case.is_number("width", width as f64)
        }
        (found, expected) => anyhow::bail!("{found:?}, expected {expected:?}"),
    }
}

pub(super) fn frames(case: &Case) -> Result<()> {
    let wanted = match case.maybe("nframes")? {
        Some(count) => Wanted::Frames(count as usize),
        None => Wanted::PerSecond {
            fps: case.maybe("fps")?.unwrap_or(2.0),
            least: case.maybe("min_frames")?.unwrap_or(4.0) as usize,
            most: case.maybe("max_frames")?.unwrap_or(768.0) as usize,
        },
    };
    match (sample_frames(given(case, "total_frames")?, case.number("video_fps")?, wanted), refusal(case)) {
        (Err(Refusal::Frames { .. }), Some("frames")) => Ok(()),
        (Ok(sampled), None) => {
            case.is_number("nframes", sampled.frames.len() as f64)?;
            case.is_number("sample_fps", sampled.fps)?;
            case.is("indices", &sampled.frames.iter().map(|&at| at as f64).collect::<Vec<_>>())
        }
        (found, expected) => anyhow::bail!("{found:?}, expected {expected:?}"),
    }
}

fn grids(object: &Value, name: &str) -> Result<Vec<Grid>> {
    let grid = |value: &Value| -> Result<Grid> {
        sizes(value)?.try_into().map_err(|found| anyhow::anyhow!("{found:?} is not a grid"))
    };
    list(object, name)?.iter().map(grid).collect()
}

pub(super) fn scenes(object: &Value) -> Result<Scenes> {
    let seconds = object.get("second_per_grid").and_then(Value::as_array);
    Ok(Scenes {
        images: grids(object, "image_grid_thw")?,
        videos: grids(object, "video_grid_thw")?,
        seconds: seconds.into_iter().flatten().map(number).collect::<Result<_>>()?,
    })
}

/// Rows of a tensor of integers.
pub(super) fn rows(object: &Value, name: &str) -> Result<Vec<Vec<i64>>> {
    let read = numbers(field(object, name)?)?;
    Ok(read.rows().into_iter().map(|row| row.into_iter().map(|x| x as i64).collect()).collect())
}

pub(super) fn positions(case: &Case) -> Result<()> {
    let tokens = rows(&case.given, "input_ids")?;
    let mask = case.given.get("attention_mask").map(|_| rows(&case.given, "attention_mask")).transpose()?;
    let real: Option<Vec<Vec<bool>>> =
        mask.map(|rows| rows.into_iter().map(|row| row.into_iter().map(|x| x != 0).collect()).collect());
    let marks = Marks {
        image: case.number("image_token_id")? as i64,
        video: case.number("video_token_id")? as i64,
        merge: given(case, "merge_size")?,
        per_second: maybe(&case.given, "tokens_per_second")?,
    };
    let found = axes(&tokens, real.as_deref(), &scenes(&case.given)?, &marks)?;
    let ids: Vec<f64> = found.ids.to_vec::<i64>()?.into_iter().map(|x| x as f64).collect();
    case.is("position_ids", &ids)?;
    if case.out.get("next_position").is_some() {
        case.is("next_position", &found.next.iter().map(|&x| x as f64).collect::<Vec<_>>())?;
    }
    Ok(())
}

pub(super) fn rotations(case: &Case) -> Result<()> {
    let head = given(case, "head_dim")?;
    let theta = case.number("rope_theta")?;
    let sections: [usize; 3] = sizes(field(&case.given, "mrope_section")?)?
        .try_into()
        .map_err(|found| anyhow::anyhow!("{found:?} are not three sections"))?;
    let frequencies: Vec<f64> = (0..head / 2).map(|i| theta.powf(-2.0 * i as f64 / head as f64)).collect();
    let ids = case.tensor("position_ids")?;
    let table = rotation_rows(&Array::from_slice(&ids.integers(), &ids.shape)?, &frequencies, sections)?;
    // Both halves of a head turn by the same angles.
    let doubled = |half: &Array| -> Result<Vec<f64>> {
        let values = half.to_vec::<f32>()?;
        Ok(values.chunks(head / 2).flat_map(|row| [row, row]).flatten().map(|&x| f64::from(x)).collect())
    };
    case.is("cos", &doubled(&table.cos)?)?;
    case.is("sin", &doubled(&table.sin)?)
}

pub(super) fn layout(case: &Case) -> Result<()> {
    let (grids, merge) = (grids(&case.given, "grids")?, given(case, "merge_size")?);
    let places = patch_places(&grids, merge);
    case.is("hw", &places.iter().flatten().map(|&x| x as f64).collect::<Vec<_>>())?;
    case.is("segments", &frame_borders(&grids).iter().map(|&x| x as f64).collect::<Vec<_>>())?;
    case.is("angles", &patch_angles(&places, given(case, "head_dim")?, case.number("theta")?))
}

pub(super) fn split(case: &Case) -> Result<()> {
    let found = fused_rows(given(case, "heads")?, given(case, "head_dim")?, given(case, "ranks")?)?;
    let expected = list(&case.out, "rows")?.iter().map(sizes).collect::<Result<Vec<_>>>()?;
    ensure!(found == expected, "{found:?}, expected {expected:?}");
    Ok(())
}

pub(super) fn windows(case: &Case) -> Result<()> {
    let merge = given(case, "merge_size")?;
    let side = given(case, "window_size")? / merge / given(case, "patch_size")?;
    let found = planaria_nn::models::qwen2_vl::windows(&grids(&case.given, "grids")?, merge, side)?;
    case.is("order", &found.order.iter().map(|&x| x as f64).collect::<Vec<_>>())?;
    case.is("segments", &found.borders.iter().map(|&x| x as f64).collect::<Vec<_>>()).context("borders")
}
