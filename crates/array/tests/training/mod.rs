//! The fused training operations against f64 references, finite differences and torch's conventions.

mod cross_entropy;
mod embedding;
mod norm;
mod optim;
mod refused;
mod rotary;
mod softmax;
mod support;
mod swiglu;
