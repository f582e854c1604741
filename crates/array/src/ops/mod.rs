//! Operations on arrays: shapes and dtypes are checked here, then the device's kernel runs.

mod cast;
mod copy;
