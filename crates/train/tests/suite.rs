//! All integration tests of the package, in one program: it links once.

mod common;
mod plan;
mod programs;
mod ranks;
mod seeing;
mod simulate;
