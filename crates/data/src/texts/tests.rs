//! Rows in every form, texts cut to their room, and prompts that do not count.

use super::*;
use crate::dataset::{Dataset, Sample};
use crate::pack::IGNORED;
use crate::sampler::{Batches, Order, Place, Sampler};
use crate::source::Source;
use std::sync::Arc;

fn samples(lines: &[&str], config: &Config, sequence: usize) -> Result<Samples> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    std::fs::write(&path, lines.join("\n")).unwrap();
    Samples::open(&Source::new(path.display().to_string()), &Tokenizer::bytes(), config, sequence, false)
}

fn read(samples: &Samples, index: u64) -> Sample {
    let mut out = Sample::default();
    samples.read(index, 0, &mut out).unwrap();
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

/// Data of two sources: 40 rows of which many share an answer or a query, and 12 pairs of their own.
fn several(batches: BatchesFrom) -> (tempfile::TempDir, Arc<dyn Dataset>) {
    let folder = tempfile::tempdir().unwrap();
    let line = |i: usize| format!("{{\"query\": \"q{}\", \"positive\": \"p{}\"}}", i % 30, i % 13);
    let other = |i: usize| format!("{{\"query\": \"a{i}\", \"positive\": \"b{i}\", \"negative\": \"c\"}}");
    std::fs::write(folder.path().join("a.jsonl"), (0..40).map(line).collect::<Vec<_>>().join("\n")).unwrap();
    std::fs::write(folder.path().join("b.jsonl"), (0..12).map(other).collect::<Vec<_>>().join("\n")).unwrap();
    let mut config = crate::Config { sequence: 24, ..crate::Config::default() };
    config.texts.batches = batches;
    config.texts.negatives = Some(0).filter(|_| batches == BatchesFrom::Mixed);
    for name in ["a.jsonl", "b.jsonl"] {
        config.source.push(Source::new(folder.path().join(name).display().to_string()));
    }
    let data = config.open_texts(&Tokenizer::bytes(), |_| false).unwrap();
    (folder, data.train)
}

fn sampler(data: &Arc<dyn Dataset>, size: u64, from: BatchesFrom, no_duplicates: bool) -> Result<Sampler> {
    Sampler::new(&**data, 5, Order::Shuffled)?.batched(data, Batches { size, from, no_duplicates })
}

#[test]
fn no_text_stands_twice_in_a_batch_and_any_place_is_found_alone() {
    let (_folder, data) = several(BatchesFrom::Mixed);
    let whole = sampler(&data, 8, BatchesFrom::Mixed, true).unwrap();
    let places: Vec<Place> = (0..400).map(|position| whole.place(position).unwrap()).collect();
    let mut epochs = vec![Vec::new(); 12];
    for batch in places.chunks(8) {
        let mut texts: Vec<u64> = batch.iter().flat_map(|place| data.texts(place).unwrap()).collect();
        let all = texts.len();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), all, "a text stands twice");
        batch.iter().for_each(|place| epochs[place.epoch as usize].push(place.index));
    }
    for (number, mut rows) in epochs.into_iter().enumerate() {
        let all = rows.len();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), all, "epoch {number} has a row twice");
    }
    let mut seen: Vec<u64> = places.iter().map(|place| place.index).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 52, "every row has its turn");
    // A run that goes on asks for any position first, and ranks ask in any order.
    for position in [399, 3, 250, 251, 0] {
        let fresh = sampler(&data, 8, BatchesFrom::Mixed, true).unwrap();
        assert_eq!(fresh.place(position).unwrap(), places[position as usize]);
        assert_eq!(whole.place(position).unwrap(), places[position as usize]);
    }
    let plain = sampler(&data, 8, BatchesFrom::Mixed, false).unwrap();
    let refused = whole.check(plain.state()).unwrap_err().to_string();
    assert!(refused.contains("how samples come together was plain, now of 8 samples"), "{refused}");
    let refused = sampler(&data, 48, BatchesFrom::Mixed, true).unwrap_err().to_string();
    assert!(
        refused.contains("a batch has 48 rows") && refused.contains("lower `train.global_batch`"),
        "{refused}"
    );
}

#[test]
fn a_batch_comes_from_one_source() {
    for (from, expected) in
        [(BatchesFrom::Proportional, [40 * 6, 12 * 6]), (BatchesFrom::RoundRobin, [156, 156])]
    {
        let (_folder, data) = several(from);
        for no_duplicates in [false, true] {
            // Of the second source every row has the negative `c`.
            let size = if no_duplicates { 1 } else { 4 };
            let order = sampler(&data, size, from, no_duplicates).unwrap();
            let mut found = [0; 2];
            for batch in 0..312 {
                let places =
                    (batch * size..(batch + 1) * size).map(|position| order.place(position).unwrap());
                let places: Vec<Place> = places.collect();
                let part = places[0].part;
                assert!(places.iter().all(|place| place.part == part && (place.index >= 40) == (part == 1)));
                found[part] += 1;
            }
            let apart = found[0] as i64 - expected[0] as i64;
            assert!(apart.abs() <= 4, "{from:?}: {found:?} and {expected:?}");
        }
        let refused = sampler(&data, 4, from, true).unwrap_err().to_string();
        assert!(refused.contains("1 of 12 were found"), "{refused}");
    }
}

#[test]
fn rows_that_do_not_fit_together_are_kept_apart_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = crate::Config { sequence: 24, ..crate::Config::default() };
    let rows = [r#"{"query": "q", "positive": "p"}"#, r#"{"query": "q", "positive": "p", "negative": "n"}"#];
    for (name, row) in ["a", "b"].into_iter().zip(rows) {
        let path = folder.path().join(format!("{name}.jsonl"));
        std::fs::write(&path, row).unwrap();
        config.source.push(Source::new(path.display().to_string()));
    }
    let error = config.open_texts(&Tokenizer::bytes(), |_| false).unwrap_err().to_string();
    assert!(error.contains("have 0 negatives") && error.contains("data.texts.negatives"), "{error}");
    config.texts.batches = BatchesFrom::RoundRobin;
    config.source[1].query_prompt = Some("ask: ".into());
    let data = config.open_texts(&Tokenizer::bytes(), |_| false).unwrap().train;
    let mut sample = Sample::default();
    data.read(1, &mut sample).unwrap();
    assert_eq!(sample.tokens[..8], b"ask: qpn".map(u32::from), "a source has its own prompt");
    config.source[0].weight = Some(1.0);
    config.source[1].weight = Some(1.0);
    let data = config.open_texts(&Tokenizer::bytes(), |_| false).unwrap().train;
    let refused = sampler(&data, 1, BatchesFrom::RoundRobin, false).unwrap_err().to_string();
    assert!(refused.contains("has a weight"), "{refused}");
}

#[test]
fn every_epoch_draws_anew() {
    let line = r#"{"query": "q", "positive": ["p", "r"], "negative": ["a", "b", "c"]}"#;
    let found = samples(&[line], &Config { negatives: Some(1), ..Config::default() }, 8).unwrap();
    let mut drawn = std::collections::BTreeSet::new();
    for epoch in 0..40 {
        let [mut once, mut again] = [Sample::default(), Sample::default()];
        found.read(0, epoch, &mut once).unwrap();
        found.read(0, epoch, &mut again).unwrap();
        assert_eq!(once, again);
        drawn.insert(once.tokens[1..3].to_vec());
    }
    assert_eq!(drawn.len(), 6, "every positive with every negative: {drawn:?}");
}
