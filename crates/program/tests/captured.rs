//! Programs captured from functions of tensors: random ones through text, files and passes, and on random meshes.

use planaria_array::ops::Which;
use planaria_array::{Array, DType};
use planaria_comm::threads;
use planaria_layout::{Layout, Mesh, Placement};
use planaria_program::{
    Captured, Captures, Datum, Extents, Function, Origin, Program, ProgramState, Ranks, Spread, Why, capture,
    fold_constants, fuse, gradients, lower, merge_equal, open_folder, paddle, parse, pieces, plan_memory,
    propagate, remove_dead, run, run_tensors, save_folder, svg, verify,
};
use planaria_tensor::{GradOptions, Keep, Result, Tensor, World, ops, trace};
use proptest::prelude::*;

/// Numbers that follow from a seed.
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % bound.max(1)
    }

    fn tensor(&mut self, shape: &[usize]) -> Tensor {
        let count = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|_| self.below(2001) as f32 / 1000.0 - 1.0).collect();
        Tensor::from_slice(&values, shape).unwrap()
    }
}

const WIDTH: usize = 8;

fn parameters(dice: &mut Dice) -> Vec<(String, Tensor)> {
    let named = |name: &str, tensor: Tensor| (name.to_string(), tensor.requires_grad());
    vec![
        named("layer.weight", dice.tensor(&[WIDTH, WIDTH])),
        named("layer.bias", dice.tensor(&[WIDTH])),
        named("norm.weight", dice.tensor(&[WIDTH])),
    ]
}

/// A random function of `[4, 4, WIDTH]`: always the same for a seed.
fn function(mut dice: Dice, x: &Tensor, parameters: &[(String, Tensor)]) -> Result<Tensor> {
    let (weight, bias, norm) = (&parameters[0].1, &parameters[1].1, &parameters[2].1);
    let mut all = vec![x.clone()];
    for _ in 0..3 + dice.below(8) {
        let a = all[dice.below(all.len())].clone();
        let b = all[dice.below(all.len())].clone();
        all.push(match dice.below(13) {
            0 => a.add(&b)?,
            1 => a.mul(&b)?,
            2 => a.tanh()?,
            3 => a.softmax(-1)?,
            4 => ops::rms_norm(&a, norm.shape(), Some(norm), 1e-5)?,
            5 => ops::linear(&a, weight, Some(bias))?,
            6 => ops::swiglu(&a, &b)?,
            7 => a.reshape(&[16, WIDTH])?.matmul(weight)?.reshape(&[4, 4, WIDTH])?,
            8 => a.transpose(0, 1)?,
            9 => a.sub(&a.sum(&[-1], Keep::Yes)?.mul_scalar(0.125)?)?,
            10 => ops::concat(&[&a.narrow(2, 4, 4)?, &b.narrow(2, 0, 4)?], 2)?,
            // Two results of one op.
            11 => a.topk(WIDTH, 2, Which::Largest)?.0,
            _ => a.gelu()?.add_scalar(0.5)?,
        });
    }
    all[all.len() - 1].add(&all[all.len() - 2])
}

pub(crate) fn captured(seed: u64) -> (Captured, Tensor, Vec<(String, Tensor)>) {
    let mut dice = Dice(seed);
    let own = parameters(&mut dice);
    let x = dice.tensor(&[4, 4, WIDTH]);
    let given =
        Function { inputs: vec![("x".into(), x.clone())], parameters: own.clone(), settings: Vec::new() };
    let work = |given: &[Tensor]| function(dice.clone(), &given[0], &own).map(|y| vec![("y".to_string(), y)]);
    (capture(&given, work).unwrap(), x, own.clone())
}

fn bits(array: &Array) -> Vec<u32> {
    array.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

pub(crate) fn result(program: &Program, state: &ProgramState, x: &Tensor) -> Array {
    let found = run(program, &mut state.clone(), &[Datum::Array(x.local().clone())]).unwrap();
    found[0].1.array().unwrap().clone()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(12) })]

    #[test]
    fn text_files_and_passes_keep_what_a_program_computes(seed in any::<u64>()) {
        let (Captured { program, state, .. }, x, own) = captured(seed);
        prop_assert_eq!(verify(&program), []);
        let mut dice = Dice(seed);
        parameters(&mut dice);
        dice.tensor(&[4, 4, WIDTH]);
        let eager = function(dice, &x, &own).unwrap();
        let expected = bits(&result(&program, &state, &x));
        prop_assert_eq!(&expected, &bits(eager.local()));

        prop_assert_eq!(&parse(&program.to_string()).unwrap(), &program);
        prop_assert_eq!(&paddle::read(paddle::write(&program).as_bytes()).unwrap(), &program);

        let mut changed = program.clone();
        merge_equal(&mut changed);
        fold_constants(&mut changed).unwrap();
        remove_dead(&mut changed);
        prop_assert_eq!(verify(&changed), []);
        prop_assert_eq!(&bits(&result(&changed, &state, &x)), &expected);
        prop_assert!(svg(&program).ends_with("</svg>\n"));
    }

    #[test]
    fn ops_taken_apart_compute_the_same_and_come_together_again(seed in any::<u64>()) {
        let (Captured { program, state, .. }, x, _) = captured(seed);
        let expected = result(&program, &state, &x);
        let (mut apart, apart_state) = lower(&program, &state, Extents::Fixed).unwrap();
        prop_assert_eq!(verify(&apart), []);
        let found = result(&apart, &apart_state, &x).to_vec::<f32>().unwrap();
        let scale = expected.to_vec::<f32>().unwrap().iter().fold(1f32, |most, v| most.max(v.abs()));
        for (a, b) in expected.to_vec::<f32>().unwrap().iter().zip(&found) {
            prop_assert!((a - b).abs() <= 1e-5 * scale, "{} {}", a, b);
        }
        // Every op says which op, and which instance of it, it comes from, also after a file.
        let again = paddle::read(paddle::write(&apart).as_bytes()).unwrap();
        let mut instances = std::collections::BTreeSet::new();
        again.visit(&mut |op| instances.extend(Origin::of(op).0));
        let mut own = 0;
        program.visit(&mut |op| own += usize::from(op.parts().0 == "planaria"));
        prop_assert_eq!(instances.len(), own);
        prop_assert_eq!(fuse(&mut apart), own);
        prop_assert_eq!(verify(&apart), []);
        prop_assert_eq!(bits(&result(&apart, &apart_state, &x)), bits(&expected));
    }

    #[test]
    fn values_that_live_at_once_share_no_bytes(seed in any::<u64>()) {
        let (Captured { program, .. }, ..) = captured(seed);
        let plan = plan_memory(&program).unwrap();
        for (at, a) in plan.slots.iter().enumerate() {
            prop_assert!(a.offset + a.bytes <= plan.peak);
            for b in &plan.slots[at + 1..] {
                let at_once = a.from <= b.to && b.from <= a.to;
                let beside = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
                prop_assert!(!at_once || beside, "{:?} {:?}", a, b);
            }
        }
        let all: u64 = plan.slots.iter().map(|slot| slot.bytes).sum();
        prop_assert!(plan.peak <= all + 64 * plan.slots.len() as u64);
    }

    #[test]
    fn the_program_of_a_rank_is_what_dispatch_does(seed in any::<u64>()) {
        let (Captured { program, state, .. }, x, own) = captured(seed);
        let mut dice = Dice(seed ^ 77);
        let mesh: Mesh = ["dp=2 tp=2", "tp=4", "dp=4", "a=2 b=2"][dice.below(4)].parse().unwrap();
        let mut layouts = std::collections::BTreeMap::new();
        let mut kinds: Vec<(String, Vec<usize>)> =
            own.iter().map(|(name, tensor)| (name.clone(), tensor.shape().to_vec())).collect();
        kinds.push(("x".to_string(), x.shape().to_vec()));
        for (name, shape) in kinds {
            let placement = |_: usize| match dice.below(3) {
                0 => Placement::Replicate,
                _ => Placement::shard(dice.below(shape.len())),
            };
            let placements: Vec<Placement> = (0..mesh.naxes()).map(placement).collect();
            let shape = planaria_layout::Shape::new(&shape).unwrap();
            layouts.insert(name, Layout::new(&mesh, &shape, &placements).unwrap());
        }
        let failures = threads::run(4, |comm| {
            let world = World::new(comm);
            let spread = Spread { mesh: mesh.clone(), rank: world.rank(), layouts: layouts.clone() };
            let own = propagate(&program, &spread).unwrap();
            let held = pieces(&program, &state, &spread, &world).unwrap();
            let given = Tensor::place(x.local(), &mesh, layouts["x"].placements(), &world).unwrap();
            let ranks = Ranks { mesh: mesh.clone(), world: world.clone() };
            let direct = run_tensors(&program, &held, std::slice::from_ref(&given), Some(&ranks)).unwrap();
            // What moves is said by the program: nothing else does.
            let strict = trace::strict(|| run_tensors(&own, &held, &[given], Some(&ranks))).unwrap();
            let same = direct[0].1.layout() == strict[0].1.layout() && bits(direct[0].1.local()) == bits(strict[0].1.local());
            (!same).then(|| format!("rank {} on {mesh}", world.rank()))
        });
        prop_assert_eq!(failures.into_iter().flatten().collect::<Vec<_>>(), Vec::<String>::new());
    }
}

#[test]
fn a_program_is_captured_again_when_something_changes_and_says_what() {
    let mut dice = Dice(5);
    let own = parameters(&mut dice);
    let mut captures = Captures::new();
    let mut call = |rows: usize, flag: &str| {
        let inputs = vec![("x".to_string(), Dice(9).tensor(&[rows, WIDTH]))];
        let settings = vec![("flag".to_string(), flag.to_string())];
        let function = Function { inputs, parameters: own.clone(), settings };
        let work = |given: &[Tensor]| given[0].tanh().map(|y| vec![("y".to_string(), y)]);
        captures.get(&function, work).unwrap().1
    };
    assert_eq!(call(2, "a"), Why::First);
    assert_eq!(call(2, "a"), Why::Known);
    assert_eq!(call(3, "a").to_string(), "captured again: input x: f32[2,8] -> f32[3,8]");
    assert_eq!(call(3, "b").to_string(), "captured again: setting flag: a -> b");
    assert_eq!(call(2, "a"), Why::Known);
}

#[test]
fn gradients_of_gradients_are_programs_too() {
    let mut dice = Dice(3);
    let x = dice.tensor(&[3, 4]).requires_grad();
    let work = |x: &Tensor| -> Result<Vec<(String, Tensor)>> {
        let loss = x.tanh()?.mul(x)?.sum(&[], Keep::No)?;
        let options = GradOptions { differentiable: true, ..GradOptions::default() };
        let first = gradients(&loss, &[("x".to_string(), x.clone())], options)?;
        let slope = first[0].1.square()?.sum(&[], Keep::No)?;
        let second = gradients(&slope, &[("x.grad".to_string(), x.clone())], GradOptions::default())?;
        Ok(first.into_iter().chain(second).collect())
    };
    let function = Function { inputs: vec![("x".into(), x.clone())], ..Function::default() };
    let Captured { program, mut state, .. } = capture(&function, |given| work(&given[0])).unwrap();
    let other = Dice(8).tensor(&[3, 4]).requires_grad();
    let expected = work(&other).unwrap();
    let found = run(&program, &mut state, &[Datum::Array(other.local().clone())]).unwrap();
    assert_eq!(found.len(), 2);
    for ((_, found), (name, expected)) in found.iter().zip(&expected) {
        assert_eq!(bits(found.array().unwrap()), bits(expected.local()), "{name}");
    }
}

#[test]
fn names_of_composites_nest_through_gradients_taking_apart_passes_and_files() {
    let x = Dice(3).tensor(&[3, 4]).requires_grad();
    let work = |given: &[Tensor]| -> Result<Vec<(String, Tensor)>> {
        let loss = given[0].tanh()?.mul(&given[0].tanh()?)?.sum(&[], Keep::No)?;
        let options = GradOptions { differentiable: true, ..GradOptions::default() };
        let of = [("x".to_string(), given[0].clone())];
        let slope = gradients(&loss, &of, options)?[0].1.mul(&given[0])?.sum(&[], Keep::No)?;
        gradients(&slope, &of, GradOptions::default())
    };
    let function = Function { inputs: vec![("x".into(), x)], ..Function::default() };
    let Captured { program, state, .. } = capture(&function, work).unwrap();
    let chains = |program: &Program| {
        let mut chains = std::collections::BTreeSet::new();
        program.visit(&mut |op| chains.extend([Origin::of(op).to_string()]));
        chains
    };
    // The gradient of an op that is itself part of a gradient names both, each with its instance.
    let captured = chains(&program);
    let second = captured.iter().filter(|chain| chain.matches("_grad#").count() == 2).count();
    assert!(second > 0, "{captured:?}");

    let (mut apart, held) = lower(&program, &state, Extents::Fixed).unwrap();
    let deep = |chains: &std::collections::BTreeSet<String>| {
        chains.iter().filter(|chain| chain.matches('#').count() == 3).cloned().collect::<Vec<_>>()
    };
    let before = deep(&chains(&apart));
    assert!(!before.is_empty(), "{:?}", chains(&apart));
    fold_constants(&mut apart).unwrap();
    remove_dead(&mut apart);
    let kept = deep(&chains(&apart));
    assert!(!kept.is_empty() && kept.iter().all(|chain| before.contains(chain)), "{kept:?}");
    let folder = tempfile::tempdir().unwrap();
    let (store, at) = planaria_store::locate(&folder.path().join("p").display().to_string()).unwrap();
    save_folder(&*store, &at, &apart, &held).unwrap();
    assert_eq!(deep(&chains(&open_folder(&*store, &at).unwrap().0)), kept);
    assert_eq!(deep(&chains(&parse(&apart.to_string()).unwrap())), kept);
}

#[test]
fn writes_become_new_values_and_writes_behind_the_back_are_refused() {
    let x = Dice(1).tensor(&[2, 3]);
    let function = Function { inputs: vec![("x".into(), x.clone())], ..Function::default() };
    let mask = Tensor::new(Array::full(&[2, 3], true, DType::Bool).unwrap().tril(0).unwrap());
    let work = |given: &[Tensor]| {
        let y = given[0].mul_scalar(2.0)?;
        let before = y.add_scalar(1.0)?;
        y.masked_fill_assign(&mask, 7.0)?;
        Ok::<_, planaria_tensor::Error>(vec![("y".to_string(), y.add(&before)?)])
    };
    let Captured { program, state, .. } = capture(&function, work).unwrap();
    let other = Dice(2).tensor(&[2, 3]);
    let expected = work(std::slice::from_ref(&other)).unwrap();
    assert_eq!(bits(&result(&program, &state, &other)), bits(expected[0].1.local()));

    let behind = |given: &[Tensor]| {
        let y = given[0].mul_scalar(2.0)?;
        y.local().fill(3.0)?;
        Ok::<_, planaria_tensor::Error>(vec![("z".to_string(), y.tanh()?)])
    };
    let error = capture(&function, behind).unwrap_err().to_string();
    assert!(error.contains("written to without an op"), "{error}");
}

#[test]
fn a_captured_program_is_saved_with_its_state() {
    let (Captured { program, state, .. }, x, _) = captured(11);
    let folder = tempfile::tempdir().unwrap();
    let (store, at) = planaria_store::locate(&folder.path().join("p").display().to_string()).unwrap();
    save_folder(&*store, &at, &program, &state).unwrap();
    let (read, again) = open_folder(&*store, &at).unwrap();
    assert_eq!(read, program);
    assert_eq!(bits(&result(&read, &again, &x)), bits(&result(&program, &state, &x)));
}
