//! talweg-client
