//! talweg-controller
