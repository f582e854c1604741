//! All integration tests of the package, in one program: it links once.

mod adapters;
mod begin;
mod board;
mod common;
mod convert;
mod eval;
mod heal;
mod look;
mod merge;
mod pages;
mod plan;
mod plot;
mod program;
mod quickstart;
mod serve;
mod tiers;
mod train;
mod trials;
