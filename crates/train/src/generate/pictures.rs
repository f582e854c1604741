//! Questions with pictures: read, cut into patches, and their places kept in the prompt.

use super::dialogue::{Asked, refused};
use super::{Continuation, Generator, Sampling};
use crate::data::chat::{Conversation, Ending, Json};
use crate::data::pictures::{Alpha, Grid, Patches, Picture, Preprocess, Refusal};
use crate::error::{Error, Result};
use planaria_array::Array;
use planaria_nn::layers::Positions;
use planaria_nn::models::qwen2_vl::{Axes, Marks, Scenes, axes};
use planaria_nn::models::{Run, Shown};
use planaria_tensor::Tensor;
use std::path::Path;

/// A prompt that is ready to be continued.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Its tokens, with one for every vector of what is shown.
    pub tokens: Vec<u32>,
    /// What is shown.
    pub shown: Option<Shown>,
    /// Where the tokens stand, in a model that sees.
    pub axes: Option<Axes>,
}

/// Largest file of a picture.
const LARGEST: u64 = 1 << 28;

impl Prepared {
    /// Of a model that reads only.
    pub(super) fn text(tokens: Vec<u32>) -> Prepared {
        Prepared { tokens, shown: None, axes: None }
    }

    /// How the step that makes this token runs: the first sees the prompt, each later one the token before.
    pub(super) fn run(&self, number: usize) -> Result<Run<'static>> {
        let Some(axes) = &self.axes else { return Ok(Run::default()) };
        if number == 0 {
            let positions = Positions::Axes(axes.ids.clone());
            return Ok(Run { positions, shown: self.shown.clone(), ..Run::default() });
        }
        // What is shown takes fewer positions than tokens, so they are not counted by the cache.
        let at = axes.next[0] + number as i64 - 1;
        let ids = Tensor::from_slice(&[at], &[1, 1])?;
        Ok(Run { positions: Positions::Ids { ids, end: at as usize + 1 }, ..Run::default() })
    }
}

impl Generator {
    /// A conversation whose messages may show pictures and videos: parts `{"type": "image", "image": FILE}` and
    /// `{"type": "video", "video": [FRAME, ..]}`, with files relative to a folder.
    pub fn prepare(&self, messages: Vec<Json>, folder: &Path) -> Result<Prepared> {
        let Some(marks) = self.model.sight() else {
            return Err(Error::Value {
                key: "pictures".into(),
                found: format!("for a model of type `{}`", self.model.model_type()),
                expected: "a model that sees, such as qwen2_vl".into(),
            });
        };
        let asked = Asked::open(self, None)?;
        let settings = self.from.base().json("preprocessor_config.json")?.unwrap_or_default();
        let settings = Preprocess::from_config(&settings).map_err(|refusal| wrong("the folder", &refusal))?;
        let (mut images, mut videos) = (Vec::new(), Vec::new());
        for part in messages.iter().filter_map(|message| message.get("content")?.as_list()).flatten() {
            match part.get("type").and_then(Json::as_text) {
                Some("image") => {
                    let name = text_of(part, "image")?;
                    let patches = settings.picture(&read(folder, name)?);
                    images.push(patches.map_err(|refusal| wrong(name, &refusal))?);
                }
                Some("video") => videos.push(video(part, folder, &settings)?),
                _ => {}
            }
        }
        let conversation = Conversation { messages, ..Conversation::default() };
        let tokens = asked.chat().encode(&conversation, Ending::Prompt).map_err(refused)?;
        let tokens = expanded(&tokens, &marks, [&images, &videos])?;
        let grids = |patches: &[Patches]| patches.iter().map(|p| thw(&p.grid)).collect();
        let scenes = Scenes { images: grids(&images), videos: grids(&videos), seconds: Vec::new() };
        let values: Vec<f32> = images.into_iter().chain(videos).flat_map(|p| p.values).collect();
        let shape = [values.len() / settings.width(), settings.width()];
        let patches = Array::from_slice(&values, &shape)?.to(self.device)?;
        self.place(tokens, Shown { patches, scenes })
    }

    /// Tokens that hold the marks of what is shown, with their positions.
    pub fn place(&self, tokens: Vec<u32>, shown: Shown) -> Result<Prepared> {
        let Some(marks) = self.model.sight() else { return Ok(Prepared::text(tokens)) };
        let row: Vec<i64> = tokens.iter().map(|&token| i64::from(token)).collect();
        let axes = axes(&[row], None, &shown.scenes, &marks)?;
        let shown = (shown.patches.numel() > 0).then_some(shown);
        Ok(Prepared { tokens, shown, axes: Some(axes) })
    }

    /// The answer to a prepared prompt; `each` is given its text as it comes. Ranks are threads that share each matrix.
    pub fn answer(
        &self,
        prepared: &Prepared,
        sampling: &Sampling,
        ranks: usize,
        each: &(dyn Fn(&str) + Sync),
    ) -> Result<Continuation> {
        self.check_ranks(ranks)?;
        let sampling = Sampling { tokens: self.room(prepared.tokens.len(), sampling)?, ..*sampling };
        self.on_ranks(ranks, &|comm| {
            let model = self.network(comm)?;
            let tell = |piece: &str| {
                if comm.rank() == 0 {
                    each(piece);
                }
            };
            self.continue_prepared(&*model, prepared, &sampling, &tell)
        })
    }
}

fn thw(grid: &Grid) -> [usize; 3] {
    [grid.frames, grid.rows, grid.columns]
}

fn wrong(name: &str, refusal: &Refusal) -> Error {
    Error::Run { what: format!("'{name}': {refusal}") }
}

fn text_of<'a>(part: &'a Json, key: &str) -> Result<&'a str> {
    part.get(key).and_then(Json::as_text).ok_or_else(|| Error::Value {
        key: format!("`{key}` of a message's part"),
        found: part.get(key).map_or("missing".into(), ToString::to_string),
        expected: "the name of a file".into(),
    })
}

fn video(part: &Json, folder: &Path, settings: &Preprocess) -> Result<Patches> {
    let Some(names) = part.get("video").and_then(Json::as_list) else {
        return Err(Error::Value {
            key: "`video` of a message's part".into(),
            found: part.get("video").map_or("missing".into(), ToString::to_string),
            expected: "a list of frames, each the name of a picture; take them out of a video with ffmpeg"
                .into(),
        });
    };
    let mut frames = Vec::with_capacity(names.len());
    for name in names {
        let Some(name) = name.as_text() else {
            return Err(Error::Value {
                key: "a frame".into(),
                found: name.to_string(),
                expected: "the name of a file".into(),
            });
        };
        frames.push(read(folder, name)?);
    }
    settings.video(&frames).map_err(|refusal| wrong("the video", &refusal))
}

fn read(folder: &Path, name: &str) -> Result<Picture> {
    let path = folder.join(name);
    let failed = |source: std::io::Error| Error::Io { path: path.display().to_string(), source };
    let about = std::fs::metadata(&path).map_err(failed)?;
    if !about.is_file() || about.len() > LARGEST {
        let what = format!("'{}' is not a regular file of at most {} MB", path.display(), LARGEST >> 20);
        return Err(Error::Run { what });
    }
    let bytes = std::fs::read(&path).map_err(failed)?;
    Picture::decode(&bytes, Alpha::Drop).map_err(|refusal| wrong(&path.display().to_string(), &refusal))
}

/// The prompt with as many marks for each picture as it has vectors. Marks that did not come from a picture, such as those that
/// somebody wrote into a text, are noticed by their number.
fn expanded(tokens: &[u32], marks: &Marks, shown: [&[Patches]; 2]) -> Result<Vec<u32>> {
    let ids = [marks.image, marks.video];
    let mut next = [0; 2];
    let mut out = Vec::with_capacity(tokens.len());
    for &token in tokens {
        let Some(kind) = ids.iter().position(|&id| id == i64::from(token)) else {
            out.push(token);
            continue;
        };
        let count = shown[kind].get(next[kind]).map_or(1, |patches| patches.grid.tokens(marks.merge));
        out.extend(std::iter::repeat_n(token, count));
        next[kind] += 1;
    }
    for (kind, what) in ["pictures", "videos"].into_iter().enumerate() {
        if next[kind] != shown[kind].len() {
            return Err(Error::Value {
                key: format!("places for {what} in the prompt"),
                found: next[kind].to_string(),
                expected: format!(
                    "{}, one for each that is shown; a text must not hold such a mark",
                    shown[kind].len()
                ),
            });
        }
    }
    Ok(out)
}
