//! Responses: where they end, and rollouts of several lengths side by side.

/// A response to a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Its tokens, with the one that ended it.
    pub tokens: Vec<i64>,
    /// Whether it ended by itself.
    pub finished: bool,
}

impl Response {
    /// What counts of generated tokens: up to the first that ends a text, wherever it stands, and no more than so many. Filling
    /// tokens are never looked at: they may be the same as one that ends a text.
    pub fn of(generated: &[i64], ends: &[i64], most: usize) -> Response {
        let made = &generated[..generated.len().min(most)];
        match made.iter().position(|token| ends.contains(token)) {
            Some(at) => Response { tokens: made[..=at].to_vec(), finished: true },
            None => Response { tokens: made.to_vec(), finished: false },
        }
    }
}

/// Prompts, filled up before their begin, and responses, filled up behind their end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaddedRollouts {
    /// Tokens of a prompt with what fills it up.
    pub prompt_width: usize,
    /// Tokens of a row.
    pub width: usize,
    /// Row after row.
    pub tokens: Vec<i64>,
    /// Whether a token is one of prompt or response.
    pub seen: Vec<bool>,
    /// Where it stands: 0 before the prompt, the last place behind the end.
    pub positions: Vec<i64>,
    /// Whether a token of the response part counts.
    pub response: Vec<bool>,
}

/// Rollouts side by side; `room` is what responses have room for, `prompt_width` what prompts have.
pub fn pad_rollouts(
    prompts: &[Vec<i64>],
    responses: &[Response],
    prompt_width: usize,
    room: usize,
    pad: i64,
) -> PaddedRollouts {
    let width = prompt_width + room;
    let mut out = PaddedRollouts {
        prompt_width,
        width,
        tokens: Vec::new(),
        seen: Vec::new(),
        positions: Vec::new(),
        response: Vec::new(),
    };
    for (prompt, response) in prompts.iter().zip(responses) {
        let (before, after) = (prompt_width - prompt.len(), room - response.tokens.len());
        let real = prompt.len() + response.tokens.len();
        out.tokens.extend(std::iter::repeat_n(pad, before));
        out.tokens.extend(prompt.iter().chain(&response.tokens));
        out.tokens.extend(std::iter::repeat_n(pad, after));
        let place =
            |at: usize| if at < before { 0 } else { (at - before).min(real.saturating_sub(1)) as i64 };
        out.positions.extend((0..width).map(place));
        out.seen.extend((0..width).map(|at| at >= before && at < before + real));
        out.response.extend((0..room).map(|at| at < response.tokens.len()));
    }
    out
}
