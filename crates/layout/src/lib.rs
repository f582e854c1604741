//! The algebra under everything: shapes, regions, meshes, placements, layouts and plans.
//!
//! A tensor is a global value; a [`Layout`] says which part of it each rank of a [`Mesh`] has. Going
//! from one layout to another is intersecting boxes, whether the holders are ranks or byte ranges of
//! files. Nothing here does I/O: plans are values.
//!
//! ```
//! use planaria_layout::{Layout, Plan, Route};
//!
//! let rows: Layout = "[8,6] @ dp:R tp:S0 on dp=2 tp=4".parse()?;
//! let columns: Layout = "[8,6] @ dp:S1 tp:R on dp=2 tp=4".parse()?;
//! assert_eq!(rows.piece(1)?.boxes()[0].to_string(), "[2..4, 0..6]");
//!
//! // One rank's own plan: which boxes it needs, and from whom.
//! let plan = Plan::receive(&rows, &columns, 5)?;
//! let part = &plan.parts[0];
//! assert_eq!((part.region.to_string().as_str(), part.from[0]), ("[0..2, 3..6]", 4));
//!
//! // The cheapest steps for all ranks together.
//! let route = Route::find(&rows, &columns, 4)?;
//! assert_eq!(route.to_string(), "slice dp (0 bytes, 0 messages), then all-gather tp (72 bytes, 2 messages)");
//! # Ok::<(), planaria_layout::Error>(())
//! ```

#![forbid(unsafe_code)]

mod cut;
mod dtype;
mod error;
mod fit;
mod flat;
mod index;
mod layout;
mod listed;
mod mesh;
mod placement;
mod plan;
mod region;
mod reshard;
mod route;
pub mod rule;
mod shape;
mod shards;
mod share;
pub mod simulate;
mod slice;
mod spec;
mod text;
mod tile;

pub use dtype::{DType, DTypeKind};
pub use error::{Error, Result};
pub use fit::{PerDim, Wish, fit};
pub use flat::flat_boxes;
pub use layout::{Layout, Piece};
pub use listed::Listed;
pub use mesh::{Axis, AxisSet, Coords, MAX_AXES, Mesh, Rank};
pub use placement::{Neutral, Placement, Reduce, Shard};
pub use plan::{deliver, fetch, receive};
pub use region::{Region, Runs};
pub use reshard::{Combine, Part, Plan};
pub use route::{Collective, Cost, Route, Step};
pub use shape::{Dims, Shape};
pub use shards::FlatShards;
pub use share::Share;
pub use slice::Slice;
pub use spec::TensorSpec;
pub use tile::{Extent, Fixed, Found, Holder, Owned, RankTiling, Replicas, Tile, Tiling};
