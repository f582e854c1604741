//! All integration tests of the crate, in one program: it links once.

mod captured;
mod damage;
mod onnx;
mod passes;
mod patches;
mod roundtrip;
mod windows;
