//! talweg-harness
