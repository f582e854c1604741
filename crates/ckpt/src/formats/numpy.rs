//! Numpy arrays inside pickles: where their bytes lie, in which order.

use super::pickle::{Id, Node, Span, Tree};
use super::source::{Stored, byte_len};
use planaria_layout::{DType, Dims, Shape};

/// An array or scalar that numpy pickled.
#[derive(Clone, Debug)]
pub(super) struct NdArray {
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    span: Span,
    fortran: bool,
}

/// What a value is, seen as an array: nothing of the kind, an array, or one that cannot be read in place.
pub(super) type Found<T> = Option<Result<T, String>>;

/// The array at a node of the tree.
pub(super) fn find(tree: &Tree, id: Id) -> Found<NdArray> {
    let (object, (module, name)) = tree.object(id)?;
    match (module, name) {
        ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => {
            let state = object.state.and_then(|state| tree.items(state));
            let Some([_version, shape, dtype, fortran, data]) = state else {
                return Some(Err("an array without the state that numpy gives it".to_string()));
            };
            let fortran = tree.bool(*fortran).unwrap_or_else(|| tree.int(*fortran).is_some_and(|v| v != 0));
            Some(array(tree, *shape, *dtype, fortran, *data))
        }
        ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer") => {
            let Some([data, dtype, shape, order]) = tree.items(object.args) else {
                return Some(Err("an array without the arguments that numpy gives it".to_string()));
            };
            // Protocol 5 wraps writable data in a call of bytearray.
            let data = match tree.object(*data) {
                Some((inner, ("builtins", "bytearray"))) => {
                    tree.items(inner.args).and_then(|args| args.first().copied()).unwrap_or(*data)
                }
                _ => *data,
            };
            Some(array(tree, *shape, *dtype, tree.text(*order) == Some("F"), data))
        }
        ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => {
            let Some([dtype, data]) = tree.items(object.args) else {
                return Some(Err("a scalar without the arguments that numpy gives it".to_string()));
            };
            Some(element(tree, *dtype).and_then(|dtype| placed(tree, dtype, Shape::default(), false, *data)))
        }
        _ => None,
    }
}

fn array(tree: &Tree, shape: Id, dtype: Id, fortran: bool, data: Id) -> Result<NdArray, String> {
    let dims = tree.sizes(shape).ok_or("an array whose shape is not a list of sizes")?;
    let shape = Shape::new(&dims).map_err(|error| error.to_string())?;
    placed(tree, element(tree, dtype)?, shape, fortran, data)
}

fn placed(tree: &Tree, dtype: DType, shape: Shape, fortran: bool, data: Id) -> Result<NdArray, String> {
    let span = match tree.node(data) {
        Node::Bytes(bytes) => bytes.span,
        Node::Object(_) if tree.object(data).is_some_and(|(_, g)| g == ("_codecs", "encode")) => {
            let what = "its bytes are written as text (pickle protocol 2); save it again with protocol 4";
            // Nothing was encoded, so nothing is lost.
            if shape.numel() > 0 {
                return Err(what.to_string());
            }
            Span { offset: 0, len: 0 }
        }
        Node::Text(text) if text.is_empty() => Span { offset: 0, len: 0 },
        Node::List(_) => return Err("an array of Python objects".to_string()),
        _ => return Err("an array whose data is not a byte string".to_string()),
    };
    let expected = byte_len(&shape, dtype);
    if span.len != expected {
        return Err(format!("{dtype}{shape} needs {expected} bytes, {} are there", span.len));
    }
    Ok(NdArray { dtype, shape, span, fortran })
}

/// The element type of a pickled `numpy.dtype`.
fn element(tree: &Tree, id: Id) -> Result<DType, String> {
    let Some((object, ("numpy", "dtype" | "dtype[...]"))) = tree.object(id) else {
        return Err("an array whose dtype is not one of numpy's".to_string());
    };
    let code = tree.items(object.args).and_then(|args| args.first().copied());
    let code = match code.map(|code| tree.node(code)) {
        Some(Node::Text(text)) => text.to_string(),
        Some(Node::Global(global)) => global.1.clone(),
        _ => return Err("an array whose dtype has no name".to_string()),
    };
    let state = object.state.and_then(|state| tree.items(state)).unwrap_or_default();
    if state.get(1).and_then(|order| tree.text(*order)) == Some(">") {
        return Err(format!("its elements '{code}' are big-endian"));
    }
    let known = match code.trim_start_matches(['<', '=', '|']) {
        "b1" | "?" => DType::Bool,
        "u1" | "B" => DType::U8,
        "i1" | "b" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        "bfloat16" => DType::BF16,
        "float8_e4m3fn" => DType::F8E4M3,
        "float8_e5m2" => DType::F8E5M2,
        _ => return Err(format!("its elements '{code}' are of no known type")),
    };
    Ok(known)
}

impl NdArray {
    /// The array as stored, with its true element type where the metadata knows better.
    pub(super) fn stored(&self, dtype: DType) -> Stored {
        Stored {
            dtype,
            shape: self.shape.clone(),
            offset: self.span.offset,
            len: self.span.len,
            strides: if self.fortran { column_major(&self.shape) } else { None },
            foreign: None,
        }
    }
}

/// Strides of Fortran order; `None` where it is the same as row-major.
fn column_major(shape: &Shape) -> Option<Dims> {
    let long = shape.iter().filter(|&&d| d > 1).count();
    if long < 2 || shape.numel() == 0 {
        return None;
    }
    let mut stride = 1;
    let next = |&extent: &usize| {
        let this = stride;
        stride *= extent;
        this
    };
    Some(shape.iter().map(next).collect())
}
