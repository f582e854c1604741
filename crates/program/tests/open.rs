//! Programs for any size: made from several with fixed ones, as Paddle's files and as ONNX models, and what is refused.

use planaria_array::{Array, DType};
use planaria_program::onnx::{export, import_open};
use planaria_program::{
    Captured, Datum, Extents, Function, Program, ProgramState, capture, generalize, lower, paddle, run,
    verify,
};
use planaria_tensor::{Keep, Result, Tensor, ops};

fn numbers(shape: &[usize], seed: usize) -> Array {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|at| ((at * 7 + seed * 3) % 23) as f32 / 11.0 - 1.0).collect();
    Array::from_slice(&values, shape).unwrap()
}

/// Rows and columns swapped in one dim, cut behind a place that depends on the size, and laid over zeros of that size.
fn work(given: &[Tensor], places: &Tensor) -> Result<Vec<(String, Tensor)>> {
    let [rows, columns, width] = given[0].shape()[..] else { unreachable!() };
    let flat = given[0].transpose(0, 1)?.reshape(&[rows * columns, width])?;
    let last = flat.narrow(0, rows * columns - 1, 1)?;
    let zeros = Tensor::zeros(&[rows, 2 * columns, width], DType::F32)?;
    let twice = ops::concat(&[&given[0], &given[0]], 1)?.add(&zeros)?.add(&last)?;
    let at = places.narrow(0, columns - 1, 2)?.cast(DType::F32)?.sum(&[], Keep::No)?;
    let back = flat.reshape(&[columns, rows, width])?.mul(&at)?;
    Ok(vec![("twice".to_string(), twice), ("back".to_string(), back)])
}

fn example(rows: usize, columns: usize) -> (Program, ProgramState) {
    let x = Tensor::new(numbers(&[rows, columns, 3], 1));
    let places = Tensor::new(Array::arange(0i64, 64i64, 1i64, DType::I64).unwrap());
    let function = Function { inputs: vec![("x".into(), x)], ..Function::default() };
    let Captured { program, state, .. } = capture(&function, |given| work(given, &places)).unwrap();
    lower(&program, &state, Extents::Example).unwrap()
}

fn open() -> (Program, ProgramState) {
    let made = [example(2, 7), example(5, 18), example(3, 11)];
    let all: Vec<_> = made.iter().map(|(program, state)| (program, state)).collect();
    let program = generalize(&all).unwrap();
    let [(_, state), ..] = made;
    (program, state)
}

fn compare(program: &Program, state: &ProgramState, what: &str) {
    let places = Tensor::new(Array::arange(0i64, 64i64, 1i64, DType::I64).unwrap());
    for (rows, columns) in [(1, 1), (4, 9), (3, 30)] {
        let x = numbers(&[rows, columns, 3], 5);
        let expected = work(&[Tensor::new(x.clone())], &places).unwrap();
        let found = run(program, &mut state.clone(), &[Datum::Array(x)]).unwrap();
        for ((name, found), (_, expected)) in found.iter().zip(&expected) {
            let found = found.array().unwrap();
            assert_eq!(found.shape(), expected.local().shape(), "{what} {name} {rows}x{columns}");
            let (a, b) = (found.to_vec::<f32>().unwrap(), expected.local().to_vec::<f32>().unwrap());
            assert_eq!(a, b, "{what} {name} {rows}x{columns}");
        }
    }
}

#[test]
fn sizes_that_follow_from_the_inputs_are_computed_when_a_program_runs() {
    let (program, state) = open();
    assert_eq!(verify(&program), []);
    compare(&program, &state, "program");
    let again = paddle::read(paddle::write(&program).as_bytes()).unwrap();
    compare(&again, &state, "file");
}

#[test]
fn onnx_models_leave_sizes_open_and_are_read_with_them_open() {
    let (program, state) = open();
    let names = |value: &str, dim: usize| {
        (value == "x").then(|| ["rows", "columns"].get(dim).map(ToString::to_string)).flatten()
    };
    let mut data = Vec::new();
    let model = export(&program, &state, Some(("m.data", &mut data)), &names).unwrap();
    let beside =
        |_: &str, offset: u64, length: u64| Ok(data[offset as usize..(offset + length) as usize].to_vec());
    let (read, held) = import_open(&model, &beside).unwrap();
    assert_eq!(verify(&read), []);
    let ty = planaria_program::tensor_type(&read.inputs()[0].value.ty).unwrap();
    assert_eq!(ty.dims, [-1, -1, 3]);
    compare(&read, &held, "onnx");
}

#[test]
fn a_constant_that_depends_on_sizes_is_refused_by_name() {
    let one = |rows: usize| {
        let x = Tensor::new(numbers(&[rows, 3], 1));
        let other = Tensor::new(numbers(&[rows, 3], 9));
        let function = Function { inputs: vec![("x".into(), x)], ..Function::default() };
        let work = |given: &[Tensor]| given[0].add(&other).map(|y| vec![("y".to_string(), y)]);
        let Captured { program, state, .. } = capture(&function, work).unwrap();
        lower(&program, &state, Extents::Example).unwrap()
    };
    let made = [one(2), one(5), one(3)];
    let all: Vec<_> = made.iter().map(|(program, state)| (program, state)).collect();
    let error = generalize(&all).unwrap_err().to_string();
    assert!(error.contains("constant") && error.contains("fixed sizes"), "{error}");
}
