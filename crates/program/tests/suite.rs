//! All integration tests of the crate, in one program: it links once.

mod captured;
mod damage;
mod forms;
mod large;
mod onnx;
mod open;
mod passes;
mod patches;
mod roundtrip;
mod single;
