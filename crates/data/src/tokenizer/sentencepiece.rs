//! `tokenizer.model`: a SentencePiece model, read and written out as a `tokenizer.json` that gives the same ids.

use super::made::{Added, Made, Template};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use tokenizers::normalizers::Precompiled;

/// What a blank becomes.
const BLANK: &str = "▁";
/// Classes of `transformers` whose ids are not those of their `tokenizer.model`.
const RENUMBERED: [&str; 9] =
    ["XLMRoberta", "Camembert", "MBart", "XGLM", "Bartpho", "Barthez", "PLBart", "Pegasus", "NllbTokenizer"];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PieceKind {
    #[default]
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

#[derive(Debug, Default)]
struct Piece {
    text: String,
    score: f32,
    kind: PieceKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Unigram,
    Bpe,
}

/// The parts of a model that decide about ids.
#[derive(Debug)]
struct Model {
    pieces: Vec<Piece>,
    algorithm: Algorithm,
    byte_fallback: bool,
    bos: i64,
    eos: i64,
    pad: i64,
    charsmap: Vec<u8>,
    dummy_prefix: bool,
    fold_blanks: bool,
}

/// The `tokenizer.json` of a model; `config` is the `tokenizer_config.json` beside it.
pub(super) fn convert(bytes: &[u8], config: &Map<String, Value>) -> Result<Made, String> {
    let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    if RENUMBERED.iter().any(|known| class.starts_with(known)) {
        return Err(format!("tokenizer.model: a {class} gives other ids than its model"));
    }
    let model = Model::read(bytes).map_err(|problem| format!("tokenizer.model: {problem}"))?;
    let role = |id: i64| model.pieces.get(usize::try_from(id).ok()?).map(|piece| piece.text.clone());
    let roles = [role(model.bos), role(model.eos), role(model.pad)];
    let template = Template::of(config, &roles, model.bos >= 0);
    let ids: HashMap<&str, usize> =
        model.pieces.iter().enumerate().map(|(id, piece)| (piece.text.as_str(), id)).collect();
    let added = model.pieces.iter().enumerate().filter_map(|(id, piece)| {
        let special = matches!(piece.kind, PieceKind::Unknown | PieceKind::Control);
        // Blanks are what they are looked for as only once the text is normalised.
        let normalized = piece.text.contains(BLANK);
        (special || piece.kind == PieceKind::UserDefined).then(|| Added {
            id,
            text: &piece.text,
            special,
            normalized,
        })
    });
    let added: Vec<Value> = added.map(|token| token.json()).collect();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": { "type": "Sequence", "normalizers": model.normalizers()? },
        "pre_tokenizer": model.pre_tokenizer(),
        "post_processor": template.json(|token| ids.get(token).copied()),
        "decoder": { "type": "Sequence", "decoders": model.decoders() },
        "model": match model.algorithm {
            Algorithm::Unigram => model.unigram(),
            Algorithm::Bpe => model.bpe(&ids),
        },
    });
    Ok(Made { tokenizer, roles })
}

impl Model {
    fn has_user_pieces(&self) -> bool {
        self.pieces.iter().any(|piece| piece.kind == PieceKind::UserDefined)
    }

    fn normalizers(&self) -> Result<Vec<Value>, String> {
        let replace = |pattern: Value, content: &str| json!({ "type": "Replace", "pattern": pattern, "content": content });
        let mut out = Vec::new();
        if !self.charsmap.is_empty() {
            let map = Precompiled::from(&self.charsmap).map_err(|e| format!("tokenizer.model: {e}"))?;
            out.push(serde_json::to_value(map).map_err(|e| e.to_string())?);
        }
        if self.fold_blanks {
            out.push(replace(json!({ "Regex": r"\A +| +\z" }), ""));
            out.push(replace(json!({ "Regex": " {2,}" }), " "));
        }
        if self.dummy_prefix && !self.has_user_pieces() {
            out.push(json!({ "type": "Prepend", "prepend": BLANK }));
        }
        out.push(replace(json!({ "String": " " }), BLANK));
        Ok(out)
    }

    fn pre_tokenizer(&self) -> Value {
        let mut parts = Vec::new();
        if self.dummy_prefix && self.has_user_pieces() {
            // Normalisers see the text between added tokens; only this one knows where a text begins.
            parts.push(json!({ "type": "Metaspace", "replacement": BLANK, "prepend_scheme": "first", "split": false }));
        }
        if self.algorithm == Algorithm::Unigram {
            let pattern = json!({ "Regex": self.spelled_out() });
            parts.push(json!({ "type": "Split", "pattern": pattern, "behavior": "MergedWithPrevious", "invert": false }));
        }
        if parts.is_empty() { Value::Null } else { json!({ "type": "Sequence", "pretokenizers": parts }) }
    }

    /// The beginnings of pieces that no text may spell, such as `</s>`. The model would take them for the pieces, so the text is
    /// cut inside them; not between two unknown characters, which belong together.
    fn spelled_out(&self) -> String {
        let known: HashSet<&str> = self.spellable().map(|piece| piece.text.as_str()).collect();
        let is_known = |c: char| known.contains(c.encode_utf8(&mut [0; 4]) as &str);
        let cut = |text: &str| {
            let pairs = text.char_indices().zip(text.char_indices().skip(1));
            let good =
                pairs.filter(|((_, a), (_, b))| is_known(*a) || is_known(*b)).map(|(_, (at, _))| at).next();
            good.or_else(|| text.char_indices().nth(1).map(|(at, _)| at)).unwrap_or(text.len())
        };
        let hidden =
            self.pieces.iter().filter(|piece| !piece.is_spellable()).map(|piece| piece.text.as_str());
        let each = |text: &str| {
            let (head, tail) = text.split_at(cut(text));
            let escape = |text: &str| text.chars().map(escaped).collect::<String>();
            if tail.is_empty() { escape(head) } else { format!("{}(?={})", escape(head), escape(tail)) }
        };
        hidden.map(each).collect::<Vec<_>>().join("|")
    }

    fn spellable(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().filter(|piece| piece.is_spellable())
    }

    fn decoders(&self) -> Vec<Value> {
        let mut out = vec![
            json!({ "type": "Replace", "pattern": { "String": BLANK }, "content": " " }),
            json!({ "type": "ByteFallback" }),
            json!({ "type": "Fuse" }),
        ];
        if self.dummy_prefix {
            out.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
        }
        out
    }

    fn unknown(&self) -> Option<usize> {
        self.pieces.iter().position(|piece| piece.kind == PieceKind::Unknown)
    }

    fn unigram(&self) -> Value {
        // The least score decides what an unknown character costs, so that pieces which no text spells must not have less.
        let least = self.spellable().map(|piece| f64::from(piece.score)).fold(0.0, f64::min);
        let score = |piece: &Piece| if piece.is_spellable() { f64::from(piece.score) } else { least };
        let vocab: Vec<Value> = self.pieces.iter().map(|piece| json!([piece.text, score(piece)])).collect();
        json!({ "type": "Unigram", "unk_id": self.unknown(), "vocab": vocab, "byte_fallback": self.byte_fallback })
    }

    /// SentencePiece joins any two neighbours that make a piece, the best piece first: every way to divide a piece is a
    /// merge.
    fn bpe(&self, ids: &HashMap<&str, usize>) -> Value {
        let is_normal =
            |text: &str| ids.get(text).is_some_and(|&id| self.pieces[id].kind == PieceKind::Normal);
        let mut merges: Vec<(f32, usize, &str, &str)> = Vec::new();
        for (id, piece) in self.pieces.iter().enumerate().filter(|(_, piece)| piece.kind == PieceKind::Normal)
        {
            for (at, _) in piece.text.char_indices().skip(1) {
                let (left, right) = piece.text.split_at(at);
                if is_normal(left) && is_normal(right) {
                    merges.push((piece.score, id, left, right));
                }
            }
        }
        merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.len().cmp(&b.2.len())));
        let merges: Vec<Value> = merges.iter().map(|(_, _, left, right)| json!([left, right])).collect();
        let vocab: BTreeMap<&str, usize> = ids.iter().map(|(text, id)| (*text, *id)).collect();
        json!({
            "type": "BPE", "dropout": null, "unk_token": self.unknown().map(|id| &self.pieces[id].text),
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": self.byte_fallback, "ignore_merges": false, "vocab": vocab, "merges": merges,
        })
    }

    fn read(bytes: &[u8]) -> Result<Model, String> {
        let mut model = Model {
            pieces: Vec::new(),
            algorithm: Algorithm::Unigram,
            byte_fallback: false,
            bos: 1,
            eos: 2,
            pad: -1,
            charsmap: Vec::new(),
            dummy_prefix: true,
            fold_blanks: true,
        };
        let (mut trained, mut normalized) = (false, false);
        for field in Fields(bytes) {
            match field? {
                (1, Field::Bytes(piece)) => model.pieces.push(Piece::read(piece)?),
                (2, Field::Bytes(trainer)) => (trained, _) = (true, model.read_trainer(trainer)?),
                (3, Field::Bytes(normalizer)) => (normalized, _) = (true, model.read_normalizer(normalizer)?),
                _ => {}
            }
        }
        // A file that was cut between two fields has no other sign.
        if model.pieces.is_empty() || !trained || !normalized {
            return Err(
                "not a whole SentencePiece model: pieces, trainer_spec or normalizer_spec are missing".into(),
            );
        }
        let mut seen = HashSet::new();
        if let Some(twice) = model.pieces.iter().find(|piece| !seen.insert(piece.text.as_str())) {
            return Err(format!("the piece '{}' is there twice", twice.text));
        }
        if let Some(piece) = model.pieces.iter().find(|piece| piece.kind == PieceKind::Unused) {
            return Err(format!("the piece '{}' is marked as unused, which is not supported", piece.text));
        }
        // Which of them a run of blanks becomes follows from scores that no other tokenizer has.
        let of_blanks = |piece: &&Piece| piece.kind == PieceKind::UserDefined && piece.text.contains(BLANK);
        if let (Algorithm::Unigram, Some(piece)) = (model.algorithm, model.pieces.iter().find(of_blanks)) {
            return Err(format!(
                "the user-defined piece '{}' of a unigram model is not supported",
                piece.text
            ));
        }
        if model.fold_blanks && model.has_user_pieces() {
            return Err("user-defined pieces in a model that removes extra blanks are not supported".into());
        }
        Ok(model)
    }

    fn read_trainer(&mut self, bytes: &[u8]) -> Result<(), String> {
        for field in Fields(bytes) {
            match field? {
                (3, Field::Number(1)) => self.algorithm = Algorithm::Unigram,
                (3, Field::Number(2)) => self.algorithm = Algorithm::Bpe,
                (3, Field::Number(3)) => return Err("models of whole words are not supported".into()),
                (3, Field::Number(4)) => return Err("models of characters are not supported".into()),
                (3, _) => return Err("the kind of the model is unknown".into()),
                (24, Field::Number(1)) => return Err("blanks behind words are not supported".into()),
                (35, Field::Number(value)) => self.byte_fallback = value != 0,
                // Negative numbers are written as 64 bits.
                (41, Field::Number(id)) => self.bos = id as i64,
                (42, Field::Number(id)) => self.eos = id as i64,
                (43, Field::Number(id)) => self.pad = id as i64,
                _ => {}
            }
        }
        Ok(())
    }

    fn read_normalizer(&mut self, bytes: &[u8]) -> Result<(), String> {
        for field in Fields(bytes) {
            match field? {
                (2, Field::Bytes(map)) => self.charsmap = map.to_vec(),
                (3, Field::Number(value)) => self.dummy_prefix = value != 0,
                (4, Field::Number(value)) => self.fold_blanks = value != 0,
                (5, Field::Number(0)) => return Err("blanks that stay blanks are not supported".into()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A character as a regular expression has it.
fn escaped(c: char) -> String {
    if c.is_ascii_punctuation() { format!("\\{c}") } else { c.to_string() }
}

impl Piece {
    /// Whether a text can contain it.
    fn is_spellable(&self) -> bool {
        matches!(self.kind, PieceKind::Normal | PieceKind::UserDefined)
    }

    fn read(bytes: &[u8]) -> Result<Piece, String> {
        let mut piece = Piece::default();
        for field in Fields(bytes) {
            match field? {
                (1, Field::Bytes(text)) => {
                    let text = std::str::from_utf8(text).map_err(|_| "a piece is not UTF-8 text")?;
                    piece.text = text.to_string();
                }
                (2, Field::Four(bits)) => piece.score = f32::from_bits(bits),
                (3, Field::Number(kind)) => {
                    piece.kind = match kind {
                        1 => PieceKind::Normal,
                        2 => PieceKind::Unknown,
                        3 => PieceKind::Control,
                        4 => PieceKind::UserDefined,
                        5 => PieceKind::Unused,
                        6 => PieceKind::Byte,
                        other => return Err(format!("a piece is of the unknown kind {other}")),
                    }
                }
                _ => {}
            }
        }
        if piece.text.is_empty() || !piece.score.is_finite() {
            return Err(format!("the piece '{}' has the score {}", piece.text, piece.score));
        }
        Ok(piece)
    }
}

/// One field of a protocol buffer.
enum Field<'a> {
    Number(u64),
    Four(u32),
    Eight,
    Bytes(&'a [u8]),
}

/// The fields of a message with their numbers.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn number(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u64, Field<'a>)> {
        let key = self.number()?;
        let field = match key & 7 {
            0 => Field::Number(self.number()?),
            1 => self.take(8).map(|_| Field::Eight)?,
            2 => {
                let length = self.number()?;
                Field::Bytes(self.take(length)?)
            }
            5 => Field::Four(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((key >> 3, field))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Field<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let left = self.0.len();
        let found = self.field();
        if found.is_none() {
            self.0 = &[];
        }
        Some(
            found.ok_or_else(|| format!("not a SentencePiece model, or damaged {left} bytes before its end")),
        )
    }
}
