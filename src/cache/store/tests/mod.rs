mod crash;
mod faults;
mod large;
mod model;
mod real;
