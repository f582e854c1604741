//! Nodes as other writers have them: attributes of older sets, parts of shapes, and what is refused by name.

use super::import;
use super::proto::{
    Attribute, Dim, Graph, Model, Node, OperatorSet, TensorShape, TensorType, Type, ValueInfo, kind,
};
use crate::run::{Datum, run};
use planaria_array::Array;
use prost::Message;

fn info(name: &str, dims: &[i64]) -> ValueInfo {
    let dim = dims.iter().map(|&n| Dim { value: Some(n), param: None }).collect();
    let tensor = Some(TensorType { elem_type: Some(1), shape: Some(TensorShape { dim }) });
    ValueInfo { name: Some(name.to_string()), ty: Some(Type { tensor }) }
}

fn ints(name: &str, values: &[i64]) -> Attribute {
    Attribute {
        name: Some(name.into()),
        ints: values.to_vec(),
        kind: Some(kind::INTS),
        ..Attribute::default()
    }
}

fn node(op: &str, inputs: &[&str], output: &str, attribute: Vec<Attribute>) -> Node {
    Node {
        input: inputs.iter().map(ToString::to_string).collect(),
        output: vec![output.into()],
        op_type: Some(op.to_string()),
        attribute,
        ..Node::default()
    }
}

/// A model of one node on `x`, `[2, 3]`.
fn model(op: &str, attribute: Vec<Attribute>, opset: i64) -> Vec<u8> {
    model_of(vec![node(op, &["x"], "y", attribute)], opset)
}

/// A model of nodes that make `y` of `x`, `[2, 3]`.
fn model_of(node: Vec<Node>, opset: i64) -> Vec<u8> {
    let graph =
        Graph { node, input: vec![info("x", &[2, 3])], output: vec![info("y", &[])], ..Graph::default() };
    let set = OperatorSet { domain: None, version: Some(opset) };
    Model { graph: Some(graph), opset_import: vec![set], ..Model::default() }.encode_to_vec()
}

fn result(bytes: &[u8]) -> Result<Array, String> {
    let none = |_: &str, _: u64, _: u64| Err(std::io::ErrorKind::NotFound.into());
    let (program, mut state) = import(bytes, &|_, _| None, &none).map_err(|error| error.to_string())?;
    let x = Array::from_slice(&[1f32, 2.0, 3.0, 4.0, 5.0, 7.0], &[2, 3]).unwrap();
    let found = run(&program, &mut state, &[Datum::Array(x)]).map_err(|error| error.to_string())?;
    Ok(found[0].1.array().unwrap().clone())
}

#[test]
fn axes_may_be_attributes_as_they_were_before_set_18() {
    let mean = result(&model("ReduceMean", vec![ints("axes", &[1])], 13)).unwrap();
    assert_eq!((mean.shape().to_vec(), mean.to_vec::<f32>().unwrap()), (vec![2, 1], vec![2.0, 16.0 / 3.0]));
    let most = result(&model("ReduceMax", vec![ints("axes", &[0]), super::nodes::int("keepdims", 0)], 17));
    assert_eq!(most.unwrap().to_vec::<f32>().unwrap(), [4.0, 5.0, 7.0]);
    let all = result(&model("ReduceSum", Vec::new(), 26)).unwrap();
    assert_eq!(all.to_vec::<f32>().unwrap(), [22.0]);
    let none = result(&model("ReduceSum", vec![super::nodes::int("noop_with_empty_axes", 1)], 26)).unwrap();
    assert_eq!(none.shape().to_vec(), [2, 3]);
}

#[test]
fn a_shape_may_be_asked_for_in_part() {
    let part = |start: i64, end: i64| {
        let attrs = vec![super::nodes::int("start", start), super::nodes::int("end", end)];
        result(&model("Shape", attrs, 19)).unwrap().to_vec::<i64>().unwrap()
    };
    assert_eq!((part(0, 2), part(-1, 5), part(0, -1)), (vec![2, 3], vec![3], vec![2]));
}

#[test]
fn quotients_of_whole_numbers_are_rounded_towards_zero() {
    let number =
        |value: i64, name: &str| node("Constant", &[], name, vec![super::nodes::int("value_int", value)]);
    let cast = node("Cast", &["x"], "whole", vec![super::nodes::int("to", 7)]);
    let nodes = vec![
        cast,
        number(4, "four"),
        number(-2, "two"),
        node("Sub", &["whole", "four"], "signed", Vec::new()),
        node("Div", &["signed", "two"], "y", Vec::new()),
    ];
    let found = result(&model_of(nodes, 26)).unwrap();
    assert_eq!(found.to_vec::<i64>().unwrap(), [1, 1, 0, 0, 0, -1]);
}

#[test]
fn running_sums_go_along_their_axis_from_either_end() {
    let along = |exclusive: i64, reverse: i64| {
        let axis = node("Constant", &[], "axis", vec![super::nodes::int("value_int", 1)]);
        let attrs = vec![super::nodes::int("exclusive", exclusive), super::nodes::int("reverse", reverse)];
        let found = result(&model_of(vec![axis, node("CumSum", &["x", "axis"], "y", attrs)], 26)).unwrap();
        found.to_vec::<f32>().unwrap()
    };
    assert_eq!(along(0, 0), [1.0, 3.0, 6.0, 4.0, 9.0, 16.0]);
    assert_eq!(along(1, 0), [0.0, 1.0, 3.0, 0.0, 4.0, 9.0]);
    assert_eq!(along(0, 1), [6.0, 5.0, 3.0, 16.0, 12.0, 7.0]);
}

#[test]
fn sets_and_operators_that_are_not_known_are_named() {
    for version in [12, 29] {
        let error = result(&model("Relu", Vec::new(), version)).unwrap_err();
        assert!(error.contains(&format!("set {version}")) && error.contains("13 to 28"), "{error}");
    }
    assert!(result(&model("Relu", Vec::new(), 28)).is_ok());
    let error = result(&model("Celu", Vec::new(), 26)).unwrap_err();
    assert!(error.contains("Celu (y)"), "{error}");
}
