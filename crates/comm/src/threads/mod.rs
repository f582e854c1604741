//! Ranks as threads of one process: no set-up, nothing to copy twice, and a failure reaches everyone at once.
//!
//! A collective is a piece of shared work. Each rank posts the bytes it sends and the array it receives into;
//! when all have come, the work is cut into pieces that any waiting rank takes. A rank that started a call and
//! computes meanwhile is helped by its peers, or by the world's own threads. Who does a piece never
//! matters for the result. Of a call with few bytes every rank takes its own part (`little`).

mod engine;
mod group;
mod launch;
mod little;
mod mail;
mod op;
mod work;
mod world;

pub use launch::{Options, create, run, try_run};
