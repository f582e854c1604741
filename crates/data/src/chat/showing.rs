//! Rows that show pictures and videos: where these are, and how tokens make room for their vectors.

use super::error::Refusal;
use super::fit::Fitted;
use super::labels::Labelled;
use super::row::Row;
use crate::error::{Error, Result};
use crate::pack::IGNORED;
use crate::pictures::{Grid, Item, Seen, ShownKind, Sight};
use planaria_store::checksum;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Something that a row shows, as it was found when the row was read.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    item: Item,
    grid: Grid,
    sum: u32,
}

impl Measured {
    /// All that a row of a file shows.
    pub(super) fn all(
        row: &Row,
        path: &Path,
        sight: &Sight,
        trusted: bool,
    ) -> Result<Vec<Measured>, Refusal> {
        let items = row.shown(path.parent().unwrap_or(Path::new("")))?;
        let measure = |item: Item| {
            let (grid, sum) = item.measure(&sight.settings, trusted)?;
            Ok(Measured { item, grid, sum })
        };
        items.into_iter().map(measure).collect()
    }

    /// Those of the first messages.
    pub(super) fn of_first(all: &[Measured], messages: usize) -> Vec<Measured> {
        all.iter().filter(|one| one.item.message < messages).cloned().collect()
    }

    /// A row with as many marks for each thing shown as it has vectors; none of them is trained.
    pub(super) fn expand(all: &[Measured], row: &Labelled, sight: &Sight) -> Result<Fitted, Refusal> {
        let shown: Vec<(ShownKind, Grid)> = all.iter().map(|one| (one.item.kind, one.grid)).collect();
        let places = sight.expand(&row.tokens, &shown)?;
        let labels = row.labels();
        let label = |&at: &usize| if sight.is_mark(row.tokens[at]) { IGNORED } else { labels[at] };
        Ok(Fitted {
            tokens: places.iter().map(|&at| row.tokens[at]).collect(),
            labels: places.iter().map(label).collect(),
        })
    }
}

/// What a row shows, and where the row is.
#[derive(Debug)]
pub(super) struct Showing {
    path: Arc<PathBuf>,
    line: u64,
    shown: Vec<Measured>,
}

impl Showing {
    /// Nothing where a row shows nothing.
    pub(super) fn of(shown: Vec<Measured>, path: &Arc<PathBuf>, line: u64) -> Option<Showing> {
        (!shown.is_empty()).then(|| Showing { path: path.clone(), line, shown })
    }

    /// Changes a number with the files.
    pub(super) fn append_to(&self, sum: u32) -> u32 {
        self.shown.iter().fold(sum, |sum, one| checksum::append(sum, &one.sum.to_le_bytes()))
    }

    /// Reads all of it.
    pub(super) fn read(&self, sight: &Sight, out: &mut Vec<Seen>) -> Result<()> {
        for Measured { item, grid, .. } in &self.shown {
            let seen = item.read(&sight.settings).and_then(|seen| match seen.patches.grid == *grid {
                true => Ok(seen),
                false => Err(Refusal::Picture {
                    file: item.files[0].display().to_string(),
                    problem: "it is not the picture that was there when the run began".into(),
                }),
            });
            let at =
                |refusal| Error::Conversation { path: self.path.to_path_buf(), line: self.line, refusal };
            out.push(seen.map_err(at)?);
        }
        Ok(())
    }
}
