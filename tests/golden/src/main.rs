//! `planaria-golden KIND PATH`.

fn main() {}
