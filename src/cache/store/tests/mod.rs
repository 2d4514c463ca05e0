mod crash;
mod faults;
pub(crate) mod gated;
mod large;
pub(crate) mod model;
mod real;
