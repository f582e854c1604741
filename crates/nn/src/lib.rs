//! Modules, models, losses and optimizers; parallelism written as layouts.
//!
//! A model is plain structs of [`Param`]s and functions of tensors. [`models::Config`] reads a Hugging Face
//! `config.json` and lists the parameters with their names, shapes and layouts; [`models::Model`] is built from that
//! list, on one rank or on a mesh, and the same lines compute on both.
//!
//! ```
//! use planaria_nn::models::{Config, Model, Run, Stage};
//! use planaria_nn::optim::{AdamW, Rule, Shard};
//! use planaria_nn::{Init, Module};
//! use planaria_tensor::Tensor;
//!
//! let config = Config::from_json(r#"{"model_type": "llama", "vocab_size": 20, "hidden_size": 8,
//!     "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}"#)?;
//! let model = Model::new(&config, Stage::whole(&config), None, &Init::default())?;
//! let rule = Rule::AdamW(AdamW::default());
//! let mut states = Vec::new();
//! for param in model.params() {
//!     states.push(rule.state(param.leaf().local())?);
//! }
//! let tokens = Tensor::from_slice(&[3i64, 1, 4, 1, 5, 9, 2, 6], &[1, 8])?;
//! let labels = Tensor::from_slice(&[1i64, 4, 1, 5, 9, 2, 6, 5], &[1, 8])?;
//!
//! let mut losses = Vec::new();
//! for step in 1..=20 {
//!     let loss = model.loss(&model.forward(&tokens, &Run::default())?, &labels)?;
//!     loss.total()?.backward()?;
//!     losses.push(loss.sum.item()?.as_f64() / loss.count as f64);
//!     for (param, state) in model.params().iter().zip(&states) {
//!         let Some(grad) = param.take_grad()? else { continue };
//!         let (value, grad) = (param.leaf().local(), grad.local());
//!         let shard = Shard { param: value, grad, state, kind: param.kind() };
//!         rule.step(step, 0.01, 1.0 / loss.count as f64, &[shard])?;
//!     }
//! }
//! assert!(losses[19] < 0.5 * losses[0]);
//! # Ok::<(), planaria_nn::Error>(())
//! ```

#![forbid(unsafe_code)]

mod error;
pub mod generate;
pub mod layers;
mod loss;
pub mod models;
pub mod optim;
mod parallel;
mod param;

pub use error::{Error, Result};
pub use loss::{IGNORED, linear_cross_entropy, linear_cross_entropy_by};
pub use parallel::{Lanes, Parallel};
pub use param::{Cut, Init, Kind, Module, Param, ParamSpec, Source, Start};
