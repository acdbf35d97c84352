//! talweg-gateway
