//! All integration tests of the package, in one program: it links once.

mod adapters;
mod begin;
mod board;
mod common;
mod convert;
mod eval;
mod heal;
mod hosts;
mod look;
mod merge;
mod outside;
mod pages;
mod plan;
mod plot;
mod program;
mod quickstart;
mod serve;
mod simulate;
mod tiers;
mod top;
mod train;
mod trials;
mod vision;
