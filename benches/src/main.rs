//! Our benchmark worker.

fn main() {}
