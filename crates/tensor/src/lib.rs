//! Global tensors: one value on any mesh, ops with gradients and SPMD rules, reshard.
//!
//! A [`Tensor`] is one global value. Its layout says which piece this rank holds; the same code runs on one rank and
//! on many. Ops decide from their rule how they want their inputs, move them if need be, and run a local kernel.

#![forbid(unsafe_code)]

mod attributes;
mod dispatch;
mod error;
mod exchange;
mod grad;
mod index;
mod op;
mod operators;
pub mod ops;
mod piece;
pub mod random;
mod reshard;
pub mod selftest;
pub mod steps;
mod tensor;
pub mod trace;
mod world;

pub use attributes::{Attr, Attributes};
pub use dispatch::{Outputs, apply, apply_shared, apply1, infer, toward};
pub use error::{Error, Result};
pub use grad::{
    Backward, Deferred, Fetch, GradOptions, History, backward, backward_from, backward_inputs, grad,
    is_recording, no_grad, recompute, selective, with_grad,
};
pub use index::Index;
pub use op::{Arrays, Grads, Here, Local, Op, Places, Saves, Spec};
pub use operators::Operand;
pub use planaria_array::ops::{Binary, Compare, Keep, Unary};
pub use planaria_array::{Array, DType, Device, Scalar, Shape};
pub use planaria_layout::rule::Policy;
pub use planaria_layout::{Layout, Mesh, Placement, Reduce};
pub use tensor::{Place, Tensor};
pub use world::World;
