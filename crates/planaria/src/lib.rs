//! One import for tensors, models, checkpoints, programs and training: re-exports of the crates, and a [`prelude`] of the
//! names most programs need. The page of runs (`planaria-board`) and the devices below arrays (`planaria-cuda`) are not in
//! it.
//!
//! The feature `train` (on by default) brings the trainer, `telemetry` metrics and curves; `mpi` turns MPI ranks on, and
//! `s3`, `gcs` and `azure` the object stores. Without default features there are tensors, models and checkpoints.
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
//!
//! // A tensor has a layout and a gradient history; the same code runs on one rank and on many.
//! let x = Tensor::new(x).requires_grad();
//! (3.0 * &x * &x)?.sum(&[], Keep::No)?.backward()?;
//! assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [6.0, 12.0, 18.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use planaria_aoa as aoa;
pub use planaria_array as array;
pub use planaria_ckpt as ckpt;
pub use planaria_comm as comm;
#[cfg(feature = "train")]
pub use planaria_data as data;
pub use planaria_layout as layout;
#[cfg(feature = "train")]
pub use planaria_merge as merge;
pub use planaria_nn as nn;
#[cfg(feature = "train")]
pub use planaria_pipeline as pipeline;
pub use planaria_program as program;
pub use planaria_store as store;
#[cfg(feature = "telemetry")]
pub use planaria_telemetry as telemetry;
pub use planaria_tensor as tensor;
#[cfg(feature = "train")]
pub use planaria_train as train;

/// The names most programs need.
pub mod prelude {
    pub use planaria_array::random::{Key, Window, uniform};
    pub use planaria_array::{Array, DType, Device, Scalar, Shape, Threads};
    pub use planaria_comm::{Comm, CommExt, threads};
    pub use planaria_layout::{Layout, Mesh, Placement, Rank, Reduce, Region, Route, TensorSpec, receive};
    pub use planaria_tensor::{GradOptions, Index, Keep, Tensor, World, no_grad, recompute};
}

/// The code on the concept pages is run with the doctests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/concepts/checkpoints.md")]
    mod checkpoints {}
    #[doc = include_str!("../../../docs/concepts/indexing.md")]
    mod indexing {}
    #[doc = include_str!("../../../docs/concepts/layouts.md")]
    mod layouts {}
    #[doc = include_str!("../../../docs/concepts/models.md")]
    mod models {}
    #[doc = include_str!("../../../docs/concepts/tensors.md")]
    mod tensors {}
}
