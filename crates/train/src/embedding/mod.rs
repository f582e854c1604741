//! Sentence embeddings: one vector for a text, what makes vectors of texts that belong together alike, and how well that went.
//!
//! Losses work on the embeddings of a whole update, gathered over all ranks, and give their gradients: the trainer takes these
//! through the model some texts at a time (see [`crate::objective::Contrastive`]).

mod contrast;
mod encoder;
pub(crate) mod folder;
mod metrics;
mod mining;
mod pairs;
mod pooling;
mod similarity;

pub(crate) use contrast::scores_held;
pub use contrast::{
    Contrast, Contrasted, Direction, Hardness, Partition, contrast, excluded, joined, matryoshka, nested,
};
pub use encoder::{EncodeOptions, Encoder, TextPrompt};
pub use folder::unpack_folder;
pub use metrics::{Retrieval, correlation, ranking, retrieval};
pub use mining::{Mining, mine};
pub use pairs::{Distance, PairLoss, pair_loss, triplet_loss};
pub use pooling::{Pooling, TextSpan, pool};
pub use similarity::{Similarity, normalized, similarities};
