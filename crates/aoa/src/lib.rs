//! The mapping language: a text that says how tensors of one checkpoint become tensors of another.
//!
//! A text is parsed once ([`Program`]), applied to two [`Catalog`]s and becomes a [`Mapping`]: for each region of
//! a target tensor, the regions of source tensors it is made of and how they are rearranged and cast. Nothing here
//! reads data.
//!
//! ```
//! use planaria_aoa::{Catalog, Options, Program, Tensor, Ties};
//! use planaria_layout::{DType, Shape};
//!
//! let tensor = |dims: &[usize]| Ok::<_, planaria_layout::Error>(Tensor::new(Shape::new(dims)?, DType::BF16));
//! let files: Catalog = [("gate", tensor(&[6, 4])?), ("up", tensor(&[6, 4])?)].into_iter().collect();
//! let model: Catalog = [("gate_up", tensor(&[4, 12])?)].into_iter().collect();
//!
//! let program = Program::parse("gate^T, up^T -> gate_up, axis=1")?;
//! let mapping = program.compile(&files, Some(&model), &Options::default())?;
//!
//! // Columns 4..8 of the target are rows of both sources, transposed.
//! let pieces = mapping.pieces("gate_up", &"[0..4, 4..8]".parse()?)?;
//! let shown: Vec<String> = pieces.iter().map(|p| format!("{}{} -> {}", p.source, p.from, p.to)).collect();
//! assert_eq!(shown, ["gate[4..6, 0..4] -> [0..4, 4..6]", "up[0..2, 0..4] -> [0..4, 6..8]"]);
//! assert_eq!(pieces[0].permutation().as_deref(), Some(&[1, 0][..]));
//!
//! // Nothing is lost, so it can be undone.
//! let back = mapping.inverse(Ties::Refuse)?;
//! assert_eq!(back.pieces("up", &"[0..6, 0..4]".parse()?)?[0].from.to_string(), "[0..4, 6..12]");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod action;
mod ast;
mod catalog;
mod compile;
mod degree;
mod error;
mod eval;
mod expand;
mod fault;
mod fused;
mod graph;
mod inverse;
mod mapping;
mod node;
mod options;
mod parse;
mod pattern;
mod query;
mod reshape;

pub use ast::{Attr, Name, NamedLayout, Program, Statement, Value};
pub use catalog::{Catalog, Tensor, split_slot};
pub use error::{Error, Fault, Obstacle, Problem, Report, Result, Span};
pub use inverse::Ties;
pub use mapping::{Mapping, Piece, Rearrange, Target};
pub use options::{Degrees, Options, Strictness};

/// The examples of the language's page, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/concepts/mapping.md")]
struct MappingPage;
