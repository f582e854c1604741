//! Byte tokens, trained tokenizers, added tokens, and the files both are saved as.

use super::*;
use serde_json::json;

const TRICKY: &str = "naïve \u{0} 💥\tline\r\n<|eos|>end \u{a0}";

#[test]
fn bytes_are_their_own_ids_and_come_back() {
    let mut tokenizer = Tokenizer::bytes();
    assert_eq!(tokenizer.vocab_size(), 259);
    assert_eq!(tokenizer.frame(), Frame { bos: Some(256), eos: Some(257), pad: Some(258) });
    assert_eq!(tokenizer.encode("Aé").unwrap(), [65, 0xc3, 0xa9]);
    let tokens = tokenizer.encode(TRICKY).unwrap();
    assert!(tokens.contains(&257));
    assert_eq!(tokenizer.decode_with_special(&tokens).unwrap(), TRICKY);
    assert_eq!(tokenizer.decode(&tokens).unwrap(), TRICKY.replace("<|eos|>", ""));
    tokenizer.set_special_text(SpecialText::Plain);
    let plain = tokenizer.encode(TRICKY).unwrap();
    assert!(plain.iter().map(|&t| t as u8).eq(TRICKY.bytes()));
}

#[test]
fn the_byte_tokenizer_is_a_hugging_face_tokenizer_with_the_same_ids() {
    let mut tokenizer = Tokenizer::bytes();
    let tool = tokenizer.add_token("<|tool|>", TokenKind::Special).unwrap();
    let word = tokenizer.add_token("word", TokenKind::Text).unwrap();
    assert_eq!((tool, word), (259, 260));
    let files = tokenizer.files().unwrap();
    let other = tokenizers::Tokenizer::from_bytes(&files["tokenizer.json"]).unwrap();
    for text in [TRICKY, "", "a word<|tool|>", "<|tool<|tool|>|>", &String::from_utf8_lossy(&[7; 40])] {
        let ids = other.encode_fast(text, true).unwrap();
        assert_eq!(tokenizer.encode(text).unwrap(), ids.get_ids(), "{text:?}");
        assert_eq!(tokenizer.decode(ids.get_ids()).unwrap(), other.decode(ids.get_ids(), true).unwrap());
    }
    assert_eq!(other.get_vocab_size(true), tokenizer.vocab_size());
    let config: Value = serde_json::from_slice(&files["tokenizer_config.json"]).unwrap();
    assert_eq!(config["eos_token"], "<|eos|>");
    assert_eq!(config["tokenizer_class"], "PreTrainedTokenizerFast");
}

#[test]
fn saved_files_give_the_same_tokenizer_back() {
    let mut tokenizer = Tokenizer::bytes();
    tokenizer.add_token("<|tool|>", TokenKind::Special).unwrap();
    let mut files = tokenizer.files().unwrap();
    files.insert("config.json".into(), b"{}".to_vec());
    let back = Tokenizer::from_files(&files).unwrap();
    assert!(matches!(back.kind, TokenizerKind::Bytes(_)), "the fast path is taken");
    assert_eq!(back.fingerprint().unwrap(), tokenizer.fingerprint().unwrap());
    assert_eq!(back.encode("x<|tool|>").unwrap(), [120, 259]);
    files.remove("config.json");
    assert_eq!(back.files().unwrap(), files);
}

/// A small word tokenizer whose prompts begin with `<s>`; its settings would cut after four tokens.
fn words() -> BTreeMap<String, Vec<u8>> {
    let special = |id: u32, content: &str| {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true })
    };
    let tokenizer = json!({
        "version": "1.0",
        "truncation": { "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0 },
        "padding": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": null,
        "pre_tokenizer": { "type": "Whitespace" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [1], "tokens": ["<s>"] } },
        },
        "decoder": null,
        "model": { "type": "WordLevel", "unk_token": "<unk>",
                   "vocab": { "<unk>": 0, "<s>": 1, "</s>": 2, "red": 3, "blue": 9 } },
    });
    let config = json!({
        "bos_token": { "content": "<s>" }, "eos_token": "</s>", "pad_token": "<pad>",
        "added_tokens_decoder": { "5": { "content": "<pad>", "special": true } },
        "chat_template": "{{ messages }}",
    });
    BTreeMap::from([
        ("tokenizer.json".to_string(), tokenizer.to_string().into_bytes()),
        ("tokenizer_config.json".to_string(), config.to_string().into_bytes()),
    ])
}

#[test]
fn trained_tokenizers_take_their_roles_and_added_tokens_from_the_config() {
    let mut tokenizer = Tokenizer::from_files(&words()).unwrap();
    assert_eq!(tokenizer.frame(), Frame { bos: Some(1), eos: Some(2), pad: Some(5) });
    assert_eq!(tokenizer.vocab_size(), 10, "ids have gaps, the largest one counts");
    assert_eq!(
        tokenizer.encode("red blue red blue red green").unwrap(),
        [3, 9, 3, 9, 3, 0],
        "nothing is cut"
    );
    assert_eq!(tokenizer.encode_prompt("red").unwrap(), [1, 3]);
    let documents = tokenizer.encode_documents(&["red </s>".into(), "blue".into()]).unwrap();
    assert_eq!(documents, [vec![1, 3, 2, 2], vec![1, 9, 2]]);
    tokenizer.set_special_text(SpecialText::Plain);
    assert!(!tokenizer.encode("</s>").unwrap().contains(&2));
    assert_eq!(tokenizer.decode(&[1, 3, 9, 2]).unwrap(), "red blue");
    assert!(tokenizer.is_special(2) && !tokenizer.is_special(3));
    let saved = tokenizer.files().unwrap();
    let again = Tokenizer::from_files(&saved).unwrap();
    assert_eq!(again.id("<pad>"), Some(5));
    let kept: Value = serde_json::from_slice(&saved["tokenizer_config.json"]).unwrap();
    assert_eq!(kept["chat_template"], "{{ messages }}");
}

/// As in `transformers`: a word of the vocabulary that is named special is found whole and left out of texts.
#[test]
fn a_token_of_the_vocabulary_can_become_special() {
    let mut bytes = Tokenizer::bytes();
    let word = bytes.add_token("word", TokenKind::Text).unwrap();
    for mut tokenizer in [bytes, Tokenizer::from_files(&words()).unwrap()] {
        let name = if tokenizer.name == BYTE_TOKENIZER { "word" } else { "blue" };
        let id = tokenizer.id(name).unwrap();
        assert!(id == word || id == 9);
        assert!(!tokenizer.is_special(id));
        assert_eq!(tokenizer.decode(&[id]).unwrap(), name);
        let vocab = tokenizer.vocab_size();
        assert_eq!(tokenizer.add_token(name, TokenKind::Special).unwrap(), id);
        assert_eq!(tokenizer.vocab_size(), vocab);
        for tokenizer in [Tokenizer::from_files(&tokenizer.files().unwrap()).unwrap(), tokenizer] {
            assert!(tokenizer.is_special(id));
            assert_eq!(tokenizer.encode(&format!("{name}{name}")).unwrap(), [id, id]);
            assert_eq!(tokenizer.decode(&[id]).unwrap(), "");
        }
    }
}

#[test]
fn bad_tokenizers_are_refused_with_the_reason() {
    let fails = |files: BTreeMap<String, Vec<u8>>| Tokenizer::from_files(&files).unwrap_err().to_string();
    assert!(fails(BTreeMap::new()).contains("there is no tokenizer.json"));
    for bad in ["", "[", "{}", "{\"version\":\"1.0\",\"added_tokens\":7}", "{\"model\":{\"type\":\"BPE\"}}"] {
        let files = BTreeMap::from([("tokenizer.json".to_string(), bad.as_bytes().to_vec())]);
        assert!(fails(files).contains("tokenizer.json: "), "{bad}");
    }
    let mut moved = words();
    let config = json!({ "added_tokens_decoder": { "77": { "content": "<x>" } } });
    moved.insert("tokenizer_config.json".into(), config.to_string().into_bytes());
    assert!(fails(moved).contains("'<x>' has the id"));
    let missing = Tokenizer::open("no/such/tokenizer.json").unwrap_err().to_string();
    assert!(missing.starts_with("cannot read 'no/such/tokenizer.json'"), "{missing}");
    assert!(Tokenizer::bytes().add_token("", TokenKind::Text).is_err());
}
