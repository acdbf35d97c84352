//! talweg-storage
