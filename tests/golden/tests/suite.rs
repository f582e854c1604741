//! All integration tests of the package, in one program: it links once.

mod aoa;
mod checkpoints;
mod embeddings;
mod indexing;
mod lora;
mod merge;
mod pipeline;
mod programs;
mod qwen2_vl;
mod reshard;
mod rl;
mod sft;
mod spmd;
