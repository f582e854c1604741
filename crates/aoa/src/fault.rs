//! Faults: one variant for each thing that can be wrong with a statement or with what it makes.

use planaria_layout::DType;
use thiserror::Error;

/// One thing that is wrong, with the values that make it so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The text is not a statement.
    #[error("expected {expected}, found {found}")]
    Syntax {
        /// What could stand here.
        expected: &'static str,
        /// What stands here.
        found: String,
    },
    /// Two statements on one line (a warning).
    #[error("a new statement starts here without a line break before it")]
    NoSeparator,
    /// A word with a value that no statement understands.
    #[error("unknown attribute '{key}'")]
    UnknownAttr {
        /// The word.
        key: String,
        /// The most similar known one.
        closest: Option<String>,
    },
    /// An attribute given twice, or one that does not go with another.
    #[error("attribute '{key}' {reason}")]
    BadAttr {
        /// The attribute.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A statement that needs one more attribute.
    #[error("{what} needs the attribute '{key}'")]
    MissingAttr {
        /// Kind of statement.
        what: &'static str,
        /// The attribute.
        key: &'static str,
    },
    /// Several tensors on both sides.
    #[error("{left} tensors on the left and {right} on the right: one side must be a single tensor")]
    ManyToMany {
        /// Tensors on the left.
        left: usize,
        /// Tensors on the right.
        right: usize,
    },
    /// A number of tensors that a fused weight does not have.
    #[error("'{flag}' cannot make {right} tensors from {left}")]
    BadForm {
        /// The flag.
        flag: &'static str,
        /// Tensors on the left.
        left: usize,
        /// Tensors on the right.
        right: usize,
    },
    /// `^T` or `?` on the right.
    #[error("'{mark}' stands on the right of '->'")]
    MarkOnRight {
        /// The mark.
        mark: &'static str,
    },
    /// A placeholder that no name on the reading side holds.
    #[error("placeholder '${placeholder}' is not bound by any source name")]
    Unbound {
        /// The placeholder, without `$`.
        placeholder: String,
    },
    /// A name that would be the same for every value of a placeholder.
    #[error("'{name}' lacks the placeholder '${placeholder}', so every value would write the same tensor")]
    LacksPlaceholder {
        /// The name.
        name: String,
        /// The placeholder, without `$`.
        placeholder: String,
    },
    /// `$LAYER_ID_OFFSET` below zero.
    #[error("'{name}' gives the layer number -1")]
    BelowZero {
        /// The name it came from.
        name: String,
    },
    /// A pattern without a single tensor.
    #[error("'{name}' matches no tensor")]
    NoMatch {
        /// The pattern.
        name: String,
    },
    /// A name read before anything of that name exists.
    #[error("tensor '{name}' is neither a source nor assigned before")]
    UnknownTensor {
        /// The name.
        name: String,
        /// The most similar known name.
        closest: Option<String>,
    },
    /// A name written twice by one statement.
    #[error("one statement assigns '{name}' twice")]
    AssignedTwice {
        /// The name.
        name: String,
    },
    /// A pattern that stands for absurdly many names.
    #[error("one statement names more than {limit} tensors")]
    TooManyNames {
        /// Most names allowed.
        limit: usize,
    },
    /// A layout name that nobody declared.
    #[error("no layout is named '{name}'")]
    UnknownLayout {
        /// The name.
        name: String,
    },
    /// An axis the tensor does not have.
    #[error("axis {axis} is out of range for '{name}' with {ndim} dims")]
    AxisOutOfRange {
        /// The axis as written.
        axis: i64,
        /// The tensor.
        name: String,
        /// Number of its dims.
        ndim: usize,
    },
    /// A dim that does not fall into equal parts.
    #[error("dim {dim} of '{name}' with shape {shape} is not divisible by {parts}")]
    NotDivisible {
        /// The tensor.
        name: String,
        /// Its shape, in text form.
        shape: String,
        /// The dim.
        dim: usize,
        /// Parts asked for.
        parts: usize,
    },
    /// Split sizes that do not make up the dim.
    #[error("sizes {sizes:?} do not make up dim {dim} of '{name}' with shape {shape}")]
    BadSizes {
        /// The tensor.
        name: String,
        /// Its shape, in text form.
        shape: String,
        /// The dim.
        dim: usize,
        /// The sizes as written, or as known from the other side.
        sizes: Vec<usize>,
    },
    /// Tensors that do not fit side by side.
    #[error(
        "'{first}' of shape {first_shape} and '{second}' of shape {second_shape} do not fit along axis {axis}"
    )]
    ShapesDiffer {
        /// One tensor.
        first: String,
        /// Its shape, in text form.
        first_shape: String,
        /// The other.
        second: String,
        /// Its shape, in text form.
        second_shape: String,
        /// The axis they are joined along.
        axis: usize,
    },
    /// Tensors of two element types in one.
    #[error("'{first}' is {first_dtype} and '{second}' is {second_dtype}")]
    DTypesDiffer {
        /// One tensor.
        first: String,
        /// Its element type.
        first_dtype: DType,
        /// The other.
        second: String,
        /// Its element type.
        second_dtype: DType,
    },
    /// A list that is not a permutation of the dims.
    #[error("{order:?} does not permute the {ndim} dims of '{name}'")]
    BadPermutation {
        /// The tensor.
        name: String,
        /// Number of its dims.
        ndim: usize,
        /// The list as written.
        order: Vec<i64>,
    },
    /// A shape with another number of elements.
    #[error("'{name}' of shape {shape} cannot be reshaped to {to:?}")]
    BadReshape {
        /// The tensor.
        name: String,
        /// Its shape, in text form.
        shape: String,
        /// The shape as written.
        to: Vec<i64>,
    },
    /// Heads that do not fall on group or rank borders.
    #[error("{heads} heads cannot be divided into {parts} {what}")]
    BadHeads {
        /// Number of heads, or of key-value heads.
        heads: usize,
        /// Number of parts.
        parts: usize,
        /// What a part is.
        what: &'static str,
    },
    /// `src_dtype` that is not what the tensor is.
    #[error("'{name}' is {found}, not {declared}")]
    SrcDType {
        /// The tensor.
        name: String,
        /// Element type as written.
        declared: DType,
        /// Element type it has.
        found: DType,
    },
    /// `axis` on a statement with one tensor on each side.
    #[error("'axis' does nothing between one tensor and one tensor")]
    IdleAxis,
    /// A target of another shape than what it is assigned.
    #[error("target '{name}' has shape {expected}, the mapping makes {found}")]
    TargetShape {
        /// The target.
        name: String,
        /// Its shape, in text form.
        expected: String,
        /// The shape of what it is assigned, in text form.
        found: String,
    },
    /// A target of another element type than what it is assigned.
    #[error("target '{name}' is {expected}, the mapping makes {found}")]
    TargetDType {
        /// The target.
        name: String,
        /// Its element type.
        expected: DType,
        /// The element type of what it is assigned.
        found: DType,
    },
    /// A target nothing is assigned to.
    #[error("nothing is assigned to target '{name}', and no source has that name")]
    Unassigned {
        /// The target.
        name: String,
        /// The most similar source.
        closest: Option<String>,
    },
    /// A target whose source of the same name was dropped.
    #[error("target '{name}' is assigned nothing and its source is dropped")]
    Dropped {
        /// The target.
        name: String,
    },
    /// A cast whose other side is not known.
    #[error("the cast to {to} cannot be undone: the element type before it is not known")]
    CastOneWay {
        /// Element type after the cast.
        to: DType,
    },
    /// A reshape whose other side is not known.
    #[error("the reshape of '{name}' cannot be undone: the shape before it is not known")]
    ReshapeOneWay {
        /// The tensor before the reshape.
        name: String,
    },
    /// Part of a tensor that the other side does not keep.
    #[error("'{name}' cannot be restored: the model does not keep it")]
    NotKept {
        /// The tensor.
        name: String,
    },
    /// A tensor that several kept tensors could give back (a warning).
    #[error("'{name}' is kept more than once; the inverse takes it from the first statement that reads it")]
    KeptTwice {
        /// The tensor.
        name: String,
    },
    /// A chain of names that leads back to itself.
    #[error("the names around '{name}' form a cycle, so its layout cannot be inferred")]
    Circle {
        /// A name in the circle.
        name: String,
    },
    /// The layout algebra refused a shape.
    #[error(transparent)]
    Layout(#[from] planaria_layout::Error),
}

impl Fault {
    /// One next action, when there is one worth saying.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Fault::NoSeparator => "write each statement on a line of its own",
            Fault::UnknownAttr { closest: Some(name), .. }
            | Fault::UnknownTensor { closest: Some(name), .. } => {
                return Some(format!("did you mean '{name}'?"));
            }
            Fault::MissingAttr { key, .. } => return Some(format!("add ', {key}=...'")),
            Fault::MarkOnRight { mark: "^T" } => "transpose what is read: 'a^T -> b'",
            Fault::MarkOnRight { .. } => "mark what is read: 'a? -> b'",
            Fault::LacksPlaceholder { .. } => "use '*' to join all values into one tensor",
            Fault::NoMatch { .. } => "write '?' after a name that may be missing: 'a? -> b'",
            Fault::UnknownLayout { name } => {
                return Some(format!("declare it: 'layout {name} = 4', or bind it in the options"));
            }
            Fault::DTypesDiffer { .. } => "cast one of them first: 'a -> a, dtype=\"float32\"'",
            Fault::TargetDType { expected, .. } => return Some(format!("add ', dtype=\"{expected}\"'")),
            Fault::Unassigned { name, closest } => {
                return Some(match closest {
                    Some(near) => format!("the nearest source is '{near}'"),
                    None => format!("write '_ -> {name}' if it is not loaded"),
                });
            }
            Fault::IdleAxis => "leave it out",
            Fault::NotDivisible { .. } => "give the parts: 'sizes=[...]'",
            Fault::CastOneWay { .. } => "write both: 'src_dtype=\"...\", dst_dtype=\"...\"'",
            Fault::ReshapeOneWay { .. } => "write the shape before: 'src_shape=[...]'",
            _ => return None,
        };
        Some(text.to_string())
    }
}
