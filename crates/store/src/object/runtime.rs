//! The one place where asynchronous code is run: callers block, whatever thread they are on.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
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

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

/// Runs a future beside everything else.
pub(super) fn apart(work: impl Future<Output = ()> + Send + 'static) {
    drop(runtime().spawn(work));
}

/// Runs a future to its end on this thread; only what it spawns, such as connections, runs on others. Unlike `block_on` of a runtime it may be called from inside another one.
pub(super) fn wait<T>(work: impl Future<Output = T>) -> T {
    let _inside = runtime().enter();
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut work, mut context) = (pin!(work), Context::from_waker(&waker));
    loop {
        match work.as_mut().poll(&mut context) {
            Poll::Ready(done) => return done,
            // A wake-up since the poll, or for no reason, lets the next one come at once.
            Poll::Pending => std::thread::park(),
        }
    }
}
