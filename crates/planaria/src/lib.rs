//! One import for everything: re-exports of the planaria crates.
//!
//! ```
//! use planaria::prelude::*;
//!
//! // A tensor is a global value; a layout says which box of it each rank holds.
//! let mesh: Mesh = "dp=2 tp=4".parse()?;
//! let layout = "bf16[4096,1024] @ tp:S1".parse::<TensorSpec>()?.on(&mesh)?;
//! assert_eq!(layout.piece(5)?.boxes()[0].to_string(), "[0..4096, 256..512]");
//!
//! // An array is bytes in one memory.
//! let x = Array::from_slice(&[1.0f32, 2.0, 3.0], &[3])?;
//! assert_eq!(x.mul(&x)?.to_vec::<f32>()?, [1.0, 4.0, 9.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use planaria_aoa as aoa;
pub use planaria_array as array;
pub use planaria_layout as layout;

/// The names most programs need.
pub mod prelude {
    pub use planaria_array::random::{Key, Window, uniform};
    pub use planaria_array::{Array, DType, Device, Scalar, Shape, Threads};
    pub use planaria_layout::{Layout, Mesh, Placement, Rank, Region, Route, TensorSpec, receive};
}
