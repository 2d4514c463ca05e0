//! In which order a loader reads that nobody has told about.

pub mod crack;
