//! Questions with pictures: read, cut into patches, and their places kept in the prompt.

use super::dialogue::{Asked, refused};
use super::{Continuation, Generator, Sampling};
use crate::data::chat::{Chat, Conversation, Ending, Json};
use crate::data::pictures::{Item, Seen, Sight};
use crate::error::{Error, Result};
use crate::sight;
use planaria_nn::layers::Positions;
use planaria_nn::models::qwen2_vl::{Axes, axes};
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
    /// How the model sees.
    pub(super) fn sight(&self) -> Result<Sight> {
        let settings = self.from.base().json(sight::SETTINGS)?.unwrap_or_default();
        let found = sight::of(&*self.model, &settings)?;
        found.map(|(sight, _)| sight).ok_or_else(|| Error::Value {
            key: "pictures".into(),
            found: format!("for a model of type `{}`", self.model.model_type()),
            expected: "a model that sees, such as qwen2_vl".into(),
        })
    }

    /// A conversation whose messages may show pictures and videos: parts `{"type": "image", "image": FILE}` and
    /// `{"type": "video", "video": [FRAME, ..]}`, with files relative to a folder.
    pub fn prepare(&self, messages: Vec<Json>, folder: &Path) -> Result<Prepared> {
        let sight = self.sight()?;
        self.prepare_with(Asked::open(self, None)?.chat(), &sight, messages, folder)
    }

    pub(super) fn prepare_with(
        &self,
        chat: &Chat,
        sight: &Sight,
        messages: Vec<Json>,
        folder: &Path,
    ) -> Result<Prepared> {
        let items = Item::all(&messages, &[], folder).map_err(refused)?;
        let seen = items.iter().map(|item| item.read(&sight.settings));
        let seen = seen.collect::<Result<Vec<Seen>, _>>().map_err(refused)?;
        let conversation = Conversation { messages, ..Conversation::default() };
        let tokens = chat.encode(&conversation, Ending::Prompt).map_err(refused)?;
        let grids: Vec<_> = seen.iter().map(|seen| (seen.kind, seen.patches.grid)).collect();
        let places = sight.expand(&tokens, &grids).map_err(refused)?;
        let tokens = places.into_iter().map(|at| tokens[at]).collect();
        let shown = sight::shown(&seen, &sight.settings)?;
        self.place(tokens, Shown { patches: shown.patches.to(self.device)?, ..shown })
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
