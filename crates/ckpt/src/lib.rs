//! Checkpoints: whole on disk, any layout in memory.
//!
//! [`save`] writes what the ranks hold together as one ordinary folder of safetensors files, each byte once, with
//! checksums and a mark that makes it count. [`load`] fills the arrays of any other layout on any other number of
//! ranks from it. [`formats::open`] reads the folders of others: it finds out who wrote one, checks that it is
//! complete, and answers with a [`formats::Source`]: where the bytes of every tensor lie. Nothing in such a file is
//! executed.
//!
//! ```
//! use planaria_array::{Array, DType};
//! use planaria_ckpt::{Item, TensorKind, LoadOptions, SaveOptions, TrainState, latest, load, save};
//! use planaria_comm::alone;
//! use planaria_store::Object;
//!
//! let (world, store) = (alone(), Object::memory());
//! let weight = Array::from_slice(&[1.0f32, 2.0, 3.0], &[3])?;
//! let mut state = TrainState::new(vec![Item::whole(TensorKind::Parameter, "weight", &weight)]);
//! state.step = 7;
//! save(&*world, &store, "ckpt/step-00000007", &state, &SaveOptions::default())?;
//!
//! let room = Array::zeros(&[3], DType::F32)?;
//! let mut state = TrainState::new(vec![Item::whole(TensorKind::Parameter, "weight", &room)]);
//! let folder = latest(&store, "ckpt")?.unwrap();
//! load(&*world, &store, &folder, &mut state, &LoadOptions::default())?;
//! assert_eq!((room.to_vec::<f32>()?, state.step), (vec![1.0, 2.0, 3.0], 7));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod buffers;
mod catalog;
pub mod convert;
mod copies;
mod destination;
mod device;
mod error;
pub mod examine;
mod files;
mod folder;
pub mod formats;
mod hosts;
mod known;
mod load;
mod manifest;
mod mend;
mod naming;
mod options;
mod outgoing;
mod outline;
mod output;
mod read;
mod retain;
mod save;
mod schedule;
mod state;
pub mod stream;
mod strided;
mod talk;
mod traffic;
mod union;
mod verify;
mod wants;
mod write;

pub use destination::{Destination, save_at};
pub use error::{Error, Obstacle, Result, Trouble};
pub use folder::{committed, copy, latest, newest, open, remove, remove_leftovers, step_folder, step_of};
pub use hosts::{Folders, Hosts};
pub use known::{Known, KnownTensor};
pub use load::{load, load_source};
pub use manifest::{Checkpoint, DataFile, Derive, Role, SmallFile, Stored};
pub use mend::Mix;
pub use options::{
    Cast, Casts, FileNames, LoadOptions, Masters, Meter, Optimizer, Rebuild, Replicas, Report, Retain,
    SaveOptions, Saved, Tiles, Unmatched, Weights,
};
pub use outline::{Outline, SavedFiles};
pub use output::{Existing, OutputFolder, Prepared};
pub use save::save;
pub use state::{Item, Piece, TensorKey, TensorKind, TrainState};
pub use verify::{Verified, verify, verify_with};
