mod crash;
mod large;
mod model;
mod real;
