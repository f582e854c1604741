//! The bytes of an answer, put where they are wanted as they come in.

use super::runtime::{apart, wait};
use bytes::Bytes;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, Result};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Bytes of frames that are handed over together: few enough to be in the cache still, enough to be worth waking a thread.
const TOGETHER: usize = 512 << 10;
/// Such hand-overs that wait to be taken.
const WAITING: usize = 16;

/// Asks for an object and copies the frames of the answer one after the other; whether they fill `into` exactly.
pub(super) fn fill(
    store: Arc<dyn ObjectStore>,
    path: Path,
    options: GetOptions,
    into: &mut [u8],
) -> Result<bool> {
    let (sender, mut receiver) = mpsc::channel(WAITING);
    apart(async move {
        let failed = send(&store, &path, options, &sender).await.err();
        if let Some(error) = failed {
            // Nobody listens where the answer was too long.
            let _ = sender.send(Err(error)).await;
        }
    });
    let mut rest = into;
    while let Some(frames) = wait(receiver.recv()) {
        for frame in frames? {
            let Some((now, later)) = rest.split_at_mut_checked(frame.len()) else { return Ok(false) };
            now.copy_from_slice(&frame);
            rest = later;
        }
    }
    Ok(rest.is_empty())
}

/// Sends the frames of an answer, several at a time.
async fn send(
    store: &Arc<dyn ObjectStore>,
    path: &Path,
    options: GetOptions,
    to: &mpsc::Sender<Result<Vec<Bytes>>>,
) -> Result<()> {
    let mut stream = store.get_opts(path, options).await?.into_stream();
    let (mut frames, mut bytes) = (Vec::new(), 0);
    while let Some(frame) = std::future::poll_fn(|context| stream.as_mut().poll_next(context)).await {
        let frame = frame?;
        bytes += frame.len();
        frames.push(frame);
        if bytes >= TOGETHER {
            bytes = 0;
            if to.send(Ok(std::mem::take(&mut frames))).await.is_err() {
                return Ok(());
            }
        }
    }
    // Nobody listens where the answer was too long.
    let _ = to.send(Ok(frames)).await;
    Ok(())
}
