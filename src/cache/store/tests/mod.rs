mod crash;
mod model;
mod real;
