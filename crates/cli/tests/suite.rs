//! All integration tests of the package, in one program: it links once.

mod common;
mod convert;
mod look;
mod pages;
mod plan;
mod plot;
mod quickstart;
mod serve;
mod train;
