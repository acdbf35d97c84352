//! talweg-proto
