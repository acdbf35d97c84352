//! talweg-controller
pub mod core;
