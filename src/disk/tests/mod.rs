pub(crate) mod gated;
pub(crate) mod model;
