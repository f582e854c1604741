//! What a model that sees is shown: the settings of its folder, patches in the order of the model, and where tokens stand then.

use crate::data::pictures::{Preprocess, Seen, ShownKind, Sight};
use crate::error::{Error, Result};
use planaria_array::Array;
use planaria_nn::models::qwen2_vl::{Marks, Scenes};
use planaria_nn::models::{Architecture, Shown};
use serde_json::{Map, Value};

/// The settings for pictures that stand beside the weights of a model that sees.
pub(crate) const SETTINGS: &str = "preprocessor_config.json";
/// Files that other programs read for the same purpose; they are kept as they are.
pub(crate) const FILES: [&str; 3] = [SETTINGS, "processor_config.json", "video_preprocessor_config.json"];

/// How a model sees; nothing for one that reads text alone. `settings` is the object of its `preprocessor_config.json`.
pub(crate) fn of(model: &dyn Architecture, settings: &Map<String, Value>) -> Result<Option<(Sight, Marks)>> {
    let Some(marks) = model.sight() else { return Ok(None) };
    let settings =
        Preprocess::from_config(settings).map_err(|refusal| Error::Run { what: refusal.to_string() })?;
    if settings.merge != marks.merge {
        return Err(Error::Value {
            key: format!("merge_size of {SETTINGS}"),
            found: settings.merge.to_string(),
            expected: format!("the {} of spatial_merge_size in config.json", marks.merge),
        });
    }
    let token = |id: i64| {
        u32::try_from(id).map_err(|_| Error::Value {
            key: "image_token_id".into(),
            found: id.to_string(),
            expected: "a token of the vocabulary".into(),
        })
    };
    Ok(Some((Sight { image: token(marks.image)?, video: token(marks.video)?, settings }, marks)))
}

/// Things in the order in which tokens show them, as a model takes them: all pictures, then all videos.
pub(crate) fn shown(seen: &[Seen], settings: &Preprocess) -> Result<Shown> {
    let of = |kind: ShownKind| seen.iter().filter(move |seen| seen.kind == kind);
    let grids = |kind: ShownKind| {
        of(kind)
            .map(|seen| [seen.patches.grid.frames, seen.patches.grid.rows, seen.patches.grid.columns])
            .collect()
    };
    let scenes = Scenes {
        images: grids(ShownKind::Image),
        videos: grids(ShownKind::Video),
        seconds: of(ShownKind::Video).map(|seen| seen.seconds.unwrap_or(1.0)).collect(),
    };
    let count: usize = seen.iter().map(|seen| seen.patches.values.len()).sum();
    let mut values = Vec::with_capacity(count);
    of(ShownKind::Image)
        .chain(of(ShownKind::Video))
        .for_each(|seen| values.extend_from_slice(&seen.patches.values));
    let width = settings.width();
    Ok(Shown { patches: Array::from_slice(&values, &[values.len() / width, width])?, scenes })
}
