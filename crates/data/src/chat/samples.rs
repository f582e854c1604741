//! The conversations of one source as samples of one length.

use super::config::{Config, PackRows, Pictures, Untrained};
use super::error::Refusal;
use super::fit::{self, Fitted, Joined, Overlong, Piece};
use super::labels::Chat;
use super::report::Report;
use super::row::Row;
use super::showing::{Measured, Showing};
use crate::dataset::Sample;
use crate::documents;
use crate::error::{Error, Result};
use crate::pack::IGNORED;
use crate::pictures::Sight;
use crate::source::Source;
use planaria_store::checksum;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// Rows that are packed together. A number of its own, so that the same files always give the same samples.
const BUFFER: usize = 1 << 16;

/// The samples of one source.
#[derive(Debug)]
pub(crate) struct Samples {
    origin: String,
    rows: Vec<Fitted>,
    bins: Vec<Vec<Piece>>,
    /// How the model sees, and which rows show it something.
    sight: Option<Sight>,
    showing: BTreeMap<usize, Showing>,
    sequence: usize,
    pad: u32,
    report: Report,
    sum: u32,
}

impl Samples {
    /// Reads a source.
    pub(crate) fn open(
        source: &Source,
        (chat, sight): (&Chat, Option<&Sight>),
        config: &Config,
        sequence: usize,
        pad: u32,
    ) -> Result<Samples> {
        if sequence < 2 {
            let problem = "a sample of a conversation has at least 2 tokens".into();
            return Err(Error::Setting { key: "sequence", value: sequence.to_string(), problem });
        }
        let (rows, report, showing) = (Vec::new(), Report::default(), BTreeMap::new());
        let mut reader = Reader { chat, sight, config, sequence, rows, showing, report };
        for path in source.files()? {
            let path = Arc::new(path);
            documents::each_row(&path, &mut |line, text| reader.take(&path, line, text))?;
        }
        let Reader { rows, mut report, showing, .. } = reader;
        let mut bins = pack(&rows, config, sequence);
        // A piece of a longer row may have nothing to learn.
        let learns = |bin: &Vec<Piece>| bin.iter().any(|piece| predicted(&rows, piece) > 0);
        let (left, barren): (Vec<_>, Vec<_>) = bins.into_iter().partition(learns);
        bins = left;
        report.barren = barren.len() as u64;
        report.barren_tokens = tokens_of(&barren);
        // All that a row has to learn may begin its pieces, where nothing predicts it.
        let kept: BTreeSet<usize> = bins.iter().flatten().map(|piece| piece.row).collect();
        let lost = (rows.len() - kept.len()) as u64;
        (report.kept, report.untrained) = (report.kept - lost, report.untrained + lost);
        report.samples = bins.len() as u64;
        report.room = (bins.len() * sequence) as u64;
        report.tokens = tokens_of(&bins);
        report.trained = bins.iter().flatten().map(|piece| predicted(&rows, piece) as u64).sum();
        if bins.is_empty() {
            return Err(Error::NoRows { origin: source.path.clone(), told: report.lines().join("; ") });
        }
        let sum = showing.values().fold(content_sum(&rows, &bins), |sum, one| one.append_to(sum));
        let (origin, sight) = (source.path.clone(), sight.cloned());
        Ok(Samples { origin, rows, bins, sight, showing, sequence, pad, report, sum })
    }

    pub(crate) fn len(&self) -> u64 {
        self.bins.len() as u64
    }

    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    pub(crate) fn report(&self) -> &Report {
        &self.report
    }

    /// A number that changes with the content.
    pub(crate) fn sum(&self) -> u32 {
        self.sum
    }

    /// Reads one sample: rows one after the other, then padding, which nobody sees.
    pub(crate) fn read(&self, index: u64, out: &mut Sample) -> Result<()> {
        let bin = usize::try_from(index).ok().and_then(|index| self.bins.get(index));
        let bin = bin.ok_or(Error::OutOfRange { what: "sample", index, len: self.len() })?;
        let mut joined = Joined::default();
        out.shown.clear();
        for piece in bin {
            if let (Some(sight), Some(showing)) = (&self.sight, self.showing.get(&piece.row)) {
                showing.read(sight, &mut out.shown)?;
            }
            let row = &self.rows[piece.row];
            joined.push(&row.tokens[piece.start..piece.end], &row.labels[piece.start..piece.end]);
        }
        let Joined { tokens, labels, borders, .. } = joined;
        out.tokens = tokens;
        out.tokens.resize(self.sequence + 1, self.pad);
        out.labels.clear();
        // A label stands where it is predicted: one place before its token.
        out.labels.extend_from_slice(&labels[1..]);
        out.labels.resize(self.sequence, IGNORED);
        out.starts.clear();
        out.starts.extend(borders[1..].iter().copied().filter(|&at| at < self.sequence));
        Ok(())
    }
}

fn tokens_of(bins: &[Vec<Piece>]) -> u64 {
    bins.iter().flatten().map(|piece| (piece.end - piece.start) as u64).sum()
}

/// Labels of a piece that are predicted from something.
fn predicted(rows: &[Fitted], piece: &Piece) -> usize {
    rows[piece.row].labels[piece.start + 1..piece.end].iter().filter(|&&label| label != IGNORED).count()
}

/// Packs rows, a fixed number of them at a time.
fn pack(rows: &[Fitted], config: &Config, sequence: usize) -> Vec<Vec<Piece>> {
    let mut bins = Vec::new();
    for (number, some) in rows.chunks(BUFFER).enumerate() {
        let lengths: Vec<usize> = some.iter().map(|row| row.tokens.len()).collect();
        let mut packed = match config.packing {
            PackRows::None => fit::one_each(&lengths, sequence, config.overlong),
            PackRows::BestFit => fit::best_fit(&lengths, sequence, config.overlong),
            PackRows::Wrapped => fit::wrapped(&lengths, sequence),
        };
        packed.iter_mut().flatten().for_each(|piece| piece.row += number * BUFFER);
        bins.append(&mut packed);
    }
    bins
}

fn content_sum(rows: &[Fitted], bins: &[Vec<Piece>]) -> u32 {
    let mut sum = 0;
    for row in rows {
        let bytes = |token: &u32| token.to_le_bytes();
        sum = checksum::append(sum, &row.tokens.iter().flat_map(bytes).collect::<Vec<u8>>());
        sum = checksum::append(
            sum,
            &row.labels.iter().map(|&label| u8::from(label != IGNORED)).collect::<Vec<u8>>(),
        );
    }
    let places = bins.iter().flat_map(|bin| {
        let pieces = bin.iter().flat_map(|piece| [piece.row as u64, piece.start as u64, piece.end as u64]);
        pieces.chain([u64::MAX])
    });
    checksum::append(sum, &places.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
}

/// Takes rows one by one.
struct Reader<'a> {
    chat: &'a Chat,
    sight: Option<&'a Sight>,
    config: &'a Config,
    sequence: usize,
    rows: Vec<Fitted>,
    showing: BTreeMap<usize, Showing>,
    report: Report,
}

impl Reader<'_> {
    fn take(&mut self, path: &Arc<PathBuf>, line: u64, text: &str) -> Result<()> {
        let refuse = |refusal| Error::Conversation { path: path.to_path_buf(), line, refusal };
        let (row, form) = Row::parse(text).map_err(refuse)?;
        let trusted = self.config.pictures == Pictures::Trust;
        let shown = match self.sight {
            Some(sight) => Measured::all(&row, path, sight, trusted).map_err(refuse)?,
            None => row.refuse_vision().map(|()| Vec::new()).map_err(refuse)?,
        };
        *self.report.forms.entry(form).or_default() += 1;
        // With how many messages each has.
        let labelled = match &row {
            Row::Conversation(conversation) if self.config.split_turns => {
                let turns = self.chat.label_turns(conversation).map_err(refuse)?;
                turns.into_iter().zip(conversation.answers().map(|answer| answer + 1)).collect()
            }
            _ => vec![(self.chat.label(&row, self.config.learn).map_err(refuse)?, usize::MAX)],
        };
        if labelled.is_empty() {
            return self.untrained(Refusal::NoTrainedToken).map_err(refuse);
        }
        for (one, messages) in labelled {
            let shown = Measured::of_first(&shown, messages);
            let row = match self.sight {
                Some(sight) => Measured::expand(&shown, &one, sight).map_err(refuse)?,
                None => Fitted { labels: one.labels(), tokens: one.tokens },
            };
            self.keep(row, Showing::of(shown, path, line)).map_err(refuse)?;
        }
        Ok(())
    }

    fn untrained(&mut self, refusal: Refusal) -> Result<(), Refusal> {
        if self.config.untrained == Untrained::Refuse {
            return Err(refusal);
        }
        self.report.untrained += 1;
        Ok(())
    }

    fn marks(&self, row: &Fitted) -> usize {
        let is_mark = |token: &&u32| self.sight.is_some_and(|sight| sight.is_mark(**token));
        row.tokens.iter().filter(is_mark).count()
    }

    fn keep(&mut self, row: Fitted, showing: Option<Showing>) -> Result<(), Refusal> {
        let wraps = self.config.packing == PackRows::Wrapped;
        if wraps && showing.is_some() {
            return Err(Refusal::Wrapped);
        }
        // Rows that are wrapped are cut by their samples. What is shown is never cut.
        let overlong = match self.config.overlong {
            _ if wraps => Overlong::Split,
            Overlong::Split if showing.is_some() => Overlong::Drop,
            overlong => overlong,
        };
        let (before, marks) = (row.tokens.len(), self.marks(&row));
        let row = row.cut(self.sequence, overlong).filter(|row| self.marks(row) == marks);
        let Some(row) = row else {
            self.report.too_long += 1;
            return Ok(());
        };
        let lost = before - row.tokens.len();
        match row.check() {
            Err(refusal) => self.untrained(refusal),
            Ok(row) => {
                self.report.kept += 1;
                self.report.cut += u64::from(lost > 0);
                self.report.cut_tokens += lost as u64;
                self.showing.extend(showing.map(|showing| (self.rows.len(), showing)));
                self.rows.push(row);
                Ok(())
            }
        }
    }
}
