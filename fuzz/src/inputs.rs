//! What each target of data and models does with its bytes: pictures, tokenizers, rows, templates, documents, configurations.

use planaria_data::chat::{Chat, Clock, Conversation, Ending, Json, Learn, Row};
use planaria_data::pictures::{Alpha, Picture, Preprocess};
use planaria_data::texts::TextRow;
use planaria_data::{Config, Source, TokenFile, Tokenizer, Tokens};
use planaria_nn::models::{Models, Stage};
use planaria_store::checksum;
use planaria_train::embedding::{EncodeOptions, Encoder};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

/// A PNG, JPEG or WebP file.
pub(crate) fn picture(bytes: &[u8]) {
    // A header may promise any size within the limits; only small pictures are decoded, for time.
    let Ok((height, width)) = Picture::measure(bytes) else { return };
    if height * width <= 1 << 16 {
        for alpha in [Alpha::Drop, Alpha::White] {
            let _ = Picture::decode(bytes, alpha);
        }
    }
}

/// A `tokenizer.json`, or a SentencePiece model: opened, and text there and back.
pub(crate) fn tokenizer(bytes: &[u8]) {
    let name = if bytes.starts_with(b"{") { "tokenizer.json" } else { "tokenizer.model" };
    use_tokenizer([(name, bytes)]);
}

/// Pairs that were joined: a `vocab.json`, or else a `merges.txt`, beside the other of both.
pub(crate) fn pairs(bytes: &[u8]) {
    static WHOLE: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    let [vocab, merges] = WHOLE.get_or_init(|| {
        ["vocab.json", "merges.txt"].map(|name| crate::seed(&format!("tokenizers/pairs/{name}")))
    });
    let (vocab, merges) = if bytes.starts_with(b"{") { (bytes, &merges[..]) } else { (&vocab[..], bytes) };
    for class in ["GPT2Tokenizer", "Qwen2Tokenizer"] {
        let config = format!(r#"{{"tokenizer_class": "{class}"}}"#);
        use_tokenizer([
            ("vocab.json", vocab),
            ("merges.txt", merges),
            ("tokenizer_config.json", config.as_bytes()),
        ]);
    }
}

/// What stands beside a tokenizer: its configuration, its special and added tokens, and the files of a chat template alike.
pub(crate) fn tokenizer_config(bytes: &[u8]) {
    static MAIN: OnceLock<Vec<u8>> = OnceLock::new();
    let main = MAIN.get_or_init(|| crate::seed("merge/models/tok-base/tokenizer.json"));
    const BESIDE: [&str; 5] = [
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.json",
        "chat_template.jinja",
    ];
    for name in BESIDE {
        use_tokenizer([("tokenizer.json", main), (name, bytes)]);
    }
}

fn use_tokenizer<const N: usize>(files: [(&str, &[u8]); N]) {
    let files: BTreeMap<String, Vec<u8>> = files.map(|(name, bytes)| (name.into(), bytes.to_vec())).into();
    let Ok(tokenizer) = Tokenizer::from_files(&files) else { return };
    for text in ["", "the hello <unk> world", "\u{1F300} \u{e9}\n\n\t12345"] {
        let Ok(ids) = tokenizer.encode(text) else { continue };
        let _ = tokenizer.decode(&ids);
    }
    let _ = tokenizer.decode(&[0, 1, u32::MAX]);
    let _ = Chat::new(&tokenizer, None, Clock::Refused);
}

/// A row of conversations, and one of texts that belong together.
pub(crate) fn row(bytes: &[u8]) {
    static CHAT: OnceLock<Chat> = OnceLock::new();
    let text = String::from_utf8_lossy(bytes);
    let _ = TextRow::parse(&text);
    let Ok((row, _)) = Row::parse(&text) else { return };
    let chat = CHAT.get_or_init(|| {
        let template = String::from_utf8(crate::seed("sft/templates/qwen2_5.jinja")).expect("test data");
        Chat::new(&Tokenizer::bytes(), Some(&template), Clock::Refused).expect("a template")
    });
    for learn in [Learn::Assistant, Learn::LastTurn, Learn::Completion, Learn::All] {
        if let Ok(labelled) = chat.label(&row, learn) {
            let _ = labelled.labels();
        }
    }
}

/// Rows of prompts, alone and with two responses.
pub(crate) fn prompts(bytes: &[u8]) {
    crate::with_files(&[("rows.jsonl", bytes)], |folder| {
        let mut config = Config::default();
        config.source = vec![Source::new(folder.join("rows.jsonl").display().to_string())];
        config.sequence = 64;
        let _ = config.open_preferences(&Tokenizer::bytes());
        let _ = config.open_prompts(&Tokenizer::bytes());
    });
}

/// A chat template, with a short conversation.
pub(crate) fn template(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Ok(chat) = Chat::new(&Tokenizer::bytes(), Some(&text), Clock::Refused) else { return };
    let messages = vec![Json::message("user", "Who?"), Json::message("assistant", "I.")];
    let conversation = Conversation::new(messages).expect("a conversation");
    for ending in [Ending::Closed, Ending::Prompt] {
        let _ = chat.render(&conversation, ending);
    }
}

/// A file of documents, by what it begins with: Parquet, gzip, Zstandard, JSON lines, else a table.
pub(crate) fn documents(bytes: &[u8]) {
    let name = match bytes {
        [b'P', b'A', b'R', b'1', ..] => "x.parquet",
        [0x1f, 0x8b, ..] => "x.jsonl.gz",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "x.jsonl.zst",
        [b'{', ..] => "x.jsonl",
        _ => "x.csv",
    };
    crate::with_files(&[(name, bytes)], |folder| {
        let path = folder.join(name).display().to_string();
        let _ = Source::new(path).open(&Tokenizer::bytes(), None);
    });
}

/// A token file, whose header vouches for itself: every token of it is read.
pub(crate) fn tokens(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    if let Some(header) = bytes.get_mut(..64) {
        let sum = checksum::crc32c(&header[..60]);
        header[60..].copy_from_slice(&sum.to_le_bytes());
    }
    crate::with_files(&[("x.tokens", &bytes)], |folder| read_tokens(&folder.join("x.tokens")));
}

fn read_tokens(path: &Path) {
    if let Ok(file) = TokenFile::open(path) {
        let _ = file.verify();
    }
    let Ok(tokens) = Tokens::open(path, 1 << 20) else { return };
    let starts: Vec<u64> = (0..tokens.documents()).map(|document| tokens.start(document)).collect();
    for start in starts {
        let _ = tokens.read(start, tokens.len(), &mut Vec::new());
    }
    let _ = tokens.read(0, tokens.len(), &mut Vec::new());
}

/// A model's `config.json`: opened, its parameters listed where they are few, and written.
pub(crate) fn model(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Ok(model) = Models::default().open_json(&text) else { return };
    Models::default().open(model.to_value()).expect("what is written can be read");
    if model.blocks() <= 64 {
        let _ = model.parameters(&Stage::whole(&*model));
    }
}

/// A model's `preprocessor_config.json`.
pub(crate) fn preprocessor(bytes: &[u8]) {
    let Ok(map) = serde_json::from_slice(bytes) else { return };
    let Ok(settings) = Preprocess::from_config(&map) else { return };
    for (height, width) in [(1, 1), (45, 70), (1 << 16, 3)] {
        let _ = settings.grid(&[(height, width)]);
    }
}

/// What a folder of sentence embeddings says of itself, each of its files in turn beside a model that is whole: opened, and a text encoded.
pub(crate) fn sentences(bytes: &[u8]) {
    const WHOLE: [&str; 4] = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    const TOLD: [&str; 4] = [
        "modules.json",
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
    ];
    static FILES: OnceLock<Vec<(&str, Vec<u8>)>> = OnceLock::new();
    let files = FILES.get_or_init(|| {
        let file = |name| (name, crate::seed(&format!("embeddings/models/mean_v6/{name}")));
        WHOLE.into_iter().chain(TOLD).map(file).collect()
    });
    for replaced in TOLD {
        let of = |(name, whole)| (name, if name == replaced { bytes } else { whole });
        let folder: Vec<(&str, &[u8])> = files.iter().map(|(name, whole)| of((*name, &whole[..]))).collect();
        crate::with_files(&folder, |folder| {
            let Ok(encoder) = Encoder::open(folder) else { return };
            let _ = encoder.encode(&["a text"], &EncodeOptions::default(), &|_, _| {});
        });
    }
}
