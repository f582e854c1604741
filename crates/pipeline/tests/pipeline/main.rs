//! Pipelines on thread ranks: the bits of one rank, the memory of the simulator, and failures that reach everyone.

mod failures;
mod memory;
mod parity;
mod shapes;
mod stack;
