//! Passes keep what a program computes, bit for bit, and leave it well formed.

use planaria_array::{Array, DType};
use planaria_program::{
    Datum, Program, ProgramState, check, fold_constants, merge_equal, parse, remove_dead, run,
};
use proptest::prelude::*;
use std::fmt::Write;

/// A program of `f32[3]` from two inputs: every step reads earlier values; some results are fetched.
fn program(steps: &[(u8, usize, usize)], fetched: &[usize]) -> Program {
    let mut text =
        String::from("program version=4 trainable=true readable=false region \"r\" { block \"b\" () {\n");
    for (at, name) in ["x", "y"].iter().enumerate() {
        let id = at + 1;
        writeln!(text, "%{id} = pd_op.data() {{name = \"{name}\", shape = <3>, dtype = dtype \"float32\", place = @{{\"#\":\"1.a_place\",\"D\":[0,0,\"\"]}}}} : f32[3]").unwrap();
    }
    for (at, (kind, a, b)) in steps.iter().enumerate() {
        let (id, a, b) = (at + 3, 1 + a % (at + 2), 1 + b % (at + 2));
        let op = match kind % 6 {
            0 => format!("pd_op.add(%{a}, %{b})"),
            1 => format!("pd_op.multiply(%{a}, %{b})"),
            2 => format!("pd_op.tanh(%{a})"),
            3 => format!("pd_op.maximum(%{a}, %{b}) {{struct_name = \"/{id}/\"}}"),
            4 => format!("pd_op.subtract(%{a}, %{b})"),
            _ => format!(
                "pd_op.full() {{shape = <3>, value = {}.5, dtype = dtype \"float32\", place = @{{\"#\":\"1.a_place\",\"D\":[0,0,\"\"]}}}}",
                b % 3
            ),
        };
        writeln!(text, "%{id} = {op} : f32[3]").unwrap();
    }
    for (column, value) in fetched.iter().enumerate() {
        let (id, value) = (steps.len() + 3 + column, 1 + value % (steps.len() + 2));
        writeln!(
            text,
            "%{id} = pd_op.fetch(%{value}) {{name = \"out{column}\", col = {column}:i32}} : f32[3]"
        )
        .unwrap();
    }
    text.push_str("} }");
    parse(&text).unwrap()
}

fn outputs(program: &Program) -> Vec<Vec<u32>> {
    check(program).unwrap();
    let input = |values: [f32; 3]| Datum::Array(Array::from_slice(&values, &[3]).unwrap());
    let inputs = [input([0.25, -1.5, 3.0]), input([f32::MIN_POSITIVE, 0.1, -0.0])];
    let answers = run(program, &mut ProgramState::default(), &inputs).unwrap();
    let bits =
        |datum: &Datum| datum.array().unwrap().to_vec::<f32>().unwrap().iter().map(|x| x.to_bits()).collect();
    answers.iter().map(|(_, datum)| bits(datum)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn results_keep_their_bits(
        steps in prop::collection::vec((any::<u8>(), 0usize..64, 0usize..64), 1..24),
        fetched in prop::collection::vec(0usize..64, 1..4),
    ) {
        let before = program(&steps, &fetched);
        let expected = outputs(&before);
        let mut after = before.clone();
        fold_constants(&mut after).unwrap();
        prop_assert_eq!(outputs(&after), expected.clone());
        let merged = merge_equal(&mut after);
        prop_assert_eq!(outputs(&after), expected.clone());
        let dead = remove_dead(&mut after);
        prop_assert_eq!(outputs(&after), expected);
        prop_assert_eq!(after.op_count() + merged + dead, before.op_count());
        prop_assert_eq!(remove_dead(&mut after), 0);
    }
}

#[test]
fn each_pass_finds_its_own() {
    // Two equal sums, one of constants, one that nobody reads.
    let mut program =
        program(&[(0, 0, 1), (0, 0, 1), (5, 0, 0), (1, 4, 4), (2, 0, 0), (4, 2, 3), (4, 7, 5)], &[8]);
    let expected = outputs(&program);
    assert_eq!(fold_constants(&mut program).unwrap(), 1);
    assert_eq!(merge_equal(&mut program), 1);
    assert_eq!(remove_dead(&mut program), 2);
    assert_eq!(outputs(&program), expected);
}

#[test]
fn what_is_overwritten_is_neither_merged_nor_folded() {
    let place = "@{\"#\":\"1.a_place\",\"D\":[0,0,\"\"]}";
    let full = |value: &str| {
        format!(
            "pd_op.full() {{shape = <2>, value = {value}, dtype = dtype \"float32\", place = {place}}} : f32[2]"
        )
    };
    let text = format!(
        "program version=4 trainable=true readable=false region \"r\" {{ block \"b\" () {{ %1 = {0} %2 = {0} %3 = {1} \
         %4 = pd_op.add_(%1, %3) : f32[2] %5 = pd_op.add(%2, %4) : f32[2] \
         %6 = pd_op.fetch(%5) {{name = \"o\", col = 0:i32}} : f32[2] }} }}",
        full("1.0"),
        full("2.0"),
    );
    let mut program = parse(&text).unwrap();
    fold_constants(&mut program).unwrap();
    assert_eq!(merge_equal(&mut program), 0);
    assert_eq!(remove_dead(&mut program), 0);
    let answers = run(&program, &mut ProgramState::default(), &[]).unwrap();
    assert_eq!(answers[0].1.array().unwrap().cast(DType::F32).unwrap().to_vec::<f32>().unwrap(), [4.0, 4.0]);
}

#[test]
fn a_layer_of_the_users_own_runs_by_its_region() {
    let place = "@{\"#\":\"1.a_place\",\"D\":[0,0,\"\"]}";
    let input = |id: usize, name: &str| {
        format!(
            "%{id} = pd_op.data() {{name = \"{name}\", shape = <3>, dtype = dtype \"float32\", place = {place}}} : f32[3]"
        )
    };
    for (args, operand) in [("", "%1"), ("%-1: f32[3]", "%-1")] {
        let text = format!(
            "program version=4 trainable=true readable=false region \"r\" {{ block \"b\" () {{ {} {}
            %3 = pd_op.pylayer(%1) {{backward_function_id = -1:i32}} : f32[3] {{ region \"r1\" {{ block \"b1\" ({args}) {{
              %4 = pd_op.multiply({operand}, %2) : f32[3]
              cf.yield(%4) }} }} }}
            %5 = pd_op.fetch(%3) {{name = \"out\", col = 0:i32}} : f32[3] }} }}",
            input(1, "x"),
            input(2, "y")
        );
        let program = parse(&text).unwrap();
        assert_eq!(parse(&program.to_string()).unwrap(), program);
        let expected: Vec<u32> =
            [0.25 * f32::MIN_POSITIVE, -1.5 * 0.1, 3.0 * -0.0].iter().map(|x: &f32| x.to_bits()).collect();
        assert_eq!(outputs(&program), [expected]);
        let empty = text.replace("cf.yield(%4)", "cf.yield()");
        assert!(check(&parse(&empty).unwrap()).unwrap_err().to_string().contains("must pass on 1 values"));
    }
}
