//! One op about to run: its operands and attributes by place and name, and the families that know what to do.

use super::{
    Datum, conv, create, describe, elementwise, grad, indexing, loss, native, nn, optim, order, pool, reduce,
    resize, shape, update,
};
use crate::error::Error;
use crate::native::DIALECT;
use crate::node::Node;
use crate::program::Op;
use crate::types::Element;
use planaria_array::ops::Keep;
use planaria_array::{Array, DType, Scalar};

/// Why an op did not run.
pub(super) enum Fault {
    /// Arrays refuse it.
    Array(planaria_array::Error),
    /// Tensors refuse it.
    Tensor(planaria_tensor::Error),
    /// The op itself refuses it.
    What(String),
    /// It needs elements, and the run has none.
    Unknown,
}

impl From<planaria_array::Error> for Fault {
    fn from(error: planaria_array::Error) -> Fault {
        Fault::Array(error)
    }
}

impl Fault {
    /// With the op that it happened in.
    pub(super) fn at(self, op: &Op) -> Error {
        let place = op.place();
        match self {
            Fault::Array(source) => Error::Array { place, source },
            Fault::Tensor(source) => Error::Tensor { place, source },
            Fault::What(what) => Error::Run { place, what },
            Fault::Unknown => Error::Run { place, what: "it needs values that are not known".to_string() },
        }
    }
}

/// An answer, or why there is none.
pub(super) type Answer<T> = Result<T, Fault>;

/// Results of an op, or none if the family does not know it.
pub(super) type Found = Answer<Option<Vec<Datum>>>;

/// One result.
pub(super) fn one(array: Array) -> Found {
    Ok(Some(vec![Datum::Array(array)]))
}

/// Several results.
pub(super) fn many(arrays: impl IntoIterator<Item = Array>) -> Found {
    Ok(Some(arrays.into_iter().map(Datum::Array).collect()))
}

/// What is wrong with an op.
pub(super) fn refuse<T>(what: impl Into<String>) -> Answer<T> {
    Err(Fault::What(what.into()))
}

const FAMILIES: [fn(&Call<'_>) -> Found; 15] = [
    elementwise::call,
    shape::call,
    create::call,
    reduce::call,
    indexing::call,
    nn::call,
    conv::call,
    pool::call,
    resize::call,
    order::call,
    loss::call,
    update::call,
    grad::call,
    optim::call,
    nn::products,
];

/// The results of an op of ours, or of Paddle's dialects.
pub(super) fn dispatch(call: &Call<'_>) -> Answer<Vec<Datum>> {
    if call.op.parts().0 == DIALECT {
        return native::call(call);
    }
    if matches!(call.op.parts().0, "builtin" | "pd_op") {
        for family in FAMILIES {
            if let Some(results) = family(call)? {
                return Ok(results);
            }
        }
    }
    refuse("this op is not known, so it can be kept but not run")
}

/// One op about to run.
pub(super) struct Call<'a> {
    pub(super) op: &'a Op,
    /// Operands; all without elements if one of them is.
    pub(super) args: Vec<Datum>,
    /// Operands as they are, for those that are read as numbers.
    pub(super) exact: Vec<Datum>,
    /// Whether the run is one without elements.
    pub(super) rehearsed: bool,
}

impl Call<'_> {
    /// The name without dialect, and without the underscore of ops that work in place.
    pub(super) fn name(&self) -> &str {
        let name = self.op.parts().1;
        name.strip_suffix('_').unwrap_or(name)
    }

    /// The array at this place.
    pub(super) fn array(&self, at: usize) -> Answer<&Array> {
        match self.args.get(at) {
            Some(Datum::Array(array)) => Ok(array),
            Some(other) => refuse(format!("operand {at} is {}, expected a tensor", describe(other))),
            None => refuse(format!("operand {at} is missing")),
        }
    }

    /// The array at this place, if it is not left out.
    pub(super) fn optional(&self, at: usize) -> Option<&Array> {
        self.args.get(at).and_then(Datum::array)
    }

    /// The arrays of a list, or the one array that stands in its place.
    pub(super) fn arrays(&self, at: usize) -> Answer<Vec<&Array>> {
        match self.args.get(at) {
            Some(Datum::List(items)) => {
                let arrays: Option<Vec<&Array>> = items.iter().map(Datum::array).collect();
                arrays
                    .map_or_else(|| refuse(format!("operand {at} holds something that is not a tensor")), Ok)
            }
            _ => Ok(vec![self.array(at)?]),
        }
    }

    /// The numbers at this place, from one tensor or a list of them.
    pub(super) fn ints(&self, at: usize) -> Answer<Vec<i64>> {
        fn values(datum: &Datum, into: &mut Vec<i64>) -> Answer<()> {
            match datum {
                Datum::Array(array) if array.is_meta() => Err(Fault::Unknown),
                Datum::Array(array) => {
                    into.extend(array.cast(DType::I64)?.to_vec::<i64>()?);
                    Ok(())
                }
                Datum::List(items) => items.iter().try_for_each(|item| values(item, into)),
                Datum::Unknown => Err(Fault::Unknown),
                other => refuse(format!("expected integers, found {}", describe(other))),
            }
        }
        let mut found = Vec::new();
        let datum = self.exact.get(at).map_or_else(|| refuse(format!("operand {at} is missing")), Ok)?;
        values(datum, &mut found)?;
        Ok(found)
    }

    /// The one integer at this place.
    pub(super) fn int(&self, at: usize) -> Answer<i64> {
        match self.ints(at)?.as_slice() {
            [value] => Ok(*value),
            other => refuse(format!("operand {at} has {} elements instead of one", other.len())),
        }
    }

    /// The one number at this place.
    pub(super) fn scalar(&self, at: usize) -> Answer<Scalar> {
        match self.exact.get(at) {
            Some(Datum::Array(array)) if array.is_meta() => Err(Fault::Unknown),
            Some(Datum::Array(array)) if array.numel() == 1 => Ok(array.reshape(&[])?.item()?),
            Some(Datum::Unknown) => Err(Fault::Unknown),
            Some(other) => refuse(format!("operand {at} is {}, expected one number", describe(other))),
            None => refuse(format!("operand {at} is missing")),
        }
    }

    fn attr(&self, name: &str) -> Answer<&Node> {
        self.op.attr(name).map_or_else(|| refuse(format!("attribute {name} is missing")), Ok)
    }

    fn read<T>(&self, name: &str, what: &str, read: impl Fn(&Node) -> Option<T>) -> Answer<T> {
        read(self.attr(name)?).map_or_else(|| refuse(format!("attribute {name} is not {what}")), Ok)
    }

    pub(super) fn bool_attr(&self, name: &str) -> Answer<bool> {
        self.read(name, "a truth value", Node::as_bool)
    }

    pub(super) fn int_attr(&self, name: &str) -> Answer<i64> {
        self.read(name, "an integer", Node::as_int)
    }

    pub(super) fn real_attr(&self, name: &str) -> Answer<f64> {
        self.read(name, "a number", Node::as_real)
    }

    pub(super) fn text_attr(&self, name: &str) -> Answer<&str> {
        let node = self.attr(name)?;
        node.as_text().map_or_else(|| refuse(format!("attribute {name} is not a string")), Ok)
    }

    pub(super) fn ints_attr(&self, name: &str) -> Answer<Vec<i64>> {
        self.read(name, "a list of integers", Node::as_ints)
    }

    pub(super) fn reals_attr(&self, name: &str) -> Answer<Vec<f64>> {
        self.read(name, "a list of numbers", Node::as_reals)
    }

    /// The element type that an attribute names, if it names one that arrays have.
    pub(super) fn dtype_attr(&self, name: &str) -> Answer<Option<DType>> {
        let text = self.text_attr(name)?;
        match Element::of_name(text) {
            Some(Element::Plain(dtype)) => Ok(Some(dtype)),
            Some(element) => {
                refuse(format!("attribute {name} asks for {element}, which cannot be computed with"))
            }
            None if text.starts_with("Undefined") => Ok(None),
            None => refuse(format!("attribute {name} is \"{text}\", no known element type")),
        }
    }

    /// Whether reduced dims stay as 1.
    pub(super) fn keep(&self, name: &str) -> Answer<Keep> {
        Ok(if self.bool_attr(name)? { Keep::Yes } else { Keep::No })
    }
}

/// One value of the other's element type.
pub(super) fn like(x: &Array, value: f64) -> Answer<Array> {
    Ok(Array::scalar(Scalar::Float(value), x.dtype())?)
}

/// A dim that may count from the end.
pub(super) fn dim(dim: i64, ndim: usize) -> Answer<usize> {
    let at = if dim < 0 { dim + ndim as i64 } else { dim };
    match usize::try_from(at) {
        Ok(at) if at < ndim || (ndim == 0 && at == 0) => Ok(at),
        _ => refuse(format!("dim {dim} does not exist in a tensor of {ndim} dims")),
    }
}

/// Extents, none negative.
pub(super) fn extents(dims: &[i64]) -> Answer<Vec<usize>> {
    let extent = |d: &i64| usize::try_from(*d).or_else(|_| refuse(format!("extents {dims:?} are negative")));
    dims.iter().map(extent).collect()
}
