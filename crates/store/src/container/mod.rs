//! Safetensors files: headers read without data, and laid out before the data exists.
//!
//! A file is eight bytes of header size, the header as JSON, and the data of the tensors one after the other
//! without holes. [`Header::read`] trusts nothing in it. [`FileLayout`] says where every byte of a new file
//! goes, so that several writers can fill it at once.

mod dtype;
mod foreign;
mod header;
mod layout;

pub use dtype::{dtype_name, parse_dtype};
pub use foreign::Foreign;
pub use header::{Header, Limits, TensorInfo};
pub use layout::{Align, FileLayout, NewTensor};
