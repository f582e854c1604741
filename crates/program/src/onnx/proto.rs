//! The messages of ONNX files that are used here, by the field numbers of its definition.

/// A model.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Model {
    #[prost(int64, optional, tag = "1")]
    pub(super) ir_version: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub(super) producer_name: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) producer_version: Option<String>,
    #[prost(message, optional, tag = "7")]
    pub(super) graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    pub(super) opset_import: Vec<OperatorSet>,
    #[prost(message, repeated, tag = "25")]
    pub(super) functions: Vec<Unread>,
}

/// Something that is known to be there and not read.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Unread {}

/// A set of operators and its version.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct OperatorSet {
    #[prost(string, optional, tag = "1")]
    pub(super) domain: Option<String>,
    #[prost(int64, optional, tag = "2")]
    pub(super) version: Option<i64>,
}

/// Nodes in the order they run, with what they are given.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Graph {
    #[prost(message, repeated, tag = "1")]
    pub(super) node: Vec<Node>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub(super) initializer: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    pub(super) input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    pub(super) output: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "15")]
    pub(super) sparse_initializer: Vec<Unread>,
}

/// One operation.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Node {
    #[prost(string, repeated, tag = "1")]
    pub(super) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) output: Vec<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) name: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(super) op_type: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub(super) attribute: Vec<Attribute>,
    #[prost(string, optional, tag = "7")]
    pub(super) domain: Option<String>,
    #[prost(message, repeated, tag = "9")]
    pub(super) metadata_props: Vec<Entry>,
}

/// An attribute of a node.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Attribute {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(float, optional, tag = "2")]
    pub(super) f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub(super) i: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub(super) s: Option<Vec<u8>>,
    #[prost(message, optional, tag = "5")]
    pub(super) t: Option<Tensor>,
    #[prost(float, repeated, packed = "false", tag = "7")]
    pub(super) floats: Vec<f32>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub(super) ints: Vec<i64>,
    #[prost(int32, optional, tag = "20")]
    pub(super) kind: Option<i32>,
}

/// A value by name, and its type.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ValueInfo {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(message, optional, tag = "2")]
    pub(super) ty: Option<Type>,
}

/// A type; only tensors are read.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Type {
    #[prost(message, optional, tag = "1")]
    pub(super) tensor: Option<TensorType>,
}

/// Element type and shape.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TensorType {
    #[prost(int32, optional, tag = "1")]
    pub(super) elem_type: Option<i32>,
    #[prost(message, optional, tag = "2")]
    pub(super) shape: Option<TensorShape>,
}

/// Dims of a type.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TensorShape {
    #[prost(message, repeated, tag = "1")]
    pub(super) dim: Vec<Dim>,
}

/// One extent: a number, or a name for one that is not known.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Dim {
    #[prost(int64, optional, tag = "1")]
    pub(super) value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub(super) param: Option<String>,
}

/// A tensor with its elements, or with where they are.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Tensor {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub(super) dims: Vec<i64>,
    #[prost(int32, optional, tag = "2")]
    pub(super) data_type: Option<i32>,
    #[prost(float, repeated, tag = "4")]
    pub(super) float_data: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    pub(super) int32_data: Vec<i32>,
    #[prost(int64, repeated, tag = "7")]
    pub(super) int64_data: Vec<i64>,
    #[prost(string, optional, tag = "8")]
    pub(super) name: Option<String>,
    #[prost(bytes = "vec", optional, tag = "9")]
    pub(super) raw_data: Option<Vec<u8>>,
    #[prost(double, repeated, tag = "10")]
    pub(super) double_data: Vec<f64>,
    #[prost(message, repeated, tag = "13")]
    pub(super) external_data: Vec<Entry>,
    #[prost(int32, optional, tag = "14")]
    pub(super) data_location: Option<i32>,
}

/// A key and a value.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Entry {
    #[prost(string, optional, tag = "1")]
    pub(super) key: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(super) value: Option<String>,
}

/// Kinds of attributes.
pub(super) mod kind {
    pub(in crate::onnx) const FLOAT: i32 = 1;
    pub(in crate::onnx) const INT: i32 = 2;
    pub(in crate::onnx) const STRING: i32 = 3;
    pub(in crate::onnx) const TENSOR: i32 = 4;
    pub(in crate::onnx) const INTS: i32 = 7;
}
