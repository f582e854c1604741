//! The program of a model on one rank as the program of each rank of a mesh, also of models with experts.

use crate::common::{bits, built, configured, data, drawn, largest_difference, network};
use planaria_array::Array;
use planaria_comm::threads;
use planaria_layout::{Axis, Layout, Mesh, Placement, Shape};
use planaria_nn::Parallel;
use planaria_nn::models::{Architecture, Network, Run};
use planaria_program::{Captured, Program, Ranks, Spread, pieces, propagate, run, run_tensors, verify};
use planaria_tensor::{Tensor, World, no_grad, trace};
use planaria_train::programs::{Part, Sizes, capture_model};
use std::collections::BTreeMap;

const FORWARD: Sizes = Sizes { batch: 4, length: 5, past: 0 };
const DECODE: Sizes = Sizes { batch: 4, length: 1, past: 3 };

type Given = Vec<(String, Tensor)>;
type Layouts = BTreeMap<String, Layout>;

fn layout(mesh: &Mesh, shape: &[usize], place: impl FnMut(&Axis) -> Placement) -> Layout {
    let placements: Vec<Placement> = mesh.axes().iter().map(place).collect();
    Layout::new(mesh, &Shape::new(shape).unwrap(), &placements).unwrap()
}

/// Parameters as the model's table cuts them; `dp` and `ep` cut the batch.
fn by_the_table(network: &dyn Network, given: &Given, mesh: &Mesh) -> Layouts {
    let own = network.params().into_iter();
    let own = own.map(|param| (param.name().to_string(), param.spec().layout(mesh).unwrap()));
    let cut = |axis: &Axis| match axis.name.as_str() {
        "dp" | "ep" => Placement::shard(0),
        _ => Placement::Replicate,
    };
    own.chain(given.iter().map(|(name, tensor)| (name.clone(), layout(mesh, tensor.shape(), cut)))).collect()
}

/// Everything cut anywhere.
fn by_chance(network: &dyn Network, given: &Given, mesh: &Mesh, mut seed: u64) -> Layouts {
    let mut below = |bound: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((seed >> 33) as usize) % bound
    };
    let own = network.params().into_iter();
    let own = own.map(|param| (param.name().to_string(), param.spec().shape.to_vec()));
    let kinds = own.chain(given.iter().map(|(name, tensor)| (name.clone(), tensor.shape().to_vec())));
    let mut placed = |(name, shape): (String, Vec<usize>)| {
        let place = |_: &Axis| match below(3) {
            0 => Placement::Replicate,
            _ => Placement::shard(below(shape.len())),
        };
        (name, layout(mesh, &shape, place))
    };
    kinds.map(&mut placed).collect()
}

/// How often an op occurs.
fn count(program: &Program, name: &str) -> usize {
    let mut count = 0;
    program.visit(&mut |op| count += usize::from(op.full_name() == name));
    count
}

/// Runs the program of each rank against what dispatch does with the program of one, and gives the whole outputs and how many
/// values move.
fn on_ranks(captured: &Captured, given: &Given, mesh: &Mesh, layouts: &Layouts) -> Vec<(Vec<Array>, usize)> {
    let alone = run(&captured.program, &mut captured.state.clone(), &data(given)).unwrap();
    threads::run(mesh.size(), |comm| {
        let world = World::new(comm);
        let spread = Spread { mesh: mesh.clone(), rank: world.rank(), layouts: layouts.clone() };
        let own = propagate(&captured.program, &spread).unwrap_or_else(|error| panic!("{mesh}: {error}"));
        assert_eq!(verify(&own), [], "{mesh}");
        let held = pieces(&captured.program, &captured.state, &spread, &world).unwrap();
        let place = |(name, tensor): &(String, Tensor)| {
            Tensor::place(tensor.local(), mesh, layouts[name].placements(), &world).unwrap()
        };
        let placed: Vec<Tensor> = given.iter().map(place).collect();
        let ranks = Ranks { mesh: mesh.clone(), world: world.clone() };
        let direct = run_tensors(&captured.program, &held, &placed, Some(&ranks)).unwrap();
        // What moves is said by the program: nothing else does.
        let found = trace::strict(|| run_tensors(&own, &held, &placed, Some(&ranks))).unwrap();
        for ((name, direct), (_, found)) in direct.iter().zip(&found) {
            assert_eq!(direct.layout(), found.layout(), "{mesh} {name}");
            assert_eq!(bits(direct.local()), bits(found.local()), "{mesh} {name}");
        }
        // On whole values nothing has to move.
        let whole = run(&own, &mut captured.state.clone(), &data(given)).unwrap();
        for ((name, whole), (_, alone)) in whole.iter().zip(&alone) {
            assert_eq!(bits(whole.array().unwrap()), bits(alone.array().unwrap()), "{mesh} {name}");
        }
        let outputs = found.iter().map(|(_, found)| found.whole().unwrap()).collect();
        (outputs, count(&own, "planaria.reshard"))
    })
}

/// The same against the program of one rank.
fn check(what: &str, captured: &Captured, given: &Given, mesh: &Mesh, layouts: &Layouts) -> Vec<Array> {
    let alone = run(&captured.program, &mut captured.state.clone(), &data(given)).unwrap();
    let alone: Vec<Array> = alone.iter().map(|(_, datum)| datum.array().unwrap().clone()).collect();
    for (found, moved) in on_ranks(captured, given, mesh, layouts) {
        for (found, alone) in found.iter().zip(&alone) {
            let worst = largest_difference(alone, found);
            assert!(worst < 2e-5, "{what} on {mesh}: {worst}");
        }
        assert!(moved > 0 || mesh.axes().iter().all(|axis| axis.name != "tp"), "{what} on {mesh}");
    }
    alone
}

/// The logits of the model itself on the ranks of a mesh.
fn by_the_model(model: &dyn Architecture, ids: &Array, mesh: &Mesh) -> Vec<Array> {
    threads::run(mesh.size(), |comm| {
        let parallel = Parallel { world: World::new(comm), mesh: mesh.clone(), sequence: false };
        let network = built(model, Some(&parallel));
        no_grad(|| {
            let last = network.forward((&Tensor::new(ids.clone())).into(), &Run::default()).unwrap();
            network.logits(&last.hidden).unwrap().whole().unwrap()
        })
    })
}

#[test]
fn the_program_of_a_rank_is_what_dispatch_does_also_with_experts() {
    for name in ["qwen3", "qwen2-moe", "qwen2-moe-mixed", "qwen3-moe"] {
        let model = configured(name, |_| ());
        let network = built(&*model, None);
        let captured = capture_model(&*network, Part::Forward, &FORWARD).unwrap();
        let given = drawn(&*network, Part::Forward, &FORWARD);
        for mesh in ["dp=2 tp=2", "tp=2", "dp=4", "ep=2 tp=2", "ep=2"] {
            let mesh: Mesh = mesh.parse().unwrap();
            let layouts = by_the_table(&*network, &given, &mesh);
            let alone = check(name, &captured, &given, &mesh, &layouts);
            if mesh.axes().iter().all(|axis| axis.name != "dp") {
                let own = by_the_model(&*model, given[0].1.local(), &mesh);
                let worst = own.iter().map(|own| largest_difference(&alone[0], own)).fold(0.0, f64::max);
                assert!(worst < 2e-5, "{name} on {mesh}: the model itself differs by {worst}");
            }
        }
    }
}

#[test]
fn so_are_a_step_of_decoding_and_gradients() {
    for name in ["qwen3", "qwen2-moe", "qwen3-moe"] {
        let network = network(name);
        for (part, sizes) in [(Part::Decode, &DECODE), (Part::Gradients, &FORWARD)] {
            let captured = capture_model(&*network, part, sizes).unwrap();
            let given = drawn(&*network, part, sizes);
            for mesh in ["dp=2 tp=2", "ep=2 tp=2"] {
                let mesh: Mesh = mesh.parse().unwrap();
                let layouts = by_the_table(&*network, &given, &mesh);
                check(&format!("{name} {part:?}"), &captured, &given, &mesh, &layouts);
            }
        }
    }
}

#[test]
fn parameters_of_experts_may_be_cut_anywhere() {
    for (name, seed) in [("qwen2-moe", 3), ("qwen3-moe", 4), ("qwen2-moe", 5), ("qwen3-moe", 6)] {
        let network = network(name);
        let captured = capture_model(&*network, Part::Forward, &FORWARD).unwrap();
        let given = drawn(&*network, Part::Forward, &FORWARD);
        let mesh: Mesh = ["dp=2 ep=2", "tp=4", "a=2 b=2"][seed % 3].parse().unwrap();
        let layouts = by_chance(&*network, &given, &mesh, seed as u64);
        check(&format!("{name}, layouts {seed}"), &captured, &given, &mesh, &layouts);
    }
}
