//! Optimizers on arrays: what one rank holds of a parameter, its gradient and its state, whatever cut it that way.
//!
//! Updates are elementwise, so a shard is updated alike wherever it is; only the gradient's norm looks at all of them,
//! and [`ExactNorm`] makes that the same for every split.

mod ema;
mod exact;
mod loss_scale;
mod optimizer;
mod rule;
mod schedule;

pub use ema::Ema;
pub use exact::ExactNorm;
pub use loss_scale::LossScale;
pub use optimizer::Optimizer;
pub use planaria_array::ops::{
    AdamW, Momentum, Sgd, check_finite_and_unscale, clip_coefficient, scale_in_place,
};
pub use rule::{OptimState, Rule, Shard};
pub use schedule::{Decay, Schedule, Shape};
