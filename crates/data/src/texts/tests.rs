//! Rows in every form, texts cut to their room, and prompts that do not count.

use super::*;
use crate::dataset::Sample;
use crate::listed::ListedSamples;
use crate::pack::IGNORED;
use crate::source::Source;

fn samples(lines: &[&str], config: &Config, sequence: usize) -> Result<ListedSamples> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    std::fs::write(&path, lines.join("\n")).unwrap();
    open(&Source::new(path.display().to_string()), &Tokenizer::bytes(), config, sequence, false)
}

fn read(samples: &ListedSamples, index: u64) -> Sample {
    let mut out = Sample::default();
    samples.read(index, &mut out).unwrap();
    out
}

#[test]
fn every_form_gives_the_same_row() {
    let forms = [
        r#"{"query": "q", "positive": "p", "negative": ["a", "b"]}"#,
        r#"{"anchor": "q", "positive": ["p"], "negative_1": "a", "negative_2": "b"}"#,
        r#"{"query": "q", "pos_passage": ["p"], "neg_passage": ["a", "b"]}"#,
        r#"{"query": [113], "positive": [112], "negative": [[97], [98]]}"#,
    ];
    let found = samples(&forms, &Config::default(), 12).unwrap();
    for index in 0..4 {
        let sample = read(&found, index);
        assert_eq!(sample.tokens[..4], b"qpab".map(u32::from), "{index}");
        assert_eq!(sample.labels[..5], [0, 1, 2, 3, IGNORED]);
        assert_eq!(sample.starts, [1, 2, 3, 4], "padding is a document of its own");
    }
}

#[test]
fn texts_lose_their_end_and_prompts_do_not_count() {
    let config =
        Config { max_length: Some(4), query_prompt: "Q:".into(), include_prompt: false, ..Config::default() };
    let found = samples(&[r#"{"query": "abc", "positive": "wxyz!"}"#], &config, 8).unwrap();
    let sample = read(&found, 0);
    assert_eq!(sample.tokens[..8], b"Q:abwxyz".map(u32::from));
    assert_eq!(sample.labels, [IGNORED, IGNORED, 0, 0, 1, 1, 1, 1]);
}

#[test]
fn rows_have_as_many_negatives_as_asked_for() {
    let line = r#"{"query": "q", "positive": "p", "negative": ["a", "b", "c"]}"#;
    let few = read(&samples(&[line], &Config { negatives: Some(2), ..Config::default() }, 8).unwrap(), 0);
    assert_ne!(few.tokens[2], few.tokens[3], "drawn without repeating");
    let many = read(&samples(&[line], &Config { negatives: Some(5), ..Config::default() }, 14).unwrap(), 0);
    let mut drawn = many.tokens[2..5].to_vec();
    drawn.sort_unstable();
    assert_eq!(drawn, b"abc".map(u32::from), "all before any is repeated");
}

#[test]
fn rows_that_cannot_be_are_named() {
    for (line, config, told) in [
        (r#"{"query": "q"}"#, Config::default(), "the row has `query`"),
        (r#"{"query": "", "positive": "p"}"#, Config::default(), "append_eos"),
        (r#"{"query": 3, "positive": "p"}"#, Config::default(), "`query` is neither"),
        (r#"{"query": [999], "positive": "p"}"#, Config::default(), "token 999"),
        (
            r#"{"query": "q", "positive": "p"}"#,
            Config { negatives: Some(1), ..Config::default() },
            "no negative",
        ),
        (
            r#"{"query": "q", "positive": "p"}"#,
            Config { max_length: Some(9), ..Config::default() },
            "`data.sequence` to 18",
        ),
    ] {
        let error = samples(&[line], &config, 12).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn a_tokenizer_learns_to_end_texts() {
    let ending = Tokenizer::bytes().ending_with_eos().unwrap();
    let eos = ending.frame().eos.unwrap();
    let found = encode(&ending, "", "abcdef", 4).unwrap();
    assert_eq!(found.tokens, [97, 98, 99, eos], "the end stays where the text is cut");
    assert_eq!(encode(&ending, "", "", 4).unwrap().tokens, [eos]);
    let again = Tokenizer::from_files(&ending.files().unwrap()).unwrap();
    assert_eq!(again.encode_prompt("a").unwrap(), [97, eos], "the saved one does it too");
    assert_eq!(again.ending_with_eos().unwrap().encode_prompt("a").unwrap(), [97, eos], "once");
}
