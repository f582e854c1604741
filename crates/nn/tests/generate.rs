//! Generation: the cached step equals the whole forward, on one rank and on several.

mod common;

use common::Golden;
use planaria_array::DType;
use planaria_array::random::Key;
use planaria_comm::threads;
use planaria_layout::Mesh;
use planaria_nn::Parallel;
use planaria_nn::generate::{Choice, Generator, Options, generate};
use planaria_nn::models::{Decoder, Network, Run};
use planaria_tensor::{Tensor, World, no_grad};

fn prompts() -> Vec<Vec<i64>> {
    vec![vec![1, 5, 9, 2], vec![7, 7, 0, 30]]
}

fn options(choice: Choice) -> Options {
    Options { max_new: 12, stop: Vec::new(), choice }
}

/// Greedy tokens by running everything again for each.
fn without_cache(model: &Decoder) -> Vec<Vec<i64>> {
    let mut rows = prompts();
    for _ in 0..12 {
        let tokens = Tensor::from_slice(&rows.concat(), &[2, rows[0].len()]).unwrap();
        let last = no_grad(|| model.forward(tokens, &Run::default())).unwrap();
        let logits = no_grad(|| model.logits(&last.hidden)).unwrap();
        let best = logits.select(1, -1).unwrap().argmax(Some(1), planaria_tensor::Keep::No).unwrap();
        rows.iter_mut().zip(best.to_vec::<i64>().unwrap()).for_each(|(row, token)| row.push(token));
    }
    rows.into_iter().map(|row| row[4..].to_vec()).collect()
}

#[test]
fn cached_steps_equal_the_whole_forward() {
    for name in common::MODELS {
        let model = Golden::read(name).model(None, DType::F32);
        assert_eq!(
            generate(&model, &prompts(), &options(Choice::Greedy)).unwrap(),
            without_cache(&model),
            "{name}"
        );
    }
}

#[test]
fn a_prompt_may_come_in_parts() {
    let golden = Golden::read("qwen2-window");
    let model = golden.model(None, DType::F64);
    let ids = golden.tensor("input_ids");
    let logits = |cache: Option<&planaria_nn::models::Cache>, ids: Tensor| {
        let run = Run { cache, ..Run::default() };
        no_grad(|| model.logits(&model.forward(ids, &run).unwrap().hidden)).unwrap().local().clone()
    };
    let whole = logits(None, ids.clone());
    let cache = model.cache(11);
    for (start, len) in [(0, 3), (3, 1), (4, 5), (9, 2)] {
        let part = logits(Some(&cache), ids.narrow(1, start, len).unwrap());
        let worst = common::difference(&part, &whole.narrow(1, start, len).unwrap());
        assert!(worst < 1e-13, "{start}: {worst}");
    }
    assert_eq!(cache.len(), 11);
    let full = Run { cache: Some(&cache), ..Run::default() };
    let refused = model.forward(ids.narrow(1, 0, 1).unwrap(), &full).unwrap_err();
    assert!(refused.to_string().contains("make a larger cache"), "{refused}");
}

#[test]
fn several_ranks_generate_the_same() {
    let sampled =
        Choice::Sample { temperature: 0.8, top_k: Some(20), top_p: Some(0.95), key: Key::new(11, 0) };
    let cases = [("qwen2", "tp=2", true), ("llama", "tp=4", false), ("qwen2-moe", "ep=2 tp=2", false)];
    for (name, mesh, sequence) in cases {
        let golden = Golden::read(name);
        let mesh: Mesh = mesh.parse().unwrap();
        for choice in [Choice::Greedy, sampled] {
            let alone = generate(&golden.model(None, DType::F64), &prompts(), &options(choice)).unwrap();
            let all = threads::run(mesh.size(), |comm| {
                let parallel = Parallel { world: World::new(comm), mesh: mesh.clone(), sequence };
                let model = golden.model(Some(&parallel), DType::F64);
                generate(&model, &prompts(), &options(choice)).unwrap()
            });
            assert!(all.iter().all(|rows| *rows == alone), "{name} on {mesh}");
        }
    }
}

#[test]
fn rows_end_at_a_stop_and_bad_requests_are_refused() {
    let model = Golden::read("llama").model(None, DType::F32);
    let free = generate(&model, &prompts(), &options(Choice::Greedy)).unwrap();
    let stop = free[0][3];
    let stopped =
        generate(&model, &prompts(), &Options { stop: vec![stop], ..options(Choice::Greedy) }).unwrap();
    let until = |row: &Vec<i64>| {
        let end = row.iter().position(|&token| token == stop).map_or(row.len(), |place| place + 1);
        row[..end].to_vec()
    };
    assert_eq!(stopped, free.iter().map(until).collect::<Vec<_>>());
    let uneven = [vec![1, 2], vec![3]];
    assert!(
        Generator::new(&model, &uneven, &options(Choice::Greedy)).unwrap_err().to_string().contains("(2, 1)")
    );
    assert!(generate(&model, &[vec![1], Vec::new()], &options(Choice::Greedy)).is_err());
    let cold = Choice::Sample { temperature: 0.0, top_k: None, top_p: None, key: Key::new(0, 0) };
    assert!(generate(&model, &prompts(), &options(cold)).is_err());
}

#[test]
fn prompts_of_any_lengths_get_what_each_gets_alone() {
    let model = Golden::read("qwen2-moe").model(None, DType::F64);
    let rows = [vec![4i64, 9], vec![1, 5, 9, 2], vec![8, 8], vec![3]];
    let alone = |row: &Vec<i64>| {
        generate(&model, std::slice::from_ref(row), &options(Choice::Greedy)).unwrap().remove(0)
    };
    let all = generate(&model, &rows, &options(Choice::Greedy)).unwrap();
    assert_eq!(all, rows.iter().map(alone).collect::<Vec<_>>());
    // Draws of a row follow from its number, whatever stands beside it.
    let sampled = options(Choice::Sample { temperature: 1.0, top_k: None, top_p: None, key: Key::new(2, 3) });
    let all = generate(&model, &rows, &sampled).unwrap();
    let first = generate(&model, &rows[..1], &sampled).unwrap();
    assert_eq!(all[0], first[0]);
    assert_ne!(all[0], all[2]);
}
