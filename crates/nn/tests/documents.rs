//! Documents packed into one row: each is computed as if it were alone.

use crate::common::{Golden, difference};
use planaria_array::random::Key;
use planaria_array::{Array, DType};
use planaria_comm::threads;
use planaria_layout::Mesh;
use planaria_nn::models::{Decoder, DecoderConfig, Network, Recompute, Run};
use planaria_nn::{Module, Parallel};
use planaria_tensor::ops::Documents;
use planaria_tensor::{Tensor, World, no_grad};
use std::collections::BTreeMap;

/// Documents of the first rows of the goldens' tokens.
const STARTS: [&[usize]; 2] = [&[1, 5], &[4]];

struct Packed {
    golden: Golden,
    tokens: Tensor,
    labels: Tensor,
    documents: Documents,
}

type Grads = BTreeMap<String, Array>;

impl Packed {
    /// Labels that cross a border count nothing.
    fn new(name: &str, change: fn(&mut DecoderConfig)) -> Packed {
        let mut golden = Golden::read(name);
        change(&mut golden.config);
        let rows = |name: &str| golden.tensor(name).narrow(0, 0, 2).unwrap();
        let (tokens, labels) = (rows("input_ids"), Tensor::new(rows("labels").local().copy().unwrap()));
        let length = tokens.shape()[1];
        for (row, start) in STARTS.iter().enumerate().flat_map(|(row, s)| s.iter().map(move |s| (row, *s))) {
            let at = labels.narrow(0, row, 1).unwrap().narrow(1, start - 1, 1).unwrap();
            at.local().fill(-100i64).unwrap();
        }
        let documents = Documents::new(STARTS.map(<[usize]>::to_vec).to_vec(), length).unwrap();
        Packed { golden, tokens, labels, documents }
    }

    fn run(&self) -> Run<'static> {
        Run { documents: Some(self.documents.clone()), ..Run::default() }
    }

    /// Logits, and gradients of the sum of losses.
    fn step(&self, model: &Decoder, run: &Run<'_>) -> (Array, Grads) {
        step(model, &self.tokens, &self.labels, run)
    }
}

fn step(model: &Decoder, tokens: &Tensor, labels: &Tensor, run: &Run<'_>) -> (Array, Grads) {
    let last = model.forward(tokens, run).unwrap();
    let logits = no_grad(|| model.logits(&last.hidden)).unwrap().whole().unwrap();
    model.loss(&last, labels).unwrap().sum.backward().unwrap();
    let grad = |param: &planaria_nn::Param| {
        let grad = param.take_grad().unwrap().map(|grad| grad.whole().unwrap());
        (
            param.name().to_string(),
            grad.unwrap_or_else(|| param.leaf().whole().unwrap().zeros_like().unwrap()),
        )
    };
    (logits, model.params().iter().map(grad).collect())
}

#[test]
fn a_packed_document_is_computed_as_if_alone() {
    for name in ["llama", "qwen2", "qwen2-window", "qwen2-moe", "gemma2", "gemma3"] {
        for (dtype, bound) in [(DType::F32, 1e-6), (DType::F64, 1e-13)] {
            let packed = Packed::new(name, |_| {});
            let model = packed.golden.model(None, dtype);
            let (logits, grads) = packed.step(&model, &packed.run());
            let mut sums: Option<Grads> = None;
            for row in 0..2 {
                for range in packed.documents.of_row(row) {
                    let cut = |t: &Tensor| {
                        t.narrow(0, row, 1).unwrap().narrow(1, range.start, range.len()).unwrap()
                    };
                    let alone = step(&model, &cut(&packed.tokens), &cut(&packed.labels), &Run::default());
                    let part = cut(&Tensor::new(logits.clone()));
                    let worst = difference(part.local(), &alone.0);
                    assert!(worst < bound, "{name} {dtype} row {row} {range:?}: {worst}");
                    sums = Some(match sums {
                        None => alone.1,
                        Some(sums) => {
                            let add = |(name, sum): (String, Array)| {
                                let sum = sum.add(&alone.1[&name]).unwrap();
                                (name, sum)
                            };
                            sums.into_iter().map(add).collect()
                        }
                    });
                }
            }
            for (param, expected) in sums.unwrap() {
                let worst = difference(&grads[&param], &expected);
                assert!(worst < 4.0 * bound, "{name} {dtype} {param}: {worst}");
            }
            // Otherwise they do see each other.
            let (joined, _) = packed.step(&model, &Run::default());
            assert!(difference(&joined, &logits) > 1e-3, "{name}");
        }
    }
}

#[test]
fn documents_stay_apart_on_every_mesh_and_when_computed_again() {
    let meshes = [
        ("qwen2", &["tp=2", "tp=4"][..]),
        ("qwen2-moe", &["ep=2", "ep=2 tp=2"]),
        ("gemma2", &["tp=2", "ep=2 tp=2"]),
    ];
    for (name, meshes) in meshes {
        let packed = Packed::new(name, |config| config.attention_dropout = 0.2);
        let run = Run { train: Some(Key::new(1, 2)), ..packed.run() };
        let alone = packed.step(&packed.golden.model(None, DType::F64), &run);
        for (mesh, sequence) in meshes.iter().flat_map(|mesh| [(mesh, false), (mesh, true)]) {
            let (packed, mesh): (_, Mesh) = (&packed, mesh.parse().unwrap());
            threads::run(mesh.size(), |comm| {
                let parallel = Parallel { world: World::new(comm), mesh: mesh.clone(), sequence };
                let model = packed.golden.model(Some(&parallel), DType::F64);
                let again = Run { recompute: Recompute::Full, ..run.clone() };
                let (logits, grads) = packed.step(&model, &again);
                assert!(difference(&logits, &alone.0) < 1e-12, "{name} {mesh}");
                for (param, expected) in &alone.1 {
                    assert!(difference(&grads[param], expected) < 1e-12, "{name} {mesh} {param}");
                }
            });
        }
    }
}

#[test]
fn documents_do_not_go_on_from_a_cache() {
    let packed = Packed::new("llama", |_| {});
    let model = packed.golden.model(None, DType::F32);
    let cache = model.cache(64);
    let run = Run { cache: Some(&cache), ..packed.run() };
    let message = model.forward(&packed.tokens, &run).unwrap_err().to_string();
    assert!(message.contains("cannot continue from a cache"), "{message}");
}
