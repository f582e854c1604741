//! Catalogs from short texts, and mappings evaluated element by element.
#![allow(dead_code, unreachable_pub)] // each test file uses its own part

use planaria_aoa::{Catalog, Error, Fault, Mapping, Options, Program, Tensor};
use planaria_layout::{DType, Region, TensorSpec};
use std::collections::BTreeMap;

/// `name f32[4,6] @ tp:S1`, one tensor an item, on `mesh`.
pub fn catalog(mesh: &str, tensors: &[&str]) -> Catalog {
    let mesh = mesh.parse().unwrap();
    let one = |text: &&str| {
        let (name, spec) = text.split_once(' ').unwrap();
        let spec: TensorSpec = spec.parse().unwrap();
        let dtype = spec.dtype;
        (name.to_string(), Tensor::of(&spec.on(&mesh).unwrap(), dtype))
    };
    tensors.iter().map(one).collect()
}

/// Whole tensors.
pub fn whole(tensors: &[&str]) -> Catalog {
    catalog("x=1", tensors)
}

/// A strict mapping.
pub fn compile(text: &str, sources: &Catalog, targets: &Catalog) -> Result<Mapping, Error> {
    Program::parse(text)?.compile(sources, Some(targets), &Options::default())
}

/// What is wrong with a mapping.
pub fn faults(result: Result<Mapping, Error>) -> Vec<Fault> {
    match result {
        Err(Error::Refused(report)) => report.problems().iter().map(|p| p.fault.clone()).collect(),
        other => panic!("{other:?}"),
    }
}

/// Element numbers of tensors: each source numbered on from the one before, names in order.
pub type Values = BTreeMap<String, Vec<i64>>;

/// Numbers for all sources of a mapping.
pub fn numbered(mapping: &Mapping) -> Values {
    let shapes: BTreeMap<String, usize> =
        mapping.sources().map(|(name, tensor)| (name.to_string(), tensor.shape().numel())).collect();
    let mut next = 0;
    let mut values = Values::new();
    for (name, numel) in shapes {
        values.insert(name, (next..next + numel as i64).collect());
        next += numel as i64;
    }
    values
}

/// Everything a mapping makes from `sources`, through its pieces.
pub fn run(mapping: &Mapping, sources: &Values) -> Values {
    let shapes: BTreeMap<&str, Region> =
        mapping.sources().map(|(name, tensor)| (name, Region::whole(tensor.shape()))).collect();
    let mut made = Values::new();
    for target in mapping.targets().iter().filter(|target| target.is_loaded()) {
        let region = Region::whole(target.tensor().shape());
        made.insert(target.name().to_string(), region_of(mapping, target.name(), &region, &shapes, sources));
    }
    made
}

/// One region of a target, through its pieces; every element must be written exactly once.
pub fn region_of(
    mapping: &Mapping,
    target: &str,
    region: &Region,
    shapes: &BTreeMap<&str, Region>,
    sources: &Values,
) -> Vec<i64> {
    let mut out = vec![-1; region.numel()];
    for piece in mapping.pieces(target, region).unwrap() {
        let source = &sources[piece.source];
        let runs = piece.from.runs(&shapes[piece.source]);
        let block: Vec<i64> = runs.flat_map(|(at, len)| source[at..at + len].to_vec()).collect();
        let order = piece.order();
        assert_eq!((block.len(), order.len()), (piece.from.numel(), piece.to.numel()), "{piece:?}");
        let mut values = order.into_iter().map(|i| block[i]);
        for (at, len) in piece.to.runs(region) {
            for slot in &mut out[at..at + len] {
                assert_eq!(*slot, -1, "{piece:?} overlaps another piece");
                *slot = values.next().unwrap();
            }
        }
    }
    assert!(!out.contains(&-1), "{target} is not covered");
    out
}

/// One tensor as f32.
pub fn f32_tensor(dims: &[usize]) -> Tensor {
    Tensor::new(planaria_layout::Shape::new(dims).unwrap(), DType::F32)
}
