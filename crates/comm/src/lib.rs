//! Communicators: one trait, several engines, the same bits from each of them.
//!
//! A [`Comm`] is one rank's handle on a group of ranks. Every collective is a [`Call`] that owns its array
//! handles; [`Comm::start`] begins it and gives a [`Pending`], [`Comm::run`] begins and finishes it, and
//! [`CommExt`] has one blocking method per collective. Reductions combine in rank order, element by element, in
//! f32 for narrower floats: the result does not depend on the engine, nor on how a buffer is cut.
//!
//! ```
//! use planaria_array::{Array, DType};
//! use planaria_comm::{AllReduce, CommExt, threads};
//! use planaria_layout::Reduce;
//!
//! let sums = threads::run(4, |comm| {
//!     let mine = Array::full(&[3], comm.rank(), DType::F32)?;
//!     comm.all_reduce(AllReduce { send: mine.clone(), recv: mine.clone(), op: Reduce::Sum })?;
//!     Ok::<_, planaria_comm::Error>(mine.to_vec::<f32>()?)
//! });
//! assert!(sums.into_iter().all(|sum| sum.unwrap() == [6.0; 3]));
//! ```

mod alone;
mod bounce;
mod call;
mod checked;
mod comm;
pub mod conformance;
mod error;
mod faulty;
mod held;
pub mod letters;
mod metered;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod nccl;
pub mod selftest;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(unix)]
pub mod sockets;
mod sync;
pub mod threads;
pub mod value;
mod watched;

pub use alone::alone;
pub use call::{
    AllGather, AllReduce, AllToAll, Broadcast, Call, MAX_TAG, Recv, ReduceScatter, ReduceTo, Send,
};
pub use checked::checked;
pub use comm::{Comm, CommExt, Pending, Wait};
pub use error::{Error, Result};
pub use faulty::{Fault, Trip, faulty};
pub use metered::{Sent, Tally, metered};
pub use value::Value;
pub use watched::{Visit, Watch, watched};
