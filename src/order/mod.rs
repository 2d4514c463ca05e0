//! Access orders.
