//! Modules, models, losses and optimizers; parallelism written as layouts.

#![forbid(unsafe_code)]
