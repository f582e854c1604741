//! Generation: the cached step equals the whole forward, on one rank and on several.

use crate::common::Golden;
use planaria_array::DType;
use planaria_array::random::Key;
use planaria_comm::threads;
use planaria_layout::Mesh;
use planaria_nn::Parallel;
use planaria_nn::batch::{Batch, Prompt, Room};
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
    // Past its original length LongRoPE turns all keys anew, which a cache does not; nor does that of transformers.
    for name in crate::common::MODELS.into_iter().filter(|&name| name != "phi3-long") {
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
        let worst = crate::common::difference(&part, &whole.narrow(1, start, len).unwrap());
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

/// Prompts of several lengths, and what each gives alone.
fn uneven(model: &Decoder) -> (Vec<Vec<i64>>, Vec<Vec<i64>>) {
    let given = vec![vec![1, 5, 9, 2], vec![7], vec![3, 3, 8, 1, 0, 2, 6, 30, 4], vec![7, 7]];
    let alone = |prompt: &Vec<i64>| {
        generate(model, std::slice::from_ref(prompt), &options(Choice::Greedy)).unwrap().swap_remove(0)
    };
    let made = given.iter().map(alone).collect();
    (given, made)
}

#[test]
fn rows_of_a_batch_become_what_each_becomes_alone() {
    for name in crate::common::MODELS {
        let model = Golden::read(name).model(None, DType::F32);
        let (given, alone) = uneven(&model);
        let limits = [12, 12, 5, 0];
        let prompts: Vec<Prompt> =
            given.iter().zip(limits).map(|(tokens, limit)| Prompt { tokens, limit }).collect();
        let Some(mut batch) = Batch::new(&model, Room::of(&prompts), &[]).unwrap() else {
            // Its rotations change with the length of the text, here between two rows.
            assert_eq!(name, "phi3-long");
            continue;
        };
        let mut found = Vec::new();
        // The second time fewer rows stand in the same memory, and the host chooses.
        batch.begin(&prompts).unwrap();
        batch.take_best(12).unwrap();
        found.push(batch.texts().unwrap());
        batch.begin(&prompts[..2]).unwrap();
        for _ in 0..12 {
            let best =
                |row: &Vec<f32>| (0..row.len()).fold(0, |b, i| if row[i] > row[b] { i } else { b }) as i64;
            let tokens: Vec<i64> = batch.scores().unwrap().iter().map(best).collect();
            batch.take(&tokens).unwrap();
        }
        found.push(batch.texts().unwrap()[..2].to_vec());
        for texts in found {
            for (row, text) in texts.iter().enumerate() {
                assert_eq!(text.tokens, alone[row][..limits[row]], "{name}, row {row}");
                assert!(text.ended);
            }
        }
    }
}

#[test]
fn a_row_that_ended_takes_the_next_prompt_while_others_go_on() {
    for name in ["qwen2-window", "llama", "gemma2", "qwen3-moe"] {
        let model = Golden::read(name).model(None, DType::F32);
        let (given, alone) = uneven(&model);
        // More texts than rows, some of one prompt, each with an end of its own.
        let texts: Vec<(usize, usize)> = vec![(0, 3), (2, 9), (1, 12), (2, 4), (2, 12), (3, 1), (0, 12)];
        let prompt = |text: usize| Prompt { tokens: &given[texts[text].0], limit: texts[text].1 };
        let room = Room { rows: 3, ..Room::of(&(0..texts.len()).map(prompt).collect::<Vec<_>>()) };
        let mut batch = Batch::new(&model, room, &[]).unwrap().unwrap();
        batch.begin(&[prompt(0), prompt(1)]).unwrap();
        let (mut rows, mut next, mut done) = (vec![Some(0), Some(1), None], 2, 0);
        while done < texts.len() {
            batch.take_best(1).unwrap();
            let mut begun = Vec::new();
            for (row, made) in batch.texts().unwrap().into_iter().enumerate() {
                if let Some(text) = rows[row].take_if(|_| made.ended) {
                    let (number, limit) = texts[text];
                    assert_eq!(made.tokens, alone[number][..limit], "{name}, text {text}");
                    done += 1;
                }
                if rows[row].is_none() && next < texts.len() {
                    rows[row] = Some(next);
                    begun.push((row, prompt(next)));
                    next += 1;
                }
            }
            batch.put(&begun).unwrap();
        }
        let message = batch.put(&[(3, prompt(0))]).unwrap_err().to_string();
        assert!(message.contains("4 rows") && message.contains("make a larger batch"), "{message}");
    }
}

#[test]
fn a_stop_ends_its_row_only_and_what_does_not_fit_is_refused() {
    let model = Golden::read("qwen2").model(None, DType::F32);
    let (given, alone) = uneven(&model);
    let stop = alone[0][4];
    let prompts: Vec<Prompt> = given.iter().map(|tokens| Prompt { tokens, limit: 12 }).collect();
    let mut batch = Batch::new(&model, Room::of(&prompts), &[stop]).unwrap().unwrap();
    batch.begin(&prompts).unwrap();
    batch.take_best(12).unwrap();
    for (row, text) in batch.texts().unwrap().iter().enumerate() {
        let end = alone[row].iter().position(|&token| token == stop).map_or(12, |at| at + 1);
        assert_eq!(text.tokens, alone[row][..end], "row {row}");
    }
    let long = [1i64; 10];
    let message = batch.begin(&[Prompt { tokens: &long, limit: 1 }]).unwrap_err().to_string();
    assert!(message.contains("prompts of 10") && message.contains("make a larger batch"), "{message}");
    let message = batch.begin(&[Prompt { tokens: &[], limit: 1 }]).unwrap_err().to_string();
    assert!(message.contains("prompt 0 has no token"), "{message}");
}

/// The scores of three rows at places of their own, some steps on: those of a batch, and of each row alone in one.
#[test]
fn scores_of_a_row_have_the_same_bits_whoever_stands_beside_it() {
    for name in ["llama", "qwen2-window", "qwen3", "qwen3-moe", "gemma3", "phi3"] {
        let model = Golden::read(name).model(None, DType::F32);
        let (given, _) = uneven(&model);
        let scores = |prompts: &[Prompt]| {
            let mut batch = Batch::new(&model, Room::of(prompts), &[]).unwrap().unwrap();
            batch.begin(prompts).unwrap();
            batch.take_best(3).unwrap();
            batch.scores().unwrap()
        };
        let prompts: Vec<Prompt> = given.iter().map(|tokens| Prompt { tokens, limit: 9 }).collect();
        let together = scores(&prompts);
        for (row, prompt) in prompts.iter().enumerate() {
            assert_eq!(together[row], scores(&[*prompt])[0], "{name}, row {row}");
        }
    }
}

#[test]
fn several_ranks_make_rows_of_a_batch_together() {
    let cases = [
        ("qwen2", "tp=2", true),
        ("llama", "tp=4", false),
        ("qwen2-moe", "ep=2 tp=2", false),
        ("qwen3-moe", "ep=2", false),
        ("gemma2", "tp=2", false),
    ];
    for (name, mesh, sequence) in cases {
        let golden = Golden::read(name);
        let (given, alone) = uneven(&golden.model(None, DType::F64));
        let mesh: Mesh = mesh.parse().unwrap();
        let all = threads::run(mesh.size(), |comm| {
            let parallel = Parallel { world: World::new(comm), mesh: mesh.clone(), sequence };
            let model = golden.model(Some(&parallel), DType::F64);
            // Three rows, so that `ep` has one over; the fourth text takes the place of the first that ends.
            let prompt = |number: usize, limit: usize| Prompt { tokens: &given[number], limit };
            let first = [prompt(0, 12), prompt(1, 4), prompt(2, 12)];
            let room = Room { rows: 3, ..Room::of(&first) };
            let mut batch = Batch::new(&model, room, &[]).unwrap().unwrap();
            batch.begin(&first).unwrap();
            batch.take_best(4).unwrap();
            let mut done = vec![batch.texts().unwrap()[1].tokens.clone()];
            batch.put(&[(1, prompt(3, 12))]).unwrap();
            batch.take_best(12).unwrap();
            done.extend(batch.texts().unwrap().into_iter().map(|text| text.tokens));
            done
        });
        let expected = [alone[1][..4].to_vec(), alone[0].clone(), alone[3].clone(), alone[2].clone()];
        assert!(all.iter().all(|rows| *rows == expected), "{name} on {mesh}: {all:?} and {expected:?}");
    }
}
