//! What a type says: element, extents, and the dialect's own kinds around them.

use crate::node::{Data, Node, Type};
use planaria_array::DType;
use std::fmt;
use std::sync::Arc;

/// What the elements of a tensor are. Complex numbers have no [`DType`]; they are carried as pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// An element that arrays have.
    Plain(DType),
    /// Two f32: real and imaginary part.
    C64,
    /// Two f64.
    C128,
}

/// Element, name in types, name in attributes, number in parameter files.
const ELEMENTS: [(Element, &str, &str, u64); 17] = [
    (Element::Plain(DType::Bool), "t_bool", "bool", 0),
    (Element::Plain(DType::I16), "t_i16", "int16", 1),
    (Element::Plain(DType::I32), "t_i32", "int32", 2),
    (Element::Plain(DType::I64), "t_i64", "int64", 3),
    (Element::Plain(DType::F16), "t_f16", "float16", 4),
    (Element::Plain(DType::F32), "t_f32", "float32", 5),
    (Element::Plain(DType::F64), "t_f64", "float64", 6),
    (Element::Plain(DType::U8), "t_ui8", "uint8", 20),
    (Element::Plain(DType::I8), "t_i8", "int8", 21),
    (Element::Plain(DType::BF16), "t_bf16", "bfloat16", 22),
    (Element::C64, "t_c64", "complex64", 23),
    (Element::C128, "t_c128", "complex128", 24),
    (Element::Plain(DType::F8E4M3), "t_f8e4m3fn", "float8_e4m3fn", 32),
    (Element::Plain(DType::F8E5M2), "t_f8e5m2", "float8_e5m2", 33),
    // Parameter files have these; types do not.
    (Element::Plain(DType::U16), "", "uint16", 36),
    (Element::Plain(DType::U32), "", "uint32", 37),
    (Element::Plain(DType::U64), "", "uint64", 38),
];

impl Element {
    fn row(self) -> &'static (Element, &'static str, &'static str, u64) {
        let row = ELEMENTS.iter().find(|row| row.0 == self);
        row.unwrap_or(&ELEMENTS[5])
    }

    /// By the kind of its type, as `t_f32`.
    pub fn of_kind(kind: &str) -> Option<Element> {
        ELEMENTS.iter().find(|row| !kind.is_empty() && row.1 == kind).map(|row| row.0)
    }

    /// By the name that attributes use, as `float32`.
    pub fn of_name(name: &str) -> Option<Element> {
        ELEMENTS.iter().find(|row| row.2 == name).map(|row| row.0)
    }

    /// By its number in parameter files.
    pub fn of_number(number: u64) -> Option<Element> {
        ELEMENTS.iter().find(|row| row.3 == number).map(|row| row.0)
    }

    /// The name that attributes use.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Its number in parameter files.
    pub fn number(self) -> u64 {
        self.row().3
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Element::Plain(dtype) => dtype.size(),
            Element::C64 => 8,
            Element::C128 => 16,
        }
    }

    /// Its type in a file; unsigned integers past 8 bits have none.
    pub fn node(self) -> Option<Node> {
        let kind = self.row().1;
        (!kind.is_empty()).then(|| Node::plain(&format!("0.{kind}")))
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Plain(dtype) => dtype.fmt(f),
            Element::C64 => f.write_str("c64"),
            Element::C128 => f.write_str("c128"),
        }
    }
}

/// A dense tensor's type: its element and extents, -1 where an extent is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// What the elements are.
    pub element: Element,
    /// Extents, -1 for one that is not known.
    pub dims: Vec<i64>,
}

impl TensorType {
    /// As files have it, in the layout that Paddle gives every tensor.
    pub fn node(&self) -> Option<Node> {
        let dims = Data::List(self.dims.iter().map(|d| Data::Int(*d)).collect());
        let element = Data::Node(Arc::new(self.element.node()?));
        let layout = Data::Text("NCHW".into());
        let parts = vec![element, dims, layout, Data::List(Vec::new()), Data::Int(0)];
        Some(Node::with("0.t_dtensor", Data::List(parts)))
    }

    /// Elements, if every extent is known and the product fits.
    pub fn numel(&self) -> Option<u64> {
        self.dims.iter().try_fold(1u64, |n, d| n.checked_mul(u64::try_from(*d).ok()?))
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.element)?;
        for (at, dim) in self.dims.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match dim {
                -1 => write!(f, "{comma}?")?,
                dim => write!(f, "{comma}{dim}")?,
            }
        }
        f.write_str("]")
    }
}

/// The dense tensor that a type is or wraps.
pub fn tensor_type(node: &Node) -> Option<TensorType> {
    let parts = node.data.as_ref()?.list()?;
    match node.own_kind() {
        "t_dtensor" | "t_selected_rows" => {
            let element = Element::of_kind(parts.first()?.node()?.own_kind())?;
            Some(TensorType { element, dims: parts.get(1)?.ints()? })
        }
        "t_dist_dtensor" => tensor_type(parts.first()?.node()?),
        _ => None,
    }
}

/// The types inside a `t_vec`.
pub fn vector_types(node: &Node) -> Option<Vec<Type>> {
    if node.own_kind() != "t_vec" {
        return None;
    }
    node.data.as_ref()?.list()?.iter().map(|item| item.node().cloned()).collect()
}

/// Whether a type stands for no value at all.
pub(crate) fn is_absent(node: &Node) -> bool {
    &*node.kind == "NULL"
}

/// What is wrong with the form of a type that this crate knows; none for kinds it does not.
pub(crate) fn malformed(node: &Node) -> Option<String> {
    let kind = node.own_kind();
    if is_absent(node) || Element::of_kind(kind).is_some() || kind == "t_index" {
        return node.data.is_some().then(|| format!("type {} has data", node.kind));
    }
    let parts = node.data.as_ref().and_then(Data::list);
    let shape = |parts: &[Data]| {
        parts.first().and_then(Data::node).is_some_and(|n| Element::of_kind(n.own_kind()).is_some())
            && parts.get(1).and_then(Data::ints).is_some_and(|dims| dims.iter().all(|d| *d >= -1))
    };
    let sound = match (kind, parts) {
        ("t_dtensor" | "t_selected_rows", Some(parts)) => {
            parts.len() == 5
                && shape(parts)
                && parts[2].text().is_some_and(|text| LAYOUTS.contains(&text))
                && parts[3].list().is_some_and(|lod| lod.iter().all(|level| level.ints().is_some()))
                && parts[4].int().is_some_and(|offset| offset >= 0)
        }
        ("t_dense_tensor_array", Some(parts)) => parts.len() == 3 && shape(parts),
        ("t_vec", Some(parts)) => {
            return parts.iter().find_map(|part| match part.node() {
                Some(node) => malformed(node),
                None => Some("a t_vec holds something that is not a type".to_string()),
            });
        }
        ("t_dtensor" | "t_selected_rows" | "t_dense_tensor_array" | "t_vec", None) => false,
        (
            "t_stack"
            | "t_inlet"
            | "t_outlet"
            | "t_sparse_coo_tensor"
            | "t_sparse_csr_tensor"
            | "t_dist_dtensor",
            _,
        ) => true,
        _ => {
            return matches!(node.parts().0, "builtin" | "pd_op" | "cf" | "pd_dist" | "")
                .then(|| format!("type {} is not known", node.kind));
        }
    };
    (!sound).then(|| format!("type {} has data of another form", node.kind))
}

const LAYOUTS: [&str; 10] = [
    "NCHW",
    "NHWC",
    "NCDHW",
    "NDHWC",
    "Undefined(AnyLayout)",
    "ONEDNN",
    "SPARSE_COO",
    "SPARSE_CSR",
    "PSTRING_UNION",
    "STRIDED",
];
