//! Layers that the models do not use, and positions given one by one.

use crate::common::{Golden, difference};
use planaria_array::{Array, DType};
use planaria_comm::threads;
use planaria_layout::{Mesh, Shape};
use planaria_nn::layers::{Embedding, LayerNorm, Mlp, Parts, Positions, RmsNorm};
use planaria_nn::models::{Network, Run};
use planaria_nn::{Cut, Init, Lanes, Module, Parallel, ParamKind, ParamSpec, Start};
use planaria_tensor::{Tensor, World, no_grad};

fn spec(name: &str, shape: &[usize], kind: ParamKind, tp: Cut) -> ParamSpec {
    let start = Start::Normal { std: 0.5 };
    let shape = Shape::new(shape).unwrap();
    let name = name.to_string();
    let role = planaria_nn::Role::Own;
    ParamSpec { name, shape, kind, start, tp, ep: None, tied: None, block: None, dtype: None, role }
}

/// A layer norm and a plain MLP, as models with biases everywhere have them.
fn table() -> Vec<ParamSpec> {
    vec![
        spec("norm.weight", &[6], ParamKind::Norm, Cut::Whole),
        spec("norm.bias", &[6], ParamKind::Bias, Cut::Whole),
        spec("up.weight", &[7, 6], ParamKind::Matrix, Cut::Dim(0)),
        spec("up.bias", &[7], ParamKind::Bias, Cut::Dim(0)),
        spec("down.weight", &[6, 7], ParamKind::Matrix, Cut::Dim(1)),
        spec("down.bias", &[6], ParamKind::Bias, Cut::Whole),
    ]
}

/// The result and all gradients of its squares.
fn run(parallel: Option<&Parallel>) -> Vec<Array> {
    let parts =
        Parts::new(table(), &Init { seed: 2, dtype: DType::F64, ..Init::default() }, parallel).unwrap();
    let norm = parts.layer_norm("norm", 1e-5).unwrap();
    let lanes = Lanes::new(parallel);
    let mlp =
        Mlp { up: parts.linear("up").unwrap(), down: parts.linear("down").unwrap(), lanes: lanes.clone() };
    assert!(parts.take("up.weight").unwrap_err().to_string().contains("no parameter `up.weight`"));
    let values: Vec<f64> = (0..60).map(|i| f64::from(i * 37 % 19) / 7.0 - 1.0).collect();
    let x = lanes.residual(&Tensor::from_slice(&values, &[2, 5, 6]).unwrap()).unwrap();
    let y = mlp.forward(&norm.forward(&x).unwrap()).unwrap();
    y.square().unwrap().sum(&[], planaria_tensor::Keep::No).unwrap().backward().unwrap();
    let mut all = vec![y.whole().unwrap()];
    let params = [norm.params(), mlp.params()].concat();
    all.extend(params.iter().map(|param| param.take_grad().unwrap().unwrap().whole().unwrap()));
    all
}

#[test]
fn layer_norm_and_gelu_mlp_are_the_same_on_any_mesh() {
    let alone = run(None);
    assert_eq!(alone.len(), 7);
    for sequence in [false, true] {
        let mesh: Mesh = "tp=2".parse().unwrap();
        threads::run(2, |comm| {
            let parallel = Parallel { world: World::new(comm), mesh: mesh.clone(), sequence };
            for (found, expected) in run(Some(&parallel)).iter().zip(&alone) {
                assert!(difference(found, expected) < 1e-13);
            }
        });
    }
}

#[test]
fn positions_may_be_given_one_by_one() {
    let golden = Golden::read("qwen2");
    let logits = |parallel: Option<&Parallel>, positions: Positions| {
        let model = golden.model(parallel, DType::F64);
        let run = Run { positions, ..Run::default() };
        no_grad(|| {
            let last = model.forward(golden.tensor("input_ids"), &run).unwrap();
            model.logits(&last.hidden).unwrap().whole().unwrap()
        })
    };
    let ids = |shape: &[usize], of: fn(i64) -> i64| {
        let values: Vec<i64> = (0..shape.iter().product::<usize>() as i64).map(of).collect();
        Positions::Ids { ids: Tensor::from_slice(&values, shape).unwrap(), end: 40 }
    };
    let counted = logits(None, Positions::From(0));
    assert_eq!(difference(&logits(None, ids(&[11], |i| i)), &counted), 0.0);
    assert_eq!(difference(&logits(None, ids(&[3, 11], |i| i % 11)), &counted), 0.0);
    // Only distances matter.
    assert!(difference(&logits(None, Positions::From(20)), &counted) < 1e-5);
    let other = logits(None, ids(&[3, 11], |i| i % 5));
    assert!(difference(&other, &counted) > 1e-3);
    let mesh: Mesh = "ep=2 tp=2".parse().unwrap();
    threads::run(4, |comm| {
        let parallel = Parallel { world: World::new(comm), mesh: mesh.clone(), sequence: true };
        let found = logits(Some(&parallel), ids(&[3, 11], |i| i % 5));
        assert!(difference(&found, &other) < 1e-12);
    });
}

/// A vocabulary of two on four ranks leaves two of them without rows; their gradients are there nevertheless.
#[test]
fn a_cut_table_gives_each_rank_the_gradient_of_its_own_rows() {
    for vocabulary in [2usize, 9] {
        let run = |parallel: Option<&Parallel>| {
            let table = vec![spec("e.weight", &[vocabulary, 3], ParamKind::Embedding, Cut::Dim(0))];
            let parts =
                Parts::new(table, &Init { seed: 2, dtype: DType::F64, ..Init::default() }, parallel).unwrap();
            let (embed, lanes) = (parts.embedding("e").unwrap(), Lanes::new(parallel));
            let ids: Vec<i64> = (0..10).map(|i| i * 5 % vocabulary as i64).collect();
            let ids = lanes.batch(&Tensor::from_slice(&ids, &[2, 5]).unwrap()).unwrap();
            let y = lanes.out_of_rows(&embed.forward(&ids).unwrap()).unwrap();
            y.square().unwrap().sum(&[], planaria_tensor::Keep::No).unwrap().backward().unwrap();
            let grad = embed.weight.take_grad().unwrap().unwrap();
            [y.whole().unwrap(), grad.whole().unwrap()]
        };
        let alone = run(None);
        for mesh in ["tp=4", "ep=2 tp=2"] {
            let mesh: Mesh = mesh.parse().unwrap();
            threads::run(4, |comm| {
                let parallel = Parallel { world: World::new(comm), mesh: mesh.clone(), sequence: true };
                for (found, expected) in run(Some(&parallel)).iter().zip(&alone) {
                    assert!(difference(found, expected) < 1e-14, "{vocabulary} on {mesh}");
                }
            });
        }
    }
}

#[test]
fn layers_of_their_own_are_what_their_formulas_say() {
    let init = Init { seed: 3, dtype: DType::F64, ..Init::default() };
    let row = [1.0, -2.0, 4.0, 0.5];
    let x = Tensor::new(Array::from_slice(&row, &[1, 4]).unwrap());
    let values = |y: Tensor| y.whole().unwrap().to_vec::<f64>().unwrap();
    let near = |found: Vec<f64>, expected: [f64; 4]| {
        let far = found.iter().zip(expected).any(|(a, b)| (a - b).abs() > 1e-12);
        assert!(!far, "{found:?} is not {expected:?}");
    };
    let mean = row.iter().sum::<f64>() / 4.0;
    let variance = row.map(|v| (v - mean).powi(2)).iter().sum::<f64>() / 4.0;
    let norm = LayerNorm::new("norm", 4, &init).unwrap();
    near(values(norm.forward(&x).unwrap()), row.map(|v| (v - mean) / (variance + 1e-5).sqrt()));
    let square = row.map(|v| v * v).iter().sum::<f64>() / 4.0;
    let norm = RmsNorm::new("norm", 4, &init).unwrap();
    near(values(norm.forward(&x).unwrap()), row.map(|v| v / (square + 1e-6).sqrt()));
    let table = Embedding::new("tokens", 3, 4, &init).unwrap();
    let ids = Tensor::new(Array::from_slice(&[2i64, 0], &[2]).unwrap());
    let (rows, all) = (values(table.forward(&ids).unwrap()), values(table.weight.value().unwrap()));
    assert_eq!(rows, [&all[8..], &all[..4]].concat());
    assert!(all.iter().any(|value| value.abs() > 0.1), "{all:?}");
}
