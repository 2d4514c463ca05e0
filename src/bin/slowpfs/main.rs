//! A slow parallel filesystem, by a model.
#![allow(dead_code, unused_imports)]
mod model;
fn main() {}
