//! talweg-metastore-mem
