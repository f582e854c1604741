//! The planaria command.

fn main() {}
