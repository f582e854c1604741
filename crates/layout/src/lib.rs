//! The algebra under everything: shapes, regions, meshes, placements, layouts and plans.

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
mod shape;
pub mod simulate;
mod spec;
mod text;
mod tile;
mod zero;

pub use dtype::{DType, Kind};
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
pub use spec::TensorSpec;
pub use tile::{Extent, Fixed, Found, Holder, Owned, Replicas, Tile, Tiling};
pub use zero::FlatShards;
