//! Tests of all kinds of sources.

pub(super) mod conformance;
pub(super) mod forged;
