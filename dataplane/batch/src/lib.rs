//! talweg-batch
