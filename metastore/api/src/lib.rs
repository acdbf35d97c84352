//! talweg-metastore
