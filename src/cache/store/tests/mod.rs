mod crash;
mod faults;
mod model;
mod real;
