//! Parts of models that see: the vectors of pictures, and prompts with pictures in them.

use super::{Sizes, with_cache};
use crate::error::{Error, Result};
use planaria_array::{Array, DType};
use planaria_nn::ParamKind;
use planaria_nn::models::qwen2_vl::{Grid, Scenes};
use planaria_nn::models::{Cache, Network, See, Shown};
use planaria_tensor::Tensor;

fn see(network: &dyn Network) -> Result<&dyn See> {
    network.seeing().ok_or_else(|| Error::Value {
        key: "the model".into(),
        found: "one that sees nothing".into(),
        expected: "a whole model that sees".into(),
    })
}

/// Patches without elements of their own, of as many pictures as there are rows: pictures and videos of several sizes.
pub(super) fn patches(network: &dyn Network, sizes: &Sizes) -> Result<Vec<(String, Tensor)>> {
    let vision = see(network)?.vision();
    let side = |number: usize, most: usize| vision.merge * (1 + number % most);
    let grid = |at: usize| [1 + at % 2, side(sizes.length + at, 6), side(sizes.length + 2 * at, 5)];
    let grids: Vec<Grid> = (0..sizes.batch).map(grid).collect();
    let count: usize = grids.iter().map(|grid| grid.iter().product::<usize>()).sum();
    let flat: Vec<i64> = grids.iter().flatten().map(|&n| n as i64).collect();
    let pixels = Array::zeros(&[count, vision.patch_width()], DType::F32)?;
    let grids = Array::from_slice(&flat, &[sizes.batch, 3])?;
    Ok(vec![
        ("pixel_values".to_string(), Tensor::new(pixels)),
        ("image_grid_thw".to_string(), Tensor::new(grids)),
    ])
}

/// Tokens of which some are marked, with positions that differ on each axis and a vector for each mark.
pub(super) fn tokens(network: &dyn Network, sizes: &Sizes) -> Result<Vec<(String, Tensor)>> {
    let Sizes { batch, length, .. } = *sizes;
    let image = see(network)?.marks().image;
    let each = || (0..batch).flat_map(|row| (0..length).map(move |at| (row, at)));
    let ids: Vec<i64> = each().map(|(row, at)| if (row + at) % 3 == 0 { image } else { 0 }).collect();
    let marked = ids.iter().filter(|id| **id == image).count();
    let positions: Vec<i64> =
        (0..3).flat_map(|axis| each().map(move |(_, at)| (at - at % (axis + 1)) as i64)).collect();
    let params = network.params();
    let table = params.iter().find(|param| param.kind() == ParamKind::Embedding);
    let width = table.and_then(|table| table.spec().shape.get(1).copied()).unwrap_or(0);
    let named = |name: &str, array: Array| (name.to_string(), Tensor::new(array));
    Ok(vec![
        named("input_ids", Array::from_slice(&ids, &[batch, length])?),
        named("position_ids", Array::from_slice(&positions, &[3, batch, length])?),
        named("image_embeds", Array::zeros(&[marked, width], DType::F32)?),
    ])
}

/// Tokens in the place of others that a program was given, with the marks of pictures where they were and nowhere else.
///
/// # Errors
/// Arrays that are not of whole numbers.
pub fn with_marks(network: &dyn Network, before: &Array, tokens: &Array) -> Result<Array> {
    let Some(see) = network.seeing() else { return Ok(tokens.clone()) };
    let marks = [see.marks().image, see.marks().video];
    let pairs = before.to_vec::<i64>()?.into_iter().zip(tokens.to_vec::<i64>()?);
    let kept = |(before, token): (i64, i64)| match (marks.contains(&before), marks.contains(&token)) {
        (true, _) => before,
        (false, true) => 0,
        (false, false) => token,
    };
    Ok(Array::from_slice(&pairs.map(kept).collect::<Vec<i64>>(), tokens.shape())?)
}

/// Vectors of pictures by ops alone.
pub(super) fn vision(network: &dyn Network, given: &[Tensor]) -> Result<Vec<(String, Tensor)>> {
    let features = see(network)?.features_by_ops(&given[0], &given[1])?;
    Ok(vec![("image_embeds".to_string(), features)])
}

/// The same as the model does it.
pub(super) fn shown(network: &dyn Network, given: &[Tensor]) -> Result<Vec<(String, Tensor)>> {
    let grids = given[1].local().to_vec::<i64>()?;
    let size = |n: &i64| usize::try_from(*n).unwrap_or(0);
    let images = grids.chunks_exact(3).map(|grid| [size(&grid[0]), size(&grid[1]), size(&grid[2])]);
    let scenes = Scenes { images: images.collect(), ..Scenes::default() };
    let features = see(network)?.features(&Shown { patches: given[0].local().clone(), scenes })?;
    Ok(vec![("image_embeds".to_string(), features)])
}

/// A prompt with pictures in it, and what decoding continues with.
pub(super) fn prompt(network: &dyn Network, given: &[Tensor]) -> Result<Vec<(String, Tensor)>> {
    let cache = Cache::collecting(network.stage().layers.len());
    let last = see(network)?.forward_by_ops(&given[0], &given[1], &given[2], &cache)?;
    with_cache(network, &last, &cache)
}
