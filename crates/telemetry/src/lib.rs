//! Scalars and events of a run: JSON lines, TensorBoard files, curves.
