//! talweg-kit
