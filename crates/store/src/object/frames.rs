//! The bytes of an answer as they came in, put together once, where they are wanted.

use bytes::Bytes;
use object_store::{GetResult, Result};

/// All frames of an answer.
pub(super) async fn all(answer: GetResult) -> Result<Vec<Bytes>> {
    let mut stream = answer.into_stream();
    let mut frames = Vec::new();
    while let Some(frame) = std::future::poll_fn(|context| stream.as_mut().poll_next(context)).await {
        frames.push(frame?);
    }
    Ok(frames)
}

/// Copies the frames one after the other; whether they fill `into` exactly.
pub(super) fn join(frames: &[Bytes], into: &mut [u8]) -> bool {
    if frames.iter().map(Bytes::len).sum::<usize>() != into.len() {
        return false;
    }
    let mut rest = into;
    for frame in frames {
        let (now, later) = rest.split_at_mut(frame.len());
        now.copy_from_slice(frame);
        rest = later;
    }
    true
}
