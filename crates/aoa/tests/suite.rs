//! All integration tests of the package, in one program: it links once.

mod common;
mod defects;
mod fuzz;
mod language;
mod lenient;
mod models;
mod properties;
