//! The algebra under everything: shapes, regions, meshes, placements, layouts and plans.

mod dtype;
mod error;
mod shape;

pub use dtype::{DType, Kind};
pub use error::{Error, Result};
pub use shape::{Dims, Shape};
