//! All integration tests of the package, in one program: it links once.

mod common;
mod config;
mod documents;
mod generate;
mod golden;
mod layers;
mod loss;
mod model;
mod parallel;
mod traffic;
