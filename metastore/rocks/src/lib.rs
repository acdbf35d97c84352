//! talweg-metastore-rocks
