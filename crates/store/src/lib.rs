//! Where bytes are kept: folders, object stores and the memory of other processes behind one small trait, and what lies in them.
//!
//! A [`Store`] holds named files. Files are read at offsets, written at offsets by several threads at once,
//! or put whole and atomically; nothing is renamed. [`Transfer`] moves large ranges with aligned direct I/O
//! where the file system allows it. [`container`] reads and lays out safetensors files. [`Faulty`] breaks a
//! store on purpose, and [`conformance`] says what every store must do.
//!
//! ```
//! use planaria_store::{Object, PutMode, Sharing, Store, StoreExt};
//!
//! let store = Object::memory();
//! let file = store.writer("step-1/data", 10, Sharing::Threads)?;
//! file.write_at(5, b"world")?;
//! file.write_at(0, b"hello")?;
//! file.finish()?;
//! assert_eq!(store.read("step-1/data", 64)?, b"helloworld");
//!
//! store.put("step-1/COMMIT", b"", PutMode::Create)?;
//! assert!(store.put("step-1/COMMIT", b"", PutMode::Create).is_err(), "a mark is set once");
//! # Ok::<(), planaria_store::Error>(())
//! ```

#[cfg(not(target_os = "linux"))]
compile_error!("local folders use O_DIRECT, fallocate and cachestat: planaria builds on Linux only");

mod bucket;
pub mod checksum;
pub mod conformance;
pub mod container;
mod error;
mod faulty;
mod local;
mod name;
#[cfg(feature = "objects")]
mod object;
pub mod pattern;
mod peer;
mod ranges;
mod retry;
mod spread;
mod staging;
mod stoppable;
mod store;
mod threads;
mod transfer;
mod url;

pub use bucket::{AzureConnection, Variables, aws_section, azure_connection};
pub use error::{Error, HeaderProblem, Result};
pub use faulty::{Fault, Faulty, Trap};
pub use local::{DirectIo, Local, Mapped, open_file};
pub use name::{check_name, join};
#[cfg(feature = "objects")]
pub use object::Object;
pub use peer::{Agent, PEER_TOKEN, Peer, PeerOptions, PeerRoom, peer_token};
pub use ranges::coalesce;
pub use retry::{Retry, RetryOptions};
pub use spread::{Part, Spread};
pub use staging::Staging;
pub use stoppable::Stoppable;
pub use store::{Entry, EntryKind, Identity, Medium, PutMode, Reader, Sharing, Store, StoreExt, Writer};
pub use threads::on_threads;
pub use transfer::{IntoJob, ReadJob, Transfer, TransferOptions, TransferStats, WriteJob};
pub use url::{local_path, locate, open, open_with};

/// Direct I/O moves whole blocks of this many bytes, at offsets and addresses that are multiples of it.
pub const BLOCK: usize = 4096;
