//! Random programs against dense arrays, and inverses against the programs they undo.

use crate::common;
use common::{Values, numbered, region_of, run};
use planaria_aoa::{Catalog, Mapping, Options, Program, Ties};
use planaria_layout::{Dims, Region};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A dense array of element numbers.
#[derive(Clone, Debug)]
struct Dense {
    name: String,
    dims: Vec<usize>,
    data: Vec<i64>,
}

impl Dense {
    fn at(&self, index: &[usize]) -> i64 {
        self.data[index.iter().zip(&self.dims).fold(0, |sum, (i, d)| sum * d + i)]
    }

    fn build(name: String, dims: Vec<usize>, value: impl Fn(&[usize]) -> i64) -> Dense {
        let numel = dims.iter().product::<usize>();
        let mut data = Vec::with_capacity(numel);
        for flat in 0..numel {
            let (mut rest, mut index) = (flat, vec![0; dims.len()]);
            for d in (0..dims.len()).rev() {
                index[d] = rest % dims[d];
                rest /= dims[d];
            }
            data.push(value(&index));
        }
        Dense { name, dims, data }
    }
}

/// A program and what it computes; `linear` programs read every value once.
struct Made {
    text: String,
    sources: Vec<Dense>,
    values: Vec<Dense>,
}

type Choice = (u8, u8, u8, u8);

fn sources(shapes: &[Vec<usize>]) -> Vec<Dense> {
    let mut next = 0;
    let mut made = Vec::new();
    for (number, dims) in shapes.iter().enumerate() {
        let first = next;
        next += dims.iter().product::<usize>() as i64;
        let mut source = Dense::build(format!("s{number}"), dims.clone(), |_| 0);
        source.data = (first..next).collect();
        made.push(source);
    }
    made
}

fn program(shapes: &[Vec<usize>], choices: &[Choice], linear: bool) -> Made {
    let sources = sources(shapes);
    let mut made = Made { text: String::new(), values: sources.clone(), sources };
    for (number, choice) in choices.iter().enumerate() {
        statement(&mut made, number, *choice, linear);
    }
    made
}

/// Adds one statement; choices that do not fit become renames.
fn statement(made: &mut Made, number: usize, (op, which, how, more): Choice, linear: bool) {
    let at = usize::from(which) % made.values.len();
    let x = made.values[at].clone();
    let name = format!("t{number}");
    let axis = if x.dims.is_empty() { 0 } else { usize::from(how) % x.dims.len() };
    let consumed = match op % 6 {
        0 if !x.dims.is_empty() => split(made, &x, &name, axis, usize::from(more)),
        1 if !x.dims.is_empty() => concat(made, at, &name, axis, linear),
        2 => {
            let mut order: Vec<usize> = (0..x.dims.len()).collect();
            order.rotate_left(axis);
            if more % 2 == 0 {
                order.reverse();
            }
            writeln!(made.text, "{} -> {name}, permute=\"{order:?}\"", x.name).unwrap();
            let dims = order.iter().map(|&d| x.dims[d]).collect();
            made.values.push(Dense::build(name, dims, |index| {
                let mut from = vec![0; index.len()];
                order.iter().zip(index).for_each(|(&d, &i)| from[d] = i);
                x.at(&from)
            }));
            vec![at]
        }
        3 => {
            let numel: usize = x.dims.iter().product();
            let parts = [1, 2, 3, 4][usize::from(more) % 4];
            let dims = if numel.is_multiple_of(parts) { vec![parts, numel / parts] } else { vec![numel, 1] };
            writeln!(made.text, "{} -> {name}, reshape={dims:?}, src_shape={:?}", x.name, x.dims).unwrap();
            made.values.push(Dense { name, dims, data: x.data.clone() });
            vec![at]
        }
        4 => {
            writeln!(made.text, "{}^T -> {name}", x.name).unwrap();
            let dims: Vec<usize> = x.dims.iter().rev().copied().collect();
            made.values.push(Dense::build(name, dims, |index| {
                x.at(&index.iter().rev().copied().collect::<Vec<_>>())
            }));
            vec![at]
        }
        _ => {
            writeln!(made.text, "{} -> {name}", x.name).unwrap();
            made.values.push(Dense { name, ..x });
            vec![at]
        }
    };
    if linear {
        let mut consumed = consumed;
        consumed.sort_unstable();
        consumed.dedup();
        consumed.into_iter().rev().for_each(|at| _ = made.values.remove(at));
    }
}

fn split(made: &mut Made, x: &Dense, name: &str, axis: usize, more: usize) -> Vec<usize> {
    let at = made.values.iter().position(|v| v.name == x.name).unwrap();
    let cut = if x.dims[axis] == 0 { 0 } else { more % (x.dims[axis] + 1) };
    let sizes = [cut, x.dims[axis] - cut];
    writeln!(made.text, "{} -> {name}a, {name}b, axis={axis}, sizes={sizes:?}", x.name).unwrap();
    for (suffix, start, len) in [("a", 0, sizes[0]), ("b", sizes[0], sizes[1])] {
        let mut dims = x.dims.clone();
        dims[axis] = len;
        made.values.push(Dense::build(format!("{name}{suffix}"), dims, |index| {
            let mut from = index.to_vec();
            from[axis] += start;
            x.at(&from)
        }));
    }
    vec![at]
}

/// Joins a value with another that fits; itself when programs may read twice, nothing else when not.
fn concat(made: &mut Made, at: usize, name: &str, axis: usize, linear: bool) -> Vec<usize> {
    let x = made.values[at].clone();
    let fits = |y: &Dense| {
        y.dims.len() == x.dims.len() && (0..x.dims.len()).all(|d| d == axis || y.dims[d] == x.dims[d])
    };
    let other = (0..made.values.len()).rev().find(|&i| (i != at || !linear) && fits(&made.values[i]));
    let Some(other) = other else {
        writeln!(made.text, "{} -> {name}", x.name).unwrap();
        made.values.push(Dense { name: name.to_string(), ..x });
        return vec![at];
    };
    let y = made.values[other].clone();
    // A negative axis counts from the end.
    let written = axis as i64 - x.dims.len() as i64;
    let sizes = [x.dims[axis], y.dims[axis]];
    writeln!(made.text, "{}, {} -> {name}, axis={written}, sizes={sizes:?}", x.name, y.name).unwrap();
    let mut dims = x.dims.clone();
    dims[axis] += y.dims[axis];
    made.values.push(Dense::build(name.to_string(), dims, |index| {
        if index[axis] < x.dims[axis] {
            return x.at(index);
        }
        let mut from = index.to_vec();
        from[axis] -= x.dims[axis];
        y.at(&from)
    }));
    vec![at, other]
}

fn shapes() -> impl Strategy<Value = Vec<Vec<usize>>> {
    prop::collection::vec(prop::collection::vec(0usize..5, 0..4), 1..4)
}

fn catalog(tensors: &[Dense]) -> Catalog {
    tensors.iter().map(|t| (t.name.clone(), common::f32_tensor(&t.dims))).collect()
}

/// The last value of each name.
fn wanted(made: &Made) -> Vec<Dense> {
    let last: BTreeMap<&str, &Dense> = made.values.iter().map(|v| (v.name.as_str(), v)).collect();
    last.into_values().cloned().collect()
}

fn values(tensors: &[Dense]) -> Values {
    tensors.iter().map(|t| (t.name.clone(), t.data.clone())).collect()
}

fn compiled(made: &Made) -> Mapping {
    let targets = catalog(&wanted(made));
    let program = Program::parse(made.text.as_str()).unwrap();
    let compiled = program.compile(&catalog(&made.sources), Some(&targets), &Options::default());
    compiled.unwrap_or_else(|error| panic!("{error}\n{}", made.text))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pieces_are_what_dense_arrays_say(
        shapes in shapes(),
        choices in prop::collection::vec(any::<Choice>(), 0..8),
        corner in any::<(u8, u8)>(),
    ) {
        let made = program(&shapes, &choices, false);
        let mapping = compiled(&made);
        let sources = values(&made.sources);
        prop_assert_eq!(&numbered(&mapping), &sources);
        prop_assert_eq!(run(&mapping, &sources), values(&wanted(&made)));
        // A region inside each target.
        let boxes: BTreeMap<&str, Region> =
            mapping.sources().map(|(name, tensor)| (name, Region::whole(tensor.shape()))).collect();
        for dense in wanted(&made) {
            let lo: Dims = dense.dims.iter().map(|&d| usize::from(corner.0) % (d + 1)).collect();
            let hi: Dims =
                lo.iter().zip(&dense.dims).map(|(&l, &d)| l + usize::from(corner.1) % (d - l + 1)).collect();
            let region = Region::new(&lo, &hi).unwrap();
            let extents = region.extents().to_vec();
            let expected = Dense::build(String::new(), extents, |index| {
                dense.at(&index.iter().zip(&lo).map(|(i, l)| i + l).collect::<Vec<_>>())
            });
            prop_assert_eq!(region_of(&mapping, &dense.name, &region, &boxes, &sources), expected.data);
        }
    }

    #[test]
    fn what_reads_everything_once_has_an_exact_inverse(
        shapes in shapes(),
        choices in prop::collection::vec(any::<Choice>(), 0..8),
    ) {
        let made = program(&shapes, &choices, true);
        let mapping = compiled(&made);
        let sources = values(&made.sources);
        let there = run(&mapping, &sources);
        // Unequal splits of nothing leave tensors without elements; they are read by nobody.
        let back = mapping.inverse(Ties::Refuse).unwrap_or_else(|error| panic!("{error}\n{}", made.text));
        for (name, data) in run(&back, &there) {
            prop_assert_eq!(&data, &sources[&name], "{}", made.text);
        }
        // Reading the text backwards says the same.
        let program = Program::parse(made.text.as_str()).unwrap();
        let model = catalog(&wanted(&made));
        let foreign = catalog(&made.sources);
        let reversed = program.compile_reverse(&model, Some(&foreign), &Options::default());
        let reversed = reversed.unwrap_or_else(|error| panic!("{error}\n{}", made.text));
        prop_assert_eq!(run(&reversed, &there), sources);
    }

    #[test]
    fn an_inverse_is_never_wrong(
        shapes in shapes(),
        choices in prop::collection::vec(any::<Choice>(), 0..6),
    ) {
        let made = program(&shapes, &choices, false);
        let mapping = compiled(&made);
        let sources = values(&made.sources);
        if let Ok(back) = mapping.inverse(Ties::First) {
            for (name, data) in run(&back, &run(&mapping, &sources)) {
                prop_assert_eq!(&data, &sources[&name], "{}", made.text);
            }
        }
    }
}
