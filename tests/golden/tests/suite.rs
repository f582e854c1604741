//! All integration tests of the package, in one program: it links once.

mod aoa;
mod checkpoints;
mod indexing;
mod pipeline;
mod reshard;
mod spmd;
