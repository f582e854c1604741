//! The sources of a run put together, packed, and divided into a training and an evaluation side.

use super::chat;
use super::dataset::{Dataset, Part, Sample};
use super::error::{Error, Result};
use super::listed::ListedSamples;
use super::loader::MOST_PREFETCH;
use super::pack::{Borders, Packed, Packing};
use super::permute::Permutation;
use super::pictures::Sight;
use super::prompts;
use super::sampler::{BatchesFrom, Order, Place};
use super::source::Source;
use super::texts;
use super::tokenizer::{BYTE_TOKENIZER, SpecialText, TokenKind, Tokenizer};
use planaria_array::random::Key;
use planaria_store::checksum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Chooses held-out samples. It is not a setting: another seed must not move them into training.
const HELD_OUT: Key = Key::new(0x68656c64, 0x6f7574);

/// What becomes of a run whose data changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Continuation {
    /// It is refused: its position would mean other samples.
    #[default]
    Same,
    /// The new data begins at its first sample; weights, optimizer, steps and schedule continue.
    New,
}

/// `[data]` of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct Config {
    /// `bytes`, a folder with a tokenizer (`tokenizer.json`, `tokenizer.model`, or `vocab.json` with `merges.txt`), or such a file.
    /// Without it the tokenizer of the weights that the model starts from, which must have one. A model that starts from
    /// nothing takes that of the folder of its `config.json`, or bytes.
    pub tokenizer: Option<String>,
    /// Special tokens to add to the tokenizer.
    pub special_tokens: Vec<String>,
    /// Special tokens written out in documents become those tokens; otherwise they are plain text.
    pub parse_special: bool,
    /// Tokens per sample.
    pub sequence: usize,
    /// How documents share samples.
    pub packing: Packing,
    /// What the documents of a sample see of each other.
    pub documents: Borders,
    /// Order of the samples.
    pub order: Order,
    /// Seed of the order; the seed of the run if not given.
    pub seed: Option<u64>,
    /// Share of the samples kept for evaluation, below 1; not together with `eval`.
    pub held_out: f64,
    /// Folder for tokenised text, so that it is done once; without it text is tokenised at each start and held in memory.
    pub cache: Option<PathBuf>,
    /// Micro-batches read ahead.
    pub prefetch: usize,
    /// What a run that continues from a checkpoint does where its data is not that of the checkpoint.
    #[serde(rename = "continue")]
    pub continuation: Continuation,
    /// How conversations become samples, where the run learns from those.
    pub chat: chat::Config,
    /// How texts that belong together become samples, where the run learns embeddings.
    pub texts: texts::Config,
    /// Where documents come from.
    pub source: Vec<Source>,
    /// Sources for evaluation only.
    pub eval: Vec<Source>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            tokenizer: None,
            special_tokens: Vec::new(),
            parse_special: false,
            sequence: 512,
            packing: Packing::default(),
            documents: Borders::default(),
            order: Order::default(),
            seed: None,
            held_out: 0.0,
            cache: None,
            prefetch: 4,
            continuation: Continuation::default(),
            chat: chat::Config::default(),
            texts: texts::Config::default(),
            source: Vec::new(),
            eval: Vec::new(),
        }
    }
}

impl Config {
    /// The tokenizer with its added tokens; bytes where none is named.
    pub fn open_tokenizer(&self) -> Result<Tokenizer> {
        self.extend_tokenizer(Tokenizer::open(self.tokenizer.as_deref().unwrap_or(BYTE_TOKENIZER))?)
    }

    /// Another tokenizer with the added tokens of this section.
    pub fn extend_tokenizer(&self, tokenizer: Tokenizer) -> Result<Tokenizer> {
        let mut out = tokenizer;
        if !self.special_tokens.is_empty() {
            out.keep_fingerprints()?;
        }
        for token in &self.special_tokens {
            out.add_token(token, TokenKind::Special)?;
        }
        if let Some(template) = self.chat.read_template()? {
            out.set_chat_template(&template)?;
        }
        let text = if self.parse_special { SpecialText::Parse } else { SpecialText::Plain };
        out.set_special_text(text);
        Ok(out)
    }

    /// What needs no file: every value in its range.
    pub fn check(&self) -> Result<()> {
        let refuse =
            |key, value: String, problem: &str| Err(Error::Setting { key, value, problem: problem.into() });
        if !(0.0..1.0).contains(&self.held_out) {
            let problem = "a share from 0 up to, but not including, 1 is expected";
            return refuse("held_out", self.held_out.to_string(), problem);
        }
        if self.held_out > 0.0 && !self.eval.is_empty() {
            let problem = "give either a share to hold out or sources in `data.eval`";
            return refuse("held_out", self.held_out.to_string(), problem);
        }
        if self.source.is_empty() {
            return refuse("source", "[]".into(), "at least one [[data.source]] is needed");
        }
        if self.prefetch > MOST_PREFETCH {
            return refuse("prefetch", self.prefetch.to_string(), &format!("at most {MOST_PREFETCH}"));
        }
        self.chat.check()
    }

    /// Opens the sources as text: the training side, and the evaluation side if there is one.
    pub fn open(&self, tokenizer: &Tokenizer) -> Result<Data> {
        self.check()?;
        self.divide(|sources| Corpus::open(sources, tokenizer, self))
    }

    /// Opens the sources as conversations, in the same two sides. What they show is read as a model that sees it needs it; others
    /// read text alone.
    pub fn open_conversations(&self, tokenizer: &Tokenizer, sight: Option<&Sight>) -> Result<Data> {
        self.check()?;
        let chat = self.chat.open(tokenizer)?;
        self.divide(|sources| Corpus::open_conversations(sources, tokenizer, (&chat, sight), self))
    }

    /// Opens the sources as texts that belong together, or as pairs with a score, in the same two sides: `scored` says which, by the
    /// number of the source.
    pub fn open_texts(&self, tokenizer: &Tokenizer, scored: impl Fn(usize) -> bool) -> Result<Data> {
        self.check()?;
        self.divide(|sources| {
            let open = |(number, source): (usize, &Source)| {
                texts::Samples::open(source, tokenizer, &self.texts, self.sequence, scored(number))
            };
            let opened = sources.iter().enumerate().map(open).collect::<Result<Vec<_>>>()?;
            // An evaluation takes samples of all sources together.
            let evaluated = self.held_out > 0.0 || std::ptr::eq(sources, self.eval.as_slice());
            if evaluated || self.texts.batches == BatchesFrom::Mixed {
                texts::alike(&opened)?;
            }
            let rows = opened.into_iter().zip(sources);
            let rows = rows.map(|(samples, source)| Row { cut: Cut::Texts(samples), weight: source.weight });
            Ok(Corpus { rows: rows.collect(), sequence: self.sequence, borders: Borders::Separate })
        })
    }

    /// Opens the sources as prompts with two responses of which one is better, in the same two sides.
    pub fn open_preferences(&self, tokenizer: &Tokenizer) -> Result<Data> {
        self.check()?;
        let sequence = self.sequence;
        let open = |source: &Source| prompts::preferences(source, tokenizer, sequence);
        self.divide(|sources| Corpus::open_listed(sources, sequence, open))
    }

    /// Opens the sources as prompts, and gives what else their rows have: the first label of a sample is the number of its row.
    pub fn open_prompts(&self, tokenizer: &Tokenizer) -> Result<(Data, Vec<Value>)> {
        self.check()?;
        let (sequence, rows) = (self.sequence, RefCell::new(Vec::new()));
        let open = |source: &Source| prompts::prompts(source, tokenizer, sequence, &mut rows.borrow_mut());
        let data = self.divide(|sources| Corpus::open_listed(sources, sequence, open))?;
        Ok((data, rows.into_inner()))
    }

    fn divide(&self, open: impl Fn(&[Source]) -> Result<Corpus>) -> Result<Data> {
        let train = Arc::new(open(&self.source)?);
        let report = train.report();
        let eval = if !self.eval.is_empty() {
            Some(Arc::new(open(&self.eval)?).side(Side::Whole))
        } else if self.held_out > 0.0 {
            Some(train.clone().side(Side::HeldOut(self.held_out)))
        } else {
            None
        };
        let train =
            if self.held_out > 0.0 { train.side(Side::Kept(self.held_out)) } else { train.side(Side::Whole) };
        let empty = |d: &View| d.parts.iter().find(|p| p.samples == 0).map(|p| p.name.clone());
        if let Some(origin) = [Some(&train), eval.as_ref()].into_iter().flatten().find_map(empty) {
            let problem = format!("'{origin}' has too few samples to be divided");
            return Err(Error::Setting { key: "held_out", value: self.held_out.to_string(), problem });
        }
        Ok(Data { train: Arc::new(train), eval: eval.map(|e| Arc::new(e) as Arc<dyn Dataset>), report })
    }
}

/// The two sides of a run's data.
#[derive(Clone, Debug)]
pub struct Data {
    /// What is trained on.
    pub train: Arc<dyn Dataset>,
    /// What is only evaluated.
    pub eval: Option<Arc<dyn Dataset>>,
    /// What became of the rows of conversations that are trained on.
    pub report: Option<chat::Report>,
}

impl Data {
    /// No sample: what there is before data is opened.
    pub fn none() -> Data {
        let corpus = Arc::new(Corpus { rows: Vec::new(), sequence: 0, borders: Borders::default() });
        Data { train: Arc::new(corpus.side(Side::Whole)), eval: None, report: None }
    }
}

/// All sources of a run.
#[derive(Debug)]
struct Corpus {
    rows: Vec<Row>,
    sequence: usize,
    borders: Borders,
}

/// The samples of one row of tokens, or of one source of conversations, and the share its source has.
#[derive(Debug)]
struct Row {
    cut: Cut,
    weight: Option<f64>,
}

/// What samples are cut from.
#[derive(Debug)]
enum Cut {
    Text(Packed),
    Conversations(chat::Samples),
    Listed(ListedSamples),
    Texts(texts::Samples),
}

impl Cut {
    fn len(&self) -> u64 {
        match self {
            Cut::Text(packed) => packed.len(),
            Cut::Conversations(samples) => samples.len(),
            Cut::Listed(samples) => samples.len(),
            Cut::Texts(samples) => samples.len(),
        }
    }

    fn origin(&self) -> &str {
        match self {
            Cut::Text(packed) => packed.tokens().origin(),
            Cut::Conversations(samples) => samples.origin(),
            Cut::Listed(samples) => samples.origin(),
            Cut::Texts(samples) => samples.origin(),
        }
    }

    fn read(&self, index: u64, epoch: u64, out: &mut Sample) -> Result<()> {
        match self {
            Cut::Text(packed) => packed.read(index, out),
            Cut::Conversations(samples) => samples.read(index, out),
            Cut::Listed(samples) => samples.read(index, out),
            Cut::Texts(samples) => samples.read(index, epoch, out),
        }
    }

    /// A checksum of the content, and its length.
    fn sum(&self) -> (u32, u64) {
        match self {
            Cut::Text(packed) => (packed.tokens().sum(), packed.tokens().len()),
            Cut::Conversations(samples) => (samples.sum(), samples.report().tokens),
            Cut::Listed(samples) => samples.sum(),
            Cut::Texts(samples) => samples.sum(),
        }
    }
}

/// Which samples of each row are seen.
#[derive(Clone, Copy, Debug)]
enum Side {
    Whole,
    /// All but that share.
    Kept(f64),
    /// That share.
    HeldOut(f64),
}

impl Corpus {
    fn open(sources: &[Source], tokenizer: &Tokenizer, config: &Config) -> Result<Corpus> {
        let frame = tokenizer.frame();
        let pad = frame.pad.or(frame.eos).unwrap_or(0);
        let cache: Option<&Path> = config.cache.as_deref();
        let mut rows = Vec::new();
        for source in sources {
            let tokens = source.open(tokenizer, cache)?;
            let total: u64 = tokens.iter().map(super::tokens::Tokens::len).sum();
            for tokens in tokens {
                // A source of several token files divides its weight by their lengths.
                let weight = source.weight.map(|w| w * tokens.len() as f64 / total.max(1) as f64);
                let packed = Packed::new(tokens, config.sequence, config.packing, pad)?;
                rows.push(Row { cut: Cut::Text(packed.with_borders(config.documents)), weight });
            }
        }
        Ok(Corpus { rows, sequence: config.sequence, borders: config.documents })
    }

    fn open_conversations(
        sources: &[Source],
        tokenizer: &Tokenizer,
        read: (&chat::Chat, Option<&Sight>),
        config: &Config,
    ) -> Result<Corpus> {
        let frame = tokenizer.frame();
        let pad = frame.pad.or(frame.eos).unwrap_or(0);
        let open = |source: &Source| {
            let samples = chat::Samples::open(source, read, &config.chat, config.sequence, pad)?;
            Ok(Row { cut: Cut::Conversations(samples), weight: source.weight })
        };
        let rows = sources.iter().map(open).collect::<Result<_>>()?;
        Ok(Corpus { rows, sequence: config.sequence, borders: Borders::Separate })
    }

    /// Sources whose samples are made when they are opened; documents of a sample do not see each other.
    fn open_listed(
        sources: &[Source],
        sequence: usize,
        mut open: impl FnMut(&Source) -> Result<ListedSamples>,
    ) -> Result<Corpus> {
        let mut open = |source: &Source| Ok(Row { cut: Cut::Listed(open(source)?), weight: source.weight });
        let rows = sources.iter().map(&mut open).collect::<Result<_>>()?;
        Ok(Corpus { rows, sequence, borders: Borders::Separate })
    }

    /// What became of the rows of all sources; nothing where they are text.
    fn report(&self) -> Option<chat::Report> {
        let mut out = None;
        for row in &self.rows {
            if let Cut::Conversations(samples) = &row.cut {
                out.get_or_insert_with(chat::Report::default).add(samples.report());
            }
        }
        out
    }

    fn side(self: Arc<Corpus>, side: Side) -> View {
        let held = |samples: u64, share: f64| ((samples as f64 * share).ceil() as u64).min(samples);
        let mut parts = Vec::new();
        let mut firsts = Vec::new();
        for row in &self.rows {
            let all = row.cut.len();
            let (first, samples) = match side {
                Side::Whole => (None, all),
                Side::Kept(share) => (Some(0), all - held(all, share)),
                Side::HeldOut(share) => (Some(all - held(all, share)), held(all, share)),
            };
            firsts.push(first);
            parts.push(Part { name: row.cut.origin().to_string(), samples, weight: row.weight });
        }
        View { corpus: self, parts, firsts }
    }
}

/// One side of a corpus.
#[derive(Debug)]
struct View {
    corpus: Arc<Corpus>,
    parts: Vec<Part>,
    /// First place in the fixed shuffle that divides a row; none if the row is not divided.
    firsts: Vec<Option<u64>>,
}

impl View {
    /// What has a sample, and its number there.
    fn find(&self, index: u64) -> Result<(&Cut, u64)> {
        let mut rest = index;
        for (i, part) in self.parts.iter().enumerate() {
            if rest < part.samples {
                let cut = &self.corpus.rows[i].cut;
                let divide = Permutation::new(HELD_OUT.fold(i as u64), cut.len());
                return Ok((cut, self.firsts[i].map_or(rest, |first| divide.of(first + rest))));
            }
            rest -= part.samples;
        }
        Err(Error::OutOfRange { what: "sample", index, len: self.len() })
    }
}

impl Dataset for View {
    fn len(&self) -> u64 {
        self.parts.iter().map(|p| p.samples).sum()
    }

    fn sequence(&self) -> usize {
        self.corpus.sequence
    }

    fn borders(&self) -> Borders {
        self.corpus.borders
    }

    fn read(&self, index: u64, out: &mut Sample) -> Result<()> {
        self.read_at(&index.into(), out)
    }

    fn read_at(&self, place: &Place, out: &mut Sample) -> Result<()> {
        let (cut, index) = self.find(place.index)?;
        cut.read(index, place.epoch, out)
    }

    fn texts(&self, place: &Place) -> Result<Vec<u64>> {
        match self.find(place.index)? {
            (Cut::Texts(samples), index) => samples.marks(index, place.epoch),
            _ => Ok(Vec::new()),
        }
    }

    fn parts(&self) -> Vec<Part> {
        self.parts.clone()
    }

    fn fingerprint(&self) -> u32 {
        let rows = self.corpus.rows.iter().zip(&self.parts);
        rows.fold(0, |sum, (row, part)| {
            let (tokens, len) = row.cut.sum();
            let text = format!("{tokens:08x} {len} {} {:?}\n", part.samples, part.weight);
            checksum::append(sum, text.as_bytes())
        })
    }
}
