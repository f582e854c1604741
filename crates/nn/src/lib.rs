//! Modules, models, losses and optimizers; parallelism written as layouts.
//!
//! A model is plain structs of [`Param`]s and functions of tensors. An [`Architecture`](models::Architecture) comes from a
//! Hugging Face `config.json` and lists the parameters with their names, shapes and layouts; a
//! [`Network`](models::Network) is built from that list, on one rank or on a mesh, and the same lines compute on both.
//! [`models::Models`] finds the architecture by its `model_type`; a program can add its own.
//!
//! ```
//! use planaria_nn::models::{Models, Run, Stage};
//! use planaria_nn::optim::{AdamW, Optimizer};
//! use planaria_nn::Init;
//! use planaria_tensor::Tensor;
//!
//! let config = Models::default().open_json(r#"{"model_type": "llama", "vocab_size": 20, "hidden_size": 8,
//!     "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}"#)?;
//! let model = config.build(&Stage::whole(&*config), None, &Init::default())?;
//! let mut optimizer = Optimizer::over(&*model, AdamW { lr: 0.01, ..AdamW::default() })?;
//! let tokens = Tensor::from_slice(&[3i64, 1, 4, 1, 5, 9, 2, 6], &[1, 8])?;
//! let labels = Tensor::from_slice(&[1i64, 4, 1, 5, 9, 2, 6, 5], &[1, 8])?;
//!
//! let mut losses = Vec::new();
//! for _ in 0..20 {
//!     let loss = model.loss(&model.forward((&tokens).into(), &Run::default())?, &labels)?;
//!     loss.total()?.backward()?;
//!     losses.push(loss.sum.item()?.as_f64() / loss.count as f64);
//!     optimizer.step_scaled(1.0 / loss.count as f64)?;
//! }
//! assert!(losses[19] < 0.5 * losses[0]);
//! # Ok::<(), planaria_nn::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod batch;
mod error;
pub mod generate;
pub mod layers;
pub mod lora;
pub mod models;
pub mod optim;
mod parallel;
mod param;
pub mod svd;
mod table;

pub use error::{Error, Result};
pub use parallel::{Lanes, Parallel};
pub use param::{Adaptable, Cut, Init, Module, Param, ParamKind, ParamSpec, Role, Source, Start};
pub use planaria_tensor::ops::{IGNORED, linear_cross_entropy, linear_cross_entropy_by};
pub use table::{COLUMNS, ROWS, Table};
