//! A slow parallel filesystem, by a model.
fn main() {}
