//! What can be wrong with shapes, meshes, layouts and their text forms.

use crate::region::Region;
use thiserror::Error;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An input the layout algebra refuses, with the values that made it so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A shape whose element count does not fit in memory addresses.
    #[error("shape {shape:?} has too many elements for a 64-bit address space")]
    ShapeTooLarge {
        /// The refused shape.
        shape: Vec<usize>,
    },
    /// A text form that does not parse.
    #[error("cannot read {what} from '{text}': {reason}")]
    Parse {
        /// The type that was expected.
        what: &'static str,
        /// The text as given.
        text: String,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// Bounds that differ in length or are out of order.
    #[error("region bounds {lo:?}..{hi:?} differ in length or are out of order")]
    BadRegion {
        /// Low corner as given.
        lo: Vec<usize>,
        /// High corner as given.
        hi: Vec<usize>,
    },
    /// An axis name that cannot be written in a text form.
    #[error(
        "axis name '{axis}' must be letters, digits and underscores, not start with a digit, and not be 'ranks'"
    )]
    BadAxisName {
        /// The name as given.
        axis: String,
    },
    /// An axis without coordinates, or one axis too many.
    #[error("axis '{axis}' of size {size}: sizes start at 1 and a mesh has at most 32 axes")]
    BadAxisSize {
        /// The axis.
        axis: String,
        /// Its size as given.
        size: usize,
    },
    /// An axis named twice.
    #[error("axis '{axis}' is given more than once")]
    DuplicateAxis {
        /// The axis.
        axis: String,
    },
    /// An axis the mesh does not have.
    #[error("mesh '{mesh}' has no axis '{axis}'")]
    UnknownAxis {
        /// The axis asked for.
        axis: String,
        /// The mesh, in text form.
        mesh: String,
    },
    /// A coordinate past the end of its axis.
    #[error("coordinate {coord} is out of range for axis '{axis}' of size {size}")]
    CoordOutOfRange {
        /// The axis.
        axis: String,
        /// The coordinate as given.
        coord: usize,
        /// Size of the axis.
        size: usize,
    },
    /// More ranks than a mesh may have.
    #[error("a mesh of {ranks} ranks is too large")]
    MeshTooLarge {
        /// Number of ranks asked for.
        ranks: u128,
    },
    /// A list of ranks that does not fill the mesh.
    #[error("{ranks} ranks given for a mesh of {mesh}")]
    RankCount {
        /// Number of ranks given.
        ranks: usize,
        /// Number of ranks needed.
        mesh: usize,
    },
    /// A rank that appears twice in one mesh.
    #[error("rank {rank} is given more than once")]
    DuplicateRank {
        /// The rank.
        rank: usize,
    },
    /// A rank that is not part of the mesh.
    #[error("rank {rank} is not in mesh '{mesh}'")]
    RankNotInMesh {
        /// The rank.
        rank: usize,
        /// The mesh, in text form.
        mesh: String,
    },
    /// A list of placements that does not match the mesh.
    #[error("{placements} placements given for a mesh with {axes} axes")]
    PlacementCount {
        /// Number of placements given.
        placements: usize,
        /// Number of mesh axes.
        axes: usize,
    },
    /// A shard of a dim the tensor does not have.
    #[error("axis '{axis}' shards dim {dim} of a tensor with {ndim} dims")]
    DimOutOfRange {
        /// The sharding axis.
        axis: String,
        /// The dim as given.
        dim: usize,
        /// Number of dims of the tensor.
        ndim: usize,
    },
    /// A shard cut into no sections, or into absurdly many.
    #[error("dim {dim} cut into {sections} sections; 1 to 65536 are allowed")]
    BadSections {
        /// The tensor dim.
        dim: usize,
        /// Sections of all axes on this dim, multiplied.
        sections: usize,
    },
    /// Pending reductions whose order would change the value.
    #[error("one tensor cannot be both {first} and {second}: the order of reduction would matter")]
    MixedPartial {
        /// One reduction, in text form.
        first: String,
        /// The other.
        second: String,
    },
    /// A pending reduction where only plain values may stand.
    #[error("layout '{layout}' has a pending reduction; reshard it to a layout without Partial first")]
    PartialNotAllowed {
        /// The layout, in text form.
        layout: String,
    },
    /// Two sides of a reshard that are not the same tensor.
    #[error("cannot reshard shape {from} to shape {to}")]
    ShapeMismatch {
        /// Source shape, in text form.
        from: String,
        /// Destination shape, in text form.
        to: String,
    },
    /// Two different tiles that share elements.
    #[error("tiles {first} and {second} overlap")]
    Overlap {
        /// One tile.
        first: Box<Region>,
        /// The other.
        second: Box<Region>,
    },
    /// A tile that is not inside the tensor.
    #[error("tile {tile} is not inside shape {shape}")]
    TileOutside {
        /// The tile.
        tile: Box<Region>,
        /// Shape of the tensor, in text form.
        shape: String,
    },
    /// Tiles that leave part of the tensor out.
    #[error("tiles cover {covered} of {total} elements")]
    Hole {
        /// Elements covered.
        covered: usize,
        /// Elements of the tensor.
        total: usize,
    },
    /// A flat division that cannot be made from this layout.
    #[error("cannot divide layout '{layout}' flat over axis '{axis}': {reason}")]
    BadFlat {
        /// The layout to divide, in text form.
        layout: String,
        /// The axis to divide over.
        axis: String,
        /// What stands in the way.
        reason: &'static str,
    },
    /// A buffer whose length is not that of its place in the layout.
    #[error("rank {rank} has {found} elements, the layout says {expected}")]
    BufferLength {
        /// The rank.
        rank: usize,
        /// Elements in the buffer.
        found: usize,
        /// Elements of the rank's piece.
        expected: usize,
    },
    /// A whole tensor with the wrong number of elements.
    #[error("{found} values given for {expected} elements")]
    ValueLength {
        /// Values given.
        found: usize,
        /// Elements of the shape.
        expected: usize,
    },
    /// Inputs of one op on different meshes.
    #[error("inputs of one op lie on meshes '{first}' and '{second}'; reshard one of them first")]
    MixedMeshes {
        /// One mesh, in text form.
        first: String,
        /// Another.
        second: String,
    },
    /// An SPMD rule that is not about the tensors it is used for.
    #[error("the rule does not fit the op: {reason}")]
    BadRule {
        /// What does not fit.
        reason: &'static str,
    },
    /// A broken promise of this crate; please report it.
    #[error("internal error in planaria-layout: {0}")]
    Bug(&'static str),
}
