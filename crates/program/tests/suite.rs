//! All integration tests of the crate, in one program: it links once.

mod damage;
mod passes;
mod patches;
mod roundtrip;
mod windows;
