//! The conversations of one source as samples of one length, and the count of what became of every row.

use super::config::{Config, PackRows, Untrained};
use super::error::Refusal;
use super::fit::{self, Fitted, Joined, Overlong, Piece};
use super::labels::Chat;
use super::row::{Form, Row};
use crate::dataset::Sample;
use crate::documents;
use crate::error::{Error, Result};
use crate::glob;
use crate::pack::IGNORED;
use crate::source::Source;
use planaria_store::checksum;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Rows that are packed together. A number of its own, so that the same files always give the same samples.
const BUFFER: usize = 1 << 16;

/// What became of the rows of a source. Every row is in one of `kept`, `too_long` and `untrained`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rows by the form they were written in.
    pub forms: BTreeMap<Form, u64>,
    /// Rows that are trained on: conversations, or answers where every answer is a row.
    pub kept: u64,
    /// Of these, rows that were cut to fit.
    pub cut: u64,
    /// Tokens that were cut off.
    pub cut_tokens: u64,
    /// Rows left out because they are too long.
    pub too_long: u64,
    /// Rows left out because no token of them is trained.
    pub untrained: u64,
    /// Samples left out because they are pieces of longer rows with nothing to learn.
    pub barren: u64,
    /// Tokens of these.
    pub barren_tokens: u64,
    /// Tokens of all samples, padding not counted.
    pub tokens: u64,
    /// Tokens that are trained.
    pub trained: u64,
    /// Samples.
    pub samples: u64,
    /// Tokens of all samples with padding.
    pub room: u64,
}

impl Report {
    /// Rows of two sources together.
    pub fn add(&mut self, other: &Report) {
        other.forms.iter().for_each(|(&form, count)| *self.forms.entry(form).or_default() += count);
        self.kept += other.kept;
        self.cut += other.cut;
        self.cut_tokens += other.cut_tokens;
        self.too_long += other.too_long;
        self.untrained += other.untrained;
        self.barren += other.barren;
        self.barren_tokens += other.barren_tokens;
        self.tokens += other.tokens;
        self.trained += other.trained;
        self.samples += other.samples;
        self.room += other.room;
    }

    /// What a person wants to know, one fact a line; what did not happen is not mentioned.
    pub fn lines(&self) -> Vec<String> {
        let forms: Vec<String> =
            self.forms.iter().map(|(form, count)| format!("{count} {}", form.name())).collect();
        let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        let mut out = vec![
            format!("rows: {}", if forms.is_empty() { "none".into() } else { forms.join(", ") }),
            format!(
                "{} in {}, {:.1} % padding",
                counted(self.kept, "row"),
                counted(self.samples, "sample"),
                share(self.room - self.tokens, self.room)
            ),
            format!(
                "{} tokens, {} of them trained ({:.1} %)",
                self.tokens,
                self.trained,
                share(self.trained, self.tokens)
            ),
        ];
        if self.cut > 0 {
            out.push(format!("cut {}, {} lost", counted(self.cut, "row"), counted(self.cut_tokens, "token")));
        }
        if self.too_long > 0 {
            out.push(format!("left out {}: too long", counted(self.too_long, "row")));
        }
        if self.untrained > 0 {
            out.push(format!("left out {}: no trained token", counted(self.untrained, "row")));
        }
        if self.barren > 0 {
            out.push(format!(
                "left out {} of {}: pieces of longer rows without a trained token",
                counted(self.barren, "sample"),
                counted(self.barren_tokens, "token")
            ));
        }
        out
    }
}

/// `1 row`, `2 rows`.
fn counted(number: impl Into<u64>, noun: &str) -> String {
    let number = number.into();
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// The samples of one source.
#[derive(Debug)]
pub(crate) struct Samples {
    origin: String,
    rows: Vec<Fitted>,
    bins: Vec<Vec<Piece>>,
    sequence: usize,
    pad: u32,
    report: Report,
    sum: u32,
}

impl Samples {
    /// Reads a source.
    pub(crate) fn open(
        source: &Source,
        chat: &Chat,
        config: &Config,
        sequence: usize,
        pad: u32,
    ) -> Result<Samples> {
        if sequence < 2 {
            let problem = "a sample of a conversation has at least 2 tokens".into();
            return Err(Error::Setting { key: "sequence", value: sequence.to_string(), problem });
        }
        let mut reader = Reader { chat, config, sequence, rows: Vec::new(), report: Report::default() };
        for path in glob::list(&source.path)? {
            documents::each_row(&path, &mut |line, text| reader.take(&path, line, text))?;
        }
        let Reader { rows, mut report, .. } = reader;
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
        let sum = content_sum(&rows, &bins);
        Ok(Samples { origin: source.path.clone(), rows, bins, sequence, pad, report, sum })
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
        for piece in bin {
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
    config: &'a Config,
    sequence: usize,
    rows: Vec<Fitted>,
    report: Report,
}

impl Reader<'_> {
    fn take(&mut self, path: &Path, line: u64, text: &str) -> Result<()> {
        let refuse = |refusal| Error::Conversation { path: path.to_path_buf(), line, refusal };
        let (row, form) = Row::parse(text).map_err(refuse)?;
        row.refuse_vision().map_err(refuse)?;
        *self.report.forms.entry(form).or_default() += 1;
        let labelled = match &row {
            Row::Conversation(conversation) if self.config.split_turns => {
                self.chat.label_turns(conversation).map_err(refuse)?
            }
            _ => vec![self.chat.label(&row, self.config.learn).map_err(refuse)?],
        };
        if labelled.is_empty() {
            return self.untrained(Refusal::NoTrainedToken).map_err(refuse);
        }
        for one in labelled {
            let row = Fitted { labels: one.labels(), tokens: one.tokens };
            self.keep(row).map_err(refuse)?;
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

    fn keep(&mut self, row: Fitted) -> Result<(), Refusal> {
        // Rows that are wrapped are cut by their samples.
        let overlong = match self.config.packing {
            PackRows::Wrapped => Overlong::Split,
            _ => self.config.overlong,
        };
        let before = row.tokens.len();
        let Some(row) = row.cut(self.sequence, overlong) else {
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
                self.rows.push(row);
                Ok(())
            }
        }
    }
}
