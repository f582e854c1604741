//! Where training text comes from: sources, tokenizers, packing, shuffling, loading ahead.
//!
//! A [`Config`] opens a [`Tokenizer`] and the [`Data`] of a run. A [`Dataset`] has numbered samples; a [`Sampler`] says which of them
//! stands at which position of the run; a [`Loader`] reads those that one rank needs. The only state is the position, so nothing is lost
//! when a run resumes with other ranks or another batch size.
//!
//! ```
//! use planaria_data::{Config, Loader, LoaderOptions, Order, Sampler, Share, Source};
//! use planaria_data::geometry::{Batching, Geometry};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("a.txt");
//! std::fs::write(&path, "the quick brown fox ".repeat(100)).unwrap();
//! let mut config = Config::default();
//! config.sequence = 16;
//! config.source = vec![Source::new(path.display().to_string())];
//! let data = config.open(&config.open_tokenizer()?)?;
//!
//! let geometry = Geometry::derive(&Batching { global_batch: Some(8), micro_batch: Some(2), data_ranks: Some(2), ..Batching::default() })?;
//! let sampler = Sampler::new(&*data.train, 1, Order::Shuffled)?;
//! let mut loader = Loader::start(data.train, sampler, Share::new(&geometry, 0, 0), LoaderOptions::default())?;
//! let batch = loader.next().unwrap()?;
//! assert_eq!(batch.tokens.shape().dims(), [2, 16]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod apart;
pub mod chat;
mod corpus;
mod dataset;
mod described;
mod documents;
mod error;
mod file;
pub mod geometry;
mod glob;
mod listed;
mod loader;
mod map;
mod mixture;
mod pack;
mod permute;
pub mod pictures;
mod prompts;
mod sampler;
mod source;
mod stream;
#[cfg(test)]
mod tests;
pub mod texts;
mod tokenizer;
mod tokens;

pub use corpus::{Config, Continuation, Data};
pub use dataset::{Batch, Dataset, Part, Sample};
pub use described::Description;
pub use error::{Error, Result};
pub use file::{Header, TokenFile, TokenWriter};
pub use glob::list;
pub use loader::{Loader, LoaderOptions, Share};
pub use pack::{Borders, IGNORED, Packed, Packing};
pub use permute::Permutation;
pub use sampler::{Batches, BatchesFrom, Order, Place, Sampler, SamplerState};
pub use source::{Source, SourceKind, pretokenize};
pub use stream::{Ids, Stream, Streamed, Window};
pub use tokenizer::{BYTE_TOKENIZER, Frame, SpecialText, TokenKind, Tokenizer};
pub use tokens::Tokens;

/// The code in the guide is run with the doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/data.md")]
mod guide {}
