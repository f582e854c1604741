//! What some families do differently, switch by switch; a plain decoder has none of it.

use crate::layers::RopeScaling;

/// Departures from the plain decoder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Variations {
    /// Queries and keys of every head have a norm of their own before they are rotated: `q_norm`, `k_norm`.
    pub head_norms: bool,
    /// Weights of norms count from 1: they begin at 0.
    pub norms_from_one: bool,
    /// What attention and the feed-forward layer give is normed before it is added.
    pub post_norms: bool,
    /// Queries, keys and values are one matrix, gate and up another.
    pub fused: bool,
    /// Only this part of every head is rotated, its first elements.
    pub rotated: Option<usize>,
    /// Factor on token vectors.
    pub embedding_scale: Option<f64>,
    /// Factor on the scores of attention, where it is not one over the root of the head's size.
    pub attention_scale: Option<f64>,
    /// Scores of attention stay within plus and minus this, by a hyperbolic tangent.
    pub attention_cap: Option<f64>,
    /// The same for the scores of tokens.
    pub logit_cap: Option<f64>,
    /// There is nothing after the last norm: a model of hidden states, whose parameters have no `model.` before their names.
    pub headless: bool,
    /// One number for each token in place of scores: `score` is the head, as in `*ForSequenceClassification` with one label.
    pub valued: bool,
    /// A token sees those after it too: `is_causal` is false.
    pub bidirectional: bool,
    /// Base and scaling of rotary positions in layers that see only a window.
    pub window_rope: Option<(f64, RopeScaling)>,
}
