mod crash;
mod faults;
mod large;
pub(crate) mod model;
mod real;
