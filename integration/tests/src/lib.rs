//! talweg-integration
