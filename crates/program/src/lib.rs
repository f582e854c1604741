//! Programs: SSA values, ops with attributes and regions, kept exactly as their files have them.
//!
//! [`paddle::read`] gives a [`Program`] from a file of Paddle 3.0 to 3.3, [`paddle::write`] gives the same bytes back.
//! [`verify`] finds what is wrong before anything runs, [`run()`] computes on arrays, and `Display` and [`parse`] are the
//! text form. Ops, types and attributes that are not known are carried through all of it unchanged.

mod builder;
mod capture;
mod diff;
mod error;
mod folder;
mod json;
mod lower;
mod native;
mod node;
pub mod onnx;
pub mod ops;
pub mod paddle;
mod passes;
mod program;
mod run;
mod stream;
mod tensors;
mod text;
mod types;
mod verify;

pub use builder::{Builder, attribute, dtype_attribute};
pub use capture::{Captured, Captures, Function, Origin, ProgramKey, Why, capture, gradients};
pub use diff::{Difference, diff};
pub use error::{Error, Result};
pub use folder::{open_folder, save_folder};
pub use lower::{Extents, generalize, lower};
pub use native::DIALECT;
pub use node::{Data, Name, Node, Real, Type};
pub use passes::{
    MemoryPlan, Slot, Spread, fold_constants, fuse, merge_equal, pieces, plan_memory, propagate, remove_dead,
    remove_unread,
};
pub use program::{Attr, Block, Held, Input, NEWEST, OLDEST, Op, Parameter, Program, Region, Value, ValueId};
pub use run::{Datum, ProgramState, Ranks, run, run_tensors};
pub use stream::write_stream;
pub use tensors::{read_tensors, write_tensors};
pub use text::{attribute_text, parse, svg, type_text};
pub use types::{Element, TensorType, tensor_type, vector_types};
pub use verify::{Issue, check, verify};

/// The code on the page of the guide is run with the doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/programs.md")]
mod guide {}
