//! Sources, token files, packing, order and loading, put together.

use super::*;
use crate::geometry::{Batching, Geometry};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

fn write(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn config(paths: &[PathBuf], sequence: usize, packing: Packing) -> Config {
    let source = paths.iter().map(|p| Source::new(p.display().to_string())).collect();
    Config { sequence, packing, source, ..Config::default() }
}

fn open(config: &Config) -> Result<Data> {
    config.open(&config.open_tokenizer()?)
}

fn samples(dataset: &dyn Dataset) -> Vec<Sample> {
    let read = |i| {
        let mut out = Sample::default();
        dataset.read(i, &mut out).unwrap();
        out
    };
    (0..dataset.len()).map(read).collect()
}

/// Samples that are only their number.
#[derive(Debug)]
struct Numbers {
    parts: Vec<(u64, Option<f64>)>,
    bad: Option<u64>,
}

impl Dataset for Numbers {
    fn len(&self) -> u64 {
        self.parts.iter().map(|p| p.0).sum()
    }
    fn sequence(&self) -> usize {
        1
    }
    fn read(&self, index: u64, out: &mut Sample) -> Result<()> {
        assert_ne!(self.bad, Some(u64::MAX), "asked to panic");
        if self.bad == Some(index) {
            return Err(Error::OutOfRange { what: "sample", index, len: 0 });
        }
        (out.tokens, out.labels) = (vec![index as u32; 2], vec![index as i64]);
        Ok(())
    }
    fn parts(&self) -> Vec<Part> {
        let part = |&(samples, weight)| Part { name: "numbers".into(), samples, weight };
        self.parts.iter().map(part).collect()
    }
    fn fingerprint(&self) -> u32 {
        self.len() as u32
    }
}

fn numbers(n: u64) -> Arc<Numbers> {
    Arc::new(Numbers { parts: vec![(n, None)], bad: None })
}

#[test]
fn text_and_jsonl_become_documents_with_an_end() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a.txt", "hello");
    write(folder.path(), "b.jsonl", "{\"text\":\"one\"}\n\n{\"n\":1,\"text\":\"\"}\r\n{\"text\":\"two\"}");
    write(folder.path(), "empty.txt", "");
    let out = folder.path().join("all.tokens");
    let tokenizer = Tokenizer::bytes();
    let all = [Source::new(folder.path().display().to_string())];
    let header = pretokenize(&all, &tokenizer, &out).unwrap();
    assert_eq!((header.width, header.vocab, header.tokens, header.documents), (2, 259, 14, 3));
    let file = TokenFile::open(&out).unwrap();
    file.verify().unwrap();
    let tokens = Tokens::open(&out, 259).unwrap();
    let mut read = Vec::new();
    tokens.read(0, tokens.len(), &mut read).unwrap();
    assert_eq!(tokenizer.decode_with_special(&read).unwrap(), "hello<|eos|>one<|eos|>two<|eos|>");
    assert_eq!((0..4).map(|d| tokens.start(d)).collect::<Vec<_>>(), [0, 6, 10, 14]);
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 4, "no temporary file is left: {names:?}");
    let again = pretokenize(&all, &tokenizer, &folder.path().join("x.tokens")).unwrap_err().to_string();
    assert!(again.contains("it holds tokens already"), "{again}");
    let texts = [Source::new(folder.path().join("*.txt").display().to_string())];
    let over = pretokenize(&texts, &tokenizer, &folder.path().join("a.txt")).unwrap_err().to_string();
    assert!(over.contains("a.txt' is to be written, and '") && over.contains("*.txt' reads it"), "{over}");
    assert_eq!(fs::read(folder.path().join("a.txt")).unwrap(), b"hello");
}

#[test]
fn wide_vocabularies_take_four_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wide.tokens");
    let mut writer = TokenWriter::create(&path, 100_000, 0).unwrap();
    writer.push(&[99_999, 5, 70_000]).unwrap();
    let refused = writer.push(&[1, 100_000]).unwrap_err().to_string();
    assert!(
        refused.contains("token 4 of") && refused.contains("is 100000, outside the vocabulary"),
        "{refused}"
    );
    assert_eq!(writer.finish().unwrap().width, 4);
    let tokens = Tokens::open(&path, 100_000).unwrap();
    let mut read = Vec::new();
    tokens.read(0, 3, &mut read).unwrap();
    assert_eq!(read, [99_999, 5, 70_000]);
    let small = Tokens::open(&path, 50_000).unwrap_err().to_string();
    assert!(small.contains("made with a vocabulary of 100000 tokens, the tokenizer of this run has 50000"));
    assert!(tokens.read(2, 4, &mut read).is_err());
}

#[test]
fn every_damage_to_a_token_file_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tokens");
    let mut writer = TokenWriter::create(&path, 300, 7).unwrap();
    for document in [&[1, 2, 3][..], &[4, 5], &[6]] {
        writer.push(document).unwrap();
    }
    writer.finish().unwrap();
    let good = fs::read(&path).unwrap();
    for cut in 0..good.len() {
        let short = write(folder.path(), "cut.tokens", &good[..cut]);
        assert!(matches!(TokenFile::open(&short), Err(Error::TokenFile { .. })), "cut at {cut}");
    }
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 0x41;
        let bad = write(folder.path(), "bad.tokens", &bytes);
        let noticed = TokenFile::open(&bad).and_then(|file| file.verify());
        assert!(noticed.is_err(), "byte {at}");
        // Whoever does not verify first gets errors or other tokens, never a panic.
        if let Ok(tokens) = Tokens::open(&bad, 300) {
            for packing in [Packing::Masked, Packing::Documents] {
                let packed = Packed::new(Tokens::open(&bad, 300).unwrap(), 2, packing, 0);
                if let Ok(packed) = packed.map(|packed| packed.with_borders(Borders::Separate)) {
                    (0..packed.len()).for_each(|i| drop(packed.read(i, &mut Sample::default())));
                }
            }
            let _ = tokens.read(0, tokens.len(), &mut Vec::new());
        }
    }
}

#[test]
fn a_writer_that_is_stopped_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tokens");
    let mut writer = TokenWriter::create(&path, 300, 0).unwrap();
    writer.push(&[1, 2, 3]).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "two temporary files, none of that name");
    drop(writer);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let missing = TokenWriter::create(&folder.path().join("no/a.tokens"), 300, 0).unwrap_err().to_string();
    assert!(missing.starts_with("cannot create '"), "{missing}");
    // An old file stays whole until a new one is complete.
    fs::write(&path, "old").unwrap();
    let bad = write(folder.path(), "bad.jsonl", "{\"text\":\"x\"}\n{");
    assert!(pretokenize(&[Source::new(bad.display().to_string())], &Tokenizer::bytes(), &path).is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
}

#[test]
fn many_small_documents_are_tokenised_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let lines: String = (0..3000).map(|i| format!("{{\"text\":\"{}{i}\"}}\n", "x".repeat(2000))).collect();
    let path = write(folder.path(), "many.jsonl", lines);
    let out = folder.path().join("many.tokens");
    let header = pretokenize(&[Source::new(path.display().to_string())], &Tokenizer::bytes(), &out).unwrap();
    assert_eq!(header.documents, 3000, "more than one batch");
    let tokens = Tokens::open(&out, 259).unwrap();
    for document in [0, 1999, 2097, 2098, 2999] {
        let mut read = Vec::new();
        tokens.read(tokens.start(document), tokens.start(document + 1), &mut read).unwrap();
        let text = Tokenizer::bytes().decode(&read[2000..]).unwrap();
        assert_eq!(text, document.to_string());
    }
}

#[test]
fn bad_text_names_the_file_and_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let fails = |name: &str, bytes: &[u8]| {
        let path = write(folder.path(), name, bytes);
        let error = open(&config(&[path], 4, Packing::Stream)).unwrap_err();
        assert!(error.hint().is_some(), "{error}");
        error.to_string().replace(&folder.path().display().to_string(), "D")
    };
    assert_eq!(fails("a.txt", b"ok \xff"), "'D/a.txt' is not UTF-8 text at byte 3");
    assert_eq!(fails("a.jsonl", b"{\"text\":\"\xc3\"}"), "'D/a.jsonl' is not UTF-8 text at byte 9 of line 1");
    assert_eq!(fails("b.jsonl", b"{\"text\":\"x\"}\n[1]\n"), "D/b.jsonl:2: the line is not a JSON object");
    assert_eq!(
        fails("c.jsonl", b"{\"body\":\"x\",\"id\":3}"),
        "D/c.jsonl:1: there is no field 'text'; the line has 'body', 'id'"
    );
    assert_eq!(fails("d.jsonl", b"\n{\"text\":7}"), "D/d.jsonl:2: the field 'text' is not a string");
    assert!(fails("e.jsonl", b"{\"text\":").starts_with("D/e.jsonl:1: not valid JSON: EOF"));
    assert!(fails("f.jsonl", "[".repeat(5000).as_bytes()).contains("recursion limit"));
    assert_eq!(fails("g.txt", b""), "'D/g.txt' has 0 tokens, one sample needs 5");
    assert_eq!(fails("h.txt", b"abc"), "'D/h.txt' has 4 tokens, one sample needs 5");
    let none = open(&config(&[folder.path().join("*.csv")], 4, Packing::Stream)).unwrap_err();
    assert!(none.to_string().starts_with("no file matches"));
}

#[test]
fn a_stream_is_cut_so_that_every_token_is_a_label_once() {
    let folder = tempfile::tempdir().unwrap();
    let text: String = (0..100).map(|i| char::from(b'!' + i % 90)).collect();
    let path = write(folder.path(), "a.txt", &text);
    let data = open(&config(&[path], 7, Packing::Stream)).unwrap();
    let all = samples(&*data.train);
    assert_eq!(all.len(), 14, "101 tokens, 100 labels");
    let labels: Vec<u8> = all.iter().flat_map(|s| &s.labels).map(|&l| l as u8).collect();
    assert_eq!(labels, &text.as_bytes()[1..99]);
    for sample in &all {
        assert!(sample.tokens[1..].iter().map(|&t| i64::from(t)).eq(sample.labels.iter().copied()));
    }
    assert!(data.train.read(14, &mut Sample::default()).is_err());
}

#[test]
fn borders_of_documents_are_not_learnt_when_masked() {
    let folder = tempfile::tempdir().unwrap();
    let lines = "{\"text\":\"abc\"}\n{\"text\":\"defgh\"}\n{\"text\":\"i\"}\n{\"text\":\"jk\"}\n";
    let path = write(folder.path(), "a.jsonl", lines);
    let show = |packing, documents| {
        let config = Config { documents, ..config(std::slice::from_ref(&path), 5, packing) };
        let data = open(&config).unwrap();
        let text = |sample: Sample| {
            let one = |t: i64| match t {
                IGNORED => '_',
                257 => '.',
                258 => '#',
                byte => char::from(byte as u8),
            };
            let tokens: String = sample.tokens.iter().map(|&t| one(i64::from(t))).collect();
            let labels = sample.labels.iter().map(|&l| one(l)).collect::<String>();
            format!("{tokens} {labels} {:?}", sample.starts).trim_end_matches(" []").to_string()
        };
        samples(&*data.train).into_iter().map(text).collect::<Vec<_>>()
    };
    let (joined, separate) = (Borders::Joined, Borders::Separate);
    assert_eq!(show(Packing::Stream, joined), ["abc.de bc.de", "efgh.i fgh.i"]);
    assert_eq!(show(Packing::Masked, joined), ["abc.de bc._e", "efgh.i fgh._"]);
    assert_eq!(show(Packing::Documents, joined), ["abc.## bc.__", "defgh. efgh.", "i.jk.# ._k._"]);
    // Where documents are separate their starts are known, padding among them.
    for packing in [Packing::Stream, Packing::Masked] {
        assert_eq!(show(packing, separate), ["abc.de bc._e [4]", "efgh.i fgh._"]);
    }
    let packed = ["abc.## bc.__ [4]", "defgh. efgh.", "i.jk.# ._k._ [2]"];
    assert_eq!(show(Packing::Documents, separate), packed);
}

#[test]
fn long_documents_are_cut_without_losing_a_label() {
    let folder = tempfile::tempdir().unwrap();
    let text: String = (0..23).map(|i| char::from(b'a' + i)).collect();
    let path = write(folder.path(), "a.txt", &text);
    let data = open(&config(&[path], 5, Packing::Documents)).unwrap();
    let labels: Vec<i64> = samples(&*data.train).iter().flat_map(|s| s.labels.clone()).collect();
    let labels: Vec<i64> = labels.into_iter().filter(|&l| l != IGNORED).collect();
    assert!(labels[..22].iter().map(|&l| l as u8).eq(text.bytes().skip(1)));
    assert_eq!(labels[22..], [257]);
}

#[test]
fn held_out_samples_are_never_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    let text: String = (0..400).map(|i| format!("{i:04}")).collect();
    let paths = [write(folder.path(), "a.txt", &text), write(folder.path(), "b.txt", text.replace('0', "z"))];
    let mut config = config(&paths, 8, Packing::Stream);
    let whole = samples(&*open(&config).unwrap().train);
    config.held_out = 0.1;
    let data = open(&config).unwrap();
    let (train, eval) = (samples(&*data.train), samples(&*data.eval.unwrap()));
    assert_eq!((train.len(), eval.len()), (whole.len() - eval.len(), 40));
    let mut both: Vec<_> = train.iter().chain(&eval).map(|s| s.tokens.clone()).collect();
    let mut whole: Vec<_> = whole.iter().map(|s| s.tokens.clone()).collect();
    both.sort();
    whole.sort();
    assert_eq!(both, whole);
    config.held_out = 1.0;
    assert!(open(&config).unwrap_err().to_string().contains("not including, 1"));
    config.held_out = 0.1;
    config.eval = config.source.clone();
    assert!(open(&config).unwrap_err().to_string().contains("either a share to hold out or"));
    config.eval.clear();
    config.prefetch = usize::MAX;
    assert!(
        open(&config).unwrap_err().to_string().contains("data.prefetch = 18446744073709551615: at most 1024")
    );
    config.prefetch = 2;
    config.sequence = usize::MAX;
    assert!(open(&config).unwrap_err().to_string().contains("1 to 16777216 tokens"));
    config.sequence = 1600;
    config.held_out = 0.5;
    assert!(open(&config).unwrap_err().to_string().contains("too few samples to be divided"));
}

#[test]
fn a_cache_is_written_once_and_renewed_with_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a.txt", "some text to keep");
    let mut config = config(std::slice::from_ref(&path), 4, Packing::Stream);
    let plain = open(&config).unwrap();
    config.cache = Some(folder.path().join("cache"));
    let files = || fs::read_dir(folder.path().join("cache")).unwrap().count();
    let cached = open(&config).unwrap();
    assert_eq!(samples(&*cached.train), samples(&*plain.train));
    open(&config).unwrap();
    assert_eq!(files(), 1);
    write(folder.path(), "a.txt", "some other text to keep");
    let renewed = open(&config).unwrap();
    assert_eq!(files(), 2);
    assert_ne!(renewed.train.fingerprint(), cached.train.fingerprint());
    let expected = samples(&*renewed.train);
    // The maps go first: a file must not change under one.
    drop((cached, renewed));
    for entry in fs::read_dir(folder.path().join("cache")).unwrap() {
        fs::write(entry.unwrap().path(), "cut").unwrap();
    }
    assert_eq!(samples(&*open(&config).unwrap().train), expected, "a damaged cache is written again");
}

#[test]
fn a_token_file_of_another_tokenizer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = write(folder.path(), "a.txt", "cut it anywhere <|tool|> every piece grows back");
    let out = folder.path().join("a.tokens");
    let source = Source::new(text.display().to_string());
    let mut plain = Tokenizer::bytes();
    plain.set_special_text(SpecialText::Plain);
    pretokenize(std::slice::from_ref(&source), &plain, &out).unwrap();
    let with = |special: &[&str], parse: bool| Config {
        special_tokens: special.iter().map(ToString::to_string).collect(),
        parse_special: parse,
        ..config(std::slice::from_ref(&out), 4, Packing::default())
    };
    for (special, parse) in [(&[][..], false), (&[], true), (&["<|tool|>"], true)] {
        assert!(open(&with(special, parse)).is_ok(), "{special:?} {parse}");
    }
    // The same size and other tokens.
    let mut one = Tokenizer::bytes();
    one.add_token("<|one|>", TokenKind::Special).unwrap();
    pretokenize(&[source], &one, &out).unwrap();
    assert!(open(&with(&["<|one|>"], false)).is_ok());
    let error = open(&with(&["<|two|>"], false)).unwrap_err();
    assert!(matches!(error, Error::OtherTokenizer { .. }), "{error}");
    assert!(error.to_string().contains("a.tokens") && error.hint().is_some());
    // A file that does not say what made it is taken.
    let mut writer = TokenWriter::create(&out, 259, 0).unwrap();
    writer.push(&[1, 2, 3, 4, 5, 6, 257]).unwrap();
    writer.finish().unwrap();
    assert!(open(&with(&["<|two|>"], false)).is_ok());
}

#[test]
fn data_is_the_same_whether_it_is_held_or_mapped() {
    let folder = tempfile::tempdir().unwrap();
    for (name, words) in [("a.txt", "odd"), ("b.txt", "even four"), ("c.txt", "every piece grows back")] {
        write(folder.path(), name, words);
    }
    let held = config(&[folder.path().join("*.txt")], 4, Packing::default());
    let mapped = Config { cache: Some(folder.path().join("cache")), ..held.clone() };
    let [held, mapped] = [held, mapped].map(|config| open(&config).unwrap().train);
    assert_eq!(held.fingerprint(), mapped.fingerprint());
    assert_eq!(samples(&*held), samples(&*mapped));
}

#[test]
fn each_epoch_sees_every_sample_once_in_another_order() {
    let data = numbers(1000);
    let sampler = Sampler::new(&*data, 9, Order::Shuffled).unwrap();
    let epoch = |e: u64| (e * 1000..(e + 1) * 1000).map(|p| sampler.place(p).unwrap()).collect::<Vec<_>>();
    let (first, second) = (epoch(0), epoch(1));
    assert!(first.iter().all(|p| p.epoch == 0) && second.iter().all(|p| p.epoch == 1));
    let mut indices: Vec<u64> = first.iter().map(|p| p.index).collect();
    assert!(first.iter().zip(&second).filter(|(a, b)| a.index == b.index).count() < 20);
    indices.sort_unstable();
    assert!(indices.into_iter().eq(0..1000));
    let other = Sampler::new(&*data, 10, Order::Shuffled).unwrap();
    assert!(
        (0..1000).filter(|&p| other.place(p).unwrap().index == sampler.place(p).unwrap().index).count() < 20
    );
    let straight = Sampler::new(&*data, 9, Order::Sequential).unwrap();
    assert!((0..2000).all(|p| straight.place(p).unwrap().index == p % 1000));
}

#[test]
fn weights_decide_how_often_a_source_is_seen() {
    let parts = vec![(10, Some(3.0)), (1000, Some(1.0))];
    let data = Numbers { parts, bad: None };
    let sampler = Sampler::new(&data, 1, Order::Shuffled).unwrap();
    let mut seen = vec![0u32; 1010];
    let mut parts = [0u32; 2];
    for position in 0..4000 {
        let place = sampler.place(position).unwrap();
        assert_eq!(place.part, usize::from(place.index >= 10));
        parts[place.part] += 1;
        seen[place.index as usize] += 1;
    }
    assert_eq!(parts, [3000, 1000]);
    assert!(seen[..10].iter().all(|&n| n == 300) && seen[10..].iter().all(|&n| n == 1), "no sample twice");
    let mixed = Numbers { parts: vec![(5, None), (5, Some(1.0))], bad: None };
    let refused = Sampler::new(&mixed, 1, Order::Shuffled).unwrap_err().to_string();
    assert!(refused.contains("give every source a weight, or none"), "{refused}");
}

#[test]
fn a_changed_dataset_does_not_go_on_silently() {
    let sampler = |n, seed| Sampler::new(&*numbers(n), seed, Order::Shuffled).unwrap();
    let saved = sampler(100, 1).state().clone();
    let text = serde_json::to_string(&saved).unwrap();
    let saved: SamplerState = serde_json::from_str(&text).unwrap();
    sampler(100, 1).check(&saved).unwrap();
    let refused = sampler(101, 1).check(&saved).unwrap_err().to_string();
    assert!(refused.ends_with("the number of samples was 100, now 101"), "{refused}");
    assert!(
        sampler(100, 2).check(&saved).unwrap_err().to_string().contains("seed of the order was 1, now 2")
    );
}

#[test]
fn an_error_is_delivered_in_its_place_and_ends_the_row() {
    let share = Share { start: 0, micro_batch: 2, accumulation: 1, last_batch: 2, rank: 0, ranks: 1 };
    let data = Arc::new(Numbers { parts: vec![(10, None)], bad: Some(5) });
    let sampler = Sampler::new(&*data, 0, Order::Sequential).unwrap();
    let mut loader = Loader::start(data, sampler.clone(), share, LoaderOptions::default()).unwrap();
    assert!(loader.next().unwrap().is_ok() && loader.next().unwrap().is_ok());
    assert!(loader.next().unwrap().unwrap_err().to_string().contains("sample 5"));
    assert!(loader.next().is_none() && loader.next().is_none());
    let panics = Arc::new(Numbers { parts: vec![(10, None)], bad: Some(u64::MAX) });
    let mut loader = Loader::start(panics, sampler, share, LoaderOptions::default()).unwrap();
    let stopped = loader.next().unwrap().unwrap_err().to_string();
    assert!(
        stopped.starts_with("the data loader stopped") && stopped.contains("asked to panic"),
        "{stopped}"
    );
    assert!(loader.next().is_none());
}

#[test]
fn a_loader_reads_only_a_little_ahead_and_ends_when_dropped() {
    #[derive(Debug)]
    struct Counted(Numbers, std::sync::atomic::AtomicU64);
    impl Dataset for Counted {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn sequence(&self) -> usize {
            1
        }
        fn read(&self, index: u64, out: &mut Sample) -> Result<()> {
            self.1.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            self.0.read(index, out)
        }
        fn parts(&self) -> Vec<Part> {
            self.0.parts()
        }
        fn fingerprint(&self) -> u32 {
            0
        }
    }
    let data = Arc::new(Counted(Numbers { parts: vec![(1000, None)], bad: None }, 0.into()));
    let sampler = Sampler::new(&*data, 0, Order::Shuffled).unwrap();
    let share = Share { start: 0, micro_batch: 1, accumulation: 4, last_batch: 1, rank: 1, ranks: 2 };
    let options = LoaderOptions { prefetch: 3, steps: None };
    let mut loader = Loader::start(data.clone(), sampler, share, options).unwrap();
    loader.next().unwrap().unwrap();
    std::thread::sleep(Duration::from_millis(30));
    let read = data.1.load(std::sync::atomic::Ordering::SeqCst);
    assert!((1..=5).contains(&read), "one given, three wait, one in hand: {read}");
    drop(loader);
    assert_eq!(Arc::strong_count(&data), 1, "the thread is gone");
}

/// How a stretch of training was run: data ranks, micro-batch, accumulation, steps.
type Stretch = (u64, u64, u64, u64);

/// Positions and samples that all ranks of a stretch see, in the order of the micro-batches.
fn consumed(data: &Arc<Numbers>, start: u64, (ranks, micro_batch, accumulation, steps): Stretch) -> Vec<i64> {
    let batching = Batching {
        data_ranks: Some(ranks),
        micro_batch: Some(micro_batch),
        accumulation: Some(accumulation),
        ..Batching::default()
    };
    let geometry = Geometry::derive(&batching).unwrap();
    let mut out = vec![-1; (steps * geometry.global_batch) as usize];
    for rank in 0..ranks {
        let sampler = Sampler::new(&**data, 3, Order::Shuffled).unwrap();
        let options = LoaderOptions { prefetch: 1, steps: Some(steps) };
        let loader =
            Loader::start(data.clone(), sampler, Share::new(&geometry, rank, start), options).unwrap();
        for batch in loader.map(Result::unwrap) {
            for (position, label) in batch.positions.zip(batch.labels.to_vec::<i64>().unwrap()) {
                let place = &mut out[(position - start) as usize];
                assert_eq!(*place, -1, "position {position} twice");
                *place = label;
            }
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_split_sees_the_same_samples_in_the_same_order(
        n in 1u64..60,
        stretches in prop::collection::vec((1u64..4, 1u64..4, 1u64..4, 1u64..4), 1..5),
    ) {
        let data = numbers(n);
        let mut position = 0;
        let mut seen = Vec::new();
        for stretch in stretches {
            let part = consumed(&data, position, stretch);
            position += part.len() as u64;
            seen.extend(part);
        }
        let whole = consumed(&data, 0, (1, 1, 1, position));
        prop_assert_eq!(seen, whole);
    }
}
