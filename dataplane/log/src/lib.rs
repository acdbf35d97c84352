//! The partition log: segments, sidecar files, indexes, recovery, retention
//! and producer sessions. All file access goes through [`fs::LogFs`], all index
//! access through [`kv::IndexKv`].

pub mod fs;
pub mod kv;
