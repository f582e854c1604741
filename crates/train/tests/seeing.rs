//! Models that see as programs: pictures of any number and size, prompts with pictures, and what is written after them.

use crate::common::{bits, largest_difference, network, open_and_compare};
use planaria_array::{Array, DType};
use planaria_nn::layers::Positions;
use planaria_nn::models::qwen2_vl::{Scenes, axes};
use planaria_nn::models::{Models, Network, Run, Shown};
use planaria_program::{Captured, Datum, Function, Program, ProgramState, capture, run};
use planaria_tensor::{Tensor, no_grad};
use planaria_train::programs::{Extent, Part, Sizes, capture_model, lowered, open, parameters};
use std::path::Path;

/// Qwen2-VL as it is published, and Qwen2.5-VL with windows.
fn models() -> [(&'static str, Box<dyn Network>); 2] {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/qwen2-vl/model/tiny_a");
    [("qwen2-vl", open(&folder, &Models::default()).unwrap()), ("qwen2-5-vl", network("qwen2-5-vl"))]
}

fn numbers(shape: &[usize]) -> Array {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|at| ((at * 37 + 11) % 101) as f32 / 50.0 - 1.0).collect();
    Array::from_slice(&values, shape).unwrap()
}

/// A picture and a short video.
fn scenes(network: &dyn Network) -> Scenes {
    let merge = network.seeing().unwrap().vision().merge;
    let images = vec![[1, 4 * merge, 3 * merge], [2, 2 * merge, 5 * merge]];
    Scenes { images, ..Scenes::default() }
}

fn shown(network: &dyn Network) -> Shown {
    let scenes = scenes(network);
    let count: usize = scenes.images.iter().map(|grid| grid.iter().product::<usize>()).sum();
    Shown { patches: numbers(&[count, network.seeing().unwrap().vision().patch_width()]), scenes }
}

fn grids(scenes: &Scenes) -> Array {
    let flat: Vec<i64> = scenes.images.iter().flatten().map(|&n| n as i64).collect();
    Array::from_slice(&flat, &[scenes.images.len(), 3]).unwrap()
}

fn outputs(program: &Program, state: &ProgramState, given: &[&Array]) -> Vec<(String, Array)> {
    let given: Vec<Datum> = given.iter().map(|array| Datum::Array((*array).clone())).collect();
    let found = run(program, &mut state.clone(), &given).unwrap();
    found.into_iter().map(|(name, datum)| (name.to_string(), datum.array().unwrap().clone())).collect()
}

#[test]
fn the_tower_captured_has_the_bits_of_the_tower() {
    for (name, network) in models() {
        let see = network.seeing().unwrap();
        let Shown { patches, scenes } = shown(&*network);
        // For these pictures, as the model runs them.
        let function = Function {
            inputs: vec![("pixel_values".into(), Tensor::new(patches.zeros_like().unwrap()))],
            parameters: parameters(&*network),
            settings: Vec::new(),
        };
        let work = |given: &[Tensor]| {
            let shown = Shown { patches: given[0].local().clone(), scenes: scenes.clone() };
            see.features(&shown).map(|features| vec![("image_embeds".to_string(), features)])
        };
        let Captured { program, state, .. } = no_grad(|| capture(&function, work)).unwrap();
        let eager = no_grad(|| work(&[Tensor::new(patches.clone())])).unwrap();
        let found = outputs(&program, &state, &[&patches]);
        assert_eq!(bits(&found[0].1), bits(eager[0].1.local()), "{name}");

        // For any pictures, by ops alone.
        let sizes = Sizes { batch: 2, length: 3, past: 0 };
        let Captured { program, state, .. } = capture_model(&*network, Part::Vision, &sizes).unwrap();
        let of = input_shapes(&program);
        let (pixels, grids) = (numbers(&of[0]), Array::from_slice(&first_grids(&*network), &of[1]).unwrap());
        let by_ops = no_grad(|| {
            see.features_by_ops(&Tensor::new(pixels.clone()), &Tensor::new(grids.clone())).unwrap()
        });
        let found = outputs(&program, &state, &[&pixels, &grids]);
        assert_eq!(bits(&found[0].1), bits(by_ops.local()), "{name} by ops");
    }
}

/// Extents of inputs, 0 for open ones.
fn input_shapes(program: &Program) -> Vec<Vec<usize>> {
    let dims = |input: &planaria_program::Input| {
        let ty = planaria_program::tensor_type(&input.value.ty).unwrap();
        ty.dims.iter().map(|&n| n.max(0) as usize).collect()
    };
    program.inputs().iter().map(dims).collect()
}

/// The grids that a program of two rows of three is captured with.
fn first_grids(network: &dyn Network) -> Vec<i64> {
    let sizes = Sizes { batch: 2, length: 3, past: 0 };
    let inputs = planaria_train::programs::inputs(network, Part::Vision, &sizes).unwrap();
    inputs[1].1.local().to_vec().unwrap()
}

#[test]
fn programs_of_pictures_and_prompts_take_any_sizes() {
    let sizes = |batch, length| Sizes { batch, length, past: 0 };
    for (name, network) in models() {
        let pictures = [sizes(1, 1), sizes(4, 9), sizes(7, 40)];
        open_and_compare(name, &*network, Part::Vision, &pictures);
        let prompts = [sizes(1, 1), sizes(4, 9), sizes(1, 40)];
        open_and_compare(name, &*network, Part::Prompt, &prompts);
    }
}

/// What a user does: vectors of the pictures, the prompt, and a token after it, against the model on the whole row.
#[test]
fn pictures_prompt_and_decoding_together_are_the_model() {
    for (name, network) in models() {
        let see = network.seeing().unwrap();
        let extent = Extent::Open { longest: 128 };
        let part = |part: Part| lowered(&*network, part, extent).unwrap_or_else(|e| panic!("{name}: {e}"));
        let shown = shown(&*network);
        let marks = *see.marks();
        let mut row = vec![1i64, 2];
        for grid in &shown.scenes.images {
            let tokens = grid.iter().product::<usize>() / (marks.merge * marks.merge);
            row.extend(std::iter::repeat_n(marks.image, tokens));
            row.push(3);
        }
        let whole: Vec<i64> = row.iter().copied().chain([4]).collect();
        let places = axes(std::slice::from_ref(&whole), None, &shown.scenes, &marks).unwrap();
        let expected = no_grad(|| {
            let ids = Tensor::new(Array::from_slice(&whole, &[1, whole.len()]).unwrap());
            let positions = Positions::Axes(places.ids.clone());
            let run = Run { positions, shown: Some(shown.clone()), ..Run::default() };
            let last = network.forward((&ids).into(), &run).unwrap();
            network.logits(&last.hidden).unwrap().local().clone()
        });

        let (program, state) = part(Part::Vision);
        let seen = outputs(&program, &state, &[&shown.patches, &grids(&shown.scenes)]).swap_remove(0).1;
        let worst = largest_difference(no_grad(|| see.features(&shown).unwrap()).local(), &seen);
        assert!(worst < 1e-5, "{name} pictures: {worst}");

        let (program, state) = part(Part::Prompt);
        let ids = Array::from_slice(&row, &[1, row.len()]).unwrap();
        let positions = places.ids.narrow(2, 0, row.len()).unwrap().copy().unwrap();
        let mut prompt = outputs(&program, &state, &[&ids, &positions, &seen]);
        let logits = prompt.remove(0).1;
        let same = |at: usize, len: usize| expected.narrow(1, at, len).unwrap().copy().unwrap();
        let worst = largest_difference(&same(0, row.len()), &logits);
        assert!(worst < 1e-4, "{name} prompt: {worst}");

        let (program, state) = part(Part::Decode);
        let next = Array::from_slice(&[4i64], &[1, 1]).unwrap();
        let at = Array::from_slice(&[places.next[0] - 1], &[1, 1]).unwrap();
        let mut given = vec![&next, &at];
        given.extend(prompt.iter().map(|(_, array)| array));
        let decoded = outputs(&program, &state, &given).swap_remove(0).1;
        let worst = largest_difference(&same(row.len(), 1), &decoded);
        assert!(worst < 1e-4, "{name} decoding: {worst}");
    }
}

/// A prompt without pictures is one with no vectors.
#[test]
fn a_prompt_without_pictures_takes_no_vectors() {
    for (name, network) in models() {
        let (program, state) = lowered(&*network, Part::Prompt, Extent::Open { longest: 64 }).unwrap();
        let ids = Array::from_slice(&[1i64, 2, 3, 4, 5, 6], &[2, 3]).unwrap();
        let positions: Vec<i64> = (0..18).map(|at| at % 3).collect();
        let positions = Array::from_slice(&positions, &[3, 2, 3]).unwrap();
        let width = input_shapes(&program)[2][1];
        let none = Array::zeros(&[0, width], DType::F32).unwrap();
        let found = outputs(&program, &state, &[&ids, &positions, &none]).swap_remove(0).1;
        let expected = no_grad(|| {
            let last = network.forward((&Tensor::new(ids)).into(), &Run::default()).unwrap();
            network.logits(&last.hidden).unwrap().local().clone()
        });
        let worst = largest_difference(&expected, &found);
        assert!(worst < 1e-5, "{name}: {worst}");
    }
}
