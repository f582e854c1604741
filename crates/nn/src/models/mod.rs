//! Models: what the trainer asks of one, the table of known ones, and the decoders that come with it.
//!
//! A model is two interfaces. An [`Architecture`] is what a `config.json` says: parameters, blocks and what they cost,
//! but no weights. It builds a [`Network`], a stage of the model with weights. [`Models`] finds the one for a
//! `model_type`. [`DecoderConfig`] and [`Decoder`] serve families that differ in a few keys; each is a small file.

mod architecture;
mod beside;
mod blocks;
mod cost;
mod decoder;
mod gemma2;
mod gemma3;
mod gpt2;
mod head;
mod json;
mod latent;
mod llama;
mod mistral;
mod network;
mod phi3;
mod qwen2;
mod qwen2_moe;
pub mod qwen2_vl;
mod qwen3;
mod qwen3_moe;
mod registry;

pub use architecture::{Architecture, Effect, Setting, Stage, parameter_count, ties};
pub use beside::{BESIDE, Beside};
pub use blocks::{Block, through};
pub use cost::{Cost, Segment, Sizes};
pub use decoder::{Decoder, DecoderBlock, DecoderConfig, Experts, Family, Moe, Variations};
pub use gemma2::GEMMA2;
pub use gemma3::GEMMA3;
pub use gpt2::Gpt2;
pub use head::{Head, Loss, States};
pub use json::Reader;
pub use latent::{LATENT, LATENT_ATTENTION, Latent};
pub use llama::LLAMA;
pub use mistral::MISTRAL;
pub use network::{Activations, Cache, Decode, Network, Recompute, Run, See, Shown};
pub use phi3::PHI3;
pub use qwen2::QWEN2;
pub use qwen2_moe::QWEN2_MOE;
pub use qwen3::QWEN3;
pub use qwen3_moe::QWEN3_MOE;
pub use registry::Models;
