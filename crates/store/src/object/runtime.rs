//! The one place where asynchronous code is run: callers block, whatever thread they are on.

use std::future::Future;
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use tokio::runtime::{Builder, Runtime};

/// Network work is waiting, not computing: two threads serve many requests.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let made =
            Builder::new_multi_thread().worker_threads(2).thread_name("planaria-store").enable_all().build();
        // Without threads nothing of this process can work.
        made.unwrap_or_else(|error| panic!("cannot start the threads of the object store: {error}"))
    })
}

/// Runs a future to its end. Unlike `block_on` it may be called from inside another runtime.
pub(super) fn wait<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let (sender, receiver) = sync_channel(1);
    let task = runtime().spawn(async move {
        // The receiver waits below for as long as this runs.
        let _ = sender.send(work.await);
    });
    match receiver.recv() {
        Ok(answer) => answer,
        Err(_) => panic!("a storage task ended without an answer: {task:?}"),
    }
}
