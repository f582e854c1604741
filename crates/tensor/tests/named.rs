//! Every op of the table, made again from its name and attributes.

use planaria_tensor::ops::sample::Draw;
use planaria_tensor::ops::{TABLE, named};
use planaria_tensor::steps::{self, Step};
use planaria_tensor::{Array, GradOptions, Local, Tensor, grad};
use std::collections::BTreeSet;

/// Ops that hold more than attributes.
const OTHERS: [&str; 5] = ["moe_combine", "moe_dispatch", "reshard", "to_piece", "as_piece"];

fn bytes(array: &Array) -> Vec<u8> {
    array.contiguous().unwrap().bytes().unwrap().to_vec()
}

#[test]
fn every_op_is_its_name_and_attributes() {
    let mut names = BTreeSet::new();
    for family in TABLE {
        for seed in 0..10 {
            let sample = (family.sample)(&mut Draw::new(seed)).unwrap();
            let inputs: Vec<Tensor> = sample
                .inputs
                .iter()
                .map(|array| {
                    let tensor = Tensor::new(array.clone());
                    if array.dtype().is_float() { tensor.requires_grad() } else { tensor }
                })
                .collect();
            let refs: Vec<&Tensor> = inputs.iter().collect();
            let ((), steps) = steps::list(|| {
                let outputs = sample.run(&refs).unwrap();
                let wanted: Vec<&Tensor> = refs.iter().copied().filter(|t| t.has_history()).collect();
                for output in outputs.iter().filter(|t| t.has_history()) {
                    let ones = output.ones_like().unwrap();
                    // What has no gradient says so.
                    let _ = grad(
                        &[output],
                        &[Some(&ones)],
                        &wanted,
                        GradOptions { keep_history: true, ..GradOptions::default() },
                    );
                }
            });
            for step in steps {
                let Step::Ran(call) = step else { continue };
                let name = call.op.name();
                if OTHERS.contains(&name) {
                    continue;
                }
                names.insert(name);
                let again = named(name, &call.op.attributes())
                    .unwrap_or_else(|| panic!("{name} {:?} is not found", call.op.attributes()));
                assert_eq!(again.attributes(), call.op.attributes(), "{name}");
                if call.op.attributes().get("onto").is_some() {
                    continue;
                }
                let arrays: Vec<&Array> = call.inputs.iter().map(|t| t.local()).collect();
                let results = again.forward(&arrays, &Local::Whole).unwrap();
                for (result, output) in results.iter().zip(&call.outputs) {
                    assert_eq!(bytes(result), bytes(output.local()), "{name}");
                }
            }
        }
    }
    assert!(names.len() > 120, "{} ops were met: {names:?}", names.len());
}
