//! Layers: parameters and the ops they go into.

mod attention;
mod capped;
mod dropout;
mod embedding;
mod experts;
mod linear;
mod mlp;
mod norm;
mod parts;
mod rope;

pub(crate) use attention::Moved;
pub use attention::{Attention, AttentionSizes, AttentionStep, LayerCache, RowPlaces, Scores};
pub use dropout::Dropout;
pub(crate) use dropout::{dropout_key, with_dropout_key};
pub use embedding::Embedding;
pub use experts::ExpertLinear;
pub use linear::Linear;
pub use mlp::{GatedMlp, Mlp};
pub use norm::{LayerNorm, RmsNorm};
pub use parts::Parts;
pub use rope::{Positions, Rope, RopeScaling};
