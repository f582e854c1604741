//! All integration tests of the package, in one program: it links once.

mod common;
mod moves;
mod routes;
mod text;
mod tiles;
