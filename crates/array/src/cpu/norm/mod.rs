//! Normalisation kernels: rows (layer, rms), groups of channels (group, instance) and channels (batch).

pub(crate) mod batch;
pub(crate) mod group;
pub(crate) mod lanes;
pub(crate) mod rows;
