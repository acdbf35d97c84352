//! talweg-replication
