//! Causal attention with its gradient.

use super::{Built, Run};
use crate::inputs::normal;
use planaria_array::ops::{AttentionOptions, Span, attention, attention_grad};

pub(super) fn build(case: &str) -> Built {
    if case != "sdpa_causal_bwd" {
        return Ok(None);
    }
    let heads = |seed| normal(seed, &[4, 8, 256, 64]);
    let (q, k, v, dout) = (heads(1)?, heads(2)?, heads(3)?, heads(90)?);
    let run: Run = Box::new(move || {
        let options = AttentionOptions { span: Span::Causal, ..AttentionOptions::default() };
        let saved = attention(&q, &k, &v, &options)?;
        let grad = attention_grad(&dout, &q, &k, &v, &saved, &options)?;
        Ok(vec![grad.q, grad.k, grad.v])
    });
    Ok(Some(run))
}
